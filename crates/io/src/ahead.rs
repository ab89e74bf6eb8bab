//! Reads that somebody is likely to want, begun before they are: what a scan needs next comes while it works on what it
//! has.
//!
//! A [`StreamReader`](crate::StreamReader) hands out a list, whole and in order. Here reads are wanted one by one, in
//! whatever order, some of them never; and which ones are likely is found out on the way.
//!
//! Invariants:
//! - Nobody waits for memory. A read begins when the [`Allowance`] has its buffer; one that is wanted and has not begun is
//!   withdrawn, and whoever wants it reads it themselves. So many may share an allowance, however slow one of them is.
//! - It never fails. What could not be read is not there: whoever wants it reads it themselves, and gets the error.
//! - What is asked for is read once, at most, and kept until it is taken or forgotten.
//! - Dropping it lets nothing more begin, and waits for what is in flight; [`ReadAhead::abandon`] does not wait.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::queue::{Advance, Direction, Metered, Queue, Transfer};
use crate::{AlignedBuf, Allowance, Extent, LentBuf, PAGE_BYTES, Path};

/// Reads ahead. All methods may be called from many threads.
#[derive(Debug)]
pub struct ReadAhead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    path: Option<Path>,
}

struct Shared {
    state: Mutex<State>,
    /// There is something to begin, or it is over.
    asked: Condvar,
    /// Something that was in flight is not any more.
    arrived: Condvar,
    allowance: Allowance,
    is_over: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("reads", &self.lock().reads.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// What has not begun, the least rank first.
    waiting: BTreeSet<(usize, Extent)>,
    reads: HashMap<Extent, Read>,
    /// Of all that was asked for and is neither taken nor forgotten.
    bytes: usize,
}

#[derive(Debug)]
enum Read {
    /// By its rank.
    Waiting(usize),
    /// In flight, and whether somebody waits for it.
    Flying {
        is_awaited: bool,
    },
    /// In flight, and nobody wants it any more.
    Unwanted,
    Ready(LentBuf),
    Failed,
}

impl ReadAhead {
    /// A thread for each queue, which knows the files by their numbers. Their buffers are of the allowance.
    pub fn start(queues: Vec<Box<dyn Queue<LentBuf>>>, allowance: Allowance) -> Self {
        let path = queues.first().map(|queue| queue.path());
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            asked: Condvar::new(),
            arrived: Condvar::new(),
            allowance,
            is_over: AtomicBool::new(false),
        });
        let spawn = |queue: Box<dyn Queue<LentBuf>>| {
            let lane = Lane { shared: Arc::clone(&shared), flying: HashMap::new(), begun: 0 };
            // Where there is no thread to be had, nothing is read ahead.
            thread::Builder::new().name("onehop-read".into()).spawn(move || lane.run(queue)).ok()
        };
        let threads = queues.into_iter().filter_map(spawn).collect();
        Self { shared, threads, path }
    }

    /// The path of what is read.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// Bytes that were asked for and are neither taken nor forgotten.
    pub fn bytes(&self) -> usize {
        self.shared.lock().bytes
    }

    /// Somebody is likely to want these, which start on pages, those of the least rank first. What has been asked for
    /// already is not asked for again.
    pub fn ask(&self, extents: impl IntoIterator<Item = (usize, Extent)>) {
        let mut state = self.shared.lock();
        for (rank, extent) in extents {
            debug_assert!(extent.offset.is_multiple_of(PAGE_BYTES as u64));
            if extent.bytes > 0 && !state.reads.contains_key(&extent) {
                state.reads.insert(extent, Read::Waiting(rank));
                state.waiting.insert((rank, extent));
                state.bytes += extent.bytes;
            }
        }
        drop(state);
        self.shared.asked.notify_all();
    }

    /// What was asked for, if it has been read or is being read: then it is waited for. From now on the buffer is the
    /// caller's to account for.
    pub fn take(&self, extent: &Extent) -> Option<AlignedBuf> {
        let mut state = self.shared.lock();
        loop {
            match state.reads.get_mut(extent)? {
                Read::Flying { is_awaited } => {
                    *is_awaited = true;
                    state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Read::Unwanted => return None,
                Read::Waiting(_) | Read::Ready(_) | Read::Failed => break,
            }
        }
        let Some(Read::Ready(lent)) = state.remove(extent) else { return None };
        drop(state);
        let mut buffer = lent.into_inner();
        buffer.truncate(extent.bytes);
        Some(buffer)
    }

    /// Nobody wants these any more.
    pub fn forget(&self, extents: impl IntoIterator<Item = Extent>) {
        let (mut dropped, mut is_any_awaited) = (Vec::new(), false);
        let mut state = self.shared.lock();
        for extent in extents {
            match state.reads.get_mut(&extent) {
                None | Some(Read::Unwanted) => {}
                Some(flying @ Read::Flying { .. }) => {
                    is_any_awaited |= matches!(flying, Read::Flying { is_awaited: true });
                    *flying = Read::Unwanted;
                    state.bytes -= extent.bytes;
                }
                Some(_) => dropped.extend(state.remove(&extent)),
            }
        }
        // Freed where nobody waits for it.
        drop(state);
        if is_any_awaited {
            self.shared.arrived.notify_all();
        }
    }

    /// As dropping it, and waits for nothing: threads that wait for the system end by themselves when it answers, with
    /// the buffers that it may still write to.
    pub fn abandon(mut self) {
        self.threads.clear();
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.shared.is_over.store(true, Release);
        let reads = std::mem::take(&mut state.reads);
        drop(state);
        drop(reads);
        self.shared.asked.notify_all();
        self.shared.allowance.wake();
        for thread in self.threads.drain(..) {
            // What a thread that panicked was reading is not there, and was read by whoever wanted it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of reads that were in flight.
    fn tell(&self, outcomes: impl IntoIterator<Item = (Extent, Read)>) {
        let mut outcomes = outcomes.into_iter().peekable();
        if outcomes.peek().is_none() {
            return;
        }
        let (mut state, mut unwanted, mut is_any_awaited) = (self.lock(), Vec::new(), false);
        for (extent, outcome) in outcomes {
            match state.reads.get_mut(&extent) {
                Some(flying @ Read::Flying { .. }) => {
                    is_any_awaited |= matches!(flying, Read::Flying { is_awaited: true });
                    *flying = outcome;
                }
                _ => {
                    state.reads.remove(&extent);
                    unwanted.push(outcome);
                }
            }
        }
        drop(state);
        drop(unwanted);
        // Waking somebody costs as much as a short read.
        if is_any_awaited {
            self.arrived.notify_all();
        }
    }
}

/// One thread's part.
struct Lane {
    shared: Arc<Shared>,
    /// What is in flight, by its tag.
    flying: HashMap<u64, Extent>,
    begun: u64,
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Also when its queue has failed, or it has panicked: nobody waits for what does not come.
        self.shared.tell(self.flying.drain().map(|(_, extent)| (extent, Read::Failed)));
    }
}

impl Lane {
    fn run(mut self, queue: Box<dyn Queue<LentBuf>>) {
        let (mut queue, mut done, mut come) = (Metered::new(queue), Vec::new(), Vec::new());
        loop {
            // Before those who wait for what has come are woken: meanwhile the device has something to do.
            while queue.has_room()
                && let Some(transfer) = self.begin(queue.is_idle() && come.is_empty())
            {
                queue.submit(transfer);
            }
            if queue.is_idle() && come.is_empty() {
                return;
            }
            self.shared.tell(come.drain(..));
            if queue.is_idle() {
                continue;
            }
            if queue.reap(&mut done).is_err() {
                return;
            }
            for one in done.drain(..) {
                let (tag, outcome) = match one.advance() {
                    Advance::Rest(transfer) => {
                        queue.submit(transfer);
                        continue;
                    }
                    Advance::Whole(transfer) => (transfer.tag, Read::Ready(transfer.buffer)),
                    Advance::Failed(transfer, _) => (transfer.tag, Read::Failed),
                };
                come.extend(self.flying.remove(&tag).map(|extent| (extent, outcome)));
            }
        }
    }

    /// What was asked for next, with a buffer for it; `None` if there is none, or no buffer. Waits for either if there is
    /// nothing else to do.
    fn begin(&mut self, may_wait: bool) -> Option<Transfer<LentBuf>> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if shared.is_over.load(Acquire) {
                return None;
            }
            let Some((rank, extent)) = state.waiting.first().copied() else {
                if !may_wait {
                    return None;
                }
                state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let bytes = extent.bytes.next_multiple_of(PAGE_BYTES);
            let Some(buffer) = shared.allowance.take(bytes) else {
                if !may_wait {
                    return None;
                }
                drop(state);
                shared.allowance.wait_for(bytes, &shared.is_over);
                state = shared.lock();
                continue;
            };
            state.waiting.remove(&(rank, extent));
            state.reads.insert(extent, Read::Flying { is_awaited: false });
            let tag = self.begun;
            self.begun += 1;
            self.flying.insert(tag, extent);
            let Extent { file, offset, bytes: needed } = extent;
            return Some(Transfer { direction: Direction::Read, file, offset, at: 0, bytes, needed, buffer, tag });
        }
    }
}

impl State {
    /// Takes out what is not in flight.
    fn remove(&mut self, extent: &Extent) -> Option<Read> {
        let read = self.reads.remove(extent)?;
        self.bytes -= extent.bytes;
        if let Read::Waiting(rank) = read {
            self.waiting.remove(&(rank, *extent));
        }
        Some(read)
    }
}
