//! Watches a worker. An abort or a hang is recorded with its input, and a new worker continues
//! after it.

use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::worker::{Length, Order, Progress, keep};

/// The time without progress after which a worker is killed.
const HANG: Duration = Duration::from_secs(30);
/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(50);
/// The number of premature ends of workers after which a target is abandoned.
const MOST_RESTARTS: usize = 20;

/// The report of a target.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The sums of all workers, and the maxima of times and memory.
    pub totals: Progress,
    /// The duration of the run.
    pub took: Duration,
    /// The kinds of failures: a line each, with the command that repeats the first.
    pub failures: Vec<String>,
}

/// Runs a target. `worker` starts a process that carries out an order.
///
/// # Errors
/// Fails if a process cannot be started, or its files cannot be read.
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

/// Starts a worker, and waits until it ends or hangs. Returns its end and its last output.
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
        // The setup of a target before its first input takes time.
        let patience = if seen == Progress::default() { 4 * HANG } else { HANG };
        if since.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::Hung);
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the input that a worker was reading.
fn input_of(order: &Order, progress: Progress, worker: &impl Fn(&Order) -> Command) -> io::Result<Vec<u8>> {
    let first_seed = if progress.is_damaged { u64::MAX } else { 0 };
    let order = Order { first: progress.number, first_seed, length: Length::Save, ..order.clone() };
    let _ = one(&order, worker)?;
    fs::read(order.notes.join("input"))
}
