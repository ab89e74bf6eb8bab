//! A file whose bytes move to the device without the host reading them, and its reader. Plans and
//! landings are independent of the reader.

use std::io;
use std::sync::Arc;

use onehop_io::ReadAt as _;

use super::bounced::{BOUNCE_BYTES, Bounced};
use crate::{CufileFile, DeviceBuf};

/// Maximum size in bytes of a cuFile read: large enough to amortise the call, small enough that
/// several threads share a batch.
const CUFILE_BYTES: u64 = 4 << 20;

/// A file and its reader. Cheap to clone; thread-safe.
#[derive(Clone, Debug)]
pub enum Origin {
    /// cuFile, in either of its modes.
    Cufile(Arc<CufileFile>),
    /// This crate, through pinned memory.
    Bounced(Arc<Bounced>),
}

impl Origin {
    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        match self {
            Self::Cufile(file) => file.file().name(),
            Self::Bounced(file) => file.name(),
        }
    }

    /// Returns an identity that is unique among live origins.
    pub fn number(&self) -> usize {
        match self {
            Self::Cufile(file) => Arc::as_ptr(file).addr(),
            Self::Bounced(file) => Arc::as_ptr(file).addr(),
        }
    }

    /// Returns true if both are the same file and reader.
    pub fn is(&self, other: &Self) -> bool {
        self.number() == other.number()
    }

    /// Returns the maximum bytes of a combined read. A chunk is one read regardless of its size.
    pub fn most_bytes(&self) -> u64 {
        match self {
            Self::Cufile(_) => CUFILE_BYTES,
            Self::Bounced(_) => BOUNCE_BYTES as u64,
        }
    }

    /// Returns the number of threads that keep its storage busy, if it exceeds the number of cores;
    /// 0 if unknown.
    pub fn readers(&self) -> usize {
        match self {
            Self::Cufile(_) => 0,
            Self::Bounced(file) => file.readers(),
        }
    }

    /// Returns the attempt that errors of reads name.
    pub fn attempt(&self) -> &'static str {
        match self {
            Self::Cufile(_) => "reading columns by cuFile",
            Self::Bounced(_) => "reading columns past the page cache, to the GPU",
        }
    }

    /// Reads up to `bytes` bytes at `offset` to the memory from `at` on, and waits. 0 means the end
    /// of the file.
    ///
    /// # Errors
    /// Returns the error of the reader.
    ///
    /// # Safety
    /// The bytes lie in the memory, and have no other user until the call returns.
    pub unsafe fn read_part(&self, offset: u64, to: &Arc<DeviceBuf>, at: usize, bytes: usize) -> io::Result<usize> {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match self {
                Self::Cufile(file) => file.read_part(offset, to, at, bytes),
                Self::Bounced(file) => file.read_part(offset, to, at, bytes),
            }
        }
    }
}
