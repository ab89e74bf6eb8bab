//! Readers beside a writer: each sees one commit, whole, as long as it lives.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::faulty::Faulty;
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
