//! Watches a worker: what aborts or hangs is noted with its input, and a new worker goes on behind it.

use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::worker::{Length, Order, Progress, keep};

/// A worker that stands still for so long is ended.
const HANG: Duration = Duration::from_secs(30);
/// How often one looks.
const LOOK: Duration = Duration::from_millis(50);
/// Workers that end before they are done, after which a target is given up.
const MOST_RESTARTS: usize = 20;

/// What a target came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sums, and the greatest of times and memory.
    pub totals: Progress,
    /// How long it ran.
    pub took: Duration,
    /// Kinds of failures: a line each, with the command that repeats the first.
    pub failures: Vec<String>,
}

/// Runs a target. `worker` starts a process that does an order.
///
/// # Errors
/// No process can be started, or its files not be read.
pub fn run(order: &Order, worker: impl Fn(&Order) -> Command) -> io::Result<Report> {
    let begun = Instant::now();
    let mut report = Report::default();
    let mut order = order.clone();
    let length = order.length;
    let notes = order.notes.clone();
    for _ in 0..=MOST_RESTARTS {
        let _ = fs::remove_file(notes.join("progress"));
        let (ended, said) = one(&order, &worker)?;
        let progress = Progress::read(&order.notes);
        report.add(progress);
        let why = match ended {
            Ended::Done => break,
            Ended::Hung => "hang".to_string(),
            Ended::Broke(status) => format!("{status}: {}", said.trim()),
        };
        if progress == Progress::default() {
            report.failures.push(format!("{}: cannot begin: {why}", order.target));
            break;
        }
        let name = format!("{}{}", if progress.is_damaged { "" } else { "seed-" }, progress.number);
        let input = input_of(&order, progress, &worker)?;
        let command = keep(&order.root, &order.target, &name, &input)?;
        report.failures.push(format!("{}: {command}: {why}", order.target));
        report.totals.failed += 1;
        match progress.is_damaged {
            true => {
                let read = progress.number + 1 - order.first;
                (order.first, order.first_seed) = (progress.number + 1, u64::MAX);
                order.length = match length {
                    Length::For(time) => Length::For(time.saturating_sub(begun.elapsed())),
                    Length::Short(_) | Length::Only(_) => match order.length {
                        Length::Short(most) | Length::Only(most) => Length::Only(most.saturating_sub(read)),
                        other => other,
                    },
                    Length::Save => break,
                };
            }
            false => order.first_seed = progress.number + 1,
        }
    }
    let kinds = fs::read_to_string(order.notes.join("kinds")).unwrap_or_default();
    report.failures.extend(kinds.lines().map(|line| line.replacen('\t', "\n    ", 1)));
    report.took = begun.elapsed();
    Ok(report)
}

impl Report {
    fn add(&mut self, progress: Progress) {
        let totals = &mut self.totals;
        totals.runs += progress.runs;
        totals.accepted += progress.accepted;
        totals.known += progress.known;
        totals.failed += progress.failed;
        totals.slowest_us = totals.slowest_us.max(progress.slowest_us);
        totals.peak_bytes = totals.peak_bytes.max(progress.peak_bytes);
    }
}

enum Ended {
    Done,
    Hung,
    Broke(ExitStatus),
}

/// Starts a worker, and waits until it ends or stands still; also what it said last.
fn one(order: &Order, worker: &impl Fn(&Order) -> Command) -> io::Result<(Ended, String)> {
    let errors = order.notes.join("errors");
    let mut command = worker(order);
    let mut child = command.stdout(Stdio::null()).stderr(fs::File::create(&errors)?).spawn()?;
    let ended = wait(order, &mut child)?;
    let said = String::from_utf8_lossy(&fs::read(errors)?).into_owned();
    let last: Vec<&str> = said.lines().rev().take(4).collect();
    Ok((ended, last.into_iter().rev().collect::<Vec<_>>().join(" ")))
}

fn wait(order: &Order, child: &mut Child) -> io::Result<Ended> {
    let (mut seen, mut since) = (Progress::default(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Ended::Done } else { Ended::Broke(status) });
        }
        let now = Progress::read(&order.notes);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        // What a target makes before its first input takes its time.
        let patience = if seen == Progress::default() { 4 * HANG } else { HANG };
        if since.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::Hung);
        }
        std::thread::sleep(LOOK);
    }
}

/// The input that a worker was reading.
fn input_of(order: &Order, progress: Progress, worker: &impl Fn(&Order) -> Command) -> io::Result<Vec<u8>> {
    let first_seed = if progress.is_damaged { u64::MAX } else { 0 };
    let order = Order { first: progress.number, first_seed, length: Length::Save, ..order.clone() };
    let _ = one(&order, worker)?;
    fs::read(order.notes.join("input"))
}
