//! A file whose bytes go to the device without the host looking at them, and who reads it: plans and landings do not ask.

use std::io;
use std::sync::Arc;

use onehop_io::ReadAt as _;

use super::bounced::{BOUNCE_BYTES, Bounced};
use crate::{CufileFile, DeviceBuf};

/// Bytes of a read of cuFile's, at most: enough that the call does not matter, little enough that several threads share a batch.
const CUFILE_BYTES: u64 = 4 << 20;

/// A file, for its reader. Cheap to clone; may be used from many threads.
#[derive(Clone, Debug)]
pub enum Origin {
    /// cuFile, whichever way that takes.
    Cufile(Arc<CufileFile>),
    /// We, by way of pinned memory.
    Bounced(Arc<Bounced>),
}

impl Origin {
    /// The file's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Cufile(file) => file.file().name(),
            Self::Bounced(file) => file.name(),
        }
    }

    /// What tells it from others that somebody has.
    pub fn number(&self) -> usize {
        match self {
            Self::Cufile(file) => Arc::as_ptr(file).addr(),
            Self::Bounced(file) => Arc::as_ptr(file).addr(),
        }
    }

    /// Whether it is the same.
    pub fn is(&self, other: &Self) -> bool {
        self.number() == other.number()
    }

    /// Bytes that are read as one, at most. A chunk is read as one in any case.
    pub fn most_bytes(&self) -> u64 {
        match self {
            Self::Cufile(_) => CUFILE_BYTES,
            Self::Bounced(_) => BOUNCE_BYTES as u64,
        }
    }

    /// Threads that it takes to keep its storage busy, if it is more than there are cores; 0: nobody knows.
    pub fn readers(&self) -> usize {
        match self {
            Self::Cufile(_) => 0,
            Self::Bounced(file) => file.readers(),
        }
    }

    /// What is being done when a read fails.
    pub fn attempt(&self) -> &'static str {
        match self {
            Self::Cufile(_) => "reading columns by cuFile",
            Self::Bounced(_) => "reading columns past the page cache, to the GPU",
        }
    }

    /// Reads up to `bytes` at `offset` to the bytes of the memory from `at` on, and waits; 0 means the end of the file.
    ///
    /// # Errors
    /// Those of the reader.
    ///
    /// # Safety
    /// They lie in the memory, and nobody uses them until the call returns.
    pub unsafe fn read_part(&self, offset: u64, to: &Arc<DeviceBuf>, at: usize, bytes: usize) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Cufile(file) => file.read_part(offset, to, at, bytes),
                Self::Bounced(file) => file.read_part(offset, to, at, bytes),
            }
        }
    }
}
