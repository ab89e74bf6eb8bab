//! One writer, or many readers: the operating system's lock on the store's file (`flock`), which cannot outlive its holder.
//!
//! The lock belongs to what was opened, not to the process: a second handle within the process meets it as well, and a child that
//! was forked shares it. Therefore it is let go by name, in the process that took it; a child that merely closes its copy must not
//! release its parent's, and one that lives on must not keep it.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::options::Access;
use crate::{Error, Result};

/// The lock, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    process: u32,
}

impl Lock {
    /// Locks the file at `path`, which is there.
    ///
    /// # Errors
    /// [`Error::Locked`], with the process that holds it where the system tells.
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

    /// Whether what is locked is still what `path` names: it may have been replaced between opening and locking.
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
            // If this fails, closing does it.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Who has an `flock` on a file, as messages say it: " (process 1234)", if the system's list of locks has the file once, and nothing
/// otherwise.
pub fn lock_holder(file: &File) -> String {
    let Ok(metadata) = file.metadata() else { return String::new() };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return String::new() };
    match holders(&locks, metadata.ino())[..] {
        [process] => format!(" (process {process})"),
        _ => String::new(),
    }
}

/// The processes that hold an `flock` on a file of number `inode`. Its device is not compared: some file systems give the file
/// another one than the list says. Lines are like `3: FLOCK  ADVISORY  WRITE 1234 08:01:131075 0 EOF`; `->` marks who waits.
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
