//! Which commits live readers see, and which old versions of pages may go.
//!
//! Every page that a commit replaces or frees is noted in a queue, with the commit. The version before can go once every live
//! snapshot is that commit or a later one. What the queue stands for has a budget: past it the versions of the oldest snapshots go
//! all the same, and those snapshots are *dead*, which every read of theirs finds out.
//!
//! Order against lost updates of that: `floor` is raised first, versions are dropped after; a reader takes its page first, and looks
//! at `floor` after. So who could have met a hole sees that its snapshot is dead.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{PageNo, SLOT_BYTES};

/// Live snapshots and the versions they hold on to.
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
    /// Live snapshots by commit, and how many there are of each.
    live: BTreeMap<u64, usize>,
    superseded: VecDeque<(u64, PageNo)>,
    /// Versions that only earlier snapshots read have gone for lack of memory: the floor is never lower.
    given_up: u64,
    /// Threads that wait to begin: without any, nobody is woken, which is a call of the system.
    waiting: usize,
}

/// Pages whose versions before `oldest` may go.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    pub(crate) oldest: u64,
    pub(crate) pages: Vec<PageNo>,
}

impl Snapshots {
    /// None, over versions of up to `budget_bytes`.
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

    /// Begins a snapshot of the last durable commit. Waits only while a transaction becomes durable that outgrew all memory for
    /// the versions it replaces.
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

    /// Whether the versions of a snapshot of `commit` were given up.
    pub(crate) fn is_dead(&self, commit: u64) -> bool {
        commit < self.floor.load(SeqCst)
    }

    /// Commit `commit` replaced a version of `page`.
    pub(crate) fn supersede(&self, pages: impl Iterator<Item = PageNo>, commit: u64) {
        self.lock().superseded.extend(pages.map(|page| (commit, page)));
    }

    /// Snapshots before `commit`, which is about to become durable, are dead: not all that it replaces is known. Returns the floor
    /// before.
    pub(crate) fn give_up_before(&self, commit: u64) -> u64 {
        let _state = self.lock();
        self.floor.swap(commit, SeqCst)
    }

    /// Commits up to `commit` are durable; new snapshots see them.
    pub(crate) fn advance(&self, commit: u64) -> Garbage {
        let mut state = self.lock();
        state.durable = commit;
        self.wake(&state);
        self.collect(&mut state)
    }

    /// Commits that are not durable never will be.
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

    /// The last durable commit.
    pub(crate) fn durable(&self) -> u64 {
        self.lock().durable
    }

    /// Live snapshots, and versions of pages that are kept, or were until the readers of them ended.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.live.values().map(|&count| count as u64).sum(), state.superseded.len() as u64)
    }
}
