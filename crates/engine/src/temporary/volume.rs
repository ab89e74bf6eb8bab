//! A folder for files that end with the process.
//!
//! - It is created with the first file. The process that created it removes it after the last
//!   reader.
//! - Its files are not synced.
//! - Its process holds a lock on it, which ends with the process. A process that creates a folder
//!   removes unlocked folders beside it: those that killed processes have left.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use onehop_io::{Error, IoHints, Ledger, LocalVolume, Operation, ReadAt, RequestedPath, Result, Volume, WriteAt};
use rustix::fs::{FlockOperation, flock};

/// The prefix of the names of folders.
const PREFIX: &str = "onehop-temporary-";
/// The number of attempts, since another process may take a new folder for one that was left.
const TRIES: usize = 100;

/// Files in a folder in `place`.
#[derive(Debug)]
pub(super) struct TemporaryVolume {
    place: PathBuf,
    name: String,
    made: OnceLock<Made>,
}

#[derive(Debug)]
struct Made {
    files: LocalVolume,
    _folder: Folder,
}

/// A folder of this process. Dropping it removes the folder with its contents.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    process: u32,
    /// The process that holds the lock owns the folder.
    _lock: File,
}

impl Folder {
    fn new(place: &Path) -> io::Result<Self> {
        for _ in 0..TRIES {
            let path = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?.keep();
            // Until it is locked, it looks like one that was left.
            match lock(&path) {
                Ok(Some(lock)) => return Ok(Self { path, process: std::process::id(), _lock: lock }),
                Ok(None) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("others remove each folder that is made"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A forked process inherits the folder from its parent and must not remove it.
        if self.process == std::process::id() {
            // The process that creates the next folder removes the remains.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Locks the folder at a path. Returns `None` if another process holds the lock.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    // The previous holder of the lock may have removed the folder.
    let (locked, there) = (folder.metadata()?, std::fs::symlink_metadata(path)?);
    let is_it = (locked.dev(), locked.ino()) == (there.dev(), there.ino());
    Ok(is_it.then_some(folder))
}

/// Removes folders that terminated processes have left.
fn remove_left(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for path in entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let path = path.path();
        // Folders of other users cannot be opened. The lock is held until the folder is gone.
        if let Ok(Some(_lock)) = lock(&path) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

impl TemporaryVolume {
    /// Creates a volume in `place`, without its folder.
    pub fn new(place: PathBuf) -> Self {
        Self { name: place.display().to_string(), place, made: OnceLock::new() }
    }

    /// Returns the folder, and creates it if necessary.
    fn made(&self) -> Result<&LocalVolume> {
        if let Some(made) = self.made.get() {
            return Ok(&made.files);
        }
        remove_left(&self.place);
        let folder = Folder::new(&self.place).map_err(|e| Error::new(Operation::Create, &self.name, e))?;
        let files = LocalVolume::open(&folder.path, RequestedPath::Auto)?;
        // If another thread was faster, this folder is dropped.
        Ok(&self.made.get_or_init(|| Made { files, _folder: folder }).files)
    }

    fn there(&self) -> Result<&LocalVolume> {
        let none = || Error::new(Operation::Open, &self.name, io::ErrorKind::NotFound);
        self.made.get().map(|made| &made.files).ok_or_else(none)
    }
}

impl Volume for TemporaryVolume {
    fn name(&self) -> &str {
        self.made.get().map_or(&self.name, |made| made.files.name())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        self.there()?.open(name)
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Ok(Arc::new(Unsynced(self.there()?.open_for_update(name)?)))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Ok(Arc::new(Unsynced(self.made()?.create(name)?)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.there()?.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.there()?.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.made.get().map_or_else(|| Ok(Vec::new()), |made| made.files.list())
    }

    /// Does nothing: the files need not survive.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        self.made()?.folder(name)
    }
}

/// A file that need not survive.
#[derive(Debug)]
struct Unsynced(Arc<dyn WriteAt>);

impl ReadAt for Unsynced {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn hints(&self) -> IoHints {
        self.0.hints()
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        self.0.try_read_at(offset, buf, ledger)
    }

    fn try_read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>], ledger: &Ledger) -> io::Result<usize> {
        self.0.try_read_vectored_at(offset, bufs, ledger)
    }
}

impl WriteAt for Unsynced {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        self.0.try_write_at(offset, buf, ledger)
    }

    fn try_write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>], ledger: &Ledger) -> io::Result<usize> {
        self.0.try_write_vectored_at(offset, bufs, ledger)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_is_removed_and_what_is_held_is_not() {
        let place = tempfile::tempdir().unwrap();
        let left = place.path().join(format!("{PREFIX}left"));
        std::fs::create_dir_all(left.join("folder")).unwrap();
        std::fs::write(left.join("00000001-00000002.seg"), "rows").unwrap();
        std::fs::create_dir(place.path().join("somebody's")).unwrap();
        let (one, other) = (TemporaryVolume::new(place.path().into()), TemporaryVolume::new(place.path().into()));
        assert!(one.list().unwrap().is_empty() && one.open("a").unwrap_err().is_not_found());
        assert!(left.exists());
        let ledger = Ledger::default();
        one.create("a").unwrap().write_at(0, b"of one", &ledger).unwrap();
        assert!(!left.exists());
        other.create("b").unwrap();
        let mut read = [0; 6];
        one.open("a").unwrap().read_at(0, &mut read, &ledger).unwrap();
        assert_eq!((&read, one.list().unwrap()), (b"of one", vec!["a".to_string()]));
        drop((one, other));
        let there: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(there, ["somebody's"]);
    }

    #[test]
    fn folders_that_are_made_at_once_are_all_there() {
        let place = tempfile::tempdir().unwrap();
        let volumes: Vec<TemporaryVolume> = (0..40).map(|_| TemporaryVolume::new(place.path().into())).collect();
        std::thread::scope(|scope| {
            for volume in &volumes {
                scope.spawn(|| volume.create("a").unwrap());
                scope.spawn(|| volume.create("b").unwrap());
            }
        });
        for volume in &volumes {
            assert_eq!(volume.list().unwrap(), ["a", "b"]);
        }
        drop(volumes);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
