//! Fuzz targets over their corpora: short and deterministic here, long with `make fuzz`.
//!
//! - `ONEHOP_FUZZ_SECONDS`: the total time.
//! - `ONEHOP_FUZZ_TARGET`: only some targets, by their names.
//! - `ONEHOP_FUZZ_SEED`: the number of the first input.
//! - `ONEHOP_FUZZ_INPUTS`: the exact number of inputs from that one on.
//! - `ONEHOP_FUZZ_INPUT`: a file with one input.
//!
//! Failing inputs are written to `fuzz/failed`.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use onehop_governor::Counting;
use onehop_tests::fuzz::watch::{self, Report};
use onehop_tests::fuzz::worker::{self, Length, Order};
use onehop_tests::fuzz::{Entry, TARGETS, panics};
use tikv_jemallocator::Jemalloc;

/// The allocator enforces the memory limits of statements.
#[global_allocator]
static ALLOCATOR: Counting<Jemalloc> = Counting::new(Jemalloc);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|text| text.parse().unwrap())
}

fn root() -> PathBuf {
    std::path::absolute("../fuzz").unwrap()
}

/// Returns a command that starts this program again, for one order.
fn worker(order: &Order) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let (kind, length) = match order.length {
        Length::For(time) => ("for", time.as_secs()),
        Length::Short(inputs) => ("short", inputs),
        Length::Only(inputs) => ("only", inputs),
        Length::Save => ("save", 0),
    };
    command.args(["--exact", "body_of_a_worker", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("ONEHOP_FUZZ_ORDER", format!("{kind} {length} {} {} {}", order.first, order.first_seed, order.target));
    command.env("ONEHOP_FUZZ_NOTES", &order.notes);
    command
}

#[test]
#[ignore = "run by targets_come_back_with_rows_or_an_error"]
fn body_of_a_worker() {
    let order = variable("ONEHOP_FUZZ_ORDER").unwrap();
    let order: Vec<&str> = order.split(' ').collect();
    let [kind, length, first, first_seed, target] = order[..] else { panic!("{order:?} is no order") };
    let inputs: u64 = length.parse().unwrap();
    let order = Order {
        target: target.to_string(),
        root: root(),
        notes: variable("ONEHOP_FUZZ_NOTES").unwrap().into(),
        first: first.parse().unwrap(),
        first_seed: first_seed.parse().unwrap(),
        length: match kind {
            "for" => Length::For(Duration::from_secs(inputs)),
            "short" => Length::Short(inputs),
            "only" => Length::Only(inputs),
            _ => Length::Save,
        },
    };
    worker::work(&order).unwrap();
}

fn report(entry: &Entry, seconds: Option<u64>) -> Report {
    let notes = tempfile::tempdir().unwrap();
    let length = match (number("ONEHOP_FUZZ_INPUTS"), seconds) {
        (Some(inputs), _) => Length::Only(inputs),
        (None, Some(seconds)) => Length::For(Duration::from_secs(seconds)),
        (None, None) => Length::Short(entry.short_inputs),
    };
    let order = Order {
        target: entry.name.to_string(),
        root: root(),
        notes: notes.path().to_path_buf(),
        first: number("ONEHOP_FUZZ_SEED").unwrap_or(0),
        first_seed: 0,
        length,
    };
    let report = watch::run(&order, worker).unwrap();
    let totals = report.totals;
    let rate = totals.runs as f64 / report.took.as_secs_f64();
    println!(
        "{:<13} {:>9} runs, {rate:>7.0}/s, {:>9} accepted, {} known panics, {} failed, slowest {:.1?}, peak {} MiB",
        entry.name,
        totals.runs,
        totals.accepted,
        totals.known,
        totals.failed,
        Duration::from_micros(totals.slowest_us),
        totals.peak_bytes >> 20
    );
    report.failures.iter().for_each(|failure| println!("    {failure}"));
    report
}

/// Runs one input in this process.
fn repeat(entry: &Entry, input: &str) {
    let path = PathBuf::from(input);
    let input = std::fs::read(if path.is_relative() { root().join("..").join(path) } else { path }).unwrap();
    panics::watch();
    let mut target = entry.make().unwrap();
    let verdict = target.run(&input);
    let panics = panics::take();
    println!("{}: {verdict:?}, {panics:?}, settled: {:?}", entry.name, target.settle());
    assert!(verdict.is_ok() && panics.is_empty());
}

#[test]
fn targets_come_back_with_rows_or_an_error() {
    let wanted = variable("ONEHOP_FUZZ_TARGET");
    let is_wanted =
        |entry: &&Entry| wanted.as_deref().is_none_or(|names| names.split(',').any(|name| name == entry.name));
    let targets: Vec<&Entry> = TARGETS.iter().filter(is_wanted).collect();
    assert!(!targets.is_empty(), "there is no such target");
    if let Some(input) = variable("ONEHOP_FUZZ_INPUT") {
        return repeat(targets[0], &input);
    }
    let seconds = number("ONEHOP_FUZZ_SECONDS");
    let share = seconds.map(|seconds| (seconds / targets.len() as u64).max(1));
    // The times of a long run are measured with one target at a time.
    let at_once = if seconds.is_some() { 1 } else { 2 };
    let (left, failures) = (Mutex::new(targets.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(entry) = left.lock().unwrap().next() else { break };
                    let report = report(entry, share);
                    let mut failures = failures.lock().unwrap();
                    // A target that refuses all of its seeds tests nothing.
                    if report.totals.accepted == 0 && number("ONEHOP_FUZZ_INPUTS").is_none() {
                        failures.push(format!("{} accepts nothing", entry.name));
                    }
                    if report.totals.peak_bytes > entry.most_bytes {
                        failures.push(format!("{}: peak {} MiB", entry.name, report.totals.peak_bytes >> 20));
                    }
                    failures.extend(report.failures);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
