//! Queue over cuFile's batches, with three batching modes.
//!
//! **Refill**: one batch, whose places are refilled as they become free. Completed transfers are
//! collected individually, and their places are refilled at once. The storage therefore never waits
//! for the slowest transfer of a batch. **Slots**: the same with a batch of one for each place.
//! **Wait**: the batch is refilled only after all of it has completed, as in cuFile's samples. It
//! exists for comparison.
//!
//! Transfers that were submitted together are passed to cuFile in one call, at the next
//! [`Queue::reap`].

use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use onehop_io::{Direction, Done, Ledger, Path, Queue, Transfer};

use super::{check_transfer, count, lose, path_of};
use crate::cufile::{Batch, sys};
use crate::{CufileFile, DeviceBuf, Error};

/// Policy for refilling the places of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Refills the batch while its other transfers are in flight.
    Refill,
    /// Gives each place a batch of its own.
    Slots,
    /// Refills the batch after all its transfers have completed.
    Wait,
}

/// Timeout of one status call, after which it is repeated. The call returns when a transfer
/// completes.
const PATIENCE: Duration = Duration::from_millis(100);

/// Queue of transfers in batches.
#[derive(Debug)]
pub struct CufileBatchQueue {
    files: Vec<Arc<CufileFile>>,
    /// One batch, or one for each place.
    batches: Vec<Batch>,
    batching: Batching,
    /// Transfers by place. The cookie that cuFile gets is the place plus one.
    flying: Vec<Option<Transfer<DeviceBuf>>>,
    free: Vec<usize>,
    /// Places that were not passed to cuFile yet.
    fresh: Vec<usize>,
    /// Completed transfers that may not be returned yet, or transfers that cuFile refused.
    held: Vec<Done<DeviceBuf>>,
    entries: Vec<sys::BatchEntry>,
    events: Vec<sys::BatchEvent>,
    ledger: Arc<Ledger>,
    path: Path,
}

// SAFETY: entries and events hold pointers into buffers that `flying` owns; only cuFile uses them.
unsafe impl Send for CufileBatchQueue {}

impl CufileBatchQueue {
    /// Creates a queue for `depth` concurrent transfers: at least one, and at most cuFile's maximum
    /// for a batch.
    ///
    /// # Errors
    /// Returns an error if cuFile is too old for batches, or the device does not support them.
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

    /// Returns the number of transfers that are with cuFile.
    fn with_cufile(&self) -> usize {
        self.flying.len() - self.free.len() - self.fresh.len()
    }

    /// Passes the new transfers to cuFile.
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
            // SAFETY: this queue owns buffers and files until the batch reports them done, or is
            // destroyed after it was waited for.
            if let Err(e) = unsafe { self.batches[batch].submit(&mut self.entries) } {
                // None of the entries was started.
                for place in places {
                    self.come_back(*place, Err(e.clone().into()));
                }
            }
        }
    }

    /// Records the end of a transfer.
    fn come_back(&mut self, place: usize, moved: io::Result<usize>) {
        let Some(transfer) = self.flying.get_mut(place).and_then(Option::take) else { return };
        if let Ok(n) = moved {
            count(&self.ledger, transfer.direction, self.path, n);
        }
        self.free.push(place);
        self.held.push(Done { transfer, moved });
    }

    /// Collects completed transfers. If `waits`, first waits for one.
    fn look(&mut self, waits: bool) -> io::Result<()> {
        let mut events = mem::take(&mut self.events);
        let mut found = 0;
        for number in 0..self.batches.len() {
            let (at_least, most) = match self.batching {
                Batching::Slots if self.flying[number].is_none() => continue,
                // The batches are polled in turn. None may block the others, unless it is the only
                // one.
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

    /// Returns true if completed transfers may be returned.
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
