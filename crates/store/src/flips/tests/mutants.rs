//! Every precaution, left out: some test must fail.

use super::crashes::{exploring, failing_fences, parts_are_fenced_before_the_last};
use super::damage::{ENDINGS, bursts, flips, misplacements};
use super::workloads;
use crate::explore::Limits;
use crate::explore::backends::{Damage, Step};
use crate::explore::mutants::{Killer, all_are_killed};

/// Returns the tests of each mutant, cheapest first.
fn killers() -> Vec<Killer> {
    let mut killers: Vec<Killer> = vec![
        ("two fences".into(), Box::new(parts_are_fenced_before_the_last)),
        ("commits damaged together".into(), Box::new(bursts)),
    ];
    for (name, subject, steps) in workloads() {
        let run = move || exploring(&subject, &steps, Limits { exhaustive: 64, samples: 16 }).map(|_| ());
        killers.push((format!("crashes of \"{name}\""), Box::new(run)));
    }
    for (ending, damage) in ENDINGS {
        let name = format!("misplaced slots, {ending:?}");
        killers.push((name, Box::new(move || misplacements(ending.clone(), damage).map(|_| ()))));
    }
    killers.push(("flipped bytes".into(), Box::new(|| flips(Some(Step::Close), Damage::Nothing).map(|_| ()))));
    let for_fences = ["one page, One", "several pages, One", "slots used again, One"];
    for (name, subject, steps) in workloads().into_iter().filter(|(name, ..)| for_fences.contains(&name.as_str())) {
        let run = move || failing_fences(&subject, &steps).map(|_| ());
        killers.push((format!("failed fences in \"{name}\""), Box::new(run)));
    }
    killers
}

#[test]
fn every_mutant_is_killed() {
    // A file has no flush: that precaution is for memory.
    all_are_killed(&killers(), &["superblock.flush"]);
}
