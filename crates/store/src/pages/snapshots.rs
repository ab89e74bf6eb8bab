//! Live snapshots, and the old versions of pages that may be dropped.
//!
//! Every page that a commit replaces or frees is recorded in a queue, with the commit. The version
//! before it can be dropped once every live snapshot is of that commit or a later one. The queue
//! has a budget. Beyond it, the versions of the oldest snapshots are dropped anyway. Those
//! snapshots are *dead*, which each of their reads detects.
//!
//! Order: a writer raises `floor` first and drops versions afterwards. A reader takes its page
//! first and checks `floor` afterwards. So a reader that could have met a dropped version detects
//! that its snapshot is dead.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{PageNo, SLOT_BYTES};

/// Live snapshots and the versions that they hold.
#[derive(Debug)]
pub(crate) struct Snapshots {
    state: Mutex<State>,
    became_durable: Condvar,
    /// Snapshots of earlier commits are dead.
    floor: AtomicU64,
    budget_pages: usize,
}

#[derive(Debug, Default)]
struct State {
    durable: u64,
    /// The number of live snapshots of each commit.
    live: BTreeMap<u64, usize>,
    superseded: VecDeque<(u64, PageNo)>,
    /// Versions that only earlier snapshots read were dropped for lack of memory: the floor is
    /// never lower.
    given_up: u64,
    /// The number of threads that wait to begin. Without any, the system call to wake them is
    /// skipped.
    waiting: usize,
}

/// The pages whose versions before `oldest` may be dropped.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    pub(crate) oldest: u64,
    pub(crate) pages: Vec<PageNo>,
}

impl Snapshots {
    /// Creates the state without snapshots, with a budget of `budget_bytes` for versions.
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            became_durable: Condvar::new(),
            floor: AtomicU64::new(0),
            budget_pages: (budget_bytes / SLOT_BYTES).max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a snapshot of the last durable commit. Waits only while a transaction becomes durable
    /// that outgrew the memory for the versions it replaces.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.lock();
        while self.floor.load(SeqCst) > state.durable {
            state.waiting += 1;
            state = self.became_durable.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        let commit = state.durable;
        *state.live.entry(commit).or_default() += 1;
        commit
    }

    /// Ends a snapshot of `commit`.
    pub(crate) fn end(&self, commit: u64) -> Garbage {
        let mut state = self.lock();
        if let Some(count) = state.live.get_mut(&commit) {
            *count -= 1;
            if *count == 0 {
                state.live.remove(&commit);
                return self.collect(&mut state);
            }
        }
        Garbage::default()
    }

    /// Returns true if the versions of a snapshot of `commit` were dropped.
    pub(crate) fn is_dead(&self, commit: u64) -> bool {
        commit < self.floor.load(SeqCst)
    }

    /// Records that commit `commit` replaced a version of each of `pages`.
    pub(crate) fn supersede(&self, pages: impl Iterator<Item = PageNo>, commit: u64) {
        self.lock().superseded.extend(pages.map(|page| (commit, page)));
    }

    /// Marks snapshots before `commit`, which is about to become durable, as dead: not all versions
    /// that it replaces are known. Returns the previous floor.
    pub(crate) fn give_up_before(&self, commit: u64) -> u64 {
        let _state = self.lock();
        self.floor.swap(commit, SeqCst)
    }

    /// Marks commits up to `commit` as durable. New snapshots see them.
    pub(crate) fn advance(&self, commit: u64) -> Garbage {
        let mut state = self.lock();
        state.durable = commit;
        self.wake(&state);
        self.collect(&mut state)
    }

    /// Discards the records of commits that are not durable.
    pub(crate) fn roll_back(&self, floor: Option<u64>) {
        let mut state = self.lock();
        let durable = state.durable;
        state.superseded.retain(|&(commit, _)| commit <= durable);
        if let Some(floor) = floor {
            self.floor.store(floor.max(state.given_up), SeqCst);
            self.wake(&state);
        }
    }

    fn wake(&self, state: &State) {
        if state.waiting > 0 {
            self.became_durable.notify_all();
        }
    }

    fn collect(&self, state: &mut State) -> Garbage {
        let mut oldest = state.live.keys().next().copied().unwrap_or(state.durable).min(state.durable);
        if state.superseded.len() > self.budget_pages {
            let newest_to_go = state.superseded[state.superseded.len() - self.budget_pages - 1].0.min(state.durable);
            if newest_to_go > oldest {
                oldest = newest_to_go;
                state.given_up = state.given_up.max(oldest);
                self.floor.fetch_max(oldest, SeqCst);
            }
        }
        let count = state.superseded.iter().take_while(|(commit, _)| *commit <= oldest).count();
        Garbage { oldest, pages: state.superseded.drain(..count).map(|(_, page)| page).collect() }
    }

    /// Returns the last durable commit.
    pub(crate) fn durable(&self) -> u64 {
        self.lock().durable
    }

    /// Returns the number of live snapshots, and of versions that are kept, or were until their
    /// readers ended.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.live.values().map(|&count| count as u64).sum(), state.superseded.len() as u64)
    }
}
