//! `onehop bench commit`: small transactions on the store, and the time to open it after a crash.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use onehop_engine::{Progress, units};
use onehop_lab::bench::commit::drive::Data;
use onehop_lab::bench::commit::insert::{Inserted, Inserts};
use onehop_lab::bench::commit::mapped::{self, Mapped};
use onehop_lab::bench::commit::report::{Measured, Report, Settings};
use onehop_lab::bench::commit::{Bench, Error, Medium, Recovered, recover};
use onehop_store::{MediumKind, Options};

use super::environment::Environment;
use super::listen_for_interrupt;
use super::output::{head, warn_of_debug_build, write_text};
use crate::args::CommitArgs;
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::{Terminal, note};

/// The name of the store's file in the given folder.
const FILE: &str = "onehop-bench-commit.store";

/// The folder beside it, with the table that rows are inserted into and the bare store.
const FOLDER: &str = "onehop-bench-commit.inserts";

/// Returns the name of the store's file on a medium.
fn file_on(kind: MediumKind) -> String {
    match kind {
        MediumKind::File | MediumKind::Auto => FILE.into(),
        MediumKind::Pmem => format!("{FILE}-pmem"),
    }
}

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Runs the benchmark.
pub fn run(args: &CommitArgs, terminal: &Terminal) -> Result<(), Stop> {
    check(args)?;
    let _listening = listen_for_interrupt(&CANCEL)?;
    warn_of_debug_build("times", terminal);
    let began = Instant::now();
    let mut meter = Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off });
    let stopped = |e: Error| failed(e, began);
    let data = args.data();
    let environment = Environment::find(&args.path);
    let settings = Settings {
        path: args.path.join(args.medium.first().map_or(FILE.into(), |kind| file_on(*kind))).display().to_string(),
        data,
        ramp_ns: nanoseconds(args.ramp),
        runtime_ns: nanoseconds(args.runtime),
        recovered: Vec::new(),
        inserted: Vec::new(),
        mapped: None,
    };
    let mut report = Report::new(settings, environment.json());
    if args.medium.contains(&MediumKind::Pmem) {
        let looked = mapped::look(&args.path.join(format!("{FILE}-mapped")), &data).map_err(stopped)?;
        report.settings.mapped = Some(looked);
    }
    let table = Table { is_quiet: args.reports.is_quiet() };
    table.head(&report, args, &environment)?;
    measure(args, &mut report, &table, &mut meter, began)?;
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
        for kind in &args.medium {
            note(format!("kept {}", args.path.join(file_on(*kind)).display()));
        }
    }
    Ok(())
}

/// Measures all points, and recovery, on each medium in turn.
fn measure(
    args: &CommitArgs,
    report: &mut Report,
    table: &Table,
    meter: &mut Meter,
    began: Instant,
) -> Result<(), Stop> {
    let points = args.points();
    let total = points.len() * args.medium.len();
    for kind in &args.medium {
        let (path, options) = (args.path.join(file_on(*kind)), Options::default().medium(*kind));
        let mut bench = Bench::new(&path, args.data(), &options, args.keep).map_err(|e| failed(e, began))?;
        for point in &points {
            let progress = Progress { done: report.points.len() as u64, total: total as u64 };
            let name = || format!("{} keys, {}", point.transaction_keys, units::plural(point.threads as u64, "thread"));
            meter.show(progress, began.elapsed(), name);
            let measured = bench.measure(point, args.ramp, args.runtime, &CANCEL);
            report.points.push(measured.map_err(|e| failed(e, began))?);
            meter.aside(|| table.point(report.points.last()))?;
        }
        drop(bench);
        for (number, keys) in args.recover.iter().filter(|keys| **keys > 0).enumerate() {
            let progress = Progress { done: number as u64, total: args.recover.len() as u64 };
            meter.show(progress, began.elapsed(), || format!("recovery of {} keys", units::count(*keys)));
            let at = args.path.join(format!("{}-{keys}", file_on(*kind)));
            let recovered = recover(&at, Data { keys: *keys, ..args.data() }, &options, &CANCEL);
            report.settings.recovered.push(recovered.map_err(|e| failed(e, began))?);
        }
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

/// The table of figures.
struct Table {
    is_quiet: bool,
}

impl Table {
    fn head(&self, report: &Report, args: &CommitArgs, environment: &Environment) -> Result<(), Stop> {
        if self.is_quiet {
            return Ok(());
        }
        let settings = &report.settings;
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        let mut lines = vec![("store", settings.path.clone())];
        if args.medium.contains(&MediumKind::File) {
            lines.push(("file", "pages of 4,096 bytes, one fdatasync a commit".into()));
        }
        if let Some(mapped) = &settings.mapped {
            lines.push(of_mapped(mapped));
        }
        lines.extend([
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
        ]);
        lines.extend(environment.lines());
        let columns = format!(
            "{:<7} {:<8} {:<20} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "medium",
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
            "pages",
            "lines",
            "flushed",
            "fences",
            "in batch"
        );
        Ok(writeln!(io::stdout().lock(), "{}\n{columns}", head(&lines))?)
    }

    fn point(&self, measured: Option<&Measured>) -> Result<(), Stop> {
        let (false, Some(one)) = (self.is_quiet, measured) else { return Ok(()) };
        Ok(writeln!(
            io::stdout().lock(),
            "{:<7} {:<8} {:<20} {:>7} {:>10.0} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.0} {:>9} {:>8.1} {:>8.2} {:>8.2} {:>8} {:>8.3} {:>8.2}",
            one.medium.name(),
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
            one.changed_pages_per_commit,
            one.changed_lines_per_commit,
            match one.medium {
                Medium::File => "-".into(),
                Medium::Pmem | Medium::Mapped => format!("{:.2}", one.flushed_lines_per_commit),
            },
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
             device: by all programs.\npages, lines: changed by a commit. flushed: lines, with those of the journal, of consolidation and of \
             checkpoints. fences: waits for the device a commit. in batch: commits that became durable together."
        )?;
        if let Some(mapped) = &report.settings.mapped {
            writeln!(out, "\n{}", of_single_pages(mapped))?;
        }
        if !report.settings.recovered.is_empty() {
            writeln!(
                out,
                "\n{:<7} {:<12} {:>10} {:>12} {:>12} {:>12}",
                "medium", "recovery of", "file MB", "commits", "crashed", "closed"
            )?;
        }
        for Recovered { medium, keys, file_bytes, unsettled_commits, crashed_open_ns, closed_open_ns } in
            &report.settings.recovered
        {
            writeln!(
                out,
                "{:<7} {:<12} {:>10.1} {:>12} {:>12} {:>12}",
                medium.name(),
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

/// Describes mapped memory, which is persistent only if the device is.
fn of_mapped(mapped: &Mapped) -> (&'static str, String) {
    let Mapped { domain, flushes_with, .. } = mapped;
    if mapped.is_persistent {
        ("pmem", format!("persistent memory (MAP_SYNC); lines are safe in the {domain}, flushed with {flushes_with}"))
    } else {
        let what = "a mapped file, not persistent memory: commits outlive the process, not the machine";
        ("mapped", format!("{what}; lines are flushed with {flushes_with}"))
    }
}

/// Returns a text such as `1,000 of 1,000 commits of one page flushed their updated lines and one
/// more ...`.
fn of_single_pages(mapped: &Mapped) -> String {
    format!(
        "{} of {} commits of one page flushed the lines that they updated and one more: {:.2} updated, {:.2} flushed, {:.2} \
         fences a commit, counted at the medium",
        units::count(mapped.single_page_commits_of_updated_lines_plus_one),
        units::count(mapped.single_page_commits),
        mapped.updated_lines_per_commit,
        mapped.flushed_lines_per_commit,
        mapped.fences_per_commit
    )
}

/// Formats a time: `94.5 us`, `1.23 ms`.
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
    fn mapped_memory_is_not_called_persistent_where_it_is_not() {
        let mut mapped = Mapped {
            domain: "operating system".into(),
            is_persistent: false,
            flushes_with: "clwb".into(),
            single_page_commits: 1_000,
            single_page_commits_of_updated_lines_plus_one: 999,
            updated_lines_per_commit: 3.0,
            flushed_lines_per_commit: 4.001,
            fences_per_commit: 2.0,
        };
        let (name, text) = of_mapped(&mapped);
        assert_eq!((name, text.contains("not persistent memory")), ("mapped", true));
        mapped.is_persistent = true;
        mapped.domain = "device".into();
        assert_eq!(of_mapped(&mapped).0, "pmem");
        let counted = of_single_pages(&mapped);
        assert!(counted.starts_with("999 of 1,000 commits of one page"), "{counted}");
        assert!(counted.contains("3.00 updated, 4.00 flushed, 2.00 fences"), "{counted}");
    }

    #[test]
    fn a_store_that_is_no_store_of_ours_is_told_by_its_file() {
        let error = Error::File { attempt: "copy", path: "a".into(), source: io::Error::other("x") };
        assert!(matches!(failed(error, Instant::now()), Stop::System(what, _) if what == "cannot copy a"));
        assert!(matches!(failed(Error::Cancelled, Instant::now()), Stop::Interrupted(_)));
    }
}
