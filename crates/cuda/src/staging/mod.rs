//! Blocks of columns on their way from host memory to a device: several threads put them into pinned buffers, which are
//! copied to the device meanwhile, each as one.
//!
//! ```text
//!  threads      batch 0: item item item ...   batch 1: item item ...      in order, each whoever is free
//!                 │ one copy each, or none       │
//!                 ▼                              ▼
//!  pinned      [ slot 0 ██████████ ]          [ slot 1 ████░░░░░ ]  ...   as many as there are slots
//!                 │ sent by who filled it last
//!                 ▼ copy stream, an event
//!  device      wherever the cargo says
//!                 │ consumed by the caller, in order: a kernel behind the event
//! ```
//! [`Cargo`] says what the items of a batch are and where a full buffer goes; [`Stager::run`] has it carried. [`crate::fused`]
//! streams columns that way which a kernel reads once, and [`crate::resident`] loads those that stay.
//!
//! Blocks that lie in memory which the device can copy from ([`registered`]) are not put into the buffer: their place there
//! stays empty, and who sends the batch has them copied from where they are.
//!
//! Invariants:
//! - Memory is bounded by the ring's slots: no item of batch `b + slots` is touched before batch `b` was consumed and its
//!   copy is over.
//! - When [`Stager::run`] returns nobody writes to a pinned buffer any more. If nothing is on its way either the buffers
//!   are kept for the next run; if that cannot be known they are leaked, and [`Failed::in_flight`] tells the caller that
//!   what was copied to must be, too.
//! - The first error ends the run, whoever has it: an item, a copy, the caller.
//!
//! Pinning takes longer than copying: buffers are kept by the [`Stager`] of a device, up to [`KEPT_BYTES`].

mod measure;
mod pool;
mod registered;
mod ring;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onehop_io::{RegionWatch, Slab};
pub(crate) use pool::Pool;
use registered::{Registered, WORTH_COPIES};
pub use ring::{Put, Region, Room, Sent};

use crate::fused::{Error, Result};
use crate::{Context, DeviceBuf, Event, PinnedBuf, Stream};

/// Bytes of idle pinned buffers that are kept, and of idle device buffers.
pub(crate) const KEPT_BYTES: usize = 512 << 20;
/// What is in a buffer begins on such a boundary: what a warp reads at once are whole lines.
pub const ALIGNMENT: usize = 256;
/// The least that a buffer has.
const LEAST_BYTES: usize = 64 << 10;
/// What is small is carried in so many batches, unless those get smaller than this.
const FEW_BATCHES: usize = 8;
const SMALL_BATCH_BYTES: usize = 2 << 20;
/// With less to carry than this, nobody is woken up to help.
const WORTH_HELP_BYTES: u64 = 1 << 20;

/// How cargo is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a pinned buffer, and of a batch: large enough for the bus, small enough that the first is soon there.
    pub batch_bytes: usize,
    /// Batches that are being filled, copied and read at once.
    pub slots: usize,
    /// Threads that fill; 0: one for each core, or more if they wait for storage ([`Cargo::readers`]), [`MOST_THREADS`] at most, and
    /// none but the caller's for what is small.
    pub threads: usize,
}

/// Threads that fill, if nobody says how many.
pub const MOST_THREADS: usize = 16;

impl Default for Shape {
    fn default() -> Self {
        Self { batch_bytes: 32 << 20, slots: 4, threads: 0 }
    }
}

impl Shape {
    /// Bytes that a batch can have.
    pub fn buffer_bytes(self) -> usize {
        self.batch_bytes.max(LEAST_BYTES).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a batch of something that has so many bytes in all: what is small is cut too, that copies and threads overlap.
    pub fn batch_for(self, bytes: usize) -> usize {
        self.batch_bytes.min((bytes / FEW_BATCHES).max(SMALL_BATCH_BYTES))
    }

    /// Threads that fill buffers with so many bytes, of which so many wait for storage: none but the caller's if there is little
    /// to do.
    fn helpers(self, bytes: u64, readers: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        match self.threads {
            0 if bytes < WORTH_HELP_BYTES => 0,
            0 => cores().max(readers.min(MOST_THREADS)),
            threads => threads,
        }
    }
}

/// What is carried. Called from many threads at once.
pub trait Cargo: Sync {
    /// Batches, in order.
    fn batches(&self) -> usize;

    /// Items of a batch, at least one.
    fn items(&self, batch: usize) -> usize;

    /// Bytes of all of it, about.
    fn bytes(&self) -> u64;

    /// Threads that it takes to keep storage busy, where they wait for it, whatever cores there are; 0: nobody knows.
    fn readers(&self) -> usize {
        0
    }

    /// Puts an item of a batch into its buffer.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()>;

    /// All items of a batch are in its buffer: has it copied, in the stream. What is copied to is not freed before the
    /// stream is through, or is leaked if that cannot be known. Called once for each batch, not necessarily in order, by
    /// whichever thread filled it last.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()>;
}

/// Why cargo did not arrive.
#[derive(Debug)]
pub struct Failed {
    /// The first error.
    pub error: Error,
    /// Whether copies may still be on their way: what they write to must not be freed.
    pub in_flight: bool,
}

/// Carries cargo to one device. May be used from many threads; each run has buffers of its own.
#[derive(Debug)]
pub struct Stager {
    context: Arc<Context>,
    pinned: Pool<PinnedBuf>,
    device: Pool<DeviceBuf>,
    registered: Arc<Registered>,
}

impl Stager {
    /// To a device. Nothing is allocated before it is needed.
    pub fn new(context: &Arc<Context>) -> Self {
        Self::registering(context, 0)
    }

    /// The same, with up to so many bytes of the memory that blocks lie in registered with the driver, once they have been
    /// copied twice: from then on they are copied from where they lie.
    pub fn registering(context: &Arc<Context>, registered_bytes: usize) -> Self {
        Self::over(context, Slab::of_process(), registered_bytes, WORTH_COPIES)
    }

    /// One that registers all memory that it meets.
    #[cfg(test)]
    pub fn eager(context: &Arc<Context>) -> Self {
        Self::over(context, Slab::of_process(), usize::MAX, 0)
    }

    /// The same, with at most so many bytes of a slab's regions registered, of those that were copied so often.
    fn over(context: &Arc<Context>, slab: &Slab, registered_bytes: usize, worth_copies: usize) -> Self {
        let registered = Arc::new(Registered::new(context, registered_bytes, worth_copies));
        if registered_bytes > 0 {
            let watch: Arc<dyn RegionWatch> = Arc::clone(&registered) as Arc<dyn RegionWatch>;
            slab.watch(&watch);
        }
        let (pinned, device) = (Pool::new(KEPT_BYTES), Pool::new(KEPT_BYTES));
        Self { context: Arc::clone(context), pinned, device, registered }
    }

    /// Bytes so far that the device copied from where they were read, without a copy of the host's before it.
    pub fn direct_bytes(&self) -> u64 {
        self.registered.direct_bytes()
    }

    /// The device's context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// A buffer on the device of at least so many bytes, of no known content.
    ///
    /// # Errors
    /// No memory left on the device, not even without the buffers that are kept.
    pub fn device_buffer(&self, bytes: usize) -> Result<DeviceBuf> {
        self.device.take(bytes, || DeviceBuf::new(&self.context, bytes))
    }

    /// Gives a buffer back that nobody uses any more.
    pub fn keep_device_buffer(&self, buffer: DeviceBuf) {
        self.device.give(buffer);
    }

    /// Lets go of device memory that is kept for the next run.
    pub fn trim(&self) {
        self.device.clear();
    }

    /// The bytes of host memory that it brings to the device in a second, as columns are brought; by those of `from`, the
    /// best of several `runs`.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// If there are less than 256 KiB of them.
    pub fn bytes_per_sec(&self, shape: Shape, from: &[u8], runs: usize) -> Result<f64> {
        Ok(from.len() as f64 / measure::measure(self, shape, from, runs)?.as_secs_f64().max(1e-9))
    }

    /// Carries cargo. The caller consumes batches in their order: `consume` gets the number of one that was sent, and the event
    /// that comes when it has arrived; it may have enough before the last. `shape` is used up to what the cargo needs.
    ///
    /// # Errors
    /// Of whoever failed first; [`onehop_pipeline::Error::Cancelled`] soon after `cancelled` was set.
    pub fn run<C: Cargo>(
        &self,
        cargo: &C,
        shape: Shape,
        cancelled: &AtomicBool,
        consume: impl FnMut(usize, &Event) -> Result<ControlFlow<()>>,
    ) -> std::result::Result<(), Failed> {
        ring::run(self, cargo, shape, cancelled, consume)
    }
}

impl Drop for Stager {
    fn drop(&mut self) {
        self.registered.close();
    }
}
