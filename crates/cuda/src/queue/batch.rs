//! cuFile's batches, in three manners.
//!
//! **Refill**: one batch, into which transfers are put as places become free: what is done is taken one at a time, and its
//! place is filled again at once, so that the storage never waits for the slowest of a batch. **Slots**: the same with
//! a batch of one for each place. **Wait**: nothing is put into the batch until all of it is done, as programs do that
//! follow cuFile's samples; it is here to be compared with.
//!
//! What was submitted together is handed over in one call, at the next [`Queue::reap`].

use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use onehop_io::{Direction, Done, Ledger, Path, Queue, Transfer};

use super::{check_transfer, count, lose, path_of};
use crate::cufile::{Batch, sys};
use crate::{CufileFile, DeviceBuf, Error};

/// How places of batches are filled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// In the batch, while the others are in flight.
    Refill,
    /// Each in a batch of its own.
    Slots,
    /// When all are done.
    Wait,
}

/// How long cuFile is asked to wait before it is asked again. It returns when something is done.
const PATIENCE: Duration = Duration::from_millis(100);

/// Transfers in batches.
#[derive(Debug)]
pub struct CufileBatchQueue {
    files: Vec<Arc<CufileFile>>,
    /// One, or one for each place.
    batches: Vec<Batch>,
    batching: Batching,
    /// By place, which is the cookie that cuFile knows it by, less one.
    flying: Vec<Option<Transfer<DeviceBuf>>>,
    free: Vec<usize>,
    /// Places that cuFile has not heard of.
    fresh: Vec<usize>,
    /// Transfers that came back and may not leave yet, or could not be handed over.
    held: Vec<Done<DeviceBuf>>,
    entries: Vec<sys::BatchEntry>,
    events: Vec<sys::BatchEvent>,
    ledger: Arc<Ledger>,
    path: Path,
}

// SAFETY: entries and events are pointers into buffers that `flying` owns; none is used but by cuFile.
unsafe impl Send for CufileBatchQueue {}

impl CufileBatchQueue {
    /// For `depth` transfers at once, at least one, and at most as many as cuFile allows in a batch.
    ///
    /// # Errors
    /// A version without batches, or a device that has none.
    pub fn new(files: Vec<Arc<CufileFile>>, depth: usize, batching: Batching, ledger: Arc<Ledger>) -> io::Result<Self> {
        let Some(cufile) = files.first().map(|file| Arc::clone(file.cufile())) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a queue needs a file"));
        };
        let depth = depth.clamp(1, cufile.max_batch());
        let (count, capacity) = if batching == Batching::Slots { (depth, 1) } else { (1, depth) };
        let batches = (0..count).map(|_| Batch::new(&cufile, capacity)).collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            path: path_of(&files),
            files,
            batches,
            batching,
            flying: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            fresh: Vec::new(),
            held: Vec::new(),
            entries: Vec::new(),
            events: Vec::new(),
            ledger,
        })
    }

    fn entry(&self, place: usize) -> Option<sys::BatchEntry> {
        let transfer = self.flying.get(place)?.as_ref()?;
        Some(sys::BatchEntry {
            mode: sys::MODE_BATCH,
            base: transfer.buffer.address() as *mut _,
            file_offset: transfer.offset as libc::off_t,
            buffer_offset: transfer.at as libc::off_t,
            bytes: transfer.bytes,
            file: self.files[transfer.file].handle(),
            op: if transfer.direction == Direction::Read { sys::OP_READ } else { sys::OP_WRITE },
            cookie: (place + 1) as *mut _,
        })
    }

    /// Transfers that cuFile has heard of.
    fn with_cufile(&self) -> usize {
        self.flying.len() - self.free.len() - self.fresh.len()
    }

    /// Hands over what is new.
    fn hand_over(&mut self) {
        if self.fresh.is_empty() || (self.batching == Batching::Wait && self.with_cufile() > 0) {
            return;
        }
        let fresh = mem::take(&mut self.fresh);
        let at_once = if self.batching == Batching::Slots { 1 } else { fresh.len() };
        for places in fresh.chunks(at_once) {
            let batch = if self.batching == Batching::Slots { places[0] } else { 0 };
            let entries = places.iter().filter_map(|place| self.entry(*place));
            self.entries = entries.collect();
            // SAFETY: buffers and files are owned by this queue until the batch says that they are done, or is destroyed
            // after it was waited for.
            if let Err(e) = unsafe { self.batches[batch].submit(&mut self.entries) } {
                // Nothing of it is under way.
                for place in places {
                    self.come_back(*place, Err(e.clone().into()));
                }
            }
        }
    }

    /// A transfer is over.
    fn come_back(&mut self, place: usize, moved: io::Result<usize>) {
        let Some(transfer) = self.flying.get_mut(place).and_then(Option::take) else { return };
        if let Ok(n) = moved {
            count(&self.ledger, transfer.direction, self.path, n);
        }
        self.free.push(place);
        self.held.push(Done { transfer, moved });
    }

    /// Takes what is done, having waited for one if `waits`.
    fn look(&mut self, waits: bool) -> io::Result<()> {
        let mut events = mem::take(&mut self.events);
        let mut found = 0;
        for number in 0..self.batches.len() {
            let (at_least, most) = match self.batching {
                Batching::Slots if self.flying[number].is_none() => continue,
                // Asking in turn: none may keep us from the others, unless it is the only one.
                Batching::Slots => (usize::from(waits && self.with_cufile() == 1), 1),
                Batching::Refill => (usize::from(waits), self.with_cufile()),
                Batching::Wait => (if waits { self.with_cufile() } else { 0 }, self.with_cufile()),
            };
            if most == 0 {
                continue;
            }
            let patience = if at_least > 0 { PATIENCE } else { Duration::ZERO };
            self.batches[number].done(at_least, most, patience, &mut events)?;
            for event in events.drain(..) {
                let Some(place) = (event.cookie as usize).checked_sub(1) else { continue };
                let moved = self.batches[number].outcome(&event);
                self.come_back(place, moved);
                found += 1;
            }
        }
        self.events = events;
        if found == 0 && waits {
            thread::yield_now();
        }
        Ok(())
    }

    /// Whether what came back may leave.
    fn is_whole(&self) -> bool {
        self.batching != Batching::Wait || self.with_cufile() == 0
    }
}

impl Queue<DeviceBuf> for CufileBatchQueue {
    fn path(&self) -> Path {
        self.path
    }

    fn depth(&self) -> usize {
        self.flying.len()
    }

    fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len() + self.held.len()
    }

    fn submit(&mut self, transfer: Transfer<DeviceBuf>) {
        check_transfer(&transfer, self.files.len());
        assert!(self.in_flight() < self.flying.len(), "the queue is full");
        let Some(place) = self.free.pop() else { panic!("the queue is full") };
        self.flying[place] = Some(transfer);
        self.fresh.push(place);
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<DeviceBuf>>) -> io::Result<()> {
        let wanted = at_least.min(self.in_flight());
        let before = done.len();
        loop {
            self.hand_over();
            let missing =
                wanted.saturating_sub(done.len() - before + if self.is_whole() { self.held.len() } else { 0 });
            let looked = if self.with_cufile() > 0 { self.look(missing > 0) } else { Ok(()) };
            if self.is_whole() {
                done.append(&mut self.held);
            }
            if done.len() - before >= wanted {
                return Ok(());
            }
            looked?;
        }
    }
}

impl Drop for CufileBatchQueue {
    fn drop(&mut self) {
        for place in mem::take(&mut self.fresh) {
            self.flying[place] = None;
            self.free.push(place);
        }
        let mut failures = 0;
        while self.with_cufile() > 0 {
            if self.look(true).is_err() {
                failures += 1;
                if failures == 1000 {
                    let files = mem::take(&mut self.files);
                    return lose((mem::take(&mut self.flying), mem::take(&mut self.batches), files));
                }
            }
        }
    }
}
