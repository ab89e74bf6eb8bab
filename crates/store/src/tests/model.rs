//! The store against `BTreeMap`s: random transactions over several trees, with savepoints, aborts,
//! reopening and readers, in so little memory that pages are evicted and spilled constantly.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use crate::backend::Backend;
use crate::pages::Volatile;
use crate::{Durability, Options, ReadTransaction, Savepoint, Store, Tree, WriteTransaction};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Model = BTreeMap<String, Map>;

#[derive(Clone, Debug)]
enum Step {
    Insert { tree: u8, key: Key, value: Filled },
    InsertMany { tree: u8, from: u16, count: u16, is_descending: bool, value: Filled },
    Remove { tree: u8, key: Key },
    RemoveMany { tree: u8, from: u16, count: u16 },
    Clear { tree: u8 },
    Drop { tree: u8 },
    Savepoint,
    RollBackTo(u8),
    Release(u8),
    Commit,
    CommitLater,
    Abort,
    Reopen,
    Read,
    EndRead(u8),
    Range { tree: u8, from: Key, to: Key, turns: Vec<bool> },
}

/// Keys of few numbers, so that they recur, and of all lengths.
#[derive(Clone, Debug)]
struct Key(u16, u16);

impl Key {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{:05}", self.0).into_bytes();
        bytes.resize(usize::from(self.1).max(5), b'k');
        bytes
    }
}

#[derive(Clone, Debug)]
struct Filled(u8, usize);

impl Filled {
    fn bytes(&self) -> Vec<u8> {
        vec![self.0; self.1]
    }
}

fn key() -> impl Strategy<Value = Key> {
    let length = prop_oneof![8 => Just(5_u16), 2 => 5..60_u16, 1 => 1000..=1024_u16];
    (0..400_u16, length).prop_map(|(number, length)| Key(number, length))
}

fn value() -> impl Strategy<Value = Filled> {
    let length = prop_oneof![6 => 0..40_usize, 3 => 40..1100_usize, 1 => 1000..40_000_usize];
    (any::<u8>(), length).prop_map(|(byte, length)| Filled(byte, length))
}

fn step() -> impl Strategy<Value = Step> {
    let tree = 0..3_u8;
    prop_oneof![
        30 => (tree.clone(), key(), value()).prop_map(|(tree, key, value)| Step::Insert { tree, key, value }),
        4 => (tree.clone(), 0..400_u16, 1..200_u16, any::<bool>(), value())
            .prop_map(|(tree, from, count, is_descending, value)| {
                Step::InsertMany { tree, from, count, is_descending, value: Filled(value.0, value.1 % 500) }
            }),
        15 => (tree.clone(), key()).prop_map(|(tree, key)| Step::Remove { tree, key }),
        4 => (tree.clone(), 0..400_u16, 1..300_u16).prop_map(|(tree, from, count)| Step::RemoveMany { tree, from, count }),
        1 => tree.clone().prop_map(|tree| Step::Clear { tree }),
        1 => tree.clone().prop_map(|tree| Step::Drop { tree }),
        3 => Just(Step::Savepoint),
        3 => any::<u8>().prop_map(Step::RollBackTo),
        1 => any::<u8>().prop_map(Step::Release),
        4 => Just(Step::Commit),
        1 => Just(Step::CommitLater),
        2 => Just(Step::Abort),
        1 => Just(Step::Reopen),
        2 => Just(Step::Read),
        2 => any::<u8>().prop_map(Step::EndRead),
        6 => (tree, key(), key(), proptest::collection::vec(any::<bool>(), 0..40))
            .prop_map(|(tree, from, to, turns)| Step::Range { tree, from, to, turns }),
    ]
}

fn name(tree: u8) -> String {
    format!("tree {tree}")
}

fn same(tree: &Tree<'_>, map: &Map) {
    let mut entries = tree.iter();
    for (key, value) in map {
        let (found_key, found_value) = entries.next_ref().unwrap().expect("an entry is missing");
        assert_eq!(String::from_utf8_lossy(found_key), String::from_utf8_lossy(key));
        assert!(found_value == value, "another value");
    }
    assert_eq!(entries.next_ref().unwrap(), None);
    assert!(tree.iter().rev().map(|entry| entry.unwrap().key().to_vec()).eq(map.keys().rev().cloned()));
    assert_eq!(tree.len().unwrap(), map.len() as u64);
}

fn same_all(transaction: &ReadTransaction, model: &Model) {
    assert_eq!(transaction.trees().unwrap(), model.keys().cloned().collect::<Vec<_>>());
    for (name, map) in model {
        same(&transaction.tree(name).unwrap(), map);
    }
}

/// Takes entries from both ends of a range, as `turns` selects, and then the rest from the front.
fn same_range(tree: &Tree<'_>, map: &Map, from: &Key, to: &Key, turns: &[bool]) {
    let (from, to) = (from.bytes(), to.bytes());
    let mut found = tree.range(from.clone()..to.clone());
    let mut expected: std::collections::VecDeque<_> =
        if from < to { map.range(from..to).collect() } else { Default::default() };
    for &is_back in turns.iter().chain(&vec![false; expected.len() + 1]) {
        let (found, expected) =
            if is_back { (found.next_back(), expected.pop_back()) } else { (found.next(), expected.pop_front()) };
        let found = found.transpose().unwrap();
        assert_eq!(found.as_ref().map(|entry| (entry.key(), entry.value())), expected.map(|(k, v)| (&k[..], &v[..])));
    }
}

struct Run {
    backend: Arc<dyn Backend>,
    options: Options,
    store: Store,
    durable: Model,
    handed_over: Model,
    open: Option<WriteTransaction>,
    current: Model,
    savepoints: Vec<(Savepoint, Model)>,
    readers: Vec<(ReadTransaction, Model)>,
}

impl Run {
    fn new(options: Options) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(Volatile::default());
        let store = Store::on(Arc::clone(&backend), &options, None).unwrap();
        Self {
            backend,
            options,
            store,
            durable: Model::new(),
            handed_over: Model::new(),
            open: None,
            current: Model::new(),
            savepoints: Vec::new(),
            readers: Vec::new(),
        }
    }

    fn open(&mut self) {
        if self.open.is_none() {
            self.open = Some(self.store.write().unwrap());
            self.current = self.handed_over.clone();
        }
    }

    fn map(&mut self, tree: u8) -> &mut Map {
        self.current.entry(name(tree)).or_default()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Commit | Step::CommitLater | Step::Abort | Step::Reopen | Step::Read | Step::EndRead(_) => {}
            _ => self.open(),
        }
        let Some(open) = &mut self.open else { return self.step_outside(step) };
        match step {
            Step::Insert { tree, key, value } => {
                let was_there = open.tree(name(tree)).unwrap().insert(key.bytes(), value.bytes()).unwrap();
                assert_eq!(was_there, self.map(tree).insert(key.bytes(), value.bytes()).is_some());
            }
            Step::InsertMany { tree, from, count, is_descending, value } => {
                let mut keys: Vec<_> = (from..from + count).map(|number| Key(number, 5).bytes()).collect();
                if is_descending {
                    keys.reverse();
                }
                let mut target = open.tree(name(tree)).unwrap();
                for key in &keys {
                    target.insert(key, value.bytes()).unwrap();
                }
                self.map(tree).extend(keys.into_iter().map(|key| (key, value.bytes())));
            }
            Step::Remove { tree, key } => {
                let was_there = open.tree(name(tree)).unwrap().remove(key.bytes()).unwrap();
                assert_eq!(was_there, self.map(tree).remove(&key.bytes()).is_some());
            }
            Step::RemoveMany { tree, from, count } => {
                let mut target = open.tree(name(tree)).unwrap();
                // Removes the entries under a cursor over the same tree.
                let keys = Key(from, 5).bytes()..Key(from + count, 5).bytes();
                for entry in target.range(keys.clone()) {
                    assert!(target.remove(entry.unwrap().key()).unwrap());
                }
                self.map(tree).retain(|key, _| !keys.contains(key));
            }
            Step::Clear { tree } => {
                open.tree(name(tree)).unwrap().clear().unwrap();
                self.map(tree).clear();
            }
            Step::Drop { tree } => {
                let was_there = open.drop_tree(name(tree)).unwrap();
                assert_eq!(was_there, self.current.remove(&name(tree)).is_some());
            }
            Step::Savepoint => self.savepoints.push((open.savepoint().unwrap(), self.current.clone())),
            Step::RollBackTo(which) if !self.savepoints.is_empty() => {
                self.savepoints.truncate(usize::from(which) % self.savepoints.len() + 1);
                let (savepoint, model) = self.savepoints.last().unwrap();
                open.rollback_to(*savepoint).unwrap();
                self.current = model.clone();
            }
            Step::Release(which) if !self.savepoints.is_empty() => {
                let at = usize::from(which) % self.savepoints.len();
                open.release(self.savepoints[at].0).unwrap();
                self.savepoints.truncate(at);
            }
            Step::Range { tree, from, to, turns } => {
                let target = open.tree(name(tree)).unwrap();
                let map = self.current.entry(name(tree)).or_default();
                same_range(&target, map, &from, &to, &turns);
                assert_eq!(target.get(from.bytes()).unwrap().as_deref(), map.get(&from.bytes()).map(|v| &v[..]));
            }
            Step::Read | Step::EndRead(_) => self.step_outside(step),
            Step::Commit | Step::CommitLater => {
                let durability = if matches!(step, Step::Commit) { Durability::Now } else { Durability::Later };
                self.open.take().unwrap().commit_with(durability).unwrap();
                self.savepoints.clear();
                self.handed_over = std::mem::take(&mut self.current);
                if durability == Durability::Later {
                    self.store.sync().unwrap();
                }
                self.durable = self.handed_over.clone();
                same_all(&self.store.read().unwrap(), &self.durable);
                self.sound();
            }
            Step::Abort => {
                self.open.take().unwrap().abort();
                self.savepoints.clear();
            }
            Step::Reopen => {
                self.open = None;
                self.savepoints.clear();
                self.step_outside(step);
            }
            Step::RollBackTo(_) | Step::Release(_) => {}
        }
    }

    fn step_outside(&mut self, step: Step) {
        match step {
            Step::Reopen => {
                for (reader, model) in self.readers.drain(..) {
                    same_all(&reader, &model);
                }
                self.store = Store::on(Arc::clone(&self.backend), &self.options, None).unwrap();
                self.handed_over = self.durable.clone();
                same_all(&self.store.read().unwrap(), &self.durable);
            }
            Step::Read => self.readers.push((self.store.read().unwrap(), self.durable.clone())),
            Step::EndRead(which) if !self.readers.is_empty() => {
                let (reader, model) = self.readers.swap_remove(usize::from(which) % self.readers.len());
                same_all(&reader, &model);
            }
            _ => {}
        }
    }

    fn sound(&self) {
        let report = self.store.check().unwrap();
        assert!(report.is_sound(), "{report}");
    }

    /// Checks that nothing is left after all readers have ended and all trees were dropped.
    fn end(mut self) {
        self.open = None;
        for (reader, model) in self.readers.drain(..) {
            same_all(&reader, &model);
        }
        assert_eq!(self.store.stats().versions, 0);
        let mut last = self.store.write().unwrap();
        for name in self.durable.keys() {
            assert!(last.drop_tree(name).unwrap());
        }
        last.commit().unwrap();
        self.sound();
        assert_eq!(self.store.check().unwrap().pages, 1);
        assert_eq!((self.store.stats().snapshots, self.store.stats().versions), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { ..ProptestConfig::default() })]

    #[test]
    fn is_like_maps(
        cache_pages in prop_oneof![Just(0_usize), Just(10_000)],
        transaction_pages in prop_oneof![Just(4_usize), Just(40), Just(10_000)],
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let options = Options::default()
            .cache_bytes(cache_pages * 4096)
            .transaction_bytes(transaction_pages * 4096)
            .version_bytes(64 << 20);
        let mut run = Run::new(options);
        for step in steps {
            run.step(step);
        }
        run.end();
    }
}
