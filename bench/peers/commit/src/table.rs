//! Medians of the rounds, and what Onehop's are by the others'.

use serde_json::{Value, json};

use crate::Measured;
use crate::args::{Args, name_of};
use crate::drive::{Data, Point};
use crate::engine::describe;

/// What is compared, on what.
pub fn head(args: &Args) {
    for (name, value) in environment(args) {
        println!("{name:<12} {value}");
    }
    println!(
        "\n{:<8} {:<8} {:>7} {:<8} {:>10} {:>9} {:>9} {:>10} {:>9} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8}",
        "tx keys",
        "keys by",
        "threads",
        "store",
        "commits/s",
        "p50",
        "p99",
        "max",
        "handed",
        "device",
        "by use",
        "file MB",
        "x rate",
        "x handed",
        "x device"
    );
}

/// The lines of a point, when all its rounds are there.
pub fn point(args: &Args, point: &Point, all: &[Measured]) {
    let of = |name: &str, what: &dyn Fn(&Measured) -> f64| median(all, point, name, what);
    let rate = |measured: &Measured| measured.commits_per_sec;
    let handed = |measured: &Measured| measured.handed_bytes_per_commit.unwrap_or(f64::NAN);
    let device = |measured: &Measured| measured.device_bytes_per_commit.unwrap_or(f64::NAN);
    let data = Data { keys: args.keys, value_bytes: args.value_bytes, seed: args.seed };
    for name in &args.engines {
        let ratio = |what: &dyn Fn(&Measured) -> f64| of("onehop", what) / of(name, what);
        println!(
            "{:<8} {:<8} {:>7} {:<8} {:>10.0} {:>9} {:>9} {:>10} {:>9.0} {:>9.0} {:>8.1} {:>8.1} {:>7.2} {:>8.2} {:>8.2}",
            point.transaction_keys,
            name_of(&point.keys),
            point.threads,
            name,
            of(name, &rate),
            time(of(name, &|measured| measured.p50_ns as f64)),
            time(of(name, &|measured| measured.p99_ns as f64)),
            time(of(name, &|measured| measured.max_ns as f64)),
            of(name, &handed),
            of(name, &device),
            of(name, &handed) / data.useful_bytes(point.transaction_keys) as f64,
            of(name, &|measured| measured.file_bytes as f64 / 1e6),
            ratio(&rate),
            ratio(&handed),
            ratio(&device),
        );
    }
}

/// Everything, for programs.
pub fn report(args: &Args, all: &[Measured]) -> Value {
    let environment: serde_json::Map<String, Value> =
        environment(args).into_iter().map(|(name, value)| (name, value.into())).collect();
    json!({ "schema_version": 1, "benchmark": "commit-peers", "environment": environment, "measured": all })
}

fn environment(args: &Args) -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut lines = vec![
        ("machine".to_string(), format!("{}, {cores} cores", cpu.trim_start_matches([' ', '\t', ':']))),
        ("kernel".into(), read("/proc/sys/kernel/osrelease").trim().into()),
        ("file system".into(), file_system(args)),
        (
            "data".into(),
            format!("{} keys of 8 bytes, values of {} bytes; transactions replace values", args.keys, args.value_bytes),
        ),
        (
            "runs".into(),
            format!(
                "{} rounds of {:?} after {:?}, in turns; medians; seed {}",
                args.rounds, args.runtime, args.warm_up, args.seed
            ),
        ),
        (
            "handed".into(),
            "bytes a commit in calls that write, checkpoints included; by use: by bytes of keys and values".into(),
        ),
        (
            "device".into(),
            "bytes a commit that reached the device, by anybody: the file system's journal is in it".into(),
        ),
        ("x".into(), "onehop's by this one's".into()),
    ];
    lines.extend(args.engines.iter().map(|name| (name.clone(), describe(name))));
    lines
}

/// Of the longest mount point that leads to the folder.
fn file_system(args: &Args) -> String {
    let folder = args.folder.canonicalize().unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, point, kind) = (words.next()?, words.next()?, words.next()?);
        folder.starts_with(point).then(|| (point.len(), format!("{kind} on {device} ({})", words.next().unwrap_or(""))))
    });
    mounts.max().map_or("unknown".into(), |(_, text)| text)
}

fn median(all: &[Measured], point: &Point, name: &str, what: &dyn Fn(&Measured) -> f64) -> f64 {
    let of = all.iter().filter(|measured| measured.point == *point && measured.engine == name);
    let mut values: Vec<f64> = of.map(what).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.1} us", ns / 1e3),
    }
}
