//! Deferrable work is done when the store is idle, or not at all, and closing a store works in both
//! cases.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::medium::{Granularity, Limited, Medium};
use crate::{Error, Maintenance, MediumKind, Options, Result, Store};

fn idle() -> Options {
    Options::default().maintenance(Maintenance::WhenIdle)
}

/// Puts a value of a few bytes at each of these keys, one per transaction.
fn commit(store: &Store, keys: impl IntoIterator<Item = u32>) -> Result<()> {
    for key in keys {
        let transaction = store.write()?;
        transaction.tree("t")?.insert(key.to_be_bytes(), [key as u8; 30])?;
        transaction.commit()?;
    }
    Ok(())
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number of commits at which a checkpoint costs little compared with their bytes, and none of
/// them has waited for one.
const COMMITS: u32 = 120;

#[test]
fn checkpoints_are_made_when_nobody_commits() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("idle"), &idle()).unwrap();
    let checkpoints = || store.stats().backend.checkpoints;
    for round in 1..=3 {
        let before = checkpoints();
        commit(&store, 0..COMMITS).unwrap();
        until(|| checkpoints() > before);
        // Once: there is no work until the next commit.
        let after = checkpoints();
        std::thread::sleep(Duration::from_millis(120));
        assert_eq!(checkpoints(), after, "round {round}");
    }
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), u64::from(COMMITS));
    assert!(store.check().unwrap().is_sound());
    store.close().unwrap();
    // Without the thread, commits continue until one of them has to wait.
    let store = Store::open(directory.path().join("busy"), &Options::default()).unwrap();
    let before = store.stats().backend.checkpoints;
    commit(&store, 0..COMMITS).unwrap();
    assert_eq!(store.stats().backend.checkpoints, before);
    // Or until a caller has the time.
    assert!(store.maintain().unwrap() && !store.maintain().unwrap());
    assert_eq!(store.stats().backend.checkpoints, before + 1);
}

#[test]
fn pages_that_lie_in_two_slots_are_brought_together_when_nobody_commits() {
    let directory = tempfile::tempdir().unwrap();
    let options = idle().medium(MediumKind::Pmem).shadow_pages(16);
    let store = Store::open(directory.path().join("a.store"), &options).unwrap();
    // Some of their pages, each of which becomes a pair.
    let keys = || (0..8_000).step_by(100);
    let transaction = store.write().unwrap();
    (0..8_000_u32).for_each(|key| assert!(!transaction.tree("t").unwrap().insert(key.to_be_bytes(), [1; 30]).unwrap()));
    transaction.commit().unwrap();
    commit(&store, keys()).unwrap();
    until(|| store.stats().backend.pairs <= 14);
    assert!(store.stats().backend.consolidation_units > 0);
    assert_eq!(store.read().unwrap().tree("t").unwrap().get(100_u32.to_be_bytes()).unwrap().unwrap(), [100; 30]);
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn a_store_is_closed_whatever_is_being_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.store");
    for round in 0..40_u64 {
        let store = Store::open(&path, &idle()).unwrap();
        commit(&store, 0..round as u32 * 3).unwrap();
        // The thread is asleep, resting, at work, or none of these.
        std::thread::sleep(Duration::from_millis(round * 3 % 70));
        if round % 2 == 0 { store.close().unwrap() } else { drop(store) }
    }
    let store = Store::open(&path, &Options::default()).unwrap();
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), 39 * 3);
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn what_fails_meanwhile_is_told_to_the_next_who_commits() {
    let medium = Limited::new(Granularity::Page);
    let store = Store::create_on(Arc::clone(&medium) as Arc<dyn Medium>, &idle()).unwrap();
    let refused = loop {
        commit(&store, 0..COMMITS).unwrap();
        // One for the tables, one for the first superblock.
        medium.fences.store(2, SeqCst);
        until(|| medium.fences.load(SeqCst) == 0);
        std::thread::sleep(Duration::from_millis(20));
        medium.fences.store(u64::MAX, SeqCst);
        // Or the third fence came later than that, and nothing has failed.
        if let Err(refused) = commit(&store, [0]) {
            break refused;
        }
    };
    assert!(matches!(&refused, Error::Poisoned { reason, .. } if reason.contains("told to fail")), "{refused}");
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), u64::from(COMMITS));
    assert!(store.close().is_err());
}
