//! `onehop bench osp`: simulates the flushes of optimized shadow paging against those of logging.
//!
//! The figures are counts, and the same on every machine. Those of a debug build are equal, and
//! slower to compute.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use onehop_engine::Progress;
use onehop_lab::osp::report::{Report, Settings, Simulated};
use onehop_lab::osp::{self, Case, plot, table};

use super::environment::Environment;
use super::output::{head, write_reports};
use super::{listen_for_interrupt, output};
use crate::args::OspArgs;
use crate::exit::Stop;
use crate::progress::{Bar, Meter};
use crate::terminal::Terminal;

/// Set by Ctrl-C. One benchmark runs per process.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Runs the simulation.
pub fn run(args: &OspArgs, terminal: &Terminal) -> Result<(), Stop> {
    let _listening = listen_for_interrupt(&CANCEL)?;
    output::warn_of_debug_build("speed", terminal);
    let (options, accounting) = (args.options(), args.accounting());
    let cases = Case::all(&args.structures, &args.zipf, &args.order);
    let environment = Environment::find(&std::env::temp_dir());
    let mut report = Report::new(Settings::new(&options, accounting), environment.json());
    let began = Instant::now();
    let meter = Mutex::new(Meter::new(if terminal.stderr { Bar::Allowed } else { Bar::Off }));
    let done = AtomicU64::new(0);
    let each = |ran: &osp::Ran| {
        let progress = Progress { done: done.fetch_add(1, Ordering::Relaxed) + 1, total: cases.len() as u64 };
        let name = || format!("{} {}", ran.case.name(), ran.case.distribution());
        meter.lock().unwrap_or_else(PoisonError::into_inner).show(progress, began.elapsed(), name);
    };
    let ran =
        osp::run(&cases, &options, &CANCEL, &each).map_err(|osp::Cancelled| Stop::Interrupted(began.elapsed()))?;
    drop(meter);
    report.points = ran.iter().map(|ran| Simulated::new(ran, accounting)).collect();
    if !args.reports.is_quiet() {
        let mut lines = table::settings(&report);
        lines.extend(environment.lines().into_iter().filter(|(name, _)| matches!(*name, "onehop" | "date")));
        writeln!(io::stdout().lock(), "{}\n{}", head(&lines), table::text(&report).trim_end())?;
    }
    write_reports(&args.reports, args.plot.as_deref(), || report.json(), || report.csv(), || plot::svg(&report))
}
