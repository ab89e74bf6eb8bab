//! The name of an open file, and the check that it still leads to the file.
//!
//! An open descriptor outlives the name. After `rm`, or after another file was renamed over it,
//! writes and syncs succeed, and their data is never found again. A writer therefore checks the
//! name before each acknowledgement.
//!
//! The directory is kept open and the name is looked up in it, so that a directory may move.
//!
//! A file that can be [watched](super::watch) is checked again after an event, and otherwise every
//! 100 ms: a mount that hides a directory, and bytes written by a program that had the file open
//! before, are no events.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::watch::{Moment, Report, Watch};
use crate::{Error, Result};

/// Device and inode: the identity of a file, independent of its name.
type Identity = (u64, u64);

/// The time after a check in which the contents and the length of a watched file are not checked
/// again. Commits that follow each other faster than a program could replace a file and go on share
/// one check.
const FRESH: Duration = Duration::from_millis(1);

/// The longest time between two checks of a watched file.
const LONGEST_UNSEEN: Duration = Duration::from_millis(100);

/// The description of a file whose name does not exist any more.
const GONE: &str = "removed, or given another name,";

/// An open file's name in its directory.
#[derive(Debug)]
pub struct NamedFile {
    /// The path, for messages.
    path: String,
    directory: OwnedFd,
    name: OsString,
    file: Identity,
    /// The symbolic link through which the file was opened, if any.
    link: Option<Identity>,
    /// The file, if its contents are checked as well.
    descriptor: Option<OwnedFd>,
    watch: Option<Watch>,
    /// The last check that succeeded, if there is a watch.
    seen: Mutex<Option<Seen>>,
}

/// A check that succeeded.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The number of events before the check.
    changes: u64,
    at: Instant,
    /// The last check of the length.
    measured: Instant,
}

impl NamedFile {
    /// Returns the name `path` of `file`, which was opened by it. Works for directories, too.
    ///
    /// # Errors
    /// The system's error for the directory or the file.
    pub fn new(path: &Path, file: impl AsFd) -> io::Result<Self> {
        Self::watched(path, file, Report::Links)
    }

    /// Returns the name of a file whose contents are checked as well.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn with_contents(path: &Path, file: impl AsFd) -> io::Result<Self> {
        let descriptor = Some(rustix::io::fcntl_dupfd_cloexec(&file, 0)?);
        Ok(Self { descriptor, ..Self::watched(path, file, Report::Contents)? })
    }

    fn watched(path: &Path, file: impl AsFd, report: Report) -> io::Result<Self> {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let name: OsString = path.file_name().unwrap_or(path.as_os_str()).into();
        let status = rustix::fs::fstat(&file)?;
        let named = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let link = (FileType::from_raw_mode(named.st_mode) == FileType::Symlink).then(|| identity(&named));
        let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
        let report = if is_directory { Report::Place } else { report };
        // The name of a link is no name of the file.
        let watch = if link.is_none() { Watch::new(&file, report) } else { None };
        let (path, file, seen) = (path.display().to_string(), identity(&status), Mutex::default());
        Ok(Self { path, directory, name, file, link, descriptor: None, watch, seen })
    }

    /// Checks that the name leads to the file, and that the file has at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Displaced`] if not; [`Error::Io`] if the system call fails.
    pub fn check(&self, bytes: u64) -> Result<()> {
        self.check_at(Moment::now(), bytes)
    }

    /// Checks as [`check`](Self::check) does, given the events up to `now`.
    ///
    /// # Errors
    /// As of [`check`](Self::check).
    pub fn check_at(&self, now: Moment, bytes: u64) -> Result<()> {
        if self.is_unchanged(now) {
            return self.check_open_length(now, bytes);
        }
        *self.seen() = None;
        match self.look(AtFlags::SYMLINK_NOFOLLOW)? {
            Some(named) => self.check_named(&named, bytes)?,
            None => return Err(self.displaced(GONE)),
        }
        self.saw(now);
        Ok(())
    }

    /// Returns true if the system reports no event since the last check that succeeded.
    pub fn is_unchanged(&self, now: Moment) -> bool {
        let Some(changes) = now.changes.filter(|_| self.watch.is_some()) else { return false };
        let seen = *self.seen();
        seen.is_some_and(|seen| seen.changes == changes && now.at.saturating_duration_since(seen.at) < LONGEST_UNSEEN)
    }

    /// Returns true if a check succeeded not more than a millisecond before `at`.
    pub fn was_checked(&self, at: Instant) -> bool {
        let checked = |seen: Seen| seen.at.max(seen.measured);
        let seen = *self.seen();
        seen.is_some_and(|seen| at.saturating_duration_since(checked(seen)) < FRESH)
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a check that succeeded, with the events before it.
    fn saw(&self, now: Moment) {
        *self.seen() = now.changes.map(|changes| Seen { changes, at: now.at, measured: now.at });
    }

    /// Checks the length of the open file. A program may cut a file by its path, without an event.
    fn check_open_length(&self, now: Moment, bytes: u64) -> Result<()> {
        let Some(descriptor) = self.descriptor.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        let mut seen = self.seen();
        let Some(last) = seen.as_mut() else { return Ok(()) };
        if now.at.saturating_duration_since(last.measured) < FRESH {
            return Ok(());
        }
        // This is cheaper than a stat. Reads and writes have positions of their own, so the offset
        // is unused.
        match rustix::fs::seek(descriptor, SeekFrom::End(0)) {
            Ok(len) if len < bytes => Err(self.cut(bytes, len)),
            Ok(_) => {
                last.measured = now.at;
                Ok(())
            }
            Err(e) => Err(Error::io("look at", &self.path, e)),
        }
    }

    /// Checks that the name leads to this file or to none: another file must not have it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_not_replaced_at(&self, now: Moment) -> Result<()> {
        if self.is_unchanged(now) {
            return Ok(());
        }
        // If another file gets the name, this file has no event: the result is not recorded.
        let Some(named) = self.look(AtFlags::SYMLINK_NOFOLLOW)? else { return Ok(()) };
        self.check_named(&named, 0)?;
        self.saw(now);
        Ok(())
    }

    fn check_named(&self, named: &Stat, bytes: u64) -> Result<()> {
        let found = match self.link {
            None if FileType::from_raw_mode(named.st_mode) == FileType::Symlink => {
                return Err(self.displaced("replaced by a symbolic link"));
            }
            Some(link) if identity(named) != link => return Err(self.displaced("replaced by another file")),
            None => *named,
            Some(_) => self.look(AtFlags::empty())?.ok_or_else(|| self.displaced(GONE))?,
        };
        if identity(&found) != self.file {
            return Err(self.displaced("replaced by another file"));
        }
        let len = found.st_size as u64;
        if len < bytes {
            return Err(self.cut(bytes, len));
        }
        Ok(())
    }

    fn cut(&self, bytes: u64, len: u64) -> Error {
        self.displaced(&format!("cut from {bytes} bytes to {len}"))
    }

    /// Returns the error of a file that has changed as `what` describes.
    pub(crate) fn displaced(&self, what: &str) -> Error {
        Error::Displaced { object: self.path.clone(), what: what.into() }
    }

    /// Returns the status of the named file, or `None` if the name does not exist.
    fn look(&self, flags: AtFlags) -> Result<Option<Stat>> {
        loop {
            match rustix::fs::statat(&self.directory, &self.name, flags) {
                Ok(stat) => return Ok(Some(stat)),
                Err(Errno::INTR) => {}
                Err(Errno::NOENT) => return Ok(None),
                Err(e) => return Err(Error::io("look at", &self.path, e)),
            }
        }
    }
}

fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn what(outcome: Result<()>) -> String {
        match outcome {
            Err(Error::Displaced { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_happens_to_a_name_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let made = |name: &str| {
            fs::write(at(name), [0; 100]).unwrap();
            NamedFile::new(&at(name), fs::File::open(at(name)).unwrap()).unwrap()
        };
        let file = made("a");
        file.check(100).unwrap();
        fs::hard_link(at("a"), at("b")).unwrap();
        file.check(100).unwrap();
        fs::remove_file(at("a")).unwrap();
        assert_eq!(what(file.check(100)), "removed, or given another name,");
        symlink(at("b"), at("a")).unwrap();
        assert_eq!(what(file.check(100)), "replaced by a symbolic link");
        fs::remove_file(at("a")).unwrap();
        fs::rename(at("b"), at("a")).unwrap();
        file.check(100).unwrap();
        fs::write(at("c"), [0; 100]).unwrap();
        fs::rename(at("c"), at("a")).unwrap();
        assert_eq!(what(file.check(100)), "replaced by another file");
        let file = made("d");
        fs::write(at("d"), [0; 10]).unwrap();
        assert_eq!(what(file.check(100)), "cut from 100 bytes to 10");
    }

    #[test]
    fn a_link_from_the_beginning_and_a_directory_that_moves_do_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let (before, after) = (directory.path().join("before"), directory.path().join("after"));
        fs::create_dir(&before).unwrap();
        fs::write(directory.path().join("file"), [0; 10]).unwrap();
        symlink("../file", before.join("link")).unwrap();
        let path = before.join("link");
        let file = NamedFile::new(&path, fs::File::open(&path).unwrap()).unwrap();
        fs::rename(&before, &after).unwrap();
        file.check(10).unwrap();
        fs::remove_file(directory.path().join("file")).unwrap();
        assert!(file.check(10).is_err());
    }
}
