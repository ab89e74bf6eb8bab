//! Every precaution, left out: some test must notice.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::crashes::{exploring, failing_fences, parts_are_fenced_before_the_last};
use super::damage::{ENDINGS, bursts, flips, misplacements};
use super::workloads;
use crate::explore::Limits;
use crate::explore::backends::{Damage, Step};
use crate::mutant;

type Killer = (String, Box<dyn Fn() -> Result<(), String>>);

/// What is tried on each mutant, cheapest first.
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
    let killers = killers();
    for (name, run) in &killers {
        run().unwrap_or_else(|reason| panic!("{name}, with nothing left out: {reason}"));
    }
    let mut killed = BTreeMap::new();
    let mut alive = Vec::new();
    std::panic::set_hook(Box::new(|_| {}));
    // A file has nothing to flush: that one is for memory.
    for name in mutant::met().into_iter().filter(|name| *name != "superblock.flush") {
        mutant::leave_out(Some(name));
        let killer = killers.iter().find_map(|(killer, run)| {
            let reason = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("panic".into())).err()?;
            Some(format!("{killer}: {reason}"))
        });
        match killer {
            Some(killer) => drop(killed.insert(name, killer)),
            None => alive.push(name),
        }
    }
    mutant::leave_out(None);
    drop(std::panic::take_hook());
    for (name, killer) in &killed {
        println!("{name:<40} {}", killer.chars().take(240).collect::<String>());
    }
    println!("{} mutants killed of {}", killed.len(), killed.len() + alive.len());
    assert!(alive.is_empty(), "nothing notices when these are left out: {alive:?}");
}
