//! Ways from storage to device memory and back, as [`onehop_io::Queue`]s of [`DeviceBuf`]s.
//!
//! | way | what is in flight |
//! |---|---|
//! | [`CufileSyncQueue`] | a thread for each transfer, in `cuFileRead` |
//! | [`CufileBatchQueue`] | entries of a cuFile batch |
//! | [`CufileAsyncQueue`] | a CUDA stream for each transfer |
//! | [`StagedQueue`] | parts of transfers in a ring of pinned buffers: read by the host while others are copied |

mod asynchronous;
mod batch;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod faults;
mod staged;
mod sync;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fmt;

use onehop_io::{Direction, Hop, Ledger, Path};

pub use asynchronous::CufileAsyncQueue;
pub use batch::{Batching, CufileBatchQueue};
pub use staged::{Ring, StagedQueue};
pub use sync::CufileSyncQueue;

use crate::cufile::Effective;
use crate::{CufileFile, DeviceBuf};

/// The way that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `cuFileRead` and `cuFileWrite`, from as many threads as may be in flight.
    CufileSync,
    /// A batch whose places are filled again as each transfer is done.
    CufileBatch,
    /// A batch of one for each place: what to do where batches cannot be filled again.
    CufileBatchSlots,
    /// A batch that is waited for as a whole before the next.
    CufileBatchWait,
    /// `cuFileReadAsync` and `cuFileWriteAsync`, each on a stream of its own.
    CufileAsync,
    /// Pinned host memory, filled by `io_uring`, and copies that overlap.
    Staged,
    /// Pinned host memory, filled by `pread`, and copies that overlap.
    StagedPread,
}

impl Way {
    /// All of them, by name.
    pub const ALL: [(&'static str, Way); 7] = [
        ("cufile-sync", Way::CufileSync),
        ("cufile-batch", Way::CufileBatch),
        ("cufile-batch-slots", Way::CufileBatchSlots),
        ("cufile-batch-wait", Way::CufileBatchWait),
        ("cufile-async", Way::CufileAsync),
        ("staged", Way::Staged),
        ("staged-pread", Way::StagedPread),
    ];

    /// Whether it is cuFile's.
    pub fn is_cufile(self) -> bool {
        !matches!(self, Way::Staged | Way::StagedPread)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(_, way)| way == self).map_or("?", |(name, _)| name))
    }
}

/// The path of transfers with these files: direct only if all are.
fn path_of(files: &[std::sync::Arc<CufileFile>]) -> Path {
    let effective = |file: &std::sync::Arc<CufileFile>| file.verdict().effective;
    let all = |wanted| !files.is_empty() && files.iter().all(|file| effective(file) == wanted);
    match () {
        () if all(Effective::Direct) => Path::DeviceDirect,
        () if files.iter().any(|file| effective(file) == Effective::NotVerified) => Path::DeviceUnverified,
        () => Path::DeviceCompat,
    }
}

/// Keeps for good what a device may still write to: better lost than written to under somebody else.
#[inline(never)]
fn lose<T>(value: T) {
    // Seen to be used, or the compiler makes nothing of the box, and what is in it is found to be lost by accident.
    std::hint::black_box(Box::leak(Box::new(value)));
}

/// Counts a transfer of cuFile's.
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

/// Panics for what the caller of a queue did wrong.
fn check_transfer(transfer: &onehop_io::Transfer<DeviceBuf>, files: usize) {
    assert!(transfer.file < files, "file {} of {files}", transfer.file);
    transfer.buffer.address_of(&(transfer.at..transfer.at + transfer.bytes));
}
