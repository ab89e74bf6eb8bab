//! Every precaution, left out: some test must fail.

use super::crash::{exploring_within, killing};
use super::{Small, flips, workloads};
use crate::explore::backends::{Damage, Step, random_steps};
use crate::explore::mutants::{Killer, all_are_killed};
use crate::explore::{Limits, Random};
use crate::medium::{LineDurability, WordDurability};

/// Fewer images than without a mutant.
const LIMITS: Limits = Limits { exhaustive: 512, samples: 64 };

/// Returns the tests of each mutant, cheapest first.
fn killers() -> Vec<Killer> {
    let mut killers: Vec<Killer> = Vec::new();
    for (name, subject, steps) in workloads() {
        let run = move || exploring_within::<LineDurability>(&subject, &steps, 1, LIMITS).1;
        killers.push((format!("crashes of \"{name}\""), Box::new(run)));
    }
    killers.push(("two owners of a slot".into(), Box::new(flips::two_owners)));
    killers.push(("flipped bytes of a list".into(), Box::new(|| flips::listed().map(|_| ()))));
    killers.push(("flipped bytes of a super page".into(), Box::new(|| flips::super_page().map(|_| ()))));
    killers.push(("table entries that were others".into(), Box::new(|| flips::stale_entries().map(|_| ()))));
    for (ending, damage) in [(Some(Step::Close), Damage::Nothing), (None, Damage::LastCommit)] {
        let name = format!("flipped bytes, {ending:?}");
        killers.push((name, Box::new(move || flips::flips(ending.clone(), damage, &[0x42]).map(|_| ()))));
    }
    for (name, subject, steps) in workloads().into_iter().take(6) {
        let run = move || exploring_within::<WordDurability>(&subject, &steps, 1, LIMITS).1;
        killers.push((format!("crashes of \"{name}\", words without order"), Box::new(run)));
    }
    for (name, subject, steps) in workloads() {
        let run = move || killing(&subject, &steps, 1).1;
        killers.push((format!("the process ends in \"{name}\""), Box::new(run)));
    }
    for seed in 0..4 {
        let run = move || {
            let (subject, steps) = random(seed);
            exploring_within::<LineDurability>(&subject, &steps, seed, LIMITS).1
        };
        killers.push((format!("crashes of random workload {seed}"), Box::new(run)));
    }
    killers
}

/// Returns a random workload of `seed`, and the store it runs on.
pub(super) fn random(seed: u64) -> (Small, Vec<Step>) {
    let mut random = Random::new(seed);
    let shadow_slots = [0, 1, 3, 8][seed as usize % 4];
    let subject = Small::new(8 + random.below(12) as u32, 8, shadow_slots);
    let subject = if seed % 5 == 4 { subject.by_super_page() } else { subject };
    (subject, random_steps(&mut random, 24, 8))
}

#[test]
fn every_mutant_is_killed() {
    all_are_killed(&killers(), &[]);
}
