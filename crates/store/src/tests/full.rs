//! Media without space, of both layouts: every operation succeeds, or reports that the medium is
//! full and has changed nothing, and the store continues afterwards. And media that fail: the store
//! is read-only then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::backend::Backend;
use crate::explore::Random;
use crate::flips::{FlipBackend, FlipOptions};
use crate::lines::{self, LineBackend};
use crate::medium::{Granularity, Limited, Medium};
use crate::options::Syncs;
use crate::{Access, Durability, Error, Options, Result, Store};

const LAYOUTS: [Granularity; 2] = [Granularity::Page, Granularity::Line];

/// Returns options with so little memory that transactions spill.
fn options() -> Options {
    Options::default().cache_bytes(0).transaction_bytes(6 * 4096)
}

fn create(medium: &Arc<Limited>, options: &Options) -> Store {
    create_with(medium, options, 0)
}

/// Creates a store with this number of slots in reserve.
fn create_with(medium: &Arc<Limited>, options: &Options, reserve: u32) -> Store {
    let medium = Arc::clone(medium);
    let backend: Arc<dyn Backend> = match medium.granularity() {
        Granularity::Page => Arc::new(FlipBackend::create(medium, of_flips(reserve)).unwrap()),
        Granularity::Line => Arc::new(LineBackend::create(medium, &of_lines(reserve)).unwrap()),
    };
    Store::on(backend, options, None).unwrap()
}

fn open(medium: &Arc<Limited>, options: &Options) -> Result<Store> {
    open_with(medium, options, 0)
}

fn open_with(medium: &Arc<Limited>, options: &Options, reserve: u32) -> Result<Store> {
    let medium = Arc::clone(medium);
    let backend: Arc<dyn Backend> = match medium.granularity() {
        Granularity::Page => Arc::new(FlipBackend::open(medium, of_flips(reserve), Access::ReadWrite)?),
        Granularity::Line => Arc::new(LineBackend::open(medium, &of_lines(reserve))?),
    };
    Store::on(backend, options, None)
}

fn of_flips(reserve: u32) -> FlipOptions {
    FlipOptions { reserve_min_slots: reserve, ..FlipOptions::tiny(Syncs::One) }
}

fn of_lines(reserve: u32) -> lines::Options {
    lines::Options { reserve_slots: reserve, ..lines::Options::tiny() }
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Checks that readers see the entries of `map`.
fn reads(store: &Store, map: &Map) {
    let tree = store.read().unwrap().tree("t").unwrap();
    let mut entries = tree.iter();
    for (key, value) in map {
        assert_eq!(entries.next_ref().unwrap(), Some((&key[..], &value[..])));
    }
    assert_eq!(entries.next_ref().unwrap(), None);
}

/// Checks that the store has the entries of `map`, is sound, and holds no snapshots or versions.
fn holds(store: &Store, map: &Map) {
    reads(store, map);
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!((store.stats().snapshots, store.stats().versions), (0, 0));
}

/// Returns true on success, and false if there was no space.
fn has_room<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::Full { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

fn put(store: &Store, map: &mut Map, key: &[u8], value: Vec<u8>) -> Result<()> {
    let transaction = store.write()?;
    transaction.tree("t")?.insert(key, &value)?;
    transaction.commit()?;
    map.insert(key.to_vec(), value);
    Ok(())
}

/// Applies some changes to a copy of `map`, and to the store. Fails if there is no space.
fn change(store: &Store, map: &Map, random: &mut Random) -> Result<(crate::WriteTransaction, Map)> {
    let mut after = map.clone();
    let mut transaction = store.write()?;
    if random.below(3) == 0 {
        transaction.use_reserve();
    }
    let savepoint = transaction.savepoint()?;
    for step in 0..[1, 2, 6, 25][random.below(4) as usize] {
        let key = format!("{:03}", random.below(60)).into_bytes();
        let mut tree = transaction.tree("t")?;
        if random.below(3) == 0 {
            tree.remove(&key)?;
            after.remove(&key);
        } else {
            let value = vec![random.below(256) as u8; [0, 30, 700, 5000][random.below(4) as usize]];
            tree.insert(&key, &value)?;
            after.insert(key, value);
        }
        if step == 5 && random.below(4) == 0 {
            transaction.rollback_to(savepoint)?;
            after.clone_from(map);
        }
    }
    Ok((transaction, after))
}

#[test]
fn a_store_without_room_loses_nothing_and_goes_on() {
    for (layout, seed) in LAYOUTS.into_iter().flat_map(|layout| (0..20).map(move |seed| (layout, seed))) {
        let (medium, mut random, mut map) = (Limited::new(layout), Random::new(seed), Map::new());
        let reserve = seed as u32 % 3;
        let mut store = create_with(&medium, &options(), reserve);
        let mut refusals = 0;
        for _ in 0..150 {
            medium.limit([0, 0, 4096, 3 * 4096, 9 * 4104][random.below(5) as usize]);
            match random.below(12) {
                0 => assert!(has_room(store.checkpoint()), "room for checkpoints is kept"),
                1 => assert!(store.maintain().is_ok()),
                2 => {
                    // Closed, or left as by a process that ends.
                    if random.below(2) == 0 {
                        store.close().unwrap()
                    } else {
                        std::mem::forget(store)
                    }
                    store = open_with(&medium, &options(), reserve).unwrap();
                }
                3 => {
                    let later = change(&store, &map, &mut random).and_then(|(transaction, after)| {
                        transaction.commit_with(Durability::Later)?;
                        store.sync()?;
                        Ok(after)
                    });
                    refusals += u64::from(later.as_ref().map_or_else(|_| !has_room(later.clone()), |_| false));
                    map = later.unwrap_or(map);
                }
                _ => {
                    let changed = change(&store, &map, &mut random)
                        .and_then(|(transaction, after)| transaction.commit().map(|()| after));
                    refusals += u64::from(!has_room(changed.clone()));
                    map = changed.unwrap_or(map);
                }
            }
            holds(&store, &map);
        }
        assert!(refusals > 3, "{layout:?}, seed {seed}: {refusals} refusals");
        medium.limit(u64::MAX);
        put(&store, &mut map, b"last", vec![1; 20_000]).unwrap();
        holds(&store, &map);
        store.close().unwrap();
        holds(&open_with(&medium, &options(), reserve).unwrap(), &map);
    }
}

#[test]
fn room_is_kept_for_those_who_make_some() {
    for layout in LAYOUTS {
        let medium = Limited::new(layout);
        let store = Store::create_on(Arc::clone(&medium) as Arc<dyn Medium>, &Options::default()).unwrap();
        let mut map = Map::new();
        medium.limit(0);
        let mut next = 0_u32;
        let mut fill = |map: &mut Map| {
            while has_room(put(&store, map, &next.to_be_bytes(), vec![7; 900])) {
                next += 1;
            }
        };
        for round in 0..5 {
            fill(&mut map);
            holds(&store, &map);
            // More than one page of them, and not adjacent ones.
            let gone: Vec<Vec<u8>> = map.keys().step_by(map.len() / 8).cloned().collect();
            let remove = |reserve: bool| -> Result<()> {
                let mut transaction = store.write()?;
                if reserve {
                    transaction.use_reserve();
                }
                for key in &gone {
                    assert!(transaction.tree("t")?.remove(key)?);
                }
                transaction.commit()
            };
            assert!(!has_room(remove(false)), "{layout:?}, round {round}");
            assert!(has_room(remove(true)), "{layout:?}, round {round}");
            gone.iter().for_each(|key| drop(map.remove(key)));
            holds(&store, &map);
            // All of it may go, regardless of its size: freed pages need little space.
            let mut transaction = store.write().unwrap();
            transaction.use_reserve();
            transaction.drop_tree("t").unwrap();
            if round % 2 == 0 {
                transaction.commit().unwrap();
                map.clear();
            } else {
                transaction.abort();
                let few: Vec<Vec<u8>> = map.keys().take(map.len() / 2).cloned().collect();
                for key in few.chunks(20) {
                    let mut transaction = store.write().unwrap();
                    transaction.use_reserve();
                    key.iter().for_each(|key| assert!(transaction.tree("t").unwrap().remove(key).unwrap()));
                    transaction.commit().unwrap();
                    key.iter().for_each(|key| drop(map.remove(key)));
                }
            }
            holds_if_any(&store, &map);
        }
        // A transaction that takes space in the same group does not get the reserve.
        fill(&mut map);
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert([9; 5], vec![1; 5_000]).unwrap();
        let taking = transaction.commit_later().unwrap();
        let mut transaction = store.write().unwrap();
        transaction.use_reserve();
        let first = map.keys().next().unwrap().clone();
        assert!(transaction.tree("t").unwrap().remove(&first).unwrap());
        let making = transaction.commit_later().unwrap();
        assert!(!has_room(making.wait()) && !has_room(taking.wait()));
        holds(&store, &map);
    }
}

/// Checks as [`holds`] does, also a store whose tree was dropped.
fn holds_if_any(store: &Store, map: &Map) {
    if map.is_empty() {
        assert!(store.read().unwrap().trees().unwrap().is_empty() && store.check().unwrap().is_sound());
    } else {
        holds(store, map);
    }
}

#[test]
fn any_growth_may_fail() {
    for layout in LAYOUTS {
        let mut failing = 1;
        loop {
            let (medium, mut map) = (Limited::new(layout), Map::new());
            let store = create(&medium, &options());
            medium.growths.store(failing + 1, SeqCst);
            for round in 0..40_u8 {
                for _ in 0..2 {
                    let before = map.clone();
                    if has_room(put(&store, &mut map, &[round % 23], vec![round; usize::from(round) * 300])) {
                        break;
                    }
                    holds(&store, &before);
                }
                assert!(map.contains_key(&[round % 23][..]));
            }
            holds(&store, &map);
            drop(store);
            holds(&open(&medium, &options()).unwrap(), &map);
            if (2..=failing + 1).contains(&medium.growths.load(SeqCst)) {
                break;
            }
            failing += 1;
        }
        assert!(failing > 5, "{layout:?}: {failing} growths");
    }
}

#[test]
fn who_commits_for_later_is_told_that_it_was_lost() {
    for layout in LAYOUTS {
        let (medium, mut map) = (Limited::new(layout), Map::new());
        let store = create(&medium, &Options::default());
        put(&store, &mut map, b"before", vec![1; 100]).unwrap();
        medium.limit(0);
        let commit_later = |key: &str| {
            let transaction = store.write().unwrap();
            transaction.tree("t").unwrap().insert(key, vec![2; 40_000]).unwrap();
            transaction.commit_later().unwrap()
        };
        // The first wait finds the error for all: each gets the result of its own.
        let pending: Vec<_> = ["lost", "too"].map(commit_later).into();
        assert!(pending.into_iter().all(|pending| !has_room(pending.wait())));
        holds(&store, &map);
        // A smaller one succeeds, and does not report the loss of others.
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert("after", [3]).unwrap();
        transaction.commit_later().unwrap().wait().unwrap();
        map.insert(b"after".to_vec(), vec![3]);
        // A caller without a `Pending` waits for all commits.
        store.sync().unwrap();
        drop(commit_later("lost"));
        assert!(!has_room(store.sync()));
        put(&store, &mut map, b"again", vec![4; 10]).unwrap();
        store.sync().unwrap();
        holds(&store, &map);
        drop(commit_later("lost"));
        assert!(!has_room(store.close()));
        // The store is closed nevertheless.
        holds(&open(&medium, &Options::default()).unwrap(), &map);
    }
}

#[test]
fn what_changes_nothing_waits_for_what_it_has_seen() {
    for layout in LAYOUTS {
        let medium = Limited::new(layout);
        let store = create(&medium, &Options::default());
        medium.limit(0);
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert("lost", vec![2; 100_000]).unwrap();
        let lost = transaction.commit_later().unwrap();
        let transaction = store.write().unwrap();
        assert!(transaction.tree("t").unwrap().contains("lost").unwrap());
        assert!(!has_room(transaction.commit_later().unwrap().wait()));
        assert!(!has_room(lost.wait()));
        let transaction = store.write().unwrap();
        assert!(transaction.open_tree("t").unwrap().is_none());
        transaction.commit_later().unwrap().wait().unwrap();
    }
}

#[test]
fn each_of_many_threads_is_told_what_became_of_its_own() {
    for layout in LAYOUTS {
        let medium = Limited::new(layout);
        let store = create(&medium, &Options::default());
        medium.limit(20 * 4104);
        let refusals = AtomicU64::new(0);
        let committed: Map = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u8)
                .map(|thread| {
                    let (store, medium, refusals) = (&store, &medium, &refusals);
                    scope.spawn(move || {
                        let mut committed = Map::new();
                        for round in 0..60_u8 {
                            let key = [thread, round];
                            if !has_room(put(store, &mut committed, &key, vec![round; usize::from(round) * 40])) {
                                if refusals.fetch_add(1, SeqCst) % 8 == 7 {
                                    medium.limit(10 * 4104);
                                }
                                // A refused key is absent, and a reader does not wait.
                                assert!(!store.read().unwrap().tree("t").unwrap().contains(key).unwrap());
                            }
                        }
                        committed
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(refusals.load(SeqCst) > 8);
        holds(&store, &committed);
        drop(store);
        holds(&open(&medium, &Options::default()).unwrap(), &committed);
    }
}

#[test]
fn who_spills_on_top_of_what_was_lost_begins_again() {
    for layout in LAYOUTS {
        let (medium, mut map) = (Limited::new(layout), Map::new());
        let store = create(&medium, &options().transaction_bytes(30 * 4096));
        put(&store, &mut map, b"before", vec![1; 100]).unwrap();
        medium.limit(0);
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("t").unwrap();
        // Not enough to spill, and more than the space.
        (0..80_u8).for_each(|key| assert!(!tree.insert([key], [2; 900]).unwrap()));
        let lost = transaction.commit_later().unwrap();
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("t").unwrap();
        let spilled = (0..200_u8).try_for_each(|key| tree.insert([200, key], [3; 900]).map(drop));
        assert!(!has_room(spilled));
        assert!(transaction.commit().is_err());
        assert!(!has_room(lost.wait()));
        holds(&store, &map);
        put(&store, &mut map, b"after", vec![1; 100]).unwrap();
        holds(&store, &map);
    }
}

#[test]
fn what_nobody_waits_for_becomes_durable_with_the_last_handle() {
    for layout in LAYOUTS {
        let (medium, mut map) = (Limited::new(layout), Map::new());
        let store = create(&medium, &options());
        put(&store, &mut map, b"now", vec![1; 100]).unwrap();
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert("later", [2]).unwrap();
        let pending = transaction.commit_later().unwrap();
        map.insert(b"later".to_vec(), vec![2]);
        drop(store);
        // A pending commit keeps the store open, on any thread.
        std::thread::spawn(move || drop(pending)).join().unwrap();
        holds(&open(&medium, &options()).unwrap(), &map);
    }
}

#[test]
fn after_a_fence_that_failed_readers_see_what_was_acknowledged() {
    for (layout, fences) in LAYOUTS.into_iter().flat_map(|layout| (0..60).map(move |fences| (layout, fences))) {
        let (medium, mut map, mut random) = (Limited::new(layout), Map::new(), Random::new(fences));
        let store = create(&medium, &options());
        medium.fences.store(fences, SeqCst);
        let under_way = loop {
            let Ok((transaction, after)) = change(&store, &map, &mut random) else { break None };
            match transaction.commit() {
                Ok(()) => map = after,
                Err(Error::Io { .. }) => break Some(after),
                Err(error) => panic!("{error}"),
            }
        };
        // Twice: the pages read first are evicted.
        reads(&store, &map);
        reads(&store, &map);
        assert!(matches!(store.write(), Err(Error::Poisoned { .. })) || under_way.is_none());
        assert!(store.close().is_err());
        medium.fences.store(u64::MAX, SeqCst);
        let opened = open(&medium, &options()).unwrap();
        let has_all =
            under_way.filter(|after| opened.read().unwrap().tree("t").unwrap().len().unwrap() == after.len() as u64);
        let found = has_all.filter(|after| {
            let tree = opened.read().unwrap().tree("t").unwrap();
            after.iter().all(|(key, value)| tree.get(key).unwrap().is_some_and(|found| found == *value))
        });
        holds(&opened, found.as_ref().unwrap_or(&map));
    }
}
