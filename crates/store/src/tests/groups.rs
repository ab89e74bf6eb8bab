//! Group commit: the number of transactions that share a batch, and their outcome when it fails.

use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::faulty::Faulty;
use crate::{Durability, Error, Options, Result, Store};

fn put(store: &Store, key: &str, value: &str) -> Result<()> {
    let transaction = store.write()?;
    transaction.tree("t")?.insert(key, value)?;
    transaction.commit()
}

fn get(store: &Store, key: &str) -> Option<String> {
    let value = store.read().unwrap().tree("t").unwrap().get(key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Starts `threads` threads that each commit one key, with the backend shut. Returns when all
/// except the leader have handed over.
fn gather<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    store: &'scope Store,
    threads: usize,
) -> Vec<std::thread::ScopedJoinHandle<'scope, Result<()>>> {
    let before = store.inner.pages.handed_over();
    let handles = (0..threads).map(|i| scope.spawn(move || put(store, &format!("key {i}"), "1"))).collect();
    while store.inner.pages.handed_over() < before + threads as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    handles
}

#[test]
fn transactions_that_meet_share_a_batch() {
    let (backend, store) = Faulty::store(&Options::default());
    backend.shut();
    let before = backend.commits.load(SeqCst);
    std::thread::scope(|scope| {
        let handles = gather(scope, &store, 8);
        // Handed over, and not durable: no reader sees it.
        assert_eq!(store.read().unwrap().trees().unwrap(), Vec::<String>::new());
        backend.open();
        for handle in handles {
            handle.join().unwrap().unwrap();
        }
    });
    // The first went alone, or with some; all others gathered behind it.
    assert_eq!(backend.commits.load(SeqCst) - before, 2);
    assert!((0..8).all(|i| get(&store, &format!("key {i}")).is_some()));
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn many_threads_lose_no_increment() {
    let (backend, store) = Faulty::store(&Options::default().cache_bytes(0));
    backend.commit_micros.store(2000, SeqCst);
    let (threads, rounds) = (8, 50);
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, start) = (&store, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..rounds {
                    let transaction = store.write().unwrap();
                    let mut tree = transaction.tree("t").unwrap();
                    let count = tree.get("count").unwrap().map_or(0, |v| String::from_utf8_lossy(&v).parse().unwrap());
                    tree.insert("count", (count + 1).to_string()).unwrap();
                    tree.insert(format!("{thread} {round}"), vec![b'x'; 300]).unwrap();
                    transaction.commit().unwrap();
                    // A thread sees its own commit.
                    assert!(get(store, &format!("{thread} {round}")).is_some());
                }
            });
        }
    });
    assert_eq!(get(&store, "count").unwrap(), (threads * rounds).to_string());
    let commits = backend.commits.load(SeqCst);
    assert!(commits < (threads * rounds / 3) as u64, "{commits} batches");
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn a_batch_without_room_takes_back_what_was_built_on_it() {
    let (backend, store) = Faulty::store(&Options::default());
    put(&store, "before", "1").unwrap();
    backend.shut();
    std::thread::scope(|scope| {
        let handles = gather(scope, &store, 4);
        let open = store.write().unwrap();
        assert_eq!((store.epoch(), open.epoch()), (0, 0));
        let mut tree = open.tree("t").unwrap();
        tree.insert("open", "1").unwrap();
        backend.fault.store(1, SeqCst);
        backend.open();
        for handle in handles {
            let failed = handle.join().unwrap();
            assert!(matches!(failed, Err(Error::Full { .. })), "{failed:?}");
        }
        // It is built on a commit that was rolled back.
        assert!(matches!(open.commit(), Err(Error::Full { .. })));
    });
    assert_eq!(get(&store, "before").unwrap(), "1");
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), 1);
    // The epoch shows that a commit is missing.
    assert_eq!((store.epoch(), store.write().unwrap().epoch()), (1, 1));
    put(&store, "after", "1").unwrap();
    assert_eq!(store.epoch(), 1);
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), 2);
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(store.stats().versions, 0);
}

#[test]
fn a_batch_that_fails_poisons() {
    let (backend, store) = Faulty::store(&Options::default());
    put(&store, "before", "1").unwrap();
    backend.shut();
    std::thread::scope(|scope| {
        let handles = gather(scope, &store, 4);
        backend.fault.store(2, SeqCst);
        backend.open();
        for handle in handles {
            let failed = handle.join().unwrap();
            assert!(matches!(failed, Err(Error::Io { .. } | Error::Poisoned { .. })), "{failed:?}");
        }
    });
    assert!(matches!(put(&store, "after", "1"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.checkpoint(), Err(Error::Poisoned { .. })));
    assert_eq!(get(&store, "before").unwrap(), "1");
    assert_eq!(get(&store, "key 0"), None);
}

#[test]
fn a_leader_that_panics_leaves_nobody_waiting() {
    let (backend, store) = Faulty::store(&Options::default().version_bytes(0));
    put(&store, "before", "1").unwrap();
    backend.shut();
    std::thread::scope(|scope| {
        let handles = gather(scope, &store, 4);
        backend.fault.store(3, SeqCst);
        backend.open();
        let ended: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        assert_eq!(ended.iter().filter(|ended| ended.is_err()).count(), 1);
        for refused in ended.into_iter().flatten() {
            assert!(matches!(refused, Err(Error::Poisoned { .. } | Error::Invalid(_))), "{refused:?}");
        }
    });
    assert!(matches!(store.write(), Err(Error::Poisoned { .. })));
    // Snapshots begin, although the batch had discarded those before it.
    assert_eq!(get(&store, "before").unwrap(), "1");
    assert_eq!(get(&store, "key 0"), None);
}

#[test]
fn later_is_with_the_next() {
    let (backend, store) = Faulty::store(&Options::default());
    let before = backend.commits.load(SeqCst);
    for i in 0..10 {
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert([i], "").unwrap();
        transaction.commit_with(Durability::Later).unwrap();
    }
    assert_eq!(backend.commits.load(SeqCst), before);
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), 0);
    put(&store, "now", "").unwrap();
    assert_eq!(backend.commits.load(SeqCst), before + 1);
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), 11);
}

#[test]
fn a_page_that_is_made_and_freed_within_a_group_never_was() {
    let (backend, store) = Faulty::store(&Options::default());
    let pages = store.stats().backend.pages;
    backend.shut();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| put(&store, "a", "1"));
        while backend.commits.load(SeqCst) < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let made = scope.spawn(|| put(&store, "long", &"x".repeat(100_000)));
        while store.inner.pages.handed_over() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut transaction = store.write().unwrap();
        assert!(transaction.drop_tree("t").unwrap());
        let freed = scope.spawn(move || transaction.commit());
        while store.inner.pages.handed_over() < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        backend.open();
        for handle in [first, made, freed] {
            handle.join().unwrap().unwrap();
        }
    });
    assert_eq!(store.stats().backend.pages, pages);
    assert!(store.check().unwrap().is_sound());
}
