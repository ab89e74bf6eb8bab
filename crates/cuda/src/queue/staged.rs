//! Queue through host memory of this crate: a ring of pinned buffers, which the host fills while
//! others are copied to the device.
//!
//! 1. A transfer is cut into parts of at most a ring buffer. Parts wait in order for a free buffer
//!    of the ring.
//! 2. Reads: a host queue (`io_uring`, or `pread`) reads a part into its buffer, a stream copies it
//!    to the device, and the buffer is free again. Writes: the part is copied from the device
//!    first, then written.
//! 3. The transfer is done when its last part is. It has moved the bytes before the first part that
//!    fell short.
//!
//! Reads and copies therefore overlap at any depth, also within one large transfer. The copies of
//! one stream end in the order in which they were started, so that only the oldest is polled.
//!
//! Invariant: memory that the host queue or the device may access is owned by that queue, by
//! `copies` or by `whole`, until the access has ended. If a stream cannot be waited for, the memory
//! is leaked rather than freed.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;

use onehop_io::{
    BlockingQueue, Direction, Done, Hop, Ledger, LocalFile, PAGE_BYTES, Path, Queue, Transfer, UringQueue, WriteAt,
};

use super::{check_transfer, lose};
use crate::{Context, DeviceBuf, Error, Event, PinnedBuf, Stream};

/// Dimensions of the ring of pinned buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Number of buffers.
    pub buffers: usize,
    /// Bytes of each buffer, in whole pages.
    pub buffer_bytes: usize,
}

impl Default for Ring {
    /// Returns 32 MiB: enough in flight for storage that needs many requests, and parts large
    /// enough for the bus.
    fn default() -> Self {
        Self { buffers: 32, buffer_bytes: 1 << 20 }
    }
}

impl Ring {
    /// Returns a ring for `depth` concurrent transfers of `bytes` bytes.
    pub fn for_transfers(bytes: usize, depth: usize) -> Self {
        // For large transfers the ring must hold enough for storage whose rate grows with the bytes
        // in flight. With parts of 1 MiB, the ring had 64 MiB, and reached nine tenths of the rate.
        let buffer_bytes = bytes.clamp(PAGE_BYTES, 4 << 20).next_multiple_of(PAGE_BYTES);
        let wanted = depth.max(1) * bytes.div_ceil(buffer_bytes).max(1);
        // Twice the bytes in flight, so that buffers being copied do not delay reads.
        Self { buffers: (2 * wanted).clamp(2, 64), buffer_bytes }
    }
}

/// Queue of transfers through the host.
#[derive(Debug)]
pub struct StagedQueue {
    host: Box<dyn Queue<PinnedBuf>>,
    files: usize,
    stream: Stream,
    ring: Vec<PinnedBuf>,
    events: Vec<Event>,
    buffer_bytes: usize,
    /// Transfers by place.
    whole: Vec<Option<Whole>>,
    free: Vec<usize>,
    waiting: VecDeque<Part>,
    copies: VecDeque<Copy>,
    /// Parts in the host queue, by tag.
    parts: Vec<Option<Part>>,
    held: Vec<Done<DeviceBuf>>,
    came: Vec<Done<PinnedBuf>>,
    ledger: Arc<Ledger>,
}

/// A transfer, and the progress of its parts.
#[derive(Debug)]
struct Whole {
    transfer: Transfer<DeviceBuf>,
    parts_left: usize,
    /// Bytes moved from the start once all parts have ended: up to the first part that fell short.
    end: usize,
    error: Option<(usize, io::Error)>,
}

/// A part of a transfer.
#[derive(Clone, Copy, Debug)]
struct Part {
    place: usize,
    /// Offset in the transfer.
    at: usize,
    bytes: usize,
    needed: usize,
}

/// A copy of a part between its pinned buffer and the device.
#[derive(Debug)]
struct Copy {
    part: Part,
    buffer: PinnedBuf,
    event: Event,
    /// True if the event marks the end of the copy; otherwise the stream has to be waited for.
    is_marked: bool,
    /// Bytes of the copy.
    bytes: usize,
}

impl StagedQueue {
    /// Creates a queue for `depth` concurrent transfers that uses `io_uring` on the host.
    ///
    /// # Errors
    /// Returns an error if no ring, no pinned memory or no further stream is available.
    pub fn uring(
        context: &Arc<Context>,
        files: Vec<Arc<LocalFile>>,
        depth: usize,
        ring: Ring,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let count = files.len();
        let host = UringQueue::new(files, ring.buffers, None, Arc::clone(&ledger))?;
        Self::over(context, Box::new(host), count, depth, ring, ledger)
    }

    /// Creates a queue for `depth` concurrent transfers that uses `pread` and `pwrite` on the host.
    ///
    /// # Errors
    /// Returns an error if no pinned memory or no further stream is available.
    pub fn blocking(
        context: &Arc<Context>,
        files: Vec<Arc<dyn WriteAt>>,
        depth: usize,
        ring: Ring,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let count = files.len();
        let host = BlockingQueue::writer(files, Arc::clone(&ledger));
        Self::over(context, Box::new(host), count, depth, ring, ledger)
    }

    /// Creates a queue over any host queue of this many files.
    ///
    /// # Errors
    /// Returns an error if no pinned memory or no further stream is available.
    pub fn over(
        context: &Arc<Context>,
        host: Box<dyn Queue<PinnedBuf>>,
        files: usize,
        depth: usize,
        ring: Ring,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let buffers = ring.buffers.max(1);
        let buffer_bytes = ring.buffer_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let pinned =
            (0..buffers).map(|_| PinnedBuf::zeroed(context, buffer_bytes)).collect::<Result<Vec<_>, Error>>()?;
        let events = (0..buffers).map(|_| Event::new(context)).collect::<Result<Vec<_>, Error>>()?;
        let depth = depth.max(1);
        Ok(Self {
            host,
            files,
            stream: Stream::new(context)?,
            ring: pinned,
            events,
            buffer_bytes,
            whole: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            copies: VecDeque::new(),
            parts: vec![None; buffers],
            held: Vec::new(),
            came: Vec::new(),
            ledger,
        })
    }

    /// Starts as many parts as there are buffers for.
    fn begin(&mut self) {
        while let Some(part) = self.waiting.front().copied() {
            let Some(whole) = self.whole[part.place].as_ref() else {
                self.waiting.pop_front();
                continue;
            };
            match whole.transfer.direction {
                Direction::Read if self.host.in_flight() >= self.host.depth() => return,
                Direction::Read => {
                    let Some(buffer) = self.ring.pop() else { return };
                    self.waiting.pop_front();
                    let offset = whole.transfer.offset + part.at as u64;
                    // Whole pages, for a file that is read past the page cache. The buffer has
                    // room.
                    let bytes = part.bytes.next_multiple_of(PAGE_BYTES).min(self.buffer_bytes);
                    self.ask_host(part, buffer, offset, 0, bytes, part.needed);
                }
                Direction::Write => {
                    let Some(buffer) = self.ring.pop() else { return };
                    self.waiting.pop_front();
                    self.copy(part, buffer, part.bytes);
                }
            }
        }
    }

    /// Submits a part, or the rest of it, to the host queue.
    fn ask_host(&mut self, part: Part, buffer: PinnedBuf, offset: u64, at: usize, bytes: usize, needed: usize) {
        let (Some(whole), Some(tag)) = (&self.whole[part.place], self.parts.iter().position(Option::is_none)) else {
            return;
        };
        let (direction, file) = (whole.transfer.direction, whole.transfer.file);
        self.parts[tag] = Some(part);
        self.host.submit(Transfer { direction, file, offset, at, bytes, needed, buffer, tag: tag as u64 });
    }

    /// Enqueues the copy of a part, in the direction of its transfer.
    fn copy(&mut self, part: Part, mut buffer: PinnedBuf, bytes: usize) {
        let (Some(whole), Some(event)) = (&self.whole[part.place], self.events.pop()) else { return };
        let transfer = &whole.transfer;
        let device = transfer.buffer.address_of(&(transfer.at + part.at..transfer.at + part.at + bytes));
        let host = buffer[..bytes].as_mut_ptr();
        // SAFETY: both sides have `bytes` bytes. This queue owns both buffers, in `whole` and
        // `copies`, until the event behind the copy has completed or the stream was waited for.
        let begun = unsafe {
            match transfer.direction {
                Direction::Read => self.stream.copy_to_device(device, host, bytes),
                Direction::Write => self.stream.copy_to_host(host, device, bytes),
            }
        };
        match begun {
            Ok(()) => {
                let is_marked = event.record(&self.stream).is_ok();
                self.copies.push_back(Copy { part, buffer, event, is_marked, bytes });
            }
            Err(e) => {
                self.events.push(event);
                self.ring.push(buffer);
                self.end(part, 0, Some(e.into()));
            }
        }
    }

    /// Collects completed copies. If `waits`, first waits for the oldest. A copy whose end is
    /// unknown stays in flight.
    fn look_at_copies(&mut self, waits: bool) -> Result<(), Error> {
        let mut waits = waits;
        while let Some(oldest) = self.copies.front()
            && !self.must_wait_for_host(oldest)
        {
            let seen = match (oldest.is_marked, waits) {
                (true, true) => oldest.event.wait().map(|()| true),
                (true, false) => oldest.event.is_done(),
                (false, _) => self.stream.synchronize().map(|()| true),
            };
            // A failed event query is inconclusive: the stream decides.
            let is_over = seen.or_else(|_| self.stream.synchronize().map(|()| true))?;
            let Some(Copy { part, buffer, event, bytes, .. }) = self.copies.pop_front_if(|_| is_over) else {
                return Ok(());
            };
            waits = false;
            self.events.push(event);
            let Some(whole) = &self.whole[part.place] else { continue };
            let (direction, offset) = (whole.transfer.direction, whole.transfer.offset + part.at as u64);
            match direction {
                Direction::Read => {
                    self.ledger.moved(Hop::HostToDevice, bytes);
                    self.ring.push(buffer);
                    self.end(part, bytes, None);
                }
                Direction::Write => {
                    self.ledger.moved(Hop::DeviceToHost, bytes);
                    self.ask_host(part, buffer, offset, 0, bytes, bytes);
                }
            }
        }
        Ok(())
    }

    /// Returns true if a completed copy could not continue: its bytes are to be written, and the
    /// host queue is full.
    fn must_wait_for_host(&self, copy: &Copy) -> bool {
        let whole = self.whole[copy.part.place].as_ref();
        whole.is_some_and(|whole| whole.transfer.direction == Direction::Write)
            && self.host.in_flight() >= self.host.depth()
    }

    /// Collects transfers that the host queue has completed. If `waits`, first waits for one.
    fn look_at_host(&mut self, waits: bool) -> io::Result<()> {
        let mut came = mem::take(&mut self.came);
        let outcome = self.host.reap(usize::from(waits), &mut came);
        for done in came.drain(..) {
            self.host_is_done(done);
        }
        self.came = came;
        outcome
    }

    fn host_is_done(&mut self, done: Done<PinnedBuf>) {
        let Done { transfer, moved } = done;
        let Some(part) = self.parts.get_mut(transfer.tag as usize).and_then(Option::take) else { return };
        let direction = transfer.direction;
        let retries = |e: &io::Error| matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
        match moved {
            // Cut short before the needed bytes: continue at the current offset.
            Ok(n) if n > 0 && n < transfer.needed => {
                let (offset, at) = (transfer.offset + n as u64, transfer.at + n);
                self.ask_host(part, transfer.buffer, offset, at, transfer.bytes - n, transfer.needed - n);
            }
            Err(e) if retries(&e) => {
                let Transfer { offset, at, bytes, needed, buffer, .. } = transfer;
                self.ask_host(part, buffer, offset, at, bytes, needed);
            }
            moved => {
                let (n, error) = match moved {
                    Ok(n) => (n, None),
                    Err(e) => (0, Some(e)),
                };
                let got = (transfer.at + n).min(part.bytes);
                match (direction, error) {
                    (Direction::Read, None) if got > 0 => self.copy(part, transfer.buffer, got),
                    (direction, error) => {
                        self.ring.push(transfer.buffer);
                        // Bytes that were read before an error are not on the device.
                        self.end(part, if direction == Direction::Write { got } else { 0 }, error);
                    }
                }
            }
        }
    }

    /// Records the end of a part.
    fn end(&mut self, part: Part, got: usize, error: Option<io::Error>) {
        let Some(whole) = &mut self.whole[part.place] else { return };
        if got < part.bytes {
            whole.end = whole.end.min(part.at + got);
        }
        if let Some(error) = error
            && whole.error.as_ref().is_none_or(|(at, _)| part.at < *at)
        {
            whole.error = Some((part.at, error));
        }
        whole.parts_left -= 1;
        if whole.parts_left == 0 {
            self.come_back(part.place);
        }
    }

    fn come_back(&mut self, place: usize) {
        let Some(Whole { transfer, end, error, .. }) = self.whole[place].take() else { return };
        self.free.push(place);
        let moved = match error {
            // Bytes moved before the error are reported first. A caller that continues then gets
            // the error.
            Some((_, error)) if end == 0 => Err(error),
            _ => Ok(end),
        };
        self.held.push(Done { transfer, moved });
    }

    /// Collects completed copies and host transfers, and starts parts that now have room.
    fn look(&mut self) -> io::Result<()> {
        let copied = self.look_at_copies(false);
        self.begin();
        if self.host.in_flight() > 0 {
            // Also submits new entries to the system.
            self.look_at_host(false)?;
            self.begin();
        }
        Ok(copied?)
    }

    /// Returns true if neither the host queue nor the stream has work that could be waited for.
    fn is_idle(&self) -> bool {
        self.host.in_flight() == 0 && self.copies.is_empty()
    }
}

impl Queue<DeviceBuf> for StagedQueue {
    fn path(&self) -> Path {
        Path::DeviceStaged
    }

    fn depth(&self) -> usize {
        self.whole.len()
    }

    fn in_flight(&self) -> usize {
        self.whole.len() - self.free.len() + self.held.len()
    }

    fn submit(&mut self, transfer: Transfer<DeviceBuf>) {
        check_transfer(&transfer, self.files);
        assert!(self.in_flight() < self.whole.len(), "the queue is full");
        let Some(place) = self.free.pop() else { panic!("the queue is full") };
        let (bytes, needed) = (transfer.bytes, transfer.needed);
        let parts_left = bytes.div_ceil(self.buffer_bytes);
        self.whole[place] = Some(Whole { transfer, parts_left, end: bytes, error: None });
        for at in (0..bytes).step_by(self.buffer_bytes) {
            let part_bytes = self.buffer_bytes.min(bytes - at);
            let part_needed = needed.saturating_sub(at).min(part_bytes);
            self.waiting.push_back(Part { place, at, bytes: part_bytes, needed: part_needed });
        }
        if parts_left == 0 {
            self.come_back(place);
        }
        self.begin();
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<Done<DeviceBuf>>) -> io::Result<()> {
        let wanted = at_least.min(self.in_flight());
        let before = done.len();
        loop {
            let looked = self.look();
            done.append(&mut self.held);
            if done.len() - before >= wanted {
                return Ok(());
            }
            looked?;
            // Copies first: they complete soon and unblock their parts, while the storage works
            // independently.
            match self.copies.front() {
                Some(oldest) if !self.must_wait_for_host(oldest) => self.look_at_copies(true)?,
                _ if self.host.in_flight() > 0 => self.look_at_host(true)?,
                _ => {}
            }
        }
    }
}

impl Drop for StagedQueue {
    fn drop(&mut self) {
        self.waiting.clear();
        if self.is_idle() {
            return;
        }
        // The host queue waits for its own transfers when it is dropped.
        if self.stream.synchronize().is_err() {
            lose((mem::take(&mut self.whole), mem::take(&mut self.copies)));
        }
    }
}
