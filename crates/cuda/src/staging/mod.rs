//! Transfer of column blocks from host memory to a device. Several threads put them into pinned
//! buffers, which are copied to the device concurrently, each in one copy.
//!
//! ```text
//!  threads      batch 0: item item item ...   batch 1: item item ...  in order, by idle threads
//!                 │ one copy each, or none       │
//!                 ▼                              ▼
//!  pinned      [ slot 0 ██████████ ]          [ slot 1 ████░░░░░ ]  ... one buffer for each slot
//!                 │ sent by the thread that filled it last
//!                 ▼ copy stream, an event
//!  device      destination of the cargo
//!                 │ consumed by the caller, in order: a kernel behind the event
//! ```
//! [`Cargo`] defines the items of a batch and the destination of a full buffer. [`Stager::run`]
//! transfers it. [`crate::fused`] streams columns that a kernel reads once, and [`crate::resident`]
//! loads columns that stay.
//!
//! Blocks in memory that the device can copy from ([`registered`]) are not put into the buffer.
//! Their place there stays empty, and the thread that sends the batch enqueues copies from their
//! own memory.
//!
//! Invariants:
//! - The ring's slots bound the memory: no item of batch `b + slots` is accessed before batch `b`
//!   was consumed and its copy has ended.
//! - When [`Stager::run`] returns, no thread writes to a pinned buffer. If no copy is pending
//!   either, the buffers are kept for the next run. If that cannot be known, they are leaked, and
//!   [`Failed::in_flight`] tells the caller to leak the destination, too.
//! - The first error ends the run, whether it comes from an item, a copy or the caller.
//!
//! Pinning takes longer than copying: the [`Stager`] of a device keeps buffers, up to
//! [`KEPT_BYTES`].

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

/// Limit in bytes of the idle pinned buffers that are kept, and of the idle device buffers.
pub(crate) const KEPT_BYTES: usize = 512 << 20;
/// Alignment of the content of a buffer, so that a warp reads whole cache lines.
pub const ALIGNMENT: usize = 256;
/// Minimum size of a buffer.
const LEAST_BYTES: usize = 64 << 10;
/// Number of batches for small cargo, unless they become smaller than the minimum.
const FEW_BATCHES: usize = 8;
const SMALL_BATCH_BYTES: usize = 2 << 20;
/// Least bytes of cargo for which helper threads are started.
const WORTH_HELP_BYTES: u64 = 1 << 20;

/// Dimensions of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a pinned buffer, and of a batch: large enough for the bus, small enough that the
    /// first arrives soon.
    pub batch_bytes: usize,
    /// Batches that are filled, copied and read concurrently.
    pub slots: usize,
    /// Threads that fill. 0: one for each core, or more if they wait for storage
    /// ([`Cargo::readers`]), at most [`MOST_THREADS`], and only the caller's for small cargo.
    pub threads: usize,
}

/// Maximum number of threads that fill, unless the number is given explicitly.
pub const MOST_THREADS: usize = 16;

impl Default for Shape {
    fn default() -> Self {
        Self { batch_bytes: 32 << 20, slots: 4, threads: 0 }
    }
}

impl Shape {
    /// Returns the bytes that a batch can have.
    pub fn buffer_bytes(self) -> usize {
        self.batch_bytes.max(LEAST_BYTES).next_multiple_of(ALIGNMENT)
    }

    /// Returns the bytes of a batch for cargo of `bytes` bytes. Small cargo is cut too, so that
    /// copies and threads overlap.
    pub fn batch_for(self, bytes: usize) -> usize {
        self.batch_bytes.min((bytes / FEW_BATCHES).max(SMALL_BATCH_BYTES))
    }

    /// Returns the number of helper threads for `bytes` bytes with `readers` threads that wait for
    /// storage; 0 if there is little to do.
    fn helpers(self, bytes: u64, readers: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        match self.threads {
            0 if bytes < WORTH_HELP_BYTES => 0,
            0 => cores().max(readers.min(MOST_THREADS)),
            threads => threads,
        }
    }
}

/// Data that is transferred. The methods are called from many threads at once.
pub trait Cargo: Sync {
    /// Returns the number of batches, which are in order.
    fn batches(&self) -> usize;

    /// Returns the number of items in a batch, at least one.
    fn items(&self, batch: usize) -> usize;

    /// Returns the approximate total of bytes.
    fn bytes(&self) -> u64;

    /// Returns the number of threads that keep storage busy if they wait for it, independent of the
    /// cores; 0 if unknown.
    fn readers(&self) -> usize {
        0
    }

    /// Puts an item of a batch into its buffer.
    ///
    /// # Errors
    /// Any error ends the run.
    fn fill(&self, batch: usize, item: usize, room: &Room) -> Result<()>;

    /// Enqueues the copy of a batch whose items are all in its buffer. The destination is not freed
    /// before the stream has finished, or is leaked if that cannot be known. Called once for each
    /// batch, not necessarily in order, by the thread that filled it last.
    ///
    /// # Errors
    /// Any error ends the run.
    fn send(&self, batch: usize, filled: Sent<'_>, stream: &Stream) -> Result<()>;
}

/// Failure of a transfer.
#[derive(Debug)]
pub struct Failed {
    /// The first error.
    pub error: Error,
    /// True if copies may still be pending: their destination must not be freed.
    pub in_flight: bool,
}

/// Transfers cargo to one device. Thread-safe; each run has buffers of its own.
#[derive(Debug)]
pub struct Stager {
    context: Arc<Context>,
    pinned: Pool<PinnedBuf>,
    device: Pool<DeviceBuf>,
    registered: Arc<Registered>,
}

impl Stager {
    /// Creates a stager for a device. Nothing is allocated before it is needed.
    pub fn new(context: &Arc<Context>) -> Self {
        Self::registering(context, 0)
    }

    /// Creates a stager that registers up to `registered_bytes` bytes of the memory of blocks with
    /// the driver, once it has been copied twice. From then on, the device copies directly from
    /// that memory.
    pub fn registering(context: &Arc<Context>, registered_bytes: usize) -> Self {
        Self::over(context, Slab::of_process(), registered_bytes, WORTH_COPIES)
    }

    /// Creates a stager that registers all memory that it encounters.
    #[cfg(test)]
    pub fn eager(context: &Arc<Context>) -> Self {
        Self::over(context, Slab::of_process(), usize::MAX, 0)
    }

    /// Creates a stager that registers up to `registered_bytes` bytes of a slab's regions, after
    /// `worth_copies` copies.
    fn over(context: &Arc<Context>, slab: &Slab, registered_bytes: usize, worth_copies: usize) -> Self {
        let registered = Arc::new(Registered::new(context, registered_bytes, worth_copies));
        if registered_bytes > 0 {
            let watch: Arc<dyn RegionWatch> = Arc::clone(&registered) as Arc<dyn RegionWatch>;
            slab.watch(&watch);
        }
        let (pinned, device) = (Pool::new(KEPT_BYTES), Pool::new(KEPT_BYTES));
        Self { context: Arc::clone(context), pinned, device, registered }
    }

    /// Returns the total bytes that the device copied from their own memory, without a host copy
    /// before it.
    pub fn direct_bytes(&self) -> u64 {
        self.registered.direct_bytes()
    }

    /// Returns the context of the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns a buffer on the device of at least `bytes` bytes, with undefined content.
    ///
    /// # Errors
    /// Returns an error if the device has no memory left, even after the kept buffers were freed.
    pub fn device_buffer(&self, bytes: usize) -> Result<DeviceBuf> {
        self.device.take(bytes, || DeviceBuf::new(&self.context, bytes))
    }

    /// Takes back a buffer that has no user any more.
    pub fn keep_device_buffer(&self, buffer: DeviceBuf) {
        self.device.give(buffer);
    }

    /// Frees device memory that is kept for the next run.
    pub fn trim(&self) {
        self.device.clear();
    }

    /// Measures the bytes of host memory that are transferred to the device in a second, over the
    /// path of columns. It transfers `from`, and returns the best of several `runs`.
    ///
    /// # Errors
    /// Returns the error of the device.
    ///
    /// # Panics
    /// Panics if `from` has less than 256 KiB.
    pub fn bytes_per_sec(&self, shape: Shape, from: &[u8], runs: usize) -> Result<f64> {
        Ok(from.len() as f64 / measure::measure(self, shape, from, runs)?.as_secs_f64().max(1e-9))
    }

    /// Transfers cargo. The caller consumes batches in order: `consume` gets the number of a batch
    /// that was sent, and the event that completes when it has arrived. It may stop before the
    /// last. `shape` is reduced to what the cargo needs.
    ///
    /// # Errors
    /// Returns the first error; [`onehop_pipeline::Error::Cancelled`] soon after `cancelled` was
    /// set.
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
