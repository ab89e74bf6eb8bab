//! Reads that somebody is likely to want, begun before they are: what a scan needs next comes while it works on what it
//! has.
//!
//! A [`StreamReader`](crate::StreamReader) hands out a list, whole and in order. Here reads are wanted one by one, in
//! whatever order, some of them never; and which ones are likely is found out on the way.
//!
//! Invariants:
//! - Nobody waits for memory. A read begins when the [`Allowance`] has its buffer; one that is wanted and has not begun is
//!   withdrawn, and whoever wants it reads it themselves. So many may share an allowance, however slow one of them is.
//! - But for a device that has as much to do as it should: it would be slower with more. Then what is wanted begins next.
//! - It never fails. What could not be read is not there: whoever wants it reads it themselves, and gets the error.
//! - What is asked for is read once, at most, and kept until it is taken or forgotten; with what waits behind it in the
//!   file, until the read is so long that a longer one is no faster. Each part is then a buffer of its own.
//! - Dropping it lets nothing more begin, and waits for what is in flight; [`ReadAhead::abandon`] does not wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    request_bytes: usize,
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
    /// By where they are.
    reads: BTreeMap<Extent, Read>,
    /// Of all that was asked for and is neither taken nor forgotten.
    bytes: usize,
    /// Threads that begin what waits, and how many of them have as much in flight as their device wants.
    lanes: usize,
    busy_lanes: usize,
    /// How many of them wait for something to be asked for.
    idle_lanes: usize,
}

#[derive(Debug)]
enum Read {
    /// By its rank, and whether somebody waits for it already.
    Waiting {
        rank: usize,
        is_awaited: bool,
    },
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
    /// A thread for each queue, which knows the files by their numbers. Their buffers are of the allowance. A read that is
    /// shorter than `request_bytes` has with it what follows it in the file, up to twice as much.
    pub fn start(queues: Vec<Box<dyn Queue<LentBuf>>>, allowance: Allowance, request_bytes: usize) -> Self {
        let path = queues.first().map(|queue| queue.path());
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            asked: Condvar::new(),
            arrived: Condvar::new(),
            allowance,
            request_bytes,
            is_over: AtomicBool::new(false),
        });
        let spawn = |queue: Box<dyn Queue<LentBuf>>| {
            let lane = Lane { shared: Arc::clone(&shared), flying: HashMap::new(), begun: 0, is_busy: false };
            // Where there is no thread to be had, nothing is read ahead.
            thread::Builder::new().name("onehop-read".into()).spawn(move || lane.run(queue)).ok()
        };
        shared.lock().lanes = queues.len();
        let threads: Vec<_> = queues.into_iter().map(spawn).collect();
        Self { shared, threads: threads.into_iter().flatten().collect(), path }
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
        let (mut state, mut is_any_new) = (self.shared.lock(), false);
        for (rank, extent) in extents {
            debug_assert!(extent.offset.is_multiple_of(PAGE_BYTES as u64));
            if extent.bytes > 0 && !state.reads.contains_key(&extent) {
                state.reads.insert(extent, Read::Waiting { rank, is_awaited: false });
                state.waiting.insert((rank, extent));
                state.bytes += extent.bytes;
                is_any_new = true;
            }
        }
        let is_awaited = is_any_new && state.idle_lanes > 0;
        drop(state);
        if is_awaited {
            self.shared.asked.notify_all();
        }
    }

    /// What was asked for, if it has been read, or is being read or about to be: then it is waited for. From now on the
    /// buffer is the caller's to account for.
    pub fn take(&self, extent: &Extent) -> Option<AlignedBuf> {
        let mut state = self.shared.lock();
        loop {
            let is_busy = state.lanes > 0 && state.busy_lanes == state.lanes;
            match state.reads.get_mut(extent)? {
                Read::Flying { is_awaited } => *is_awaited = true,
                Read::Waiting { rank, is_awaited } if is_busy => {
                    *is_awaited = true;
                    let before = std::mem::take(rank);
                    state.waiting.remove(&(before, *extent));
                    state.waiting.insert((0, *extent));
                }
                Read::Unwanted => return None,
                Read::Waiting { .. } | Read::Ready(_) | Read::Failed => break,
            }
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
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
                Some(other) => {
                    is_any_awaited |= matches!(other, Read::Waiting { is_awaited: true, .. });
                    dropped.extend(state.remove(&extent));
                }
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
    /// What is in flight, by its tag: of a file, one behind the other.
    flying: HashMap<u64, Vec<Extent>>,
    begun: u64,
    is_busy: bool,
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Also when its queue has failed, or it has panicked: nobody waits for what does not come.
        self.shared.tell(self.flying.drain().flat_map(|(_, run)| run).map(|extent| (extent, Read::Failed)));
        self.busy(false);
        self.shared.lock().lanes -= 1;
        self.shared.arrived.notify_all();
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
            self.busy(queue.is_busy());
            self.shared.tell(come.drain(..));
            if queue.is_idle() {
                continue;
            }
            if queue.reap(&mut done).is_err() {
                return;
            }
            for one in done.drain(..) {
                let (tag, buffer) = match one.advance() {
                    Advance::Rest(transfer) => {
                        queue.submit(transfer);
                        continue;
                    }
                    Advance::Whole(transfer) => (transfer.tag, Some(transfer.buffer)),
                    Advance::Failed(transfer, _) => (transfer.tag, None),
                };
                come.extend(parts(self.flying.remove(&tag).unwrap_or_default(), buffer));
            }
        }
    }

    /// Whether its device has enough to do. Who waits for something to begin looks again when it has not.
    fn busy(&mut self, is_busy: bool) {
        if is_busy == self.is_busy {
            return;
        }
        self.is_busy = is_busy;
        let mut state = self.shared.lock();
        if is_busy {
            state.busy_lanes += 1;
        } else {
            state.busy_lanes -= 1;
            drop(state);
            self.shared.arrived.notify_all();
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
            let Some((_, extent)) = state.waiting.first().copied() else {
                if !may_wait {
                    return None;
                }
                state.idle_lanes += 1;
                state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_lanes -= 1;
                continue;
            };
            let run = state.run_from(extent, shared.request_bytes);
            let (run, buffer) = match shared.allowance.take(run.iter().map(padded).sum()) {
                Some(buffer) => (run, Some(buffer)),
                None => (vec![extent], shared.allowance.take(padded(&extent))),
            };
            let Some(buffer) = buffer else {
                if !may_wait {
                    return None;
                }
                drop(state);
                shared.allowance.wait_for(padded(&extent), &shared.is_over);
                state = shared.lock();
                continue;
            };
            for extent in &run {
                if let Some(Read::Waiting { rank, is_awaited }) = state.reads.remove(extent) {
                    state.waiting.remove(&(rank, *extent));
                    state.reads.insert(*extent, Read::Flying { is_awaited });
                }
            }
            let tag = self.begun;
            self.begun += 1;
            let Extent { file, offset, .. } = extent;
            let bytes: usize = run.iter().map(padded).sum();
            // Behind the last there may be nothing, at the end of the file.
            let needed = bytes - run.last().map_or(0, |last| padded(last) - last.bytes);
            self.flying.insert(tag, run);
            return Some(Transfer { direction: Direction::Read, file, offset, at: 0, bytes, needed, buffer, tag });
        }
    }
}

/// Whole pages.
fn padded(extent: &Extent) -> usize {
    extent.bytes.next_multiple_of(PAGE_BYTES)
}

/// What has become of each part of what was read at once, or of nothing.
fn parts(run: Vec<Extent>, buffer: Option<LentBuf>) -> impl Iterator<Item = (Extent, Read)> {
    let (mut rest, mut left) = (buffer, run.len());
    run.into_iter().map(move |extent| {
        left -= 1;
        let mut part = rest.take();
        if left > 0 {
            // Memory that cannot be parted is of no use to anybody: those who want it read it themselves.
            rest = part.as_mut().and_then(|buffer| buffer.split_off(padded(&extent)));
            part = part.filter(|_| rest.is_some());
        }
        (extent, part.map_or(Read::Failed, Read::Ready))
    })
}

impl State {
    /// What waits, from an extent that does on, as far as one follows the other in the file and until it is long enough: at
    /// most twice as long, or the one extent.
    fn run_from(&self, first: Extent, enough_bytes: usize) -> Vec<Extent> {
        let (mut run, mut bytes) = (vec![first], padded(&first));
        while bytes < enough_bytes {
            let from = Extent { file: first.file, offset: first.offset + bytes as u64, bytes: 0 };
            match self.reads.range(from..).next() {
                Some((next, Read::Waiting { .. }))
                    if (next.file, next.offset) == (from.file, from.offset)
                        && bytes + padded(next) <= 2 * enough_bytes =>
                {
                    run.push(*next);
                    bytes += padded(next);
                }
                _ => break,
            }
        }
        run
    }

    /// Takes out what is not in flight.
    fn remove(&mut self, extent: &Extent) -> Option<Read> {
        let read = self.reads.remove(extent)?;
        self.bytes -= extent.bytes;
        if let Read::Waiting { rank, .. } = read {
            self.waiting.remove(&(rank, *extent));
        }
        Some(read)
    }
}
