//! `onehop bench logreg`: logistic regression by SQL.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use onehop_engine::{units, workers};
use onehop_lab::bench::logreg::data::FEATURES;
use onehop_lab::bench::logreg::report::{Measured, Report, Settings};
use onehop_lab::bench::logreg::{Bench, Error, Setup};
use onehop_lab::bench::report::Unavailable;

use super::environment::Environment;
use super::output::{head, warn_of_debug_build, write_reports};
use super::{cancel_on_interrupt, threads};
use crate::args::LogregArgs;
use crate::exit::Stop;
use crate::gpu;
use crate::terminal::Terminal;

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Runs the benchmark.
pub fn run(args: &LogregArgs, terminal: &Terminal) -> Result<(), Stop> {
    let threads = threads(args.threads)?;
    let runtime = workers(Some(threads))?;
    cancel_on_interrupt(&runtime, &CANCEL);
    warn_of_debug_build("times", terminal);
    let began = Instant::now();
    let stopped = |e: Error| match e {
        Error::Cancelled => Stop::Interrupted(began.elapsed()),
        Error::Engine(e) => e.into(),
        wrong @ Error::Wrong { .. } => Stop::System("the benchmark failed".into(), io::Error::other(wrong)),
    };
    let environment = Environment::find(args.db.as_deref().unwrap_or(Path::new(".")));
    let path = args.db.as_ref().map(|path| path.display().to_string());
    let mut report = Report::new(Settings { source: args.source(), path }, environment.json());
    let is_quiet = args.reports.is_quiet();
    if !is_quiet {
        write_head(args, threads, &environment)?;
    }
    let mut settings = vec![("threads".to_string(), threads.to_string())];
    // Rows beside their table need more than a statement's default on small machines.
    settings.push(("memory_limit".to_string(), "80%".to_string()));
    let source = args.source();
    let (path, rows, labels) = (args.db.clone(), args.rows, args.labels());
    let setup = Setup { path, settings, rows, source, labels, devices: gpu::devices() };
    let bench = Bench::new(setup, runtime).map_err(stopped)?;
    for point in args.points() {
        match bench.unavailable(point.device) {
            Some(reason) => report.unavailable.push(Unavailable { point, reason }),
            None => {
                let measured = bench.measure(point, args.runs as usize, threads, &CANCEL).map_err(stopped)?;
                if !is_quiet {
                    write_point(&measured)?;
                }
                report.points.push(measured);
            }
        }
    }
    if !is_quiet {
        for Unavailable { point, reason } in &report.unavailable {
            let device = point.device.to_string();
            writeln!(io::stdout().lock(), "{:<10} {device:<8} {reason}", point.labels.name())?;
        }
    }
    write_reports(&args.reports, None, || report.json(), || report.csv(), String::new)
}

fn write_head(args: &LogregArgs, threads: usize, environment: &Environment) -> Result<(), Stop> {
    let place = match &args.db {
        Some(path) => path.display().to_string(),
        None => "memory".into(),
    };
    let mut lines = vec![
        ("rows", format!("{} of {FEATURES} features, {:?} in {place}", units::count(args.rows), args.source())),
        ("runs", format!("{}, {}", args.runs, units::plural(threads as u64, "thread"))),
    ];
    lines.extend(environment.lines());
    let columns = format!(
        "{:<10} {:<8} {:>9} {:>9} {:>9} {:>10} {:>10} {:>12} {:>20}",
        "labels", "device", "median", "min", "max", "iterations", "a pass", "rows/s", "log-likelihood"
    );
    Ok(writeln!(io::stdout().lock(), "{}\n{columns}", head(&lines))?)
}

fn write_point(one: &Measured) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:<10} {:<8} {:>7.3} s {:>7.3} s {:>7.3} s {:>10} {:>7.1} ms {:>12} {:>20.6}",
        one.point.labels.name(),
        one.point.device.to_string(),
        one.seconds,
        one.min_seconds,
        one.max_seconds,
        one.iterations,
        one.ms_per_pass,
        units::count(one.rows_per_sec as u64),
        one.log_likelihood
    )?;
    if !one.warnings.is_empty() {
        writeln!(out, "  {}", one.warnings)?;
    }
    Ok(())
}
