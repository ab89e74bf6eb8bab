//! Crashes at every store, flush and fence of small workloads.

use super::mutants::random;
use super::{Small, workloads};
use crate::explore::backends::{Depth, Step, explore, killed, tell};
use crate::explore::{Counts, Durability, Explorer, Limits};
use crate::medium::{LineDurability, WordDurability};

/// Explores every crash of the workload, and of the operations after the recovery from some of
/// them.
pub(super) fn exploring<D: Durability>(
    subject: &Small,
    steps: &[Step],
    seed: u64,
) -> ([Counts; 2], Result<(), String>) {
    exploring_within::<D>(subject, steps, seed, Limits::default())
}

/// Explores the same within `limits`.
pub(super) fn exploring_within<D: Durability>(
    subject: &Small,
    steps: &[Step],
    seed: u64,
    limits: Limits,
) -> ([Counts; 2], Result<(), String>) {
    let depth = Depth::default();
    let mut explorer = Explorer::new(limits, seed);
    let mut nested = Explorer::new(depth.nested, seed);
    let result = tell(subject, subject.start(), steps)
        .map_err(|reason| format!("without a crash: {reason}"))
        .and_then(|story| explore::<_, D>(subject, &story, &mut explorer, depth, &mut nested));
    ([explorer.counts(), nested.counts()], result)
}

fn survives<D: Durability>(name: &str, subject: &Small, steps: &[Step], seed: u64) {
    let (counts, result) = exploring::<D>(subject, steps, seed);
    println!("{name:<24} {}; within recovery and after it: {}", counts[0], counts[1]);
    if let Err(violation) = result {
        panic!("{name}, seed {seed}, {subject:?}: {violation}");
    }
}

#[test]
fn every_workload_survives_every_crash() {
    for (seed, (name, subject, steps)) in (1..).zip(workloads()) {
        survives::<LineDurability>(name, &subject, &steps, seed);
    }
}

#[test]
fn every_workload_survives_where_words_of_a_line_have_no_order() {
    for (seed, (name, subject, steps)) in (1..).zip(workloads()) {
        survives::<WordDurability>(name, &subject, &steps, seed);
    }
}

/// Ends the process after every event, and crashes the machine when another process has opened the
/// store.
pub(super) fn killing(subject: &Small, steps: &[Step], seed: u64) -> (Counts, Result<(), String>) {
    let mut explorer = Explorer::new(Limits { exhaustive: 256, samples: 32 }, seed);
    let result = tell(subject, subject.start(), steps)
        .and_then(|story| killed::<_, LineDurability>(subject, &story, &mut explorer));
    (explorer.counts(), result)
}

#[test]
fn what_was_seen_after_the_end_of_a_process_survives_the_end_of_the_machine() {
    for (name, subject, steps) in workloads() {
        let (counts, result) = killing(&subject, &steps, 1);
        println!("{name:<24} {counts}");
        result.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    }
}

#[test]
fn random_workloads_survive_every_crash() {
    let seeds = std::env::var("ONEHOP_CRASH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8);
    for seed in 0..seeds {
        let (subject, steps) = random(seed);
        survives::<LineDurability>(&format!("random, seed {seed}"), &subject, &steps, seed);
    }
}
