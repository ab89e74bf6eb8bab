//! Exclusive access of one benchmark run to a file or folder, by the operating system's lock
//! (`flock`).
//!
//! The lock is released explicitly, not by closing the file. A process that is being started at
//! that moment has the file open too. It would keep the lock until it runs its own program.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A file that is locked until this is dropped, if its file system has locks.
#[derive(Debug)]
pub(super) struct Held(File);

impl Held {
    /// Locks a file. Returns `None` if another process has the lock.
    ///
    /// # Errors
    /// Returns the system's error. A file system without locks counts as success.
    pub(super) fn lock(file: File) -> io::Result<Option<Self>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Wraps a file without a lock, which other processes may use as well.
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
