//! Ways from storage to device memory and back, as [`onehop_io::Queue`]s of [`DeviceBuf`]s.
//!
//! | way | in flight |
//! |---|---|
//! | [`CufileSyncQueue`] | a thread for each transfer, in `cuFileRead` |
//! | [`CufileBatchQueue`] | entries of a cuFile batch |
//! | [`CufileAsyncQueue`] | a CUDA stream for each transfer |
//! | [`StagedQueue`] | parts in a ring of pinned buffers, some read while others are copied |

mod asynchronous;
mod batch;
pub mod conformance;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod faults;
mod staged;
mod sync;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;

use onehop_io::{Direction, Hop, Ledger, LocalFile, Path, Queue, WriteAt};

pub use asynchronous::CufileAsyncQueue;
pub use batch::{Batching, CufileBatchQueue};
pub use staged::{Ring, StagedQueue};
pub use sync::CufileSyncQueue;

use crate::cufile::Effective;
use crate::{Context, Cufile, CufileFile, DeviceBuf};

/// Requested way of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `cuFileRead` and `cuFileWrite`, with one thread for each transfer in flight.
    CufileSync,
    /// A batch whose places are refilled as each transfer completes.
    CufileBatch,
    /// A batch of one for each place: the alternative if batches cannot be refilled.
    CufileBatchSlots,
    /// A batch that completes as a whole before the next.
    CufileBatchWait,
    /// `cuFileReadAsync` and `cuFileWriteAsync`, each on a stream of its own.
    CufileAsync,
    /// Pinned host memory, filled by `io_uring`, with overlapping copies.
    Staged,
    /// Pinned host memory, filled by `pread`, with overlapping copies.
    StagedPread,
}

impl Way {
    /// All ways, by name.
    pub const ALL: [(&'static str, Way); 7] = [
        ("cufile-sync", Way::CufileSync),
        ("cufile-batch", Way::CufileBatch),
        ("cufile-batch-slots", Way::CufileBatchSlots),
        ("cufile-batch-wait", Way::CufileBatchWait),
        ("cufile-async", Way::CufileAsync),
        ("staged", Way::Staged),
        ("staged-pread", Way::StagedPread),
    ];

    /// Returns true if the way uses cuFile.
    pub fn is_cufile(self) -> bool {
        !matches!(self, Way::Staged | Way::StagedPread)
    }

    /// Creates a queue of this way over a file, for `depth` concurrent transfers. `ring` applies to
    /// staged queues.
    ///
    /// # Errors
    /// Returns an error if a requirement of the way is not available.
    pub fn queue(
        self,
        context: &Arc<Context>,
        file: &DeviceFile,
        depth: usize,
        ring: Ring,
        ledger: Arc<Ledger>,
    ) -> io::Result<Box<dyn Queue<DeviceBuf>>> {
        let files: Vec<Arc<CufileFile>> = file.of_cufile.iter().map(Arc::clone).collect();
        let local = Arc::clone(&file.local);
        Ok(match self {
            Way::CufileSync => Box::new(CufileSyncQueue::new(files, depth, ledger)?),
            Way::CufileBatch => Box::new(CufileBatchQueue::new(files, depth, Batching::Refill, ledger)?),
            Way::CufileBatchSlots => Box::new(CufileBatchQueue::new(files, depth, Batching::Slots, ledger)?),
            Way::CufileBatchWait => Box::new(CufileBatchQueue::new(files, depth, Batching::Wait, ledger)?),
            Way::CufileAsync => Box::new(CufileAsyncQueue::new(files, depth, ledger)?),
            Way::Staged => Box::new(StagedQueue::uring(context, vec![local], depth, ring, ledger)?),
            Way::StagedPread => {
                let files = vec![local as Arc<dyn WriteAt>];
                Box::new(StagedQueue::blocking(context, files, depth, ring, ledger)?)
            }
        })
    }
}

/// A file in the form that the queues of a way need.
#[derive(Debug)]
pub struct DeviceFile {
    /// The file.
    pub local: Arc<LocalFile>,
    /// Its registration with cuFile, for the ways of cuFile.
    pub of_cufile: Option<Arc<CufileFile>>,
}

impl DeviceFile {
    /// Registers a file with cuFile if the way uses it.
    ///
    /// # Errors
    /// Returns the error of cuFile.
    pub fn open(way: Way, local: &Arc<LocalFile>, cufile: Option<&Arc<Cufile>>) -> crate::Result<Self> {
        let of_cufile = match cufile {
            Some(cufile) if way.is_cufile() => Some(Arc::new(CufileFile::new(cufile, Arc::clone(local))?)),
            _ => None,
        };
        Ok(Self { local: Arc::clone(local), of_cufile })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(_, way)| way == self).map_or("?", |(name, _)| name))
    }
}

/// Returns the path of transfers with these files: direct only if all files are.
fn path_of(files: &[Arc<CufileFile>]) -> Path {
    let effective = |file: &Arc<CufileFile>| file.verdict().effective;
    let all = |wanted| !files.is_empty() && files.iter().all(|file| effective(file) == wanted);
    match () {
        () if all(Effective::Direct) => Path::DeviceDirect,
        () if files.iter().any(|file| effective(file) == Effective::NotVerified) => Path::DeviceUnverified,
        () => Path::DeviceCompat,
    }
}

/// Leaks memory that a device may still write to. Freed memory could be overwritten under its next
/// owner.
pub(crate) fn lose<T>(value: T) {
    let lost = Box::leak(Box::new(value));
    // Suppresses the leak report here instead of in a list of names. Symbol lookup needs a process
    // of its own, which a process as large as the tests cannot always start.
    #[cfg(asan)]
    // SAFETY: the address is looked up, not dereferenced.
    unsafe {
        unsafe extern "C" {
            fn __lsan_ignore_object(object: *const std::ffi::c_void);
        }
        __lsan_ignore_object(std::ptr::from_mut(lost).cast());
    }
    // Keeps the box observable. Otherwise the compiler removes it, and its content is reported as a
    // leak.
    std::hint::black_box(lost);
}

/// Counts a transfer by cuFile.
fn count(ledger: &Ledger, direction: Direction, path: Path, bytes: usize) {
    match direction {
        Direction::Read => ledger.read_op(),
        Direction::Write => ledger.write_op(),
    }
    match (direction, path) {
        (Direction::Read, Path::DeviceDirect) => ledger.moved(Hop::StorageToDevice, bytes),
        (Direction::Write, Path::DeviceDirect) => ledger.moved(Hop::DeviceToStorage, bytes),
        (Direction::Read, _) => {
            ledger.moved(Hop::StorageToHost, bytes);
            ledger.moved(Hop::HostToDevice, bytes);
        }
        (Direction::Write, _) => {
            ledger.moved(Hop::DeviceToHost, bytes);
            ledger.moved(Hop::HostToStorage, bytes);
        }
    }
}

/// Panics if a transfer violates the contract of the queue.
fn check_transfer(transfer: &onehop_io::Transfer<DeviceBuf>, files: usize) {
    assert!(transfer.file < files, "file {} of {files}", transfer.file);
    transfer.buffer.address_of(&(transfer.at..transfer.at + transfer.bytes));
}
