//! Latencies of small transactions, one after the other, by one thread or many.
//!
//! 1. All keys exist before the measurement, and a transaction replaces the values of some. The
//!    state is steady, and no store can succeed by appending alone.
//! 2. Each thread draws keys of its own stream, and a different value each time. The writes of a
//!    transaction are prepared before its clock starts; the clock stops when it is durable.
//! 3. Threads start together and stop after a given time, each when its transaction is done. The
//!    rate is the number of all transactions by the time until the last thread has stopped.
//!
//! The same file drives the stores that ours is compared with (`bench/peers/commit`).

use std::error::Error;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::osp::random::{Distribution, Keys, Random};

/// The error of a store.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The size of a key, in bytes.
pub const KEY_BYTES: usize = 8;
/// The number of keys per transaction that fills a store.
const FILL_KEYS: u64 = 1_000;
/// The longest recorded latency. Latencies have three digits.
const LONGEST_NS: u64 = 60_000_000_000;

/// A key: its number in big-endian order.
pub type Key = [u8; KEY_BYTES];

/// A store under test.
pub trait Store: Sync {
    /// Creates the context of a thread, which calls it once.
    ///
    /// # Errors
    /// Returns the store's error.
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure>;
}

/// A thread's access to a store.
pub trait Worker {
    /// Stores values at keys, and returns when they are durable.
    ///
    /// # Errors
    /// Returns the store's error.
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure>;
}

/// The contents of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// The number of keys, from 0 on.
    pub keys: u64,
    /// The size of a value, in bytes.
    pub value_bytes: usize,
    /// The seed of everything random.
    pub seed: u64,
}

impl Data {
    /// Returns the payload of a transaction with this number of keys, in bytes.
    pub fn useful_bytes(&self, keys: u64) -> u64 {
        keys * (KEY_BYTES + self.value_bytes) as u64
    }
}

/// A point of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The number of different keys of a transaction.
    pub transaction_keys: u64,
    /// The distribution of keys.
    #[serde(flatten)]
    pub keys: Distribution,
    /// The number of threads that commit.
    pub threads: usize,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Driven {
    /// The number of durable transactions.
    pub commits: u64,
    /// The time from the start to the end of the last transaction.
    pub elapsed: Duration,
    /// The latencies in nanoseconds.
    pub latencies: Histogram<u64>,
}

/// Stores all keys in an empty store, in order.
///
/// # Errors
/// Returns the store's error.
pub fn fill(store: &dyn Store, data: &Data) -> Result<(), Failure> {
    let (mut worker, mut random) = (store.worker()?, Random::new(data.seed));
    for first in (0..data.keys).step_by(FILL_KEYS as usize) {
        let numbers = first..(first + FILL_KEYS).min(data.keys);
        let pairs: Vec<_> = numbers.map(|number| (number.to_be_bytes(), value(data, &mut random))).collect();
        worker.commit(&pairs)?;
    }
    Ok(())
}

/// Commits for a given time, or until `cancel` is set. Each run on a store has its own `run`, which
/// selects other keys and values.
///
/// # Errors
/// Returns the first error of a worker. All threads have stopped by then.
pub fn drive(
    store: &dyn Store,
    data: &Data,
    point: &Point,
    run: u32,
    time: Duration,
    cancel: &AtomicBool,
) -> Result<Driven, Failure> {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(point.threads + 1);
    let work = |thread: usize| {
        let worker = store.worker();
        start.wait();
        let random = Random::new(data.seed ^ u64::from(run) << 32 ^ (thread as u64 + 1) << 16);
        let driven = worker.and_then(|worker| commit_until(worker, data, point, random, &stop));
        if driven.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        driven
    };
    let (elapsed, driven) = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..point.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        start.wait();
        let began = Instant::now();
        while began.elapsed() < time && !stop.load(Ordering::Relaxed) && !cancel.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10).min(time.saturating_sub(began.elapsed())));
        }
        stop.store(true, Ordering::Relaxed);
        let driven: Vec<_> =
            threads.into_iter().map(|one| one.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect();
        (began.elapsed(), driven)
    });
    let mut latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
    for of_thread in driven {
        latencies.add(of_thread?)?;
    }
    Ok(Driven { commits: latencies.len(), elapsed, latencies })
}

/// Runs one thread.
fn commit_until(
    mut worker: Box<dyn Worker + '_>,
    data: &Data,
    point: &Point,
    mut random: Random,
    stop: &AtomicBool,
) -> Result<Histogram<u64>, Failure> {
    let mut keys = Keys::new(point.keys, data.keys, random.bits());
    let mut latencies = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
    let mut pairs: Vec<(Key, Vec<u8>)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        pairs.clear();
        while (pairs.len() as u64) < point.transaction_keys {
            let key = keys.draw().to_be_bytes();
            // Few keys are hot enough to repeat within a transaction; those are drawn again.
            if !pairs.iter().any(|(one, _)| *one == key) {
                pairs.push((key, value(data, &mut random)));
            }
        }
        let began = Instant::now();
        worker.commit(&pairs)?;
        let taken = u64::try_from(began.elapsed().as_nanos()).unwrap_or(LONGEST_NS);
        latencies.record(taken.clamp(1, LONGEST_NS))?;
    }
    Ok(latencies)
}

/// Returns incompressible bytes.
pub(super) fn value(data: &Data, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.value_bytes + 8);
    while bytes.len() < data.value_bytes {
        bytes.extend(random.bits().to_le_bytes());
    }
    bytes.truncate(data.value_bytes);
    bytes
}

/// A plain map as a store, for tests of the driver.
#[cfg(test)]
pub(super) mod map {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// The map.
    #[derive(Default)]
    pub struct Map {
        pub pairs: Mutex<BTreeMap<Key, Vec<u8>>>,
        /// The number of commits after which every other one fails.
        pub fails_after: Option<u64>,
        pub commits: Mutex<Vec<usize>>,
    }

    impl Store for Map {
        fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
            Ok(Box::new(self))
        }
    }

    impl Worker for &Map {
        fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
            let mut commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
            if self.fails_after.is_some_and(|most| commits.len() as u64 >= most) {
                return Err("the disk is full".into());
            }
            commits.push(pairs.len());
            self.pairs.lock().unwrap_or_else(PoisonError::into_inner).extend(pairs.iter().cloned());
            Ok(())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::map::Map;
    use super::*;
    use crate::osp::random::Order;

    const DATA: Data = Data { keys: 2_500, value_bytes: 100, seed: 5 };

    fn point(transaction_keys: u64, threads: usize) -> Point {
        let keys = Distribution::Zipf { exponent: 0.99, order: Order::Scrambled };
        Point { transaction_keys, keys, threads }
    }

    #[test]
    fn every_transaction_replaces_values_of_different_keys() {
        let map = Map::default();
        fill(&map, &DATA).unwrap();
        let before = map.pairs.lock().unwrap().clone();
        assert_eq!((before.len(), map.commits.lock().unwrap().as_slice()), (2_500, [1_000, 1_000, 500].as_slice()));
        assert!(before.values().all(|value| value.len() == 100));
        map.commits.lock().unwrap().clear();
        let go = AtomicBool::new(false);
        let driven = drive(&map, &DATA, &point(10, 3), 1, Duration::from_millis(30), &go).unwrap();
        let commits = map.commits.lock().unwrap();
        assert!(commits.len() as u64 == driven.commits && driven.commits > 0 && commits.iter().all(|keys| *keys == 10));
        assert_eq!(map.pairs.lock().unwrap().len(), 2_500, "no key is new");
        assert_ne!(*map.pairs.lock().unwrap(), before);
        assert!(driven.elapsed >= Duration::from_millis(30) && driven.latencies.max() > 0);
    }

    #[test]
    fn a_failure_stops_all_threads_and_is_told() {
        let map = Map { fails_after: Some(20), ..Map::default() };
        let go = AtomicBool::new(false);
        let driven = drive(&map, &DATA, &point(1, 4), 1, Duration::from_secs(3_600), &go);
        assert_eq!(driven.unwrap_err().to_string(), "the disk is full");
    }

    #[test]
    fn it_ends_when_it_is_cancelled() {
        let driven = drive(&Map::default(), &DATA, &point(1, 2), 1, Duration::from_secs(3_600), &AtomicBool::new(true));
        assert!(driven.unwrap().elapsed < Duration::from_secs(3_600));
    }
}
