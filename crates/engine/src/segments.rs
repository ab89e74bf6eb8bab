//! The folder of a database's own segments: which of its files are known for what they are after a crash.
//!
//! A segment that no catalog mentions is one of three: it was being written when its process ended; a commit took it out and
//! its process ended before the file was removed; or the store is an older one than the segment, brought back from a copy.
//! Only the last must be kept, and a store cannot tell it from the first: a copy of a store looks just like the store of a
//! process that ended when the copy was made. The folder and the catalog therefore say which it is:
//!
//! 1. A segment that is being written has a *marker* beside it, an empty file of its name and [`MARKER_SUFFIX`]. The marker is
//!    made before the segment.
//! 2. A commit removes the markers of its segments, then makes names durable, then commits. A segment without a marker may
//!    have been committed, in this history or in another.
//! 3. A commit that takes segments out remembers their lengths and checksums in the catalog until the files are gone, and the
//!    folder was synced after that.
//!
//! A crash between 2 and its commit leaves a segment without a marker that was never committed. It is kept, like one of a later
//! store: see [`orphans`](crate::orphans).
//!
//! Before a file is made or removed, the names of the database are looked at ([`Names`]): another directory may be in the
//! place of this one, whose segments have the same names.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_io::{Error, Operation, ReadAt, Result, Volume, WriteAt};

use crate::directory::Names;
use crate::life::Life;

/// A marker has the name of its segment and this.
pub(crate) const MARKER_SUFFIX: &str = ".new";

/// The marker of a segment.
pub(crate) fn marker_of(segment: &str) -> String {
    format!("{segment}{MARKER_SUFFIX}")
}

/// A folder of segments.
#[derive(Debug)]
pub(crate) struct OwnSegments {
    folder: Arc<dyn Volume>,
    /// Of a database in a directory of the operating system's.
    names: Option<Names>,
    life: Life,
    /// Segments that have markers.
    unfinished: Mutex<HashSet<String>>,
    /// Files that were removed and that a crash may bring back, as the folder has not been synced since.
    removed: Mutex<Vec<String>>,
    /// Files that are gone for good and that the catalog still remembers.
    gone: Mutex<Vec<String>>,
}

impl OwnSegments {
    /// The segments in `folder`; `removed` are files that are not there and that the catalog remembers.
    pub fn new(folder: Arc<dyn Volume>, names: Option<Names>, life: Life, removed: Vec<String>) -> Self {
        Self { folder, names, life, unfinished: Mutex::default(), removed: Mutex::new(removed), gone: Mutex::default() }
    }

    /// The session of writing that brings segments here.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Checks that the files of an acknowledged commit have their names.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) names the file, and what happened to it.
    pub fn check_commit(&self) -> crate::Result<()> {
        self.names.as_ref().map_or(Ok(()), Names::check_commit)
    }

    /// Removes the markers of segments that are about to be committed. Their removal is durable after the next
    /// [`sync`](Volume::sync).
    ///
    /// # Errors
    /// Those of the folder. Segments whose markers are gone are kept if a crash leaves them.
    pub fn finish<'a>(&self, segments: impl Iterator<Item = &'a str>) -> Result<()> {
        for segment in segments {
            if lock(&self.unfinished).remove(segment) {
                self.folder.remove(&marker_of(segment))?;
            }
        }
        Ok(())
    }

    /// Files that are known to be gone for good since this was asked last. Those that a crash may bring back are not among them:
    /// the catalog goes on remembering them, or they would be taken for segments of another history.
    pub fn take_gone(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.gone))
    }

    fn check_names(&self, operation: Operation, name: &str) -> Result<()> {
        let checked = self.names.as_ref().map_or(Ok(()), Names::check_segments);
        checked.map_err(|e| self.failed(operation, name, io::Error::other(e.message().to_string())))
    }

    fn failed(&self, operation: Operation, name: &str, source: io::Error) -> Error {
        Error::new(operation, format!("{}/{name}", self.folder.name()), source)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Volume for OwnSegments {
    fn name(&self) -> &str {
        self.folder.name()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        self.folder.open(name)
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        self.folder.open_for_update(name)
    }

    /// Makes a segment and its marker. A file of this name is left as it is.
    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        self.check_names(Operation::Create, name)?;
        if self.folder.open(name).is_ok() {
            return Err(self.failed(Operation::Create, name, io::ErrorKind::AlreadyExists.into()));
        }
        lock(&self.unfinished).insert(name.to_string());
        self.folder.create(&marker_of(name))?;
        self.folder.create(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.folder.rename(from, to)
    }

    /// Removes a segment, and then its marker if it has one: without it the segment would be kept.
    fn remove(&self, name: &str) -> Result<()> {
        self.check_names(Operation::Remove, name)?;
        let is_unfinished = lock(&self.unfinished).remove(name);
        match self.folder.remove(name) {
            Err(e) if !(is_unfinished && e.is_not_found()) => return Err(e),
            _ => {}
        }
        match is_unfinished {
            true => self.folder.remove(&marker_of(name)),
            false => {
                lock(&self.removed).push(name.to_string());
                Ok(())
            }
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        self.folder.list()
    }

    fn sync(&self) -> Result<()> {
        self.check_names(Operation::Sync, "")?;
        let removed = std::mem::take(&mut *lock(&self.removed));
        let synced = self.folder.sync();
        lock(if synced.is_ok() { &self.gone } else { &self.removed }).extend(removed);
        synced
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        self.folder.folder(name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use onehop_io::MemoryVolume;

    use super::*;

    fn segments(folder: MemoryVolume) -> OwnSegments {
        OwnSegments::new(Arc::new(folder), None, Life::begin(None).unwrap(), Vec::new())
    }

    #[test]
    fn a_segment_has_a_marker_until_it_is_committed() {
        let segments = segments(MemoryVolume::new("segments"));
        segments.create("a").unwrap();
        segments.create("b").unwrap();
        assert_eq!(segments.list().unwrap(), ["a", "a.new", "b", "b.new"]);
        segments.finish(["a", "never made"].into_iter()).unwrap();
        assert_eq!(segments.list().unwrap(), ["a", "b", "b.new"]);
        // The catalog remembers no segment that was never committed.
        segments.remove("b").unwrap();
        segments.sync().unwrap();
        assert!(segments.take_gone().is_empty());
        segments.remove("a").unwrap();
        // A crash may bring it back until the folder is synced.
        assert!(segments.take_gone().is_empty());
        segments.sync().unwrap();
        assert_eq!((segments.take_gone(), segments.take_gone()), (vec!["a".to_string()], vec![]));
        assert!(segments.list().unwrap().is_empty());
    }

    #[test]
    fn a_file_that_is_there_is_not_written_over() {
        let folder = MemoryVolume::new("segments");
        folder.create("a").unwrap();
        let segments = segments(folder);
        assert_eq!(segments.create("a").unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
    }
}
