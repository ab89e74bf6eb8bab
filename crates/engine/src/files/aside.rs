//! A temporary file or directory that is written beside its target until it is complete.
//!
//! 1. Its name, `.onehop-copy-PROCESS-NUMBER.tmp`, matches no pattern for the target's kind.
//! 2. Its process holds a lock on it, which ends with the process.
//! 3. The creation of one removes unlocked ones in the same directory, whose processes were killed.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

const PREFIX: &str = ".onehop-copy-";
const SUFFIX: &str = ".tmp";

/// The maximum number of directory entries that are searched for abandoned files.
const MOST_ENTRIES: usize = 100_000;

/// The temporary file or directory, and its lock.
#[derive(Debug)]
pub(super) struct Aside {
    path: PathBuf,
    is_directory: bool,
    _lock: File,
}

impl Aside {
    /// Creates a file in the directory of the target.
    pub fn file(target: &Path) -> io::Result<(Self, File)> {
        let make = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        let (path, file) = made(target, &make)?;
        let lock = file.try_clone()?;
        Ok((Self { path, is_directory: false, _lock: lock }, file))
    }

    /// Creates a directory in the directory of the target.
    pub fn directory(target: &Path) -> io::Result<Self> {
        let make = |path: &Path| {
            fs::create_dir(path)?;
            // Another export removed it meanwhile. The caller tries the next name.
            File::open(path).map_err(|e| match e.kind() {
                ErrorKind::NotFound => ErrorKind::AlreadyExists.into(),
                _ => e,
            })
        };
        let (path, lock) = made(target, &make)?;
        Ok(Self { path, is_directory: true, _lock: lock })
    }

    /// Returns the path of the file or directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, and ignores errors. The next export to the directory removes what remains.
    pub fn remove(&self) {
        let _ = remove(&self.path, self.is_directory);
    }
}

fn remove(path: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Creates the file or directory under a free name, and locks it.
fn made(target: &Path, make: &dyn Fn(&Path) -> io::Result<File>) -> io::Result<(PathBuf, File)> {
    let directory = target.parent().unwrap_or(Path::new("/"));
    remove_abandoned(directory);
    let mut number = 0;
    loop {
        let path = directory.join(format!("{PREFIX}{}-{number}{SUFFIX}", std::process::id()));
        number += 1;
        let file = match make(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
            made => made?,
        };
        // Before the lock, another export may have taken it for abandoned.
        let is_taken = flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
        // Other errors come from a file system without locks, where no export can take it for
        // abandoned.
        if !is_taken && is_still(&path, &file)? {
            return Ok((path, file));
        }
    }
}

/// Returns whether a path leads to this file.
fn is_still(path: &Path, file: &File) -> io::Result<bool> {
    let there = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        there => there?,
    };
    let it = file.metadata()?;
    Ok((it.dev(), it.ino()) == (there.dev(), there.ino()))
}

fn remove_abandoned(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.take(MOST_ENTRIES).flatten().filter(is_one) {
        let path = entry.path();
        // The flags neither follow a link nor wait for a pipe.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_still(&path, &file).unwrap_or(false) {
            let is_directory = file.metadata().is_ok_and(|metadata| metadata.is_dir());
            // The copy continues without the removal.
            let _ = remove(&path, is_directory);
        }
    }
}

fn is_one(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let numbers = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-'));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = numbers.is_some_and(|(process, number)| is_number(process) && is_number(number));
    is_name && entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("t.csv");
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let (held, _file) = Aside::file(&target).unwrap();
        let held_directory = Aside::directory(&target).unwrap();
        fs::write(place.path().join(".onehop-copy-1-0.tmp"), "half").unwrap();
        fs::create_dir(place.path().join(".onehop-copy-1-1.tmp")).unwrap();
        fs::write(place.path().join(".onehop-copy-1-1.tmp/part-0.csv"), "half").unwrap();
        // These names do not match, and this link is not an Onehop file.
        for name in [".onehop-copy-1-x.tmp", ".onehop-copy-1.tmp", "onehop-copy-1-1.tmp"] {
            fs::write(place.path().join(name), "of somebody").unwrap();
        }
        std::os::unix::fs::symlink("/nowhere", place.path().join(".onehop-copy-2-0.tmp")).unwrap();

        let (next, _file) = Aside::file(&target).unwrap();
        assert!(held.path().exists() && held_directory.path().exists() && next.path().exists());
        assert!(!names().iter().any(|name| name == ".onehop-copy-1-0.tmp" || name == ".onehop-copy-1-1.tmp"));
        assert_eq!(names().len(), 3 + 4);
        for aside in [&held, &held_directory, &next] {
            aside.remove();
        }
        assert_eq!(names().len(), 4);
    }
}
