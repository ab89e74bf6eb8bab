//! What one run of a benchmark alone may use: a file or folder with the operating system's lock (`flock`).
//!
//! It is released by name, not by closing the file: a process that is being started at that moment has the file open
//! too, and would keep the lock until it runs its own program.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A file that is locked, where its file system has locks, until this is dropped.
#[derive(Debug)]
pub(super) struct Held(File);

impl Held {
    /// Locks it; `None` if somebody else has it.
    ///
    /// # Errors
    /// The system's. A file system without locks has nobody to lock out.
    pub(super) fn lock(file: File) -> io::Result<Option<Self>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// One that others may use as well.
    pub(super) fn shared(file: File) -> Self {
        Self(file)
    }
}

impl std::ops::Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // If this fails, closing does it.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
