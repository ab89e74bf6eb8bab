//! One writer, or many readers: the operating system's lock on the store's file (`flock`), which
//! cannot outlive its holder.
//!
//! The lock belongs to the open file description, not to the process. A second handle within the
//! process conflicts with it as well, and a forked child shares it. Therefore the process that took
//! the lock releases it explicitly. A child that closes its copy must not release the lock of its
//! parent, and a child that lives on must not keep it.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::options::Access;
use crate::{Error, Result};

/// The lock, held until this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    process: u32,
}

impl Lock {
    /// Locks the existing file at `path`.
    ///
    /// # Errors
    /// [`Error::Locked`], with the process that holds the lock if the system reports it.
    pub(crate) fn acquire(path: &Path, access: Access) -> Result<Self> {
        let name = path.display().to_string();
        let (file, operation) = match access {
            Access::ReadWrite => {
                (File::options().read(true).write(true).open(path), FlockOperation::NonBlockingLockExclusive)
            }
            Access::ReadOnly => (File::open(path), FlockOperation::NonBlockingLockShared),
        };
        let file = file.map_err(|e| Error::io("open", &name, e))?;
        match flock(&file, operation) {
            Ok(()) => Ok(Self { file, process: std::process::id() }),
            Err(Errno::WOULDBLOCK) => Err(Error::Locked { holder: lock_holder(&file), object: name }),
            Err(e) => Err(Error::io("lock", &name, e)),
        }
    }

    /// Returns true if the locked file is still the file at `path`: it may have been replaced
    /// between opening and locking.
    pub(crate) fn is_of(&self, path: &Path) -> Result<bool> {
        let failed = |e| Error::io("look at", &path.display().to_string(), e);
        let locked = self.file.metadata().map_err(failed)?;
        match path.metadata() {
            Ok(named) => Ok(identity(&locked) == identity(&named)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(failed(e)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // If this fails, closing the file releases the lock.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns the holder of an `flock` on a file in the form used by messages, " (process 1234)". The
/// string is empty unless the system's list of locks has the file exactly once.
pub fn lock_holder(file: &File) -> String {
    let Ok(metadata) = file.metadata() else { return String::new() };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return String::new() };
    match holders(&locks, metadata.ino())[..] {
        [process] => format!(" (process {process})"),
        _ => String::new(),
    }
}

/// Returns the processes that hold an `flock` on a file with inode number `inode`. It does not
/// compare devices: some file systems report another device than the list does. Lines are like
/// `3: FLOCK ADVISORY WRITE 1234 08:01:131075 0 EOF`. `->` marks a waiting process.
fn holders(locks: &str, inode: u64) -> Vec<u32> {
    let holder = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, _, _, process, file) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
        let is_it = kind == "FLOCK" && file.rsplit(':').next()?.parse() == Ok(inode);
        // 0 stands for processes that are not visible from here.
        process.parse().ok().filter(|process| is_it && *process != 0)
    };
    locks.lines().filter_map(holder).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_locks_says_who_holds_one() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:131075 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1234 08:01:131075 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 08:01:131075 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  0 08:01:131076 0 EOF\n";
        assert_eq!(holders(locks, 131_075), [1234]);
        assert!(holders(locks, 131_076).is_empty());
        assert!(holders("nonsense\n\n: : :", 131_075).is_empty());
    }

    #[test]
    fn one_writer_or_many_readers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = Lock::acquire(file.path(), Access::ReadOnly).unwrap();
        let second = Lock::acquire(file.path(), Access::ReadOnly).unwrap();
        assert!(matches!(Lock::acquire(file.path(), Access::ReadWrite), Err(Error::Locked { .. })));
        drop((first, second));
        let writer = Lock::acquire(file.path(), Access::ReadWrite).unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = Lock::acquire(file.path(), access).unwrap_err().to_string();
            assert!(refused.contains("open elsewhere"), "{refused}");
        }
        assert!(writer.is_of(file.path()).unwrap());
        std::fs::remove_file(file.path()).unwrap();
        assert!(!writer.is_of(file.path()).unwrap());
    }
}
