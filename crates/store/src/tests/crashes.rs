//! Crashes of whole stores: trees, groups and spilled transactions on simulated files and simulated
//! memory.
//!
//! A store of a few pages runs random transactions. After every write, flush and fence, every image
//! that a crash may leave (or a sample) is opened. It must hold the state of the last acknowledged
//! commit, or of the running one, and be sound. It must also be usable: a transaction that aborts,
//! one that commits, and another opening. For some images the later operations are explored for
//! crashes in turn.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::explore::backends::Simulated;
use crate::explore::{CrashImage, Durability as Model, Event, Explorer, Limits, Progress, Random};
use crate::flips::{FlipBackend, FlipOptions};
use crate::lines::{self, LineBackend};
use crate::medium::{LineDurability, SectorDurability, SimFile, SimPmem};
use crate::options::Syncs;
use crate::{Access, Durability, Error, Options, Result, Store};

/// All trees.
type State = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Stores so small that rare events happen after a few commits.
trait Small: Simulated {
    /// The number of bytes with which some transactions find no space.
    const SCARCE: u64;

    /// Creates a medium with at most `room` bytes.
    fn limited(room: u64) -> Self;
    fn create(self: Arc<Self>) -> Result<Arc<dyn Backend>>;
    fn open(self: Arc<Self>) -> Result<Arc<dyn Backend>>;
}

impl Small for SimFile {
    const SCARCE: u64 = 26 * 4096;

    fn limited(room: u64) -> Self {
        Self::recording(CrashImage::new()).with_room(room)
    }

    fn create(self: Arc<Self>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(FlipBackend::create(self, FlipOptions::tiny(Syncs::One))?))
    }

    fn open(self: Arc<Self>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(FlipBackend::open(self, FlipOptions::tiny(Syncs::One), Access::ReadWrite)?))
    }
}

impl Small for SimPmem {
    const SCARCE: u64 = 8192 + 12 * 64 + 8 * (8 + 4096);

    fn limited(room: u64) -> Self {
        Self::recording(CrashImage::new()).with_room(room)
    }

    fn create(self: Arc<Self>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(LineBackend::create(self, &lines::Options::tiny())?))
    }

    fn open(self: Arc<Self>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(LineBackend::open(self, &lines::Options::tiny())?))
    }
}

/// Returns options with so little memory that large transactions spill and pages are reread.
fn options() -> Options {
    Options::default().cache_bytes(0).transaction_bytes(4 * 4096)
}

struct Story {
    trace: Vec<Event>,
    /// The state after each commit; 0: there is no store.
    states: Vec<Option<State>>,
    /// The number of transactions that found no space.
    refusals: u64,
}

fn tell<M: Small>(seed: u64, transactions: u64, room: u64) -> Story {
    let mut random = Random::new(seed);
    let medium = Arc::new(M::limited(room));
    let mark = |acked, begun| medium.record().record(Event::Mark(Progress { acked, begun }));
    mark(0, 1);
    let store = Store::on(Arc::clone(&medium).create().unwrap(), &options(), None).unwrap();
    mark(1, 1);
    let mut states = vec![None, Some(State::new())];
    let (mut acked, mut refusals) = (1, 0);
    for _ in 0..transactions {
        let transaction = store.write().unwrap();
        let mut after = states.last().cloned().flatten().unwrap();
        let changed =
            (0..[1, 3, 12][random.below(3) as usize]).try_for_each(|_| step(&transaction, &mut after, &mut random));
        if changed.is_ok() && random.below(6) == 0 {
            transaction.abort();
            continue;
        }
        // Durable with the next transaction, or earlier if that one has to spill.
        let durability = if random.below(5) == 0 { Durability::Later } else { Durability::Now };
        let committed = changed.and_then(|()| {
            states.push(Some(after));
            mark(acked, states.len() as u64 - 1);
            transaction.commit_with(durability)
        });
        match (committed, durability) {
            (Ok(()), Durability::Later) => continue,
            (Ok(()), Durability::Now) => acked = states.len() as u64 - 1,
            (Err(Error::Full { .. }), _) => {
                refusals += 1;
                // Deferred commits are lost with it, unless they were durable before.
                let found = contents(&store).unwrap();
                let durable = states.iter().rposition(|state| state.as_ref() == Some(&found)).unwrap();
                assert!(durable as u64 >= acked);
                states.truncate(durable + 1);
                acked = durable as u64;
            }
            (Err(error), _) => panic!("{error}"),
        }
        mark(acked, acked);
        if random.below(6) == 0 {
            store.checkpoint().unwrap();
        }
    }
    let closed = store.close();
    if closed.is_ok() {
        acked = states.len() as u64 - 1;
        mark(acked, acked);
    }
    assert!(matches!(closed, Ok(()) | Err(Error::Full { .. })), "{closed:?}");
    Story { trace: medium.record().take_trace(), states, refusals }
}

fn step(transaction: &crate::WriteTransaction, state: &mut State, random: &mut Random) -> Result<()> {
    let name = format!("tree {}", random.below(2));
    let mut tree = transaction.tree(&name)?;
    let map = state.entry(name).or_default();
    let key = format!("key {:03}", random.below(60)).into_bytes();
    if random.below(4) == 0 {
        assert_eq!(tree.remove(&key)?, map.remove(&key).is_some());
        return Ok(());
    }
    let length = [0, 10, 300, 900, 4100][random.below(5) as usize];
    let value = vec![random.below(256) as u8; length];
    tree.insert(&key, &value)?;
    map.insert(key, value);
    Ok(())
}

fn contents(store: &Store) -> Result<State> {
    let snapshot = store.read()?;
    let mut state = State::new();
    for name in snapshot.trees()? {
        let mut map = BTreeMap::new();
        let mut entries = snapshot.tree(&name)?.iter();
        while let Some((key, value)) = entries.next_ref()? {
            map.insert(key.to_vec(), value.to_vec());
        }
        state.insert(name, map);
    }
    Ok(state)
}

/// Opens a store after a crash, and returns it with its state. Returns `None` if there is no store,
/// and none was acknowledged.
fn recovered<M: Small>(
    medium: &Arc<M>,
    states: &[Option<State>],
    progress: Progress,
) -> std::result::Result<Option<(Store, State)>, String> {
    let opened = Arc::clone(medium).open().and_then(|backend| Store::on(backend, &options(), None));
    let store = match opened {
        Ok(store) => store,
        Err(_) if states[progress.acked as usize].is_none() => return Ok(None),
        Err(error) => return Err(format!("open: {error}")),
    };
    let found = contents(&store).map_err(|error| format!("read: {error}"))?;
    // A commit that was begun and found no space has no state.
    let begun = (progress.begun as usize).min(states.len() - 1);
    let allowed = &states[progress.acked as usize..=begun];
    if !allowed.iter().any(|state| state.as_ref() == Some(&found)) {
        return Err("neither what was acknowledged nor what was under way".into());
    }
    let report = store.check().map_err(|error| format!("check: {error}"))?;
    if report.is_sound() { Ok(Some((store, found))) } else { Err(report.to_string()) }
}

/// Uses a recovered store further.
fn live_on(store: &Store, mut state: State, mark: impl Fn(u64, u64)) -> Result<Vec<Option<State>>> {
    let mut states = vec![Some(state.clone())];
    mark(0, 0);
    let aborted = store.write()?;
    for i in 0..40_u32 {
        aborted.tree("aborted")?.insert(i.to_be_bytes(), [1; 500])?;
    }
    aborted.abort();
    for round in 0..2_u8 {
        let transaction = store.write()?;
        transaction.tree("tree 0")?.insert("key 000", vec![round; 700])?;
        transaction.tree("after")?.insert([round], "")?;
        state.entry("tree 0".into()).or_default().insert(b"key 000".to_vec(), vec![round; 700]);
        state.entry("after".into()).or_default().insert(vec![round], vec![]);
        let begun = states.len() as u64;
        mark(begun - 1, begun);
        transaction.commit()?;
        mark(begun, begun);
        states.push(Some(state.clone()));
    }
    Ok(states)
}

fn survives<M: Small, D: Model>(seed: u64, transactions: u64, limits: Limits, nested_every: u64) {
    survives_story::<M, D>(&tell::<M>(seed, transactions, u64::MAX), seed, limits, nested_every);
}

fn survives_story<M: Small, D: Model>(story: &Story, seed: u64, limits: Limits, nested_every: u64) {
    let mut explorer = Explorer::new(limits, seed);
    let mut nested = Explorer::new(Limits { exhaustive: 4, samples: 1 }, seed);
    let mut judged = 0_u64;
    let judge = &mut |image: &CrashImage, progress: Progress| {
        judged += 1;
        let is_nested = judged.is_multiple_of(nested_every);
        let medium = Arc::new(M::holding(image.clone(), is_nested));
        let Some((store, found)) = recovered(&medium, &story.states, progress)? else { return Ok(()) };
        if !is_nested && !judged.is_multiple_of(5) {
            return Ok(());
        }
        let mark = |acked, begun| medium.record().record(Event::Mark(Progress { acked, begun }));
        let states = live_on(&store, found, mark).map_err(|error| format!("afterwards: {error}"))?;
        drop(store);
        let end = states.len() as u64 - 1;
        recovered(&medium, &states, Progress { acked: end, begun: end }).map_err(|e| format!("opened again: {e}"))?;
        if is_nested {
            let judge = &mut |image: &CrashImage, progress: Progress| {
                recovered(&Arc::new(M::holding(image.clone(), false)), &states, progress).map(|_| ())
            };
            let explored = nested.explore::<D>(image, &medium.record().take_trace(), judge);
            explored.map_err(|violation| format!("afterwards, {violation}"))?;
        }
        Ok(())
    };
    if let Err(violation) = explorer.explore::<D>(&CrashImage::new(), &story.trace, judge) {
        panic!("seed {seed}: {violation}");
    }
    println!("seed {seed}: {}; afterwards {}", explorer.counts(), nested.counts());
}

/// Returns the seeds of the stories: `ONEHOP_CRASH_SEEDS` for more than a test run has time for.
fn seeds(few: u64) -> Range<u64> {
    let seeds = std::env::var("ONEHOP_CRASH_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..seeds.unwrap_or(few)
}

#[test]
fn stores_on_files_survive() {
    for seed in seeds(2) {
        survives::<SimFile, SectorDurability>(seed, 10, Limits { exhaustive: 16, samples: 8 }, 997);
    }
}

#[test]
fn stores_on_memory_survive() {
    for seed in seeds(1) {
        survives::<SimPmem, LineDurability>(seed, 4, Limits { exhaustive: 2, samples: 1 }, 4999);
    }
}

#[test]
fn stores_without_room_survive() {
    fn survives<M: Small, D: Model>(seeds: Range<u64>, transactions: u64, limits: Limits) {
        let mut refusals = 0;
        for seed in seeds {
            let story = tell::<M>(seed, transactions, M::SCARCE);
            refusals += story.refusals;
            survives_story::<M, D>(&story, seed, limits, u64::MAX);
        }
        assert!(refusals > 0, "there was room for all");
    }
    survives::<SimFile, SectorDurability>(seeds(2), 14, Limits { exhaustive: 4, samples: 2 });
    // The first two find space for everything.
    survives::<SimPmem, LineDurability>(2..2 + seeds(3).end, 7, Limits { exhaustive: 1, samples: 1 });
}

#[test]
fn no_flipped_byte_of_a_store_gives_wrong_data() {
    fn flip<M: Small>(step: u64) {
        let medium = Arc::new(M::holding(CrashImage::new(), false));
        let store = Store::on(Arc::clone(&medium).create().unwrap(), &options(), None).unwrap();
        let (mut state, mut random) = (State::new(), Random::new(1));
        let transaction = store.write().unwrap();
        for _ in 0..40 {
            self::step(&transaction, &mut state, &mut random).unwrap();
        }
        transaction.commit().unwrap();
        store.close().unwrap();
        let image = medium.record().now();
        let (mut refused, mut right) = (0, 0);
        for at in (0..image.len()).step_by(step as usize) {
            for flip in [0x01, 0x80, 0xff] {
                let mut byte = [0];
                image.read(at, &mut byte);
                let mut damaged = image.clone();
                damaged.write(at, &[byte[0] ^ flip]);
                let medium = Arc::new(M::holding(damaged, false));
                let opened = medium.open().and_then(|backend| Store::on(backend, &options(), None));
                match opened.and_then(|store| contents(&store)) {
                    Ok(found) => {
                        assert!(found == state, "byte {at} ^ {flip:#x} gives wrong data");
                        right += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 0 && right > 0, "{refused} {right}");
    }
    flip::<SimFile>(3);
    flip::<SimPmem>(3);
}
