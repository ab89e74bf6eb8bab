//! Commits of Onehop's store side by side with those of redb, LMDB and SQLite: the same transactions, by the same threads, on
//! the same file system, in turns.
//!
//! 1. Every store is filled once, in a process of its own.
//! 2. In each round, at each point, the stores take turns, each in a process of its own: it opens its store, runs for a while
//!    unmeasured, does what it has put off, and runs measured; then it does again what it has put off. Bytes are counted from the
//!    one to the other, so that checkpoints are in them; time is that of the transactions alone.
//! 3. Bytes are counted by the system, for all stores alike: those handed over in calls that write, and those that reached the
//!    device, which say something if the folder is on a device that nobody else uses.
//!
//! Printed are medians of the rounds, and ratios of Onehop's to the others'.

mod args;
mod engine;
mod table;

// The driver of `onehop bench commit`, and what it draws keys with: the same files, under the names that they know each other by.
#[path = "../../../../crates/lab/src/bench/commit/drive.rs"]
mod drive;
#[path = "../../../../crates/lab/src/osp/random.rs"]
#[allow(dead_code)]
mod keys;
#[path = "../../../../crates/lab/src/generate/random.rs"]
#[allow(dead_code)]
mod mix;
#[path = "../../../../crates/lab/src/bench/commit/written.rs"]
mod written;
mod generate {
    pub(crate) use crate::mix as random;
}
mod osp {
    pub(crate) use crate::keys as random;
}

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use args::Args;
use drive::{Data, Failure, Point, drive, fill};
use written::Written;

/// One engine at one point in one round, as its process tells it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub engine: String,
    #[serde(flatten)]
    pub point: Point,
    pub round: u32,
    pub commits: u64,
    pub commits_per_sec: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// [`Written`], by commit.
    pub handed_bytes_per_commit: Option<f64>,
    pub dirtied_bytes_per_commit: Option<f64>,
    pub device_bytes_per_commit: Option<f64>,
    /// As the store counts them.
    pub own_written_bytes_per_commit: Option<f64>,
    pub fences_per_commit: Option<f64>,
    /// Of all its files.
    pub file_bytes: u64,
}

fn main() -> ExitCode {
    let result = Args::parse().and_then(|args| match args.child.clone() {
        Some(child) => measure(&args, &child),
        None => compare(&args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("commit-peers: {e}");
            ExitCode::FAILURE
        }
    }
}

/// What a child does: one engine, filled or measured.
fn measure(args: &Args, name: &str) -> Result<(), Failure> {
    let folder = args.folder.join(name);
    fs::create_dir_all(&folder)?;
    let engine = engine::open(name, &folder)?;
    let data = Data { keys: args.keys, value_bytes: args.value_bytes, seed: args.seed };
    let Some(point) = args.points.first().filter(|_| args.round > 0) else {
        fill(&*engine, &data)?;
        return engine.settle();
    };
    let go = AtomicBool::new(false);
    // No two runs on a store have the same keys and values.
    let run = args.round * 2;
    drive(&*engine, &data, point, run, args.warm_up, &go)?;
    engine.settle()?;
    let before = (Written::now(&folder), engine.own_counts());
    let driven = drive(&*engine, &data, point, run + 1, args.runtime, &go)?;
    engine.settle()?;
    let after = (Written::now(&folder), engine.own_counts());
    let written = after.0.since(&before.0);
    let each = |count: u64| count as f64 / driven.commits.max(1) as f64;
    let own = after.1.zip(before.1);
    let measured = Measured {
        engine: name.into(),
        point: *point,
        round: args.round,
        commits: driven.commits,
        commits_per_sec: driven.commits as f64 / driven.elapsed.as_secs_f64(),
        p50_ns: driven.latencies.value_at_quantile(0.5),
        p99_ns: driven.latencies.value_at_quantile(0.99),
        max_ns: driven.latencies.max(),
        handed_bytes_per_commit: written.handed_bytes.map(each),
        dirtied_bytes_per_commit: written.dirtied_bytes.map(each),
        device_bytes_per_commit: written.device_bytes.map(each),
        own_written_bytes_per_commit: own.map(|(after, before)| each(after.0 - before.0)),
        fences_per_commit: own.map(|(after, before)| each(after.1 - before.1)),
        file_bytes: folder_bytes(&folder)?,
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// What the parent does.
fn compare(args: &Args) -> Result<(), Failure> {
    fs::create_dir_all(&args.folder)?;
    table::head(args);
    for name in &args.engines {
        let folder = args.folder.join(name);
        if folder.exists() {
            return Err(format!("{} is there already: name a new folder", folder.display()).into());
        }
        child(args, name, 0, args.points.first())?;
    }
    let mut all: Vec<Measured> = Vec::new();
    for (number, point) in args.points.iter().enumerate() {
        for round in 0..args.rounds {
            // Who begins changes: nobody always has the device after the same neighbour.
            let mut names = args.engines.clone();
            let begins = round as usize % names.len().max(1);
            names.rotate_left(begins);
            for name in names {
                let number = number as u32 * args.rounds + round + 1;
                all.push(serde_json::from_str(&child(args, &name, number, Some(point))?)?);
            }
        }
        table::point(args, point, &all);
    }
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_string_pretty(&table::report(args, &all))?)?;
    }
    for name in &args.engines {
        fs::remove_dir_all(args.folder.join(name))?;
    }
    Ok(())
}

/// Runs this program on one engine. Returns what it printed.
fn child(args: &Args, name: &str, round: u32, point: Option<&Point>) -> Result<String, Failure> {
    let words = args.for_child(name, round, point);
    let output = Command::new(std::env::current_exe()?).args(words).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{name} failed").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn folder_bytes(folder: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let (entry, kind) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        sum += if kind.is_dir() { folder_bytes(&entry)? } else { kind.len() };
    }
    Ok(sum)
}
