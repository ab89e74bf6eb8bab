//! Bytes between storage and memory.
//!
//! Three ideas live here and nothing else: a **file** that is read and written by position ([`ReadAt`], [`WriteAt`]),
//! a **volume** that holds files by name and can make names durable ([`Volume`]), and the **ledger** that counts every
//! byte either of them moves ([`Ledger`]). Each implementation passes the [`conformance`] suite.
//!
//! Invariants:
//! - A read returns exactly the bytes asked for or an [`Error`] that names the object and the offset; short reads and
//!   interrupted calls are retried here, once, for everybody.
//! - A backend counts what it moved, on the path it really used, into the ledger it was handed. Nobody counts for it.

mod ahead;
mod aligned;
mod allowance;
pub mod conformance;
mod error;
mod faulty;
mod file;
mod host_buffer;
mod ledger;
mod library;
mod local;
mod memory;
mod pool;
mod queue;
pub mod rados;
mod sim;
mod slab;
mod stream;
mod volume;

pub use ahead::ReadAhead;
pub use aligned::AlignedBuf;
pub use allowance::{Allowance, LentBuf};
pub use error::{Error, Operation, Result};
pub use faulty::{Fault, Faulty};
pub use file::{IoHints, Path, ReadAt, WriteAt};
pub use host_buffer::HostBuffer;
pub use ledger::{Hop, Ledger, LedgerSnapshot};
pub use library::Library;
pub use local::{LocalFile, LocalVolume, RequestedPath, memory_bytes};
pub use memory::{MemoryFile, MemoryVolume};
pub use pool::{Pool, PoolBuf};
pub use queue::{Advance, BlockingQueue, Direction, Done, FaultyQueue, Queue, Registered, Transfer, UringQueue};
pub use sim::{CrashImage, CrashPoint, Faults, Replay, SimVolume};
pub use slab::{RegionWatch, Slab, SlabStats};
pub use stream::{Cut, Extent, Filled, Order, Piece, Reads, StreamOptions, StreamReader, Supply};
pub use volume::Volume;

/// Bytes in a storage page: the alignment that direct I/O asks for on every device we know.
pub const PAGE_BYTES: usize = 4096;
