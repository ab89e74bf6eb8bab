//! `onehop bench commit`: small transactions on the store, and how long it takes to open after a crash.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use onehop_engine::{Progress, units};
use onehop_lab::bench::commit::insert::{Inserted, Inserts};
use onehop_lab::bench::commit::report::{Measured, Report, Settings};
use onehop_lab::bench::commit::{Bench, Error, Recovered, recover};
use onehop_store::Options;

use super::cancel_on_interrupt;
use super::environment::Environment;
use super::output::{head, warn_of_debug_build, write_text};
use crate::args::CommitArgs;
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::{Terminal, note};

/// The store's file in the folder that was named.
const FILE: &str = "onehop-bench-commit.store";

/// The folder beside it, of the table that rows are inserted into and the store that they are put into.
const FOLDER: &str = "onehop-bench-commit.inserts";

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Measures.
pub fn run(args: &CommitArgs, terminal: &Terminal) -> Result<(), Stop> {
    check(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|e| Stop::System("cannot listen for Ctrl-C".into(), e))?;
    cancel_on_interrupt(&runtime, &CANCEL);
    warn_of_debug_build("times", terminal);
    let began = Instant::now();
    let mut meter = Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off });
    let stopped = |e: Error| failed(e, began);
    let (path, data, options) = (args.path.join(FILE), args.data(), Options::default());
    let environment = Environment::find(&args.path);
    let settings = Settings {
        path: path.display().to_string(),
        data,
        ramp_ns: nanoseconds(args.ramp),
        runtime_ns: nanoseconds(args.runtime),
        recovered: Vec::new(),
        inserted: Vec::new(),
    };
    let mut report = Report::new(settings, environment.json());
    let table = Table { is_quiet: args.reports.is_quiet() };
    table.head(&report, &environment)?;
    let points = args.points();
    let mut bench = Bench::new(&path, data, &options, args.keep).map_err(stopped)?;
    for (number, point) in points.iter().enumerate() {
        let progress = Progress { done: number as u64, total: points.len() as u64 };
        let name = || format!("{} keys, {}", point.transaction_keys, units::plural(point.threads as u64, "thread"));
        meter.show(progress, began.elapsed(), name);
        report.points.push(bench.measure(point, args.ramp, args.runtime, &CANCEL).map_err(stopped)?);
        meter.aside(|| table.point(report.points.last()))?;
    }
    drop(bench);
    for (number, keys) in args.recover.iter().filter(|keys| **keys > 0).enumerate() {
        let progress = Progress { done: number as u64, total: args.recover.len() as u64 };
        meter.show(progress, began.elapsed(), || format!("recovery of {} keys", units::count(*keys)));
        let at = args.path.join(format!("{FILE}-{keys}"));
        let recovered = recover(&at, onehop_lab::bench::commit::drive::Data { keys: *keys, ..data }, &options, &CANCEL);
        report.settings.recovered.push(recovered.map_err(stopped)?);
    }
    let sessions: Vec<usize> = args.inserts.iter().copied().filter(|threads| *threads > 0).collect();
    if !sessions.is_empty() {
        let mut inserts = Inserts::new(&args.path.join(FOLDER), data).map_err(stopped)?;
        for (number, threads) in sessions.iter().enumerate() {
            let progress = Progress { done: number as u64, total: sessions.len() as u64 };
            meter.show(progress, began.elapsed(), || format!("INSERT, {}", units::plural(*threads as u64, "session")));
            report.settings.inserted.push(inserts.measure(*threads, args.runtime, &CANCEL).map_err(stopped)?);
        }
    }
    drop(meter);
    table.foot(&report)?;
    if let Some(target) = &args.reports.json {
        let json = report.json().map_err(|e| Stop::System("cannot write JSON".into(), e.into()))?;
        write_text(target, &(json + "\n"))?;
    }
    if let Some(target) = &args.reports.csv {
        write_text(target, &report.csv())?;
    }
    if args.keep {
        note(format!("kept {}", path.display()));
    }
    Ok(())
}

fn check(args: &CommitArgs) -> Result<(), Stop> {
    if !args.path.is_dir() {
        return Err(Stop::Usage(format!("{} is not a folder", args.path.display())));
    }
    match args.tx_keys.iter().find(|keys| **keys * 10 > args.keys) {
        Some(keys) => Err(Stop::Usage(format!(
            "--tx-keys {keys}: a transaction may have a tenth of the {} keys that are there (--keys)",
            args.keys
        ))),
        None => Ok(()),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(e: Error, began: Instant) -> Stop {
    match e {
        Error::Cancelled => Stop::Interrupted(began.elapsed()),
        Error::File { attempt, path, source } => Stop::System(format!("cannot {attempt} {path}"), source),
        other => Stop::System("the benchmark of commits failed".into(), io::Error::other(other)),
    }
}

/// The figures for people.
struct Table {
    is_quiet: bool,
}

impl Table {
    fn head(&self, report: &Report, environment: &Environment) -> Result<(), Stop> {
        if self.is_quiet {
            return Ok(());
        }
        let settings = &report.settings;
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        let mut lines = vec![
            ("store", format!("{}, file, one fdatasync a commit", settings.path)),
            (
                "data",
                format!(
                    "{} keys of 8 bytes, values of {} bytes; transactions replace values",
                    units::count(settings.data.keys),
                    settings.data.value_bytes
                ),
            ),
            ("runs", format!("{} s each, after {} s", seconds(settings.runtime_ns), seconds(settings.ramp_ns))),
            ("seed", settings.data.seed.to_string()),
        ];
        lines.extend(environment.lines());
        let columns = format!(
            "{:<8} {:<20} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}",
            "tx keys",
            "keys by",
            "threads",
            "commits/s",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
            "written",
            "device",
            "by use",
            "fences",
            "in batch"
        );
        Ok(writeln!(io::stdout().lock(), "{}\n{columns}", head(&lines))?)
    }

    fn point(&self, measured: Option<&Measured>) -> Result<(), Stop> {
        let (false, Some(one)) = (self.is_quiet, measured) else { return Ok(()) };
        Ok(writeln!(
            io::stdout().lock(),
            "{:<8} {:<20} {:>7} {:>10.0} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.0} {:>9} {:>8.1} {:>8.3} {:>8.2}",
            one.point.transaction_keys,
            one.distribution(),
            one.point.threads,
            one.commits_per_sec,
            time(one.p50_ns),
            time(one.p90_ns),
            time(one.p99_ns),
            time(one.p999_ns),
            time(one.max_ns),
            one.store_written_bytes_per_commit,
            one.device_bytes_per_commit.map_or("-".into(), |bytes| format!("{bytes:.0}")),
            one.write_amplification_ratio,
            one.fences_per_commit,
            one.commits_per_batch
        )?)
    }

    fn foot(&self, report: &Report) -> Result<(), Stop> {
        if self.is_quiet {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "\nwritten: bytes a commit by the store's own count, checkpoints included; by use: by bytes of keys and values. \
             device: by anybody.\nfences: waits for the device a commit. in batch: commits that became durable together."
        )?;
        if !report.settings.recovered.is_empty() {
            writeln!(
                out,
                "\n{:<12} {:>10} {:>12} {:>12} {:>12}",
                "recovery of", "file MB", "commits", "crashed", "closed"
            )?;
        }
        for Recovered { keys, file_bytes, unsettled_commits, crashed_open_ns, closed_open_ns } in
            &report.settings.recovered
        {
            writeln!(
                out,
                "{:<12} {:>10.1} {:>12} {:>12} {:>12}",
                units::count(*keys),
                *file_bytes as f64 / 1e6,
                unsettled_commits,
                time(*crashed_open_ns),
                time(*closed_open_ns)
            )?;
        }
        if !report.settings.inserted.is_empty() {
            writeln!(
                out,
                "\n{:<12} {:>12} {:>12} {:>9} {:>12} {:>12}    one row a transaction: into a bare store, by INSERT",
                "sessions", "store/s", "INSERT/s", "ratio", "store p50", "INSERT p50"
            )?;
        }
        for one in &report.settings.inserted {
            let Inserted { threads, store_commits_per_sec, sql_commits_per_sec, sql_to_store_ratio, .. } = one;
            writeln!(
                out,
                "{threads:<12} {store_commits_per_sec:>12.0} {sql_commits_per_sec:>12.0} {sql_to_store_ratio:>9.2} {:>12} {:>12}",
                time(one.store_p50_ns),
                time(one.sql_p50_ns)
            )?;
        }
        Ok(())
    }
}

/// `94.5 us`, `1.23 ms`.
fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.1} us", ns / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_own_scale() {
        assert_eq!([time(94_512), time(1_234_567), time(2_500_000_000)], ["94.5 us", "1.23 ms", "2.50 s"]);
    }

    #[test]
    fn a_store_that_is_no_store_of_ours_is_told_by_its_file() {
        let error = Error::File { attempt: "copy", path: "a".into(), source: io::Error::other("x") };
        assert!(matches!(failed(error, Instant::now()), Stop::System(what, _) if what == "cannot copy a"));
        assert!(matches!(failed(Error::Cancelled, Instant::now()), Stop::Interrupted(_)));
    }
}
