//! The store without one of its precautions, one after the other: a test must notice each.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::mutant;

/// A test of each mutant, with its name. It returns the error that it found, or panics.
pub(crate) type Killer = (String, Box<dyn Fn() -> Result<(), String>>);

/// Runs `killers` in their order for every precaution that they reach, except those that are
/// `needless` on their medium, and prints the test that failed for each.
///
/// # Panics
/// If a test fails with nothing left out, or if no test fails for a mutant.
pub(crate) fn all_are_killed(killers: &[Killer], needless: &[&str]) {
    for (name, run) in killers {
        run().unwrap_or_else(|reason| panic!("{name}, with nothing left out: {reason}"));
    }
    let mut killed = BTreeMap::new();
    let mut alive = Vec::new();
    for name in mutant::met().into_iter().filter(|name| !needless.contains(name)) {
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
    for (name, killer) in &killed {
        println!("{name:<40} {}", killer.chars().take(240).collect::<String>());
    }
    println!("{} mutants killed of {}", killed.len(), killed.len() + alive.len());
    assert!(alive.is_empty(), "nothing notices when these are left out: {alive:?}");
}
