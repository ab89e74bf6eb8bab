//! The ring: the order in which threads fill, send and consume batches.
//!
//! 1. Idle threads take items in order. The slot of batch `b` is `b` modulo the number of slots.
//!    Its first item is taken when the slot is *open*: batch `b - slots` was consumed, and the
//!    event behind its copy has completed.
//! 2. The thread that fills the last item of a batch sends it and records its event.
//! 3. The caller's thread consumes batches in order. Without helpers it fills them as well.
//!
//! Helpers wait for the caller and for copies, and the caller waits for helpers. At least one of
//! them always has work, or there is an error, which wakes all waiters.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use onehop_pipeline::Error as PipelineError;

use super::registered::{LEAST_BYTES, Registered};
use super::{ALIGNMENT, Cargo, Failed, Shape, Stager};
use crate::fused::{Error, Result};
use crate::queue::lose;
use crate::{Event, PinnedBuf, Stream};

/// Attempt named in errors of copies.
const COPYING: &str = "copying columns to the GPU";

/// A pinned buffer that several threads fill concurrently.
pub struct Room {
    buffer: PinnedBuf,
    start: *mut u8,
    /// Usable bytes: the buffer may have more.
    len: usize,
    used: AtomicUsize,
    slot: usize,
    /// Memory that is not copied into the buffer.
    registered: Arc<Registered>,
    direct: Mutex<Direct>,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("slot", &self.slot).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Bytes that the device copies from their own memory: their places in the buffer stay empty.
#[derive(Default)]
struct Direct {
    runs: Vec<DirectRun>,
    /// Owners of that memory.
    held: Vec<Box<dyn Send>>,
}

#[derive(Clone, Copy)]
struct DirectRun {
    /// Offset in the buffer.
    at: usize,
    len: usize,
    from: *const u8,
}

/// Result of putting bytes into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The bytes were copied into the buffer.
    Copied,
    /// The bytes were not copied. The device copies them from their own memory, as if they were in
    /// the buffer.
    Direct,
}

// SAFETY: `start` is the buffer's own memory, each byte of which is given to one thread at most.
// The sender of the batch reads the bytes of runs, which are held until it has arrived.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    fn new(mut buffer: PinnedBuf, len: usize, slot: usize, registered: &Arc<Registered>) -> Self {
        let (start, len) = (buffer.as_mut_ptr(), len.min(buffer.len()));
        let registered = Arc::clone(registered);
        Self { buffer, start, len, used: AtomicUsize::new(0), slot, registered, direct: Mutex::default() }
    }

    fn direct(&self) -> MutexGuard<'_, Direct> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties the room. No copy reads its previous content any more.
    fn open(&self) {
        self.used.store(0, Relaxed);
        let before = std::mem::take(&mut *self.direct());
        // Outside of the lock: dropping the owners returns their buffers.
        drop(before);
    }

    /// Returns the slot in the ring.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Copies bytes into the buffer and returns their offset, a multiple of [`ALIGNMENT`]. `None`
    /// if there is no room for them.
    pub fn put(&self, bytes: &[u8]) -> Option<usize> {
        let mut region = self.reserve(bytes.len())?;
        region.put(bytes)?;
        Some(region.at)
    }

    /// Puts bytes as [`Room::put`] does, but without a host copy if the device can read them
    /// directly.
    ///
    /// # Safety
    /// As for [`Region::put_held`].
    pub unsafe fn put_held(&self, bytes: &[u8]) -> Option<(usize, Put)> {
        let mut region = self.reserve(bytes.len())?;
        // SAFETY: the caller upholds the contract.
        let (_, put) = unsafe { region.put_held(bytes)? };
        Some((region.at, put))
    }

    /// Keeps the owner of bytes that were [`Put::Direct`], until the batch has arrived.
    pub fn hold(&self, what: impl Send + 'static) {
        self.direct().held.push(Box::new(what));
    }

    /// Reserves bytes of the buffer, for several puts one after the other.
    pub fn reserve(&self, bytes: usize) -> Option<Region<'_>> {
        let len = bytes.checked_next_multiple_of(ALIGNMENT)?;
        let after = |used: usize| used.checked_add(len).filter(|end| *end <= self.len);
        let at = self.used.fetch_update(Relaxed, Relaxed, after).ok()?;
        Some(Region { room: self, at, len, used: 0 })
    }
}

/// A part of a buffer that one thread fills.
#[derive(Debug)]
pub struct Region<'a> {
    room: &'a Room,
    at: usize,
    len: usize,
    used: usize,
}

impl Region<'_> {
    /// Appends a copy of the bytes and returns their offset in the region, a multiple of
    /// [`ALIGNMENT`]. `None` if there is no room for them.
    ///
    /// This is the only copy that the host makes.
    pub fn put(&mut self, bytes: &[u8]) -> Option<usize> {
        let begin = self.take(bytes.len())?;
        // SAFETY: the range lies in the region, which lies in the buffer, and in no other region
        // since the buffer was opened. There is no reader before all items are in it.
        unsafe { self.room.start.add(self.at + begin).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Some(begin)
    }

    /// Puts bytes as [`Region::put`] does, but without a host copy if the device can read them
    /// directly.
    ///
    /// # Safety
    /// The bytes lie in a buffer that is in use. If they were [`Put::Direct`], they are neither
    /// changed nor freed before the batch has arrived: their owner is given to [`Room::hold`]
    /// before the item is done.
    pub unsafe fn put_held(&mut self, bytes: &[u8]) -> Option<(usize, Put)> {
        if bytes.len() < LEAST_BYTES || bytes.len() > self.len - self.used || !self.room.registered.covers(bytes) {
            return Some((self.put(bytes)?, Put::Copied));
        }
        let begin = self.take(bytes.len())?;
        let run = DirectRun { at: self.at + begin, len: bytes.len(), from: bytes.as_ptr() };
        self.room.direct().runs.push(run);
        Some((begin, Put::Direct))
    }

    /// Reserves bytes behind those that are there.
    fn take(&mut self, len: usize) -> Option<usize> {
        let begin = self.used;
        if len > self.len - begin {
            return None;
        }
        self.used = (begin + len).next_multiple_of(ALIGNMENT);
        Some(begin)
    }

    /// Returns the offset in the buffer, and the filled bytes.
    pub fn filled(&self) -> (usize, usize) {
        (self.at, self.used)
    }
}

/// A full buffer.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Destination for the combined result of all items.
    pub room: &'a Room,
}

impl Sent<'_> {
    /// Enqueues a copy of a part to the device. `bytes` is cut off at the end of the content.
    ///
    /// # Safety
    /// That many bytes of the device lie at `to`. They are not freed, and have no other user, until
    /// the stream has finished the copy.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub unsafe fn copy(&self, to: u64, from: usize, bytes: usize, stream: &Stream) -> crate::Result<()> {
        let used = self.bytes();
        let (from, end) = (from.min(used), from.saturating_add(bytes).min(used));
        if from == end {
            return Ok(());
        }
        let mut runs = self.room.direct().runs.clone();
        runs.retain(|run| (from..end).contains(&run.at));
        runs.sort_unstable_by_key(|run| run.at);
        let mut at = from;
        let nothing = DirectRun { at: end, len: 0, from: std::ptr::null() };
        for run in runs.into_iter().chain([nothing]) {
            if at < run.at {
                let place = to + (at - from) as u64;
                // SAFETY: the range lies in the buffer, which is reopened or freed only after the
                // event behind this copy has completed or the stream was waited for; the caller
                // guarantees the rest.
                unsafe { stream.copy_to_device(place, self.room.start.add(at), run.at - at)? };
            }
            if run.len > 0 {
                let place = to + (run.at - from) as u64;
                // SAFETY: the thread that put these bytes has had them held as long as the buffer
                // is.
                unsafe { stream.copy_to_device(place, run.from, run.len)? };
            }
            at = (run.at + run.len).next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }

    /// Returns the bytes of the content.
    pub fn bytes(&self) -> usize {
        self.room.used.load(Relaxed)
    }
}

/// A place of the ring.
#[derive(Debug)]
struct Slot {
    room: Room,
    copied: Event,
}

/// Progress of all threads.
#[derive(Debug)]
struct State {
    /// Next item to be taken.
    batch: usize,
    item: usize,
    /// Number of batches that were opened.
    opened: usize,
    /// True while a thread waits for the copy of the next slot.
    is_opening: bool,
    /// Number of batches that the caller has consumed.
    consumed: usize,
    /// By slot: items that are not in it yet, and the batch that was sent last.
    left: Vec<usize>,
    sent: Vec<Option<usize>>,
    error: Option<Error>,
    /// True after a failure, or once the caller has stopped.
    is_over: bool,
}

struct Ring<'a, C> {
    cargo: &'a C,
    cancelled: &'a AtomicBool,
    slots: &'a [Slot],
    stream: &'a Stream,
    state: Mutex<State>,
    changed: Condvar,
}

/// Next action of a thread.
enum Next {
    Item(usize, usize),
    /// No item is available now.
    Wait,
    Nothing,
}

impl<C: Cargo> Ring<'_, C> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        let mut state = self.lock();
        if !state.is_over {
            (state.is_over, state.error) = (true, Some(error));
        }
        drop(state);
        self.changed.notify_all();
    }

    fn slot_of(&self, batch: usize) -> usize {
        batch % self.slots.len()
    }

    /// Returns the next item, once its slot is open.
    fn next(&self) -> Next {
        if self.cancelled.load(Relaxed) {
            self.fail(Error::Pipeline(PipelineError::Cancelled));
        }
        let mut state = self.lock();
        if state.is_over || state.batch == self.cargo.batches() {
            return Next::Nothing;
        }
        if state.batch == state.opened {
            let batch = state.batch;
            if state.is_opening || batch >= state.consumed + self.slots.len() {
                return Next::Wait;
            }
            state.is_opening = true;
            drop(state);
            let slot = &self.slots[self.slot_of(batch)];
            let waited = if batch < self.slots.len() { Ok(()) } else { slot.copied.wait() };
            if let Err(source) = waited {
                self.fail(Error::Device { attempt: COPYING.into(), source });
                return Next::Nothing;
            }
            state = self.lock();
            slot.room.open();
            state.left[slot.room.slot] = self.cargo.items(batch);
            (state.is_opening, state.opened) = (false, batch + 1);
            self.changed.notify_all();
        }
        let (batch, item) = (state.batch, state.item);
        state.item += 1;
        if state.item >= self.cargo.items(batch) {
            (state.batch, state.item) = (batch + 1, 0);
        }
        Next::Item(batch, item)
    }

    /// Fills an item, and sends the batch if it was the last.
    fn fill(&self, batch: usize, item: usize) -> Result<()> {
        let slot = &self.slots[self.slot_of(batch)];
        self.cargo.fill(batch, item, &slot.room)?;
        let mut state = self.lock();
        state.left[slot.room.slot] -= 1;
        if state.left[slot.room.slot] > 0 || state.is_over {
            return Ok(());
        }
        drop(state);
        self.cargo.send(batch, Sent { room: &slot.room }, self.stream)?;
        slot.copied.record(self.stream)?;
        self.lock().sent[slot.room.slot] = Some(batch);
        self.changed.notify_all();
        Ok(())
    }

    /// Executes one action. Returns true if there may be more to do.
    fn step(&self) -> bool {
        match self.next() {
            Next::Item(batch, item) => {
                let outcome = self.fill(batch, item);
                let is_done = outcome.is_ok();
                if let Err(error) = outcome {
                    self.fail(error);
                }
                is_done
            }
            Next::Wait => {
                let state = self.lock();
                let can_open = !state.is_opening && state.batch < state.consumed + self.slots.len();
                if !state.is_over && state.batch == state.opened && !can_open {
                    drop(self.wait(state));
                }
                true
            }
            Next::Nothing => false,
        }
    }

    /// Loop of a helper thread.
    fn help(&self) {
        // Without this, waiters for a thread that has panicked would wait forever.
        let _gone = OnPanic(|| self.fail(died("a thread that loads columns")));
        while self.step() {}
    }

    /// Waits until a batch is sent. Returns false if the run is over instead.
    fn is_sent(&self, batch: usize, has_helpers: bool) -> bool {
        let slot = self.slot_of(batch);
        loop {
            let state = self.lock();
            if state.is_over {
                return false;
            }
            if state.sent[slot] == Some(batch) {
                return true;
            }
            if has_helpers {
                drop(self.wait(state));
            } else {
                drop(state);
                self.step();
            }
        }
    }

    fn consume(&self, has_helpers: bool, mut consume: impl FnMut(usize, &Event) -> Result<ControlFlow<()>>) {
        let _gone = OnPanic(|| self.fail(died("a query on the GPU")));
        for batch in 0..self.cargo.batches() {
            if !self.is_sent(batch, has_helpers) {
                return;
            }
            match consume(batch, &self.slots[self.slot_of(batch)].copied) {
                Ok(ControlFlow::Continue(())) => self.lock().consumed = batch + 1,
                Ok(ControlFlow::Break(())) => self.lock().is_over = true,
                Err(error) => self.fail(error),
            }
            self.changed.notify_all();
        }
    }
}

fn died(who: &str) -> Error {
    Error::Pipeline(PipelineError::Invalid(format!("{who} has panicked")))
}

/// Calls a function if the thread panics.
struct OnPanic<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

/// Buffers that copies may be reading, and the stream of the copies.
#[derive(Debug)]
struct Held {
    slots: Vec<Slot>,
    stream: Stream,
}

impl Held {
    /// Allocates the slots of a ring, as many as there is memory for.
    fn new(stager: &Stager, shape: Shape, batches: usize) -> Result<Self> {
        let bytes = shape.buffer_bytes();
        let mut held = Self { slots: Vec::new(), stream: Stream::new(&stager.context)? };
        for number in 0..shape.slots.min(batches).max(1) {
            let buffer = match stager.pinned.take(bytes, || PinnedBuf::zeroed(&stager.context, bytes)) {
                Ok(buffer) => buffer,
                // Fewer slots are sufficient, with less concurrency.
                Err(_) if number > 0 => break,
                Err(e) => return Err(e),
            };
            held.slots.push(Slot {
                room: Room::new(buffer, bytes, number, &stager.registered),
                copied: Event::new(&stager.context)?,
            });
        }
        Ok(held)
    }

    /// Waits until no copy is pending, and returns the buffers.
    fn settle(mut self, stager: &Stager) -> crate::Result<()> {
        self.stream.synchronize()?;
        std::mem::take(&mut self.slots).into_iter().for_each(|slot| stager.pinned.give(slot.room.buffer));
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.slots.is_empty() && self.stream.synchronize().is_err() {
            self.slots.iter().for_each(|slot| slot.room.registered.lose());
            lose(std::mem::take(&mut self.slots));
        }
    }
}

pub(super) fn run<C: Cargo>(
    stager: &Stager,
    cargo: &C,
    shape: Shape,
    cancelled: &AtomicBool,
    consume: impl FnMut(usize, &Event) -> Result<ControlFlow<()>>,
) -> std::result::Result<(), Failed> {
    let helpers = shape.helpers(cargo.bytes(), cargo.readers());
    let held = Held::new(stager, shape, cargo.batches()).map_err(|error| Failed { error, in_flight: false })?;
    let count = held.slots.len();
    let state = State {
        batch: 0,
        item: 0,
        opened: 0,
        is_opening: false,
        consumed: 0,
        left: vec![0; count],
        sent: vec![None; count],
        error: None,
        is_over: false,
    };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    let ring = Ring { cargo, cancelled, slots: &held.slots, stream: &held.stream, state, changed };
    thread::scope(|scope| {
        let helper = || thread::Builder::new().name("onehop-stage".into()).spawn_scoped(scope, || ring.help());
        // If the system has no thread left, the caller's thread works alone.
        let started: Vec<_> = (0..helpers).map_while(|_| helper().ok()).collect();
        ring.consume(!started.is_empty(), consume);
        // A thread that panicked has reported it.
        started.into_iter().for_each(|helper| drop(helper.join()));
    });
    let error = ring.state.into_inner().unwrap_or_else(PoisonError::into_inner).error;
    let settled = held.settle(stager);
    let in_flight = settled.is_err();
    let lost = settled.err().map(|source| Error::Device { attempt: COPYING.into(), source });
    match error.or(lost) {
        Some(error) => Err(Failed { error, in_flight }),
        None => Ok(()),
    }
}
