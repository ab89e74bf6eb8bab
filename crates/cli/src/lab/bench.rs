//! `onehop bench ssb|tpch`: runs the queries, checks every answer, prints what they took and what they moved.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use onehop_engine::{Error, ErrorKind};
use onehop_lab::bench::{Answer, Measured, Row, geometric_mean, measure};
use onehop_lab::queries::{Query, SSB, TPCH};
use serde_json::json;

use super::{Bench, default_database, generate, threads};
use crate::args::{BenchArgs, GenArgs, GenFormat, Suite};
use crate::exit::Stop;
use crate::terminal::{Terminal, note};
use crate::units;

/// Runs the benchmark. A wrong answer fails it, after all queries have run.
pub fn run(args: &BenchArgs, terminal: &Terminal) -> Result<(), Stop> {
    let suite = args.suite.name();
    let path = args.db.clone().unwrap_or_else(|| default_database(suite, args.sf));
    if !path.join("catalog").exists() {
        note(format!("generating {suite} SF {} into {}", args.sf, path.display()));
        make(args, &path, terminal)?;
    }
    let threads = threads(args.threads);
    let mut settings = args.set.clone();
    settings.push(("threads".into(), threads.to_string()));
    let bench = Bench::open(&path, settings, threads)?;
    let queries = chosen(args)?;
    let mut out = io::stdout().lock();
    let prints = !args.json_to_stdout();
    if prints {
        writeln!(out, "{suite} SF {}, {} threads, median of {} runs, {}", args.sf, threads, args.runs, path.display())?;
        writeln!(out, "{HEADER}")?;
    }
    let mut measured = Vec::with_capacity(queries.len());
    for query in &queries {
        let result = bench.runtime.block_on(measure(&bench.session, query, args.sf, args.runs))?;
        if prints {
            writeln!(out, "{}", line(&result))?;
            out.flush()?;
        }
        measured.push(result);
    }
    if prints && let Some(mean) = geometric_mean(&measured) {
        writeln!(out, "{:<6} {:>9}  geometric mean", "", milliseconds(mean))?;
    }
    if let Some(target) = &args.json {
        let text = format!("{:#}\n", report(args, &path, threads, &measured));
        match target.to_str() {
            Some("-") => out.write_all(text.as_bytes())?,
            _ => std::fs::write(target, text)
                .map_err(|e| Stop::System(format!("cannot write {}", target.display()), e))?,
        }
    }
    verdict(&measured)
}

fn make(args: &BenchArgs, path: &Path, terminal: &Terminal) -> Result<(), Stop> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Stop::System(format!("cannot make {}", parent.display()), e))?;
    }
    let args = GenArgs {
        suite: args.suite,
        sf: args.sf,
        out: path.to_path_buf(),
        format: GenFormat::Segments,
        threads: args.threads,
        replace: false,
        quiet: false,
    };
    generate::run(&args, terminal)
}

fn chosen(args: &BenchArgs) -> Result<Vec<Query>, Stop> {
    let all: &[Query] = match args.suite {
        Suite::Ssb => &SSB,
        Suite::Tpch => &TPCH,
    };
    if args.queries.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |wanted: &String| {
        let wanted = wanted.to_lowercase();
        let padded = wanted.strip_prefix('q').and_then(|n| n.parse::<u8>().ok()).map(|n| format!("q{n:02}"));
        let found = all.iter().find(|query| query.id == wanted || Some(query.id) == padded.as_deref());
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|query| query.id).collect();
            Stop::Usage(format!("there is no query {wanted}: {}", known.join(", ")))
        })
    };
    args.queries.iter().map(find).collect()
}

const HEADER: &str =
    "query     median       min       max      rows in   rows out       read    blocks read/all      rate  answer";

fn line(m: &Measured) -> String {
    let time = |t: Option<Duration>| t.map_or("-".to_string(), milliseconds);
    let blocks = format!("{}/{}", m.ledger.blocks_read, m.ledger.blocks_considered);
    let rate = m.read_bytes_per_sec().map_or("-".to_string(), |rate| format!("{}/s", units::bytes(rate as u64)));
    let answer = match &m.answer {
        Answer::Verified => "verified".to_string(),
        Answer::NotStored => "no stored answer".to_string(),
        Answer::Wrong { reason } => format!("WRONG: {reason}"),
    };
    format!(
        "{:<6} {:>9} {:>9} {:>9} {:>12} {:>10} {:>10} {:>18} {:>9}  {answer}",
        m.id,
        time(m.median()),
        time(m.times.first().copied()),
        time(m.times.last().copied()),
        units::count(m.ledger.rows_scanned),
        units::count(m.rows_out),
        units::bytes(m.ledger.read_bytes()),
        blocks,
        rate,
    )
}

fn milliseconds(t: Duration) -> String {
    format!("{:.1} ms", t.as_secs_f64() * 1e3)
}

fn report(args: &BenchArgs, path: &Path, threads: usize, measured: &[Measured]) -> serde_json::Value {
    json!({
        "schema_version": 1,
        "onehop_version": env!("CARGO_PKG_VERSION"),
        "suite": args.suite.name(),
        "scale_factor": args.sf,
        "database": path.display().to_string(),
        "threads": threads,
        "runs": args.runs,
        "geometric_mean_ns": geometric_mean(measured).map(|t| t.as_nanos() as u64),
        "queries": measured.iter().map(Row::from).collect::<Vec<_>>(),
    })
}

fn verdict(measured: &[Measured]) -> Result<(), Stop> {
    let wrong: Vec<&str> = measured.iter().filter(|m| matches!(m.answer, Answer::Wrong { .. })).map(|m| m.id).collect();
    match wrong.as_slice() {
        [] => Ok(()),
        wrong => Err(Error::new(ErrorKind::Internal, format!("wrong answers: {}", wrong.join(", ")))
            .with_hint("please report this, with the output of `onehop doctor`")
            .into()),
    }
}
