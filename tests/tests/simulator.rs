//! The simulator over fixed seeds, and over any number of seeds: `make simulate SEEDS=100000
//! SEED=1`.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use onehop_engine::STACK_BYTES;
use onehop_tests::simulator::{Counts, Failure, Options, simulate};

/// Simulates seeds on all cores, until one fails.
fn simulate_all(
    seeds: std::ops::Range<u64>,
    options: &Options,
    hear: impl Fn(&Counts) + Sync,
) -> Result<Counts, Box<Failure>> {
    let (next, totals) = (AtomicU64::new(seeds.start), Mutex::new((Counts::default(), None::<Box<Failure>>)));
    let worker = || {
        loop {
            let seed = next.fetch_add(1, SeqCst);
            if seed >= seeds.end || totals.lock().unwrap().1.is_some() {
                return;
            }
            let simulated = simulate(seed, options);
            let mut totals = totals.lock().unwrap();
            match simulated {
                Ok(counts) => {
                    totals.0 = totals.0.with(counts);
                    hear(&totals.0);
                }
                // Reports the smallest failing seed.
                Err(failure) => match &totals.1 {
                    Some(earlier) if earlier.seed < seed => {}
                    _ => totals.1 = Some(failure),
                },
            }
        }
    };
    on_all_cores(worker);
    match totals.into_inner().unwrap() {
        (_, Some(failure)) => Err(failure),
        (counts, None) => Ok(counts),
    }
}

fn on_all_cores(worker: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, &worker).unwrap();
        }
    });
}

/// Runs on a thread with a stack large enough for plans.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn crashes_and_failures_leave_what_was_acknowledged() {
    let options = Options { images: 2, ..Options::default() };
    let begun = Instant::now();
    match simulate_all(1..61, &options, |_| {}) {
        Ok(counts) => println!("{counts}, in {:.1?}", begun.elapsed()),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn a_seed_repeats_itself() {
    on_large_stack(|| {
        // The last seed opens a database whose removed segments are gone.
        for seed in [1, 2, 3, 4, 5, 16] {
            let once = simulate(seed, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
            let again = simulate(seed, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(
                (once.trace, once.images, once.distinct),
                (again.trace, again.images, again.distinct),
                "seed {seed}"
            );
        }
    });
}

/// Precautions of the engine and of the store, omitted one by one.
const MUTANTS: [&str; 23] = [
    "checkpoint.commit-first",
    "commit.conflict",
    "commit.doubt",
    "commit.keep-files",
    "commit.names-first",
    "commit.next-id",
    "commit.publish-durable",
    "commit.reload",
    "commit.settle",
    "commit.sync-names",
    "commit.wait",
    "load.remove-files",
    "open.next-row",
    "orphans.known",
    "removed.remember",
    "segment.identity",
    "snapshot.keep-files",
    "flips.checkpoint.fence",
    "flips.checkpoint.keep-chain",
    "flips.checkpoint.keep-tables",
    "flips.commit.fence",
    "flips.commit.keep-replaced",
    "superblock.fence",
];

/// Selects syncs by the names of their objects.
type IsSynced = fn(&str) -> bool;

/// Syncs that the disk omits.
const FORGOTTEN: [(&str, IsSynced); 4] = [
    ("sync of segments", |object| object.ends_with(".seg")),
    ("sync of the store", |object| object.starts_with("store")),
    ("sync of the folder of segments", |object| object == "segments/"),
    ("sync of the directory", |object| object.is_empty()),
];

/// Returns the first seed that fails, and its failure, or `None` if none does.
fn killed(options: &Options, seeds: u64) -> Option<(u64, String)> {
    (1..=seeds).find_map(|seed| {
        let simulated = catch_unwind(AssertUnwindSafe(|| simulate(seed, options)));
        match simulated {
            Ok(simulated) => {
                simulated.err().map(|failure| (seed, failure.reason.lines().next().unwrap_or_default().into()))
            }
            Err(_) => Some((seed, "it panics".into())),
        }
    })
}

#[test]
fn every_mutant_is_killed() {
    let seeds = number("ONEHOP_SIMULATE_MUTANT_SEEDS", 200);
    let wanted = std::env::var("ONEHOP_SIMULATE_MUTANT").unwrap_or_default();
    let of_engine = MUTANTS.map(|name| (name, Options { mutant: Some(name), ..Options::default() }));
    let of_disk =
        FORGOTTEN.map(|(name, forgotten)| (name, Options { forgotten: Some(forgotten), ..Options::default() }));
    let mutants: Vec<_> = of_engine.into_iter().chain(of_disk).filter(|(name, _)| name.contains(&wanted)).collect();
    let (next, alive) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some((name, options)) = mutants.get(next.fetch_add(1, SeqCst) as usize) {
            match killed(options, seeds) {
                Some((seed, reason)) => {
                    println!("{name:<32} seed {seed:>4}: {}", reason.chars().take(160).collect::<String>())
                }
                None => alive.lock().unwrap().push(*name),
            }
        }
    };
    on_all_cores(worker);
    let alive = alive.into_inner().unwrap();
    assert!(alive.is_empty(), "{seeds} seeds notice nothing when these are left out: {alive:?}");
}

/// `make simulate`.
#[test]
#[ignore = "as long as one likes: make simulate"]
fn simulate_seeds() {
    let (seed, seeds) = (number("ONEHOP_SIMULATE_SEED", 1), number("ONEHOP_SIMULATE_SEEDS", 1000));
    let begun = Instant::now();
    let said = Mutex::new(begun);
    let hear = |counts: &Counts| {
        let mut said = said.lock().unwrap();
        if said.elapsed() >= Duration::from_secs(10) {
            *said = Instant::now();
            let seconds = begun.elapsed().as_secs_f64();
            println!(
                "{counts}; {:.1} seeds/s, {:.0} points/s",
                counts.seeds as f64 / seconds,
                counts.points as f64 / seconds
            );
        }
    };
    match simulate_all(seed..seed + seeds, &Options::default(), hear) {
        Ok(counts) => {
            let seconds = begun.elapsed().as_secs_f64();
            let (per_seed, per_point) = (counts.seeds as f64 / seconds, counts.points as f64 / seconds);
            println!(
                "{counts}; {seconds:.0} s, {per_seed:.1} seeds/s, {per_point:.0} points/s; trace {:016x}",
                counts.trace
            );
        }
        Err(failure) => panic!("{failure}"),
    }
}
