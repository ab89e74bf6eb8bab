//! The name of an open file, and whether it still leads to the file.
//!
//! An open descriptor outlives the name: after `rm`, or after another file was renamed over it, writes and syncs succeed and
//! nothing of them is ever found again. A writer therefore looks at the name before it acknowledges anything.
//!
//! The directory is kept open and the name is looked up in it, so that a directory that moves does not matter.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::{Error, Result};

/// Device and inode: what a file is, whatever its name.
type Identity = (u64, u64);

/// What has happened to a file whose name is not there.
const GONE: &str = "removed, or given another name,";

/// An open file's name in its directory.
#[derive(Debug)]
pub struct NamedFile {
    /// The path, for messages.
    path: String,
    directory: OwnedFd,
    name: OsString,
    file: Identity,
    /// The symbolic link that the name was when the file was opened through it.
    link: Option<Identity>,
}

impl NamedFile {
    /// The name `path` of `file`, which was opened by it. Directories are files as well.
    ///
    /// # Errors
    /// What the system says of the directory or the file.
    pub fn new(path: &Path, file: impl AsFd) -> io::Result<Self> {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let name: OsString = path.file_name().unwrap_or(path.as_os_str()).into();
        let file = identity(&rustix::fs::fstat(file)?);
        let named = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let link = (FileType::from_raw_mode(named.st_mode) == FileType::Symlink).then(|| identity(&named));
        Ok(Self { path: path.display().to_string(), directory, name, file, link })
    }

    /// Whether the name leads to the file, and the file has `bytes` at least.
    ///
    /// # Errors
    /// [`Error::Displaced`] if not; [`Error::Io`] if the system does not tell.
    pub fn check(&self, bytes: u64) -> Result<()> {
        match self.look(AtFlags::SYMLINK_NOFOLLOW)? {
            Some(named) => self.check_named(&named, bytes),
            None => Err(self.displaced(GONE)),
        }
    }

    /// Whether the name leads to this file or to none: another one must not have it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_not_replaced(&self) -> Result<()> {
        self.look(AtFlags::SYMLINK_NOFOLLOW)?.map_or(Ok(()), |named| self.check_named(&named, 0))
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
            return Err(self.displaced(&format!("cut from {bytes} bytes to {len}")));
        }
        Ok(())
    }

    /// The error of a file to which `what` has happened.
    pub(crate) fn displaced(&self, what: &str) -> Error {
        Error::Displaced { object: self.path.clone(), what: what.into() }
    }

    /// What the name leads to; `None` if there is no such name.
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
