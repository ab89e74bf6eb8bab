//! The lowest layer: bytes that survive a crash, and the guarantees about them after one.
//!
//! A write is *volatile* until it is durable. [`flush`](Medium::flush) selects written bytes that
//! are to become durable, and [`fence`](Medium::fence) waits until they are. Bytes that are flushed
//! and fenced survive a crash. The fate of written bytes before the fence depends on the
//! [`Granularity`]:
//!
//! - `Line`: each 64-byte line has any prefix of the writes it got since it was last durable,
//!   flushed or not, independently of other lines. Writes of one line become durable in program
//!   order. An aligned write of 8 bytes is durable whole or not at all.
//! - `Page`: each 512-byte sector is old, new, or garbage, independently of other sectors. A
//!   greater length may be durable without the bytes, and the bytes without the length.
//!
//! A failed fence leaves the durable state unknown, and a later one that succeeds proves nothing. A
//! caller that gets the error must stop writing (fsync's errors are reported once and the pages are
//! then marked clean: Rebello et al., ATC 2020).

#[cfg(any(test, feature = "crash-testing"))]
pub mod conformance;
mod file;
#[cfg(test)]
mod limited;
mod memory;
mod named;
mod pmem;
#[cfg(any(test, feature = "crash-testing"))]
mod sim_file;
#[cfg(any(test, feature = "crash-testing"))]
mod sim_pmem;
mod watch;

use std::fmt;
use std::ops::Range;

use crate::{Error, Result};

pub use file::File;
#[cfg(test)]
pub(crate) use limited::Limited;
pub use memory::Memory;
pub use named::NamedFile;
pub use pmem::{Emulation, Pmem};
#[cfg(any(test, feature = "crash-testing"))]
pub use sim_file::{SectorDurability, SimFile};
#[cfg(any(test, feature = "crash-testing"))]
pub use sim_pmem::{LineDurability, SimPmem, WordDurability};
pub use watch::Moment;

/// The unit in which a medium makes bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A cache line of 64 bytes: memory.
    Line,
    /// A page of 4,096 bytes, of sectors that may tear: files.
    Page,
}

/// The domain in which bytes are safe, detected when the medium is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// None: bytes are lost with the process.
    Process,
    /// The operating system's memory: bytes outlive the process, not the machine. `/dev/shm` is an
    /// example.
    System,
    /// The device, once bytes are flushed and fenced.
    Device,
    /// The processor's caches (eADR): flushing is needless, fencing is not.
    Caches,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::System => "operating system",
            Self::Device => "device",
            Self::Caches => "processor caches",
        })
    }
}

/// Bytes by position that survive a crash. May be used from many threads at once. A writer of a
/// range must keep other threads from reading or writing it meanwhile.
pub trait Medium: Send + Sync + fmt::Debug {
    /// Returns the name used in messages: a path.
    fn name(&self) -> &str;

    /// Returns the unit in which bytes become durable.
    fn granularity(&self) -> Granularity;

    /// Returns the domain in which bytes are safe.
    fn domain(&self) -> Domain;

    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns true if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Extends it to `len` bytes, which is not less than its length. New bytes read as zeros. The
    /// length is durable on return.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) if there is no space. Nothing has changed.
    fn grow(&self, len: u64) -> Result<()>;

    /// Reads exactly `into.len()` bytes at `at`, the volatile ones included.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it ends before, [`Error::Io`](crate::Error::Io)
    /// with the offset.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// Writes `bytes` at `at`, within its length. They are volatile.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) or [`Error::Io`](crate::Error::Io) if it ends
    /// before, [`Error::Io`](crate::Error::Io) with the offset.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Begins to make `len` bytes at `at` durable, in whole lines. Does nothing on files.
    fn flush(&self, at: u64, len: usize) -> Result<()>;

    /// Waits until all flushed bytes (on a `Page` medium: all written bytes) are durable.
    fn fence(&self) -> Result<()>;

    /// Returns the name that leads to its bytes, if it has one. A writer checks it before each
    /// acknowledgement.
    fn named(&self) -> Option<&NamedFile> {
        None
    }

    /// Makes reads return the durable bytes, and none that a failed fence left in memory only.
    /// Recovery begins with it.
    fn settle(&self) -> Result<()> {
        self.fence()
    }
}

/// Returns the range of `len` bytes at `at` in memory of `total` bytes.
///
/// # Errors
/// [`Error::Corrupt`] if the memory ends before.
pub(crate) fn range(object: &str, at: u64, len: usize, total: usize) -> Result<Range<usize>> {
    let range = usize::try_from(at).ok().and_then(|from| Some(from..from.checked_add(len)?));
    range.filter(|range| range.end <= total).ok_or_else(|| {
        Error::corrupt(object, format!("it has {total} bytes, and {len} bytes at offset {at} lie beyond its end"))
    })
}
