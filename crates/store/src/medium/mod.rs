//! The bottom: bytes that survive a crash, and what may be relied on when one comes.
//!
//! A write is *volatile* until it is durable. [`flush`](Medium::flush) names written bytes that are to become durable, and
//! [`fence`](Medium::fence) waits until they are. What a crash may leave of volatile bytes:
//!
//! | [`Granularity`] | flushed and fenced | written, not fenced |
//! |---|---|---|
//! | `Line` | there | each 64-byte line by itself: any prefix of the writes it got since it was last durable, flushed or not. Writes of one line become durable in program order; an aligned write of 8 bytes whole or not at all. |
//! | `Page` | there | each 512-byte sector by itself: old, new, or garbage; a greater length may be durable without the bytes, and the bytes without the length |
//!
//! A failed fence leaves unknown what is durable, and a later one that succeeds proves nothing: whoever gets the error must
//! stop writing (fsync's errors are reported once and the pages are then marked clean: Rebello et al., ATC 2020).

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

/// Where bytes are safe, as found out when the medium was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Nowhere: they are lost with the process.
    Process,
    /// In the operating system's memory: they outlive the process, not the machine. `/dev/shm` is such a place.
    System,
    /// On the device, once flushed and fenced.
    Device,
    /// In the processor's caches already (eADR): flushing is needless, fencing is not.
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

/// Bytes by position that survive a crash. May be used from many threads at once; who writes a range must keep others from
/// reading or writing it meanwhile.
pub trait Medium: Send + Sync + fmt::Debug {
    /// What it is called in messages: a path.
    fn name(&self) -> &str;

    /// The unit in which bytes become durable.
    fn granularity(&self) -> Granularity;

    /// Where bytes are safe.
    fn domain(&self) -> Domain;

    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes it `len` bytes long, which is not less than it is; new bytes read as zeros. The length is durable on return.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) if there is no room, and nothing has changed.
    fn grow(&self, len: u64) -> Result<()>;

    /// Reads exactly `into.len()` bytes at `at`, the volatile ones included.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it ends before, [`Error::Io`](crate::Error::Io) with the offset.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// Writes `bytes` at `at`, within its length. They are volatile.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if it ends before, [`Error::Io`](crate::Error::Io) with the offset.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Begins to make `len` bytes at `at` durable: whole lines. Files have nothing to do.
    fn flush(&self, at: u64, len: usize) -> Result<()>;

    /// Waits until what was flushed (on a `Page` medium: written) is durable.
    fn fence(&self) -> Result<()>;

    /// The name that its bytes are found by again, if they have one: a writer looks at it before it acknowledges anything.
    fn named(&self) -> Option<&NamedFile> {
        None
    }

    /// Makes reads return what is durable, and no bytes that a failed fence left in memory only. Recovery begins with it.
    fn settle(&self) -> Result<()> {
        self.fence()
    }
}

/// Where `len` bytes at `at` lie in memory of `total` bytes.
///
/// # Errors
/// [`Error::Corrupt`] if it ends before.
pub(crate) fn range(object: &str, at: u64, len: usize, total: usize) -> Result<Range<usize>> {
    let range = usize::try_from(at).ok().and_then(|from| Some(from..from.checked_add(len)?));
    range.filter(|range| range.end <= total).ok_or_else(|| {
        Error::corrupt(object, format!("it has {total} bytes, and {len} bytes at offset {at} lie beyond its end"))
    })
}
