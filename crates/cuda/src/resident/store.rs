//! Named entries in a memory that is smaller than all of them: looked up, loaded once, and evicted
//! when others need room.
//!
//! Invariants:
//! - `bytes` is the size of all entries that are held or being loaded, including evicted ones that
//!   are still in use. It is at most the limit that was given with the last admitted entry.
//! - Holding an entry outside of the store pins it. It is never freed, and its bytes are counted
//!   until the last holder has dropped it.
//! - Two concurrent requests for the same entry load it once: the second waits.
//!
//! The least recently used entry is evicted first. Entries that were loaded *to stay* are evicted
//! only for others that are, after all that were not.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A store of entries `M` by names `K`. All methods are thread-safe.
#[derive(Debug)]
pub struct Store<K, M> {
    state: Mutex<State<K, M>>,
    loaded: Condvar,
}

#[derive(Debug)]
struct State<K, M> {
    things: HashMap<K, Thing<M>>,
    loading: HashSet<K>,
    /// Evicted entries that are in use.
    leaving: Vec<(Arc<M>, u64)>,
    bytes: u64,
    /// Incremented by every use.
    clock: u64,
}

#[derive(Debug)]
struct Thing<M> {
    memory: Arc<M>,
    bytes: u64,
    hits: u64,
    used: u64,
    is_kept: bool,
}

/// There is no room, and no entry that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Requested bytes.
    pub needed: u64,
    /// Available bytes.
    pub available: u64,
}

/// An entry of the store, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<K> {
    /// Name of the entry.
    pub key: K,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of lookups that found it.
    pub hits: u64,
    /// True if it was loaded to stay.
    pub is_kept: bool,
    /// Number of current holders.
    pub pins: u64,
}

impl<K, M> Default for Store<K, M> {
    fn default() -> Self {
        let state = State { things: HashMap::new(), loading: HashSet::new(), leaving: Vec::new(), bytes: 0, clock: 0 };
        Self { state: Mutex::new(state), loaded: Condvar::new() }
    }
}

impl<M> Thing<M> {
    fn pins(&self) -> u64 {
        Arc::strong_count(&self.memory) as u64 - 1
    }
}

impl<K: Clone + Eq + Hash, M> State<K, M> {
    /// Removes evicted entries that are no longer in use.
    fn settle(&mut self) {
        let bytes = &mut self.bytes;
        self.leaving.retain(|(memory, size)| {
            let is_used = Arc::strong_count(memory) > 1;
            *bytes -= if is_used { 0 } else { *size };
            is_used
        });
    }

    /// Reserves bytes, and evicts entries if there are not enough.
    fn reserve(&mut self, bytes: u64, limit: u64, is_kept: bool) -> Result<(), Full> {
        self.settle();
        let may_go = |thing: &Thing<M>| thing.pins() == 0 && (is_kept || !thing.is_kept);
        let free = limit.saturating_sub(self.bytes);
        let others: u64 = self.things.values().filter(|thing| may_go(thing)).map(|thing| thing.bytes).sum();
        // Nothing is evicted for an entry that does not fit anyway.
        if bytes > limit.saturating_sub(self.bytes.saturating_sub(others)) {
            return Err(Full { needed: bytes, available: free + others.min(limit) });
        }
        while self.bytes + bytes > limit {
            let goes = self.things.iter().filter(|(_, thing)| may_go(thing));
            let goes = goes.min_by_key(|(_, thing)| (thing.is_kept, thing.used)).map(|(key, _)| key.clone());
            let Some(key) = goes else { return Err(Full { needed: bytes, available: free }) };
            self.remove(&key);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Evicts an entry, and returns its size.
    fn remove(&mut self, key: &K) -> u64 {
        let Some(thing) = self.things.remove(key) else { return 0 };
        if thing.pins() > 0 {
            self.leaving.push((thing.memory, thing.bytes));
        } else {
            self.bytes -= thing.bytes;
        }
        thing.bytes
    }

    fn find(&mut self, key: &K, is_kept: bool) -> Option<Arc<M>> {
        self.clock += 1;
        let thing = self.things.get_mut(key)?;
        (thing.used, thing.is_kept) = (self.clock, thing.is_kept || is_kept);
        Some(Arc::clone(&thing.memory))
    }
}

impl<K: Clone + Debug + Eq + Hash, M> Store<K, M> {
    fn lock(&self) -> MutexGuard<'_, State<K, M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries that are present. They stay while they are held.
    pub fn get_all(&self, keys: impl Iterator<Item = K>) -> Vec<Option<Arc<M>>> {
        let mut state = self.lock();
        let State { things, clock, .. } = &mut *state;
        let get = |key| {
            *clock += 1;
            let thing = things.get_mut(&key)?;
            (thing.used, thing.hits) = (*clock, thing.hits + 1);
            Some(Arc::clone(&thing.memory))
        };
        keys.map(get).collect()
    }

    /// Returns an entry of `bytes` bytes, or a claim to load it; `is_kept` makes it stay.
    /// Concurrent requests for the same entry wait. A caller that claims several entries must claim
    /// them in the order of their names to avoid a deadlock.
    ///
    /// # Errors
    /// Returns [`Full`].
    pub fn claim(&self, key: &K, bytes: u64, limit: u64, is_kept: bool) -> Result<Claim<'_, K, M>, Full> {
        let mut state = self.lock();
        loop {
            if let Some(found) = state.find(key, is_kept) {
                if let Some(thing) = state.things.get_mut(key).filter(|_| !is_kept) {
                    thing.hits += 1;
                }
                return Ok(Claim::There(found));
            }
            if !state.loading.contains(key) {
                break;
            }
            state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.reserve(bytes, limit, is_kept)?;
        state.loading.insert(key.clone());
        drop(state);
        Ok(Claim::Mine(Loading { store: self, key: key.clone(), bytes, is_kept }))
    }

    /// Returns the available bytes: free ones, and those of entries that may be evicted.
    pub fn available(&self, limit: u64, is_kept: bool) -> u64 {
        let mut state = self.lock();
        state.settle();
        let may_go = |thing: &&Thing<M>| thing.pins() == 0 && (is_kept || !thing.is_kept);
        let others: u64 = state.things.values().filter(may_go).map(|thing| thing.bytes).sum();
        limit.saturating_sub(state.bytes.saturating_sub(others))
    }

    /// Returns the sum of the given numbers over the entries that are present. It does not count as
    /// a use.
    pub fn sum_of(&self, keys: impl Iterator<Item = (K, u64)>) -> u64 {
        let state = self.lock();
        keys.filter(|(key, _)| state.things.contains_key(key)).map(|(_, of)| of).sum()
    }

    /// Evicts entries, those in use once they are no longer held. Returns their size.
    pub fn evict<'a>(&self, keys: impl IntoIterator<Item = &'a K>) -> u64
    where
        K: 'a,
    {
        let mut state = self.lock();
        let bytes = keys.into_iter().map(|key| state.remove(key)).sum();
        state.settle();
        bytes
    }

    /// Evicts all entries whose names match.
    pub fn evict_if(&self, of_kind: impl Fn(&K) -> bool) -> u64 {
        let mut state = self.lock();
        let keys: Vec<K> = state.things.keys().filter(|key| of_kind(key)).cloned().collect();
        let bytes = keys.iter().map(|key| state.remove(key)).sum();
        state.settle();
        bytes
    }

    /// Returns the bytes in use.
    pub fn bytes(&self) -> u64 {
        let mut state = self.lock();
        state.settle();
        state.bytes
    }

    /// Returns all entries that are not evicted.
    pub fn list(&self) -> Vec<Listed<K>> {
        let state = self.lock();
        let listed = |(key, thing): (&K, &Thing<M>)| Listed {
            key: key.clone(),
            bytes: thing.bytes,
            hits: thing.hits,
            is_kept: thing.is_kept,
            pins: thing.pins(),
        };
        state.things.iter().map(listed).collect()
    }
}

/// Result of a claim.
#[derive(Debug)]
pub enum Claim<'a, K: Clone + Eq + Hash, M> {
    /// The entry is present. It stays while it is held.
    There(Arc<M>),
    /// The caller has to load the entry.
    Mine(Loading<'a, K, M>),
}

/// An entry that is being loaded. When this is dropped, on success or failure, waiting requests
/// continue.
#[derive(Debug)]
pub struct Loading<'a, K: Clone + Eq + Hash, M> {
    store: &'a Store<K, M>,
    key: K,
    /// Released if loading fails.
    bytes: u64,
    is_kept: bool,
}

impl<K: Clone + Eq + Hash, M> Loading<'_, K, M> {
    /// Returns the name of the entry.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Publishes the loaded entry.
    pub fn done(mut self, memory: M) -> Arc<M> {
        let memory = Arc::new(memory);
        let mut state = self.store.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clock += 1;
        let bytes = std::mem::take(&mut self.bytes);
        let thing = Thing { memory: Arc::clone(&memory), bytes, hits: 0, used: state.clock, is_kept: self.is_kept };
        state.things.insert(self.key.clone(), thing);
        memory
    }
}

impl<K: Clone + Eq + Hash, M> Drop for Loading<'_, K, M> {
    fn drop(&mut self) {
        let mut state = self.store.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.loading.remove(&self.key);
        state.bytes -= self.bytes;
        drop(state);
        self.store.loaded.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Error {
        Full(Full),
        Broken,
    }

    impl From<Full> for Error {
        fn from(full: Full) -> Self {
            Self::Full(full)
        }
    }

    const LIMIT: u64 = 100;

    /// Returns the entry, or the result of `load`, and true if it was present.
    fn get_or_load(
        store: &Store<u32, u32>,
        key: u32,
        bytes: u64,
        is_kept: bool,
        load: impl FnOnce() -> Result<u32, Error>,
    ) -> Result<(Arc<u32>, bool), Error> {
        match store.claim(&key, bytes, LIMIT, is_kept)? {
            Claim::There(thing) => Ok((thing, true)),
            Claim::Mine(loading) => Ok((loading.done(load()?), false)),
        }
    }

    fn put(store: &Store<u32, u32>, key: u32, bytes: u64, is_kept: bool) -> Result<Arc<u32>, Error> {
        get_or_load(store, key, bytes, is_kept, || Ok(key)).map(|(thing, _)| thing)
    }

    fn keys(store: &Store<u32, u32>) -> Vec<u32> {
        let mut keys: Vec<u32> = store.list().into_iter().map(|listed| listed.key).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn the_least_recently_used_goes() {
        let store = Store::default();
        for key in 0..3 {
            put(&store, key, 30, false).unwrap();
        }
        assert_eq!(store.get_all([0, 7].into_iter()), [Some(Arc::new(0)), None]);
        put(&store, 3, 30, false).unwrap();
        assert_eq!((keys(&store), store.bytes()), (vec![0, 2, 3], 90));
        put(&store, 4, 60, false).unwrap();
        assert_eq!((keys(&store), store.bytes()), (vec![3, 4], 90));
        let listed = store.list();
        assert!(listed.iter().all(|listed| listed.hits == 0 && listed.pins == 0), "{listed:?}");
    }

    #[test]
    fn what_is_used_stays_and_is_counted_after_it_lost_its_name() {
        let store = Store::default();
        let held = put(&store, 0, 60, false).unwrap();
        assert_eq!(store.list()[0].pins, 1);
        assert_eq!(put(&store, 1, 50, false), Err(Error::Full(Full { needed: 50, available: 40 })));
        put(&store, 1, 40, false).unwrap();
        assert_eq!(store.evict([&0, &7]), 60);
        assert_eq!((keys(&store), store.bytes()), (vec![1], 100));
        // The other entry may be evicted, but that is not enough.
        assert_eq!(put(&store, 2, 50, false), Err(Error::Full(Full { needed: 50, available: 40 })));
        assert_eq!(keys(&store), [1]);
        drop(held);
        assert_eq!(store.bytes(), 40);
        put(&store, 2, 60, false).unwrap();
        assert_eq!(keys(&store), [1, 2]);
    }

    #[test]
    fn what_was_loaded_to_stay_goes_for_its_like_alone() {
        let store = Store::default();
        put(&store, 0, 50, true).unwrap();
        put(&store, 1, 50, false).unwrap();
        assert!(put(&store, 2, 60, false).is_err());
        assert_eq!(keys(&store), [0, 1]);
        // The entry that is not kept is evicted first, although it was used later.
        put(&store, 2, 40, true).unwrap();
        assert_eq!(keys(&store), [0, 2]);
        put(&store, 3, 60, true).unwrap();
        assert_eq!(keys(&store), [2, 3]);
        assert_eq!(put(&store, 4, 101, true), Err(Error::Full(Full { needed: 101, available: 100 })));
        assert_eq!(keys(&store), [2, 3]);
    }

    #[test]
    fn what_was_there_can_be_made_to_stay() {
        let store = Store::default();
        put(&store, 0, 50, false).unwrap();
        let (_, was_there) = get_or_load(&store, 0, 50, true, || Err(Error::Broken)).unwrap();
        assert!(was_there && store.list()[0].is_kept);
        put(&store, 1, 50, false).unwrap();
        put(&store, 2, 50, false).unwrap();
        assert_eq!(keys(&store), [0, 2]);
    }

    #[test]
    fn what_fails_leaves_nothing_behind() {
        let store: Store<u32, u32> = Store::default();
        let outcome = get_or_load(&store, 0, 50, false, || Err(Error::Broken));
        assert_eq!((outcome.unwrap_err(), store.bytes(), keys(&store)), (Error::Broken, 0, vec![]));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            get_or_load(&store, 0, 50, false, || -> Result<u32, Error> { panic!("no") })
        }));
        assert!(panicked.is_err() && store.bytes() == 0);
        put(&store, 0, 100, false).unwrap();
    }

    #[test]
    fn what_could_be_had_is_what_is_free_and_what_may_go() {
        let store = Store::default();
        put(&store, 0, 30, false).unwrap();
        put(&store, 1, 20, true).unwrap();
        let held = put(&store, 2, 10, false).unwrap();
        assert_eq!((store.available(LIMIT, false), store.available(LIMIT, true)), (70, 90));
        assert_eq!(store.available(25, false), 0);
        let claim = store.claim(&3, 40, LIMIT, false).unwrap();
        assert!(matches!(claim, Claim::Mine(_)) && store.available(LIMIT, false) == 30);
        drop((claim, held));
        assert_eq!(store.available(LIMIT, false), 80);
    }

    #[test]
    fn many_who_want_the_same_load_it_once() {
        let (store, loads) = (Store::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for key in 0..20 {
                        let load = || {
                            loads.fetch_add(1, Relaxed);
                            std::thread::yield_now();
                            Ok(key)
                        };
                        let (thing, _) = get_or_load(&store, key, 1, false, load).unwrap();
                        assert_eq!(*thing, key);
                    }
                });
            }
        });
        assert_eq!((loads.load(Relaxed), store.bytes()), (20, 20));
        assert_eq!(store.list().iter().map(|listed| listed.hits).sum::<u64>(), 8 * 20 - 20);
    }

    #[test]
    fn kinds_are_let_go_together() {
        let store = Store::default();
        for key in 0..6 {
            put(&store, key, 10, key == 0).unwrap();
        }
        assert_eq!(store.evict_if(|key| key % 2 == 0), 30);
        assert_eq!(keys(&store), [1, 3, 5]);
    }
}
