//! `onehop bench ssb|tpch`: runs the queries, checks every answer, and prints their times and moved
//! bytes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onehop_engine::{Error, ErrorKind, ExplainMode, Facts};
use onehop_lab::bench::{Answer, How, Measured, OnDevice, Row, WARM_UP_RUNS, geometric_mean, measure};
use onehop_lab::queries::{Query, SSB, TPCH, choose};
use serde_json::json;

use super::environment::Environment;
use super::output::{self, warn_of_debug_build};
use super::{Bench, default_database, generate};
use crate::args::{BenchArgs, GenArgs, GenFormat, Suite};
use crate::exit::Stop;
use crate::gpu;
use crate::settings;
use crate::terminal::{Terminal, note};
use onehop_engine::units;

/// The subject of a benchmark.
struct Subject<'a> {
    suite: Suite,
    args: &'a BenchArgs,
    path: PathBuf,
    queries: Vec<Query>,
    threads: usize,
    /// The I/O path of scans, as the opened files report it.
    io_path: String,
    environment: Environment,
}

/// Runs the benchmark. A wrong answer fails it, after all queries have run.
pub fn run(suite: Suite, args: &BenchArgs, terminal: &Terminal) -> Result<(), Stop> {
    // Arguments are validated before data is generated.
    let queries = chosen(suite, args)?;
    generate::check_scale(suite, args.sf)?;
    let given = args.settings();
    if let Some(device) = &args.device {
        gpu::require(&*onehop_cuda::devices(None, onehop_cuda::Ending::AtOnce), Some(device))?;
    }
    let threads = settings::threads(&settings::effective(&given)?);
    let path = args.db.clone().unwrap_or_else(|| default_database(suite.name(), args.sf));
    // A database from before the store has a catalog instead.
    if !["store", "catalog"].iter().any(|file| path.join(file).exists()) {
        note(format!("generating {} SF {} into {}", suite.name(), args.sf, path.display()));
        make(suite, args, threads, &path, terminal)?;
    }
    let bench = Bench::open(&path, given, threads)?;
    let io_path = io_path(&bench)?;
    let environment = Environment::find(&path);
    let subject = Subject { suite, args, path, queries, threads, io_path, environment };
    if args.runs > 0 {
        warn_of_debug_build("times", terminal);
    }
    if let Some(device) = args.device.as_ref().filter(|_| args.resident) {
        for table in tables(&bench) {
            bench.execute(&format!("LOAD TABLE {table} INTO '{device}'"))?;
        }
    }
    let measured = measure_all(&subject, &bench)?;
    if let Some(target) = &args.json {
        output::write_text(target, &format!("{:#}\n", subject.json(&measured)))?;
    }
    if args.runs > 0 {
        warn_of_debug_build("times", terminal);
    }
    verdict(&subject, &measured)
}

fn chosen(suite: Suite, args: &BenchArgs) -> Result<Vec<Query>, Stop> {
    let all: &[Query] = match suite {
        Suite::Ssb => &SSB,
        Suite::Tpch => &TPCH,
    };
    match &args.queries {
        None => Ok(all.to_vec()),
        Some(names) => choose(all, names).map_err(|e| Stop::Usage(format!("--queries {names}: {e}"))),
    }
}

fn make(suite: Suite, args: &BenchArgs, threads: usize, path: &Path, terminal: &Terminal) -> Result<(), Stop> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Stop::System(format!("cannot make {}", parent.display()), e))?;
    }
    let args = GenArgs {
        suite,
        sf: args.sf,
        out: path.to_path_buf(),
        format: GenFormat::Segments,
        threads: Some(threads),
        replace: false,
        quiet: false,
    };
    generate::run(&args, terminal)
}

/// Returns the quoted tables of a benchmark.
fn tables(bench: &Bench) -> Vec<String> {
    let names = bench.runtime.block_on(bench.session.names()).tables;
    names.iter().map(|table| format!("\"{}\"", table.replace('"', "\"\""))).collect()
}

/// Returns the I/O path of scans. EXPLAIN takes it from the open files, because the setting is only
/// a preference.
fn io_path(bench: &Bench) -> Result<String, Stop> {
    let mut paths: Vec<String> = Vec::new();
    for table in tables(bench) {
        let sql = format!("SELECT * FROM {table}");
        let explanation = bench.runtime.block_on(bench.session.explain(&sql, ExplainMode::Plan))?;
        explanation.plan.for_each(&mut |node| match &node.facts {
            Facts::Scan(scan) if scan.path != "none" => paths.push(scan.path.clone()),
            _ => {}
        });
    }
    paths.sort();
    paths.dedup();
    Ok(if paths.is_empty() { "none".into() } else { paths.join(", ") })
}

fn measure_all(subject: &Subject<'_>, bench: &Bench) -> Result<Vec<Measured>, Stop> {
    let args = subject.args;
    let mut out = io::stdout().lock();
    let prints = !args.json_to_stdout();
    if prints {
        let header = if args.device.is_some() { DEVICE_HEADER } else { HEADER };
        write!(out, "{}\n{header}\n", subject.head())?;
    }
    let evict = |table: String| format!("EVICT TABLE {table}");
    let before = if args.stream { tables(bench).into_iter().map(evict).collect() } else { Vec::new() };
    let how = How { runs: args.runs, on_device: args.device.is_some(), before };
    let mut measured = Vec::with_capacity(subject.queries.len());
    for query in &subject.queries {
        let result = bench.runtime.block_on(measure(&bench.session, query, args.sf, &how))?;
        if prints {
            writeln!(out, "{}", line(&result))?;
            out.flush()?;
        }
        measured.push(result);
    }
    if prints && let Some(mean) = geometric_mean(&measured) {
        writeln!(out, "{:<6} {:>9}  geometric mean", "", milliseconds(mean))?;
    }
    Ok(measured)
}

impl Subject<'_> {
    fn head(&self) -> String {
        let Self { suite, args, path, queries, threads, io_path, .. } = self;
        let runs = match args.runs {
            0 => format!("{}, for the answer alone: nothing is timed", units::plural(WARM_UP_RUNS as u64, "run")),
            n => format!("{n} of each query, hot: after {WARM_UP_RUNS} that warms up; times are medians of these"),
        };
        let mut lines = vec![
            ("suite", format!("{}, SF {}, {}", suite.name(), args.sf, queries_of(queries.len()))),
            ("database", path.display().to_string()),
            ("seed", "fixed: the rows are a function of the scale factor".into()),
            ("runs", runs),
            ("threads", threads.to_string()),
            ("path", io_path.clone()),
        ];
        lines.extend(args.device.as_ref().map(|device| ("device", format!("{device}, {}", on_device(args)))));
        lines.extend(self.environment.lines());
        output::head(&lines)
    }

    fn json(&self, measured: &[Measured]) -> serde_json::Value {
        let args = self.args;
        json!({
            "schema_version": 2,
            "suite": self.suite.name(),
            "scale_factor": args.sf,
            "seed": "fixed",
            "database": self.path.display().to_string(),
            "threads": self.threads,
            "io_path": self.io_path,
            "device": args.device,
            "device_memory": args.device.as_ref().map(|_| on_device(args)),
            "cache": "hot",
            "warm_up_runs": WARM_UP_RUNS,
            "runs": args.runs,
            "environment": self.environment.json(),
            "geometric_mean_ns": geometric_mean(measured).map(|t| t.as_nanos() as u64),
            "queries": measured.iter().map(Row::from).collect::<Vec<_>>(),
        })
    }
}

/// Describes the contents of the device's memory before a run.
fn on_device(args: &BenchArgs) -> &'static str {
    match (args.resident, args.stream) {
        (true, _) => "resident: all tables were loaded before",
        (_, true) => "streamed: nothing is there before a run",
        _ => "with what earlier runs have left there",
    }
}

fn queries_of(n: usize) -> String {
    if n == 1 { "1 query".into() } else { format!("{n} queries") }
}

const HEADER: &str =
    "query     median       min       max      rows in   rows out       read    blocks read/all      rate  answer";

const DEVICE_HEADER: &str = "query     median       min       max    kernels    touched  moved there        rate  of copying   rows out  answer";

fn device_line(m: &Measured, device: &OnDevice) -> String {
    let time = |t: Option<Duration>| t.map_or("-".to_string(), milliseconds);
    let kernel = format!("{:.2} ms", device.kernel_ns as f64 / 1e6);
    let rate = device.bytes_per_sec().map_or("-".to_string(), |rate| format!("{}/s", units::bytes(rate as u64)));
    let share = device.share().map_or("-".to_string(), |share| format!("{:.0} %", share * 100.0));
    format!(
        "{:<6} {:>9} {:>9} {:>9} {kernel:>10} {:>10} {:>12} {rate:>11} {share:>11} {:>10}  {}",
        m.id,
        time(m.median()),
        time(m.times.first().copied()),
        time(m.times.last().copied()),
        units::bytes(device.read_bytes),
        units::bytes(device.moved_bytes),
        units::count(m.rows_out),
        said(&m.answer),
    )
}

fn said(answer: &Answer) -> String {
    match answer {
        Answer::Verified => "verified".to_string(),
        Answer::NotStored => "no stored answer".to_string(),
        Answer::Wrong { reason } => format!("WRONG: {reason}"),
    }
}

fn line(m: &Measured) -> String {
    if let Some(device) = &m.device {
        return device_line(m, device);
    }
    let time = |t: Option<Duration>| t.map_or("-".to_string(), milliseconds);
    let blocks = format!("{}/{}", m.ledger.blocks_read, m.ledger.blocks_considered);
    let rate = m.read_bytes_per_sec().map_or("-".to_string(), |rate| format!("{}/s", units::bytes(rate as u64)));
    let answer = said(&m.answer);
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

fn verdict(subject: &Subject<'_>, measured: &[Measured]) -> Result<(), Stop> {
    let wrong: Vec<&str> = measured.iter().filter(|m| matches!(m.answer, Answer::Wrong { .. })).map(|m| m.id).collect();
    match wrong.as_slice() {
        [] => Ok(()),
        wrong => Err(Error::new(ErrorKind::Internal, format!("wrong answers: {}", wrong.join(", ")))
            .with_hint(format!(
                "is {} of scale factor {}? If it is, please report this, with the output of `onehop doctor`",
                subject.path.display(),
                subject.args.sf
            ))
            .into()),
    }
}
