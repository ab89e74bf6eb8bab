//! Readers beside a writer: each sees one commit, whole, for its lifetime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::faulty::Faulty;
use crate::medium::{Granularity, Memory};
use crate::{Error, Options, ReadTransaction, Store};

const ACCOUNTS: u32 = 2000;

fn total(reader: &ReadTransaction) -> crate::Result<u64> {
    let tree = reader.tree("accounts")?;
    let (mut entries, mut sum) = (tree.iter(), 0);
    while let Some((_, value)) = entries.next_ref()? {
        sum += String::from_utf8_lossy(value).trim().parse::<u64>().unwrap();
    }
    Ok(sum)
}

fn fill(store: &Store) {
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("accounts").unwrap();
    for account in 0..ACCOUNTS {
        tree.insert(account.to_be_bytes(), "100").unwrap();
    }
    transaction.commit().unwrap();
}

/// Moves money between accounts, in values of changing lengths, so that pages split and merge.
fn transfer(store: &Store, round: u32) {
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("accounts").unwrap();
    let (from, to) = (round * 7919 % ACCOUNTS, round * 104_729 % ACCOUNTS);
    let read = |tree: &crate::TreeMut<'_>, account: u32| {
        let value = tree.get(account.to_be_bytes()).unwrap();
        value.map_or(0, |value| String::from_utf8_lossy(&value).trim().parse::<u64>().unwrap())
    };
    let amount = read(&tree, from).min(10);
    let less = read(&tree, from) - amount;
    if less == 0 {
        tree.remove(from.to_be_bytes()).unwrap();
    } else {
        tree.insert(from.to_be_bytes(), format!("{less:width$}", width = (round % 200) as usize)).unwrap();
    }
    let more = read(&tree, to) + amount;
    tree.insert(to.to_be_bytes(), format!("{more:width$}", width = (round % 300) as usize)).unwrap();
    transaction.commit().unwrap();
}

#[test]
fn readers_see_one_commit_while_a_writer_goes_on() {
    let (_backend, store) = Faulty::store(&Options::default().cache_bytes(40 * 4096).transaction_bytes(20 * 4096));
    fill(&store);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                while !is_over.load(SeqCst) {
                    let reader = store.read().unwrap();
                    assert!(reader.commit() >= last);
                    last = reader.commit();
                    assert_eq!(total(&reader).unwrap(), 100 * u64::from(ACCOUNTS));
                    assert_eq!(total(&reader.clone()).unwrap(), 100 * u64::from(ACCOUNTS));
                }
            });
        }
        for round in 0..3000 {
            transfer(&store, round);
        }
        is_over.store(true, SeqCst);
    });
    assert_eq!((store.stats().snapshots, store.stats().versions), (0, 0));
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn a_reader_whose_versions_outgrow_their_memory_is_told_so() {
    let store = Faulty::store(&Options::default().version_bytes(20 * 4096)).1;
    fill(&store);
    let old = store.read().unwrap();
    for round in 0..500 {
        transfer(&store, round);
    }
    let read = total(&old);
    assert!(matches!(read, Err(Error::SnapshotTooOld { .. })), "{read:?}");
    assert!(store.stats().versions <= 20);
    assert_eq!(total(&store.read().unwrap()).unwrap(), 100 * u64::from(ACCOUNTS));
}

#[test]
fn a_transaction_too_large_for_memory_spills_and_old_readers_are_told_the_truth() {
    let options = Options::default().cache_bytes(8 * 4096).transaction_bytes(16 * 4096);
    for version_pages in [4, 10_000] {
        let (backend, store) = Faulty::store(&options.clone().version_bytes(version_pages * 4096));
        fill(&store);
        let spills = backend.spills.load(SeqCst);
        let before = store.read().unwrap();
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("accounts").unwrap();
        for account in 0..ACCOUNTS {
            tree.insert((account * 7919 % ACCOUNTS).to_be_bytes(), format!("{:>200}", 50)).unwrap();
        }
        assert!(backend.spills.load(SeqCst) > spills + 100);
        assert_eq!(total(&store.read().unwrap()).unwrap(), 100 * u64::from(ACCOUNTS));
        transaction.commit().unwrap();
        match total(&before) {
            Ok(sum) => assert_eq!((sum, version_pages), (100 * u64::from(ACCOUNTS), 10_000)),
            Err(Error::SnapshotTooOld { .. }) => assert_eq!(version_pages, 4),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(total(&store.read().unwrap()).unwrap(), 50 * u64::from(ACCOUNTS));
        drop(before);
        assert!(store.check().unwrap().is_sound());
        assert_eq!(store.stats().versions, 0);
    }
}

#[test]
fn a_spilled_transaction_that_aborts_leaves_nothing() {
    let (backend, store) = Faulty::store(&Options::default().cache_bytes(8 * 4096).transaction_bytes(16 * 4096));
    fill(&store);
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("accounts").unwrap();
    for account in 0..ACCOUNTS {
        tree.insert(account.to_be_bytes(), vec![b' '; 500]).unwrap();
    }
    assert!(backend.spills.load(SeqCst) > 0);
    transaction.abort();
    assert_eq!(total(&store.read().unwrap()).unwrap(), 100 * u64::from(ACCOUNTS));
    transfer(&store, 1);
    assert!(store.check().unwrap().is_sound());
}

/// Fills pages with four entries each.
fn fill_pages(store: &Store) {
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("pages").unwrap();
    for key in 0..100_u8 {
        tree.insert([key], [0; 900]).unwrap();
    }
    transaction.commit().unwrap();
}

/// Returns a transaction that changes `pages` pages.
fn change_pages(store: &Store, pages: u8) -> crate::WriteTransaction {
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("pages").unwrap();
    (0..pages).for_each(|page| assert!(tree.insert([page * 8], [1; 900]).unwrap()));
    transaction
}

#[test]
fn what_is_committed_for_later_does_not_keep_readers_from_beginning() {
    let store = Faulty::store(&Options::default().version_bytes(4 * 4096)).1;
    fill_pages(&store);
    // Not all versions that it replaces are known. No snapshot can begin before it is durable, so
    // the commit is not deferred.
    change_pages(&store, 10).commit_with(crate::Durability::Later).unwrap();
    assert_eq!(store.read().unwrap().tree("pages").unwrap().get([0]).unwrap().unwrap(), [1; 900]);
}

#[test]
fn readers_begin_after_a_failure_and_see_what_was_acknowledged() {
    let (backend, store) = Faulty::store(&Options::default().version_bytes(4 * 4096));
    fill_pages(&store);
    backend.fault.store(2, SeqCst);
    assert!(matches!(change_pages(&store, 10).commit(), Err(Error::Io { .. })));
    assert!(matches!(store.write(), Err(Error::Poisoned { .. })));
    let tree = store.read().unwrap().tree("pages").unwrap();
    assert!(tree.iter().all(|entry| entry.unwrap().value() == [0; 900]));
    assert_eq!(store.stats().versions, 0);
}

#[test]
fn a_reader_whose_versions_are_gone_does_not_come_back_to_life() {
    let (backend, store) = Faulty::store(&Options::default().version_bytes(4 * 4096));
    fill_pages(&store);
    let old = store.read().unwrap();
    change_pages(&store, 4).commit().unwrap();
    assert!(old.tree("pages").is_ok());
    backend.shut();
    std::thread::scope(|scope| {
        let handed_over = store.inner.pages.handed_over();
        let passes = change_pages(&store, 4);
        let passes = scope.spawn(|| passes.commit());
        while store.inner.pages.handed_over() == handed_over {
            std::thread::yield_now();
        }
        // Discards all readers before it, and finds no space. Meanwhile the commit before it has no
        // memory for this reader.
        let fails = change_pages(&store, 10);
        let fails = scope.spawn(|| fails.commit());
        while store.inner.pages.handed_over() == handed_over + 1 {
            std::thread::yield_now();
        }
        backend.passing.store(1, SeqCst);
        backend.fault.store(1, SeqCst);
        backend.open();
        passes.join().unwrap().unwrap();
        assert!(matches!(fails.join().unwrap(), Err(Error::Full { .. })));
    });
    assert!(matches!(old.tree("pages"), Err(Error::SnapshotTooOld { .. })));
    assert!(store.read().unwrap().tree("pages").is_ok());
}

#[test]
fn savepoints_that_are_over_take_no_memory() {
    let store = Faulty::store(&Options::default().version_bytes(8 * 4096)).1;
    fill_pages(&store);
    let old = store.read().unwrap();
    let mut transaction = store.write().unwrap();
    for round in 0..100_u8 {
        let outer = transaction.savepoint().unwrap();
        transaction.tree("pages").unwrap().insert([round % 8], [2; 900]).unwrap();
        let inner = transaction.savepoint().unwrap();
        transaction.tree("pages").unwrap().insert([round % 8], [3; 900]).unwrap();
        if round % 3 == 0 { transaction.rollback_to(inner) } else { transaction.release(inner) }.unwrap();
        if round % 2 == 0 {
            transaction.rollback_to(outer).unwrap();
        }
        transaction.release(outer).unwrap();
    }
    transaction.tree("pages").unwrap().insert([90], [4; 900]).unwrap();
    transaction.commit().unwrap();
    let tree = old.tree("pages").unwrap();
    assert!(tree.iter().all(|entry| entry.unwrap().value() == [0; 900]), "there was room for its versions");
}

/// Inflates the accounts beyond the memory.
fn inflate(store: &Store) -> crate::WriteTransaction {
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("accounts").unwrap();
    for account in 0..ACCOUNTS {
        tree.insert(account.to_be_bytes(), vec![b'9'; 200]).unwrap();
    }
    transaction
}

#[test]
fn readers_see_one_commit_on_both_layouts_whatever_else_goes_on() {
    for granularity in [Granularity::Page, Granularity::Line] {
        let options = Options::default().cache_bytes(10 * 4096).transaction_bytes(20 * 4096);
        let store = Store::create_on(Arc::new(Memory::new(granularity)), &options).unwrap();
        fill(&store);
        let directory = tempfile::tempdir().unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(SeqCst) {
                        assert_eq!(total(&store.read().unwrap()).unwrap(), 100 * u64::from(ACCOUNTS));
                    }
                });
            }
            scope.spawn(|| {
                for copy in 0..3 {
                    let path = directory.path().join(copy.to_string());
                    store.backup(&path).unwrap();
                    let copy = Store::open(&path, &Options::default()).unwrap();
                    assert_eq!(total(&copy.read().unwrap()).unwrap(), 100 * u64::from(ACCOUNTS));
                }
            });
            for round in 0..600 {
                transfer(&store, round);
                match round % 60 {
                    10 => inflate(&store).abort(),
                    20 => store.checkpoint().unwrap(),
                    30 => assert!(store.check().unwrap().is_sound()),
                    40 => {
                        let mut transaction = store.write().unwrap();
                        let savepoint = transaction.savepoint().unwrap();
                        transaction.drop_tree("accounts").unwrap();
                        transaction.rollback_to(savepoint).unwrap();
                        transaction.commit().unwrap();
                    }
                    _ => assert!(store.maintain().is_ok()),
                }
            }
            is_over.store(true, SeqCst);
        });
        assert_eq!((store.stats().snapshots, store.stats().versions), (0, 0));
        assert!(store.check().unwrap().is_sound());
    }
}
