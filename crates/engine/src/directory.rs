//! A database's directory: which files in it are ours, the lock that keeps processes apart, and whether the names of what is
//! open still lead to it.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;

use onehop_io::Volume;
use onehop_io::rados::fs::Id;
use onehop_store::medium::{Moment, NamedFile};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::catalog::{self, Catalog};
use crate::rights::Access;
use crate::{Error, ErrorKind, Result};

/// The folder of segments that are kept, in the directory of the database.
pub(crate) const LOST: &str = "lost+found";

/// Whether files that no catalog mentions may be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphans {
    Collect,
    Leave,
}

const SEGMENT_SUFFIX: &str = ".seg";
/// The folder of segment files.
pub(crate) const SEGMENTS_FOLDER: &str = "segments";
const LOCK_FILE: &str = "LOCK";

/// Removes segment files on a cluster that no catalog mentions: what a crash, or a removal that failed, left behind. The mark of
/// the directory says that they are this catalog's; [`orphans`](crate::orphans) is about those in a database's own directory.
pub(crate) fn collect_remote_orphans(
    segments: &dyn Volume,
    catalog: &Catalog,
    access: Access,
    orphans: Orphans,
) -> Result<()> {
    if access == Access::ReadOnly || orphans == Orphans::Leave {
        return Ok(());
    }
    let known: std::collections::HashSet<&str> =
        catalog.tables.values().flat_map(|t| &t.segments).map(|s| s.file.as_str()).collect();
    for name in segments.list()? {
        if is_segment_name(&name) && !known.contains(name.as_str()) {
            segments.remove(&name)?;
        }
    }
    Ok(())
}

/// A catalog is durable before the first segment is written: segments without one have lost theirs, and an empty
/// catalog in its place would make orphans of them all.
pub(crate) fn refuse_lost_catalog(root: &dyn Volume, segments: &dyn Volume) -> Result<()> {
    if !segments.list()?.iter().any(|name| is_segment_name(name)) {
        return Ok(());
    }
    Err(lost_catalog(root.name()))
}

fn lost_catalog(directory: &str) -> Error {
    let store = Path::new(directory).join(catalog::STORE_FILE);
    let what = if store.symlink_metadata().is_ok() { "is no regular file" } else { "is missing" };
    let message = format!("{} {what}, and there are segment files", store.display());
    Error::new(ErrorKind::Corrupt, message)
        .with_hint("restore that file from a backup; to begin anew, remove the directory")
}

/// Why there is nothing to be read in a directory without a catalog: it has lost its own, or never had one.
pub(crate) fn no_database(path: &Path) -> Error {
    if let Err(e) = std::fs::metadata(path.join(catalog::STORE_FILE))
        && e.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Error::new(ErrorKind::Io, format!("cannot open {}: {e}", path.display())).with_source(e);
    }
    let names = std::fs::read_dir(path.join(SEGMENTS_FOLDER)).into_iter().flatten().flatten();
    if names.into_iter().any(|entry| is_segment_name(&entry.file_name().to_string_lossy())) {
        return lost_catalog(&path.display().to_string());
    }
    Error::new(ErrorKind::NotFound, format!("there is no database at {}", path.display()))
        .with_hint("open it without --readonly to make one")
}

/// The file of a segment of a table, by their ids; and by who writes it, where others might write there too.
pub(crate) fn segment_name(table: u64, segment: u64, writer: Option<Id>) -> String {
    match writer {
        None => format!("{table:08}-{segment:08}{SEGMENT_SUFFIX}"),
        Some(writer) => format!("{table:08}-{segment:08}-{writer}{SEGMENT_SUFFIX}"),
    }
}

/// Greater numbers in a name are no ids of a catalog.
const MOST_ID: u64 = 1 << 53;

/// An id above those in the names of `lost+found`: of segments that a later store than this one may
/// know. If that store is put back, their names must be free. Every other segment of the directory
/// is the catalog's, and its ids are below the catalog's next.
pub(crate) fn free_id(path: &Path) -> u64 {
    let names = std::fs::read_dir(path.join(LOST)).into_iter().flatten().flatten();
    let ids = names.filter_map(|entry| greatest_id(&entry.file_name().to_string_lossy()));
    ids.max().map_or(0, |id| id + 1)
}

/// The greater of the ids in the name of a kept segment, which may have a number behind it.
fn greatest_id(name: &str) -> Option<u64> {
    let (ids, _) = name.split_once(SEGMENT_SUFFIX)?;
    let mut ids = ids.split('-').map(|id| id.parse::<u64>().ok());
    Some(ids.next()??.max(ids.next()??)).filter(|id| *id < MOST_ID)
}

/// Whether a name is one that [`segment_name`] makes: files that are not ours are left alone.
pub(crate) fn is_segment_name(name: &str) -> bool {
    let is_id = |text: &str| text.len() >= 8 && text.bytes().all(|b| b.is_ascii_digit());
    let Some((table, rest)) = name.strip_suffix(SEGMENT_SUFFIX).and_then(|ids| ids.split_once('-')) else {
        return false;
    };
    let (segment, writer) = rest.split_once('-').map_or((rest, None), |(segment, writer)| (segment, Some(writer)));
    is_id(table) && is_id(segment) && writer.is_none_or(|writer| Id::parse(writer).is_some())
}

pub(crate) fn cannot_make(path: &Path, e: std::io::Error) -> Error {
    let reason = if path.is_file() { "it is a file".to_string() } else { e.to_string() };
    Error::new(ErrorKind::Io, format!("cannot make the database directory {}: {reason}", path.display())).with_source(e)
}

/// A directory that holds other things must not become a database by a slip of the hand.
pub(crate) fn refuse_foreign_directory(path: &Path) -> Result<()> {
    let entries = std::fs::read_dir(path).map_err(|e| cannot_make(path, e))?;
    let names: Vec<String> =
        entries.filter_map(|entry| entry.ok().map(|e| e.file_name().to_string_lossy().into_owned())).collect();
    // These are there without a store if making a database was cut short, and in the root of a file system.
    let is_begun = |name: &String| [LOCK_FILE, SEGMENTS_FOLDER, LOST, catalog::NEW_FILE].contains(&name.as_str());
    let is_whole = |name: &String| [catalog::STORE_FILE, catalog::MANIFEST_FILE].contains(&name.as_str());
    if names.iter().any(is_whole) || names.iter().all(is_begun) {
        return Ok(());
    }
    let message = format!("{} is a directory with other things in it, not a database", path.display());
    Err(Error::new(ErrorKind::Invalid, message).with_hint("name an empty or a new directory"))
}

/// The names of the files of an open database. If another process removes or replaces a file, or the whole directory, the
/// database acknowledges nothing more and removes no file.
///
/// A directory may move. Its old path must not lead to another one.
#[derive(Debug)]
pub(crate) struct Names {
    directory: NamedFile,
    lock: NamedFile,
    store: NamedFile,
    segments: Option<NamedFile>,
}

impl Names {
    /// Those of a database at `path`, all of whose files are there; `lock` is its lock.
    ///
    /// # Errors
    /// One of them is not to be found.
    pub fn new(path: &Path, lock: &Lock) -> Result<Self> {
        let of = |name: &Path, file: &dyn AsFd| NamedFile::new(name, file.as_fd()).map_err(|e| cannot_look(name, e));
        // By no more than their paths: a file that is opened is an event for those who watch it.
        let opened = |name: &Path| {
            let file = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            file.map_err(|e| cannot_look(name, e.into())).and_then(|file| of(name, &file))
        };
        let segments = path.join(SEGMENTS_FOLDER);
        Ok(Self {
            directory: opened(path)?,
            lock: of(&path.join(LOCK_FILE), &lock.file)?,
            store: opened(&path.join(catalog::STORE_FILE))?,
            segments: if segments.is_dir() { Some(opened(&segments)?) } else { None },
        })
    }

    /// Checks the names that a commit relies on. The store checks its own file itself.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] with what has happened to which file.
    pub fn check_commit(&self) -> Result<()> {
        let now = Moment::now();
        self.lock.check_at(now, 0)?;
        self.directory.check_not_replaced_at(now)?;
        Ok(())
    }

    /// Checks all names, before a segment file is made or removed.
    ///
    /// # Errors
    /// As of [`check_commit`](Self::check_commit).
    pub fn check_segments(&self) -> Result<()> {
        self.check_commit()?;
        self.store.check(0)?;
        self.segments.as_ref().map_or(Ok(()), |segments| segments.check(0))?;
        Ok(())
    }
}

fn cannot_look(path: &Path, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot look at {}: {e}", path.display())).with_source(e)
}

/// The operating system's lock, held until this is dropped.
///
/// Released by name, not by closing the file: a process that is being forked off at that moment has the file open too.
/// For the same reason only the process that took it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    process: u32,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // If this fails, closing the file releases it.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

pub(crate) fn lock(path: &Path, access: Access) -> Result<Lock> {
    let name = path.join(LOCK_FILE);
    let failed = |e: std::io::Error| {
        let message = format!("cannot lock the database {}: {LOCK_FILE}: {e}", path.display());
        let error = Error::new(ErrorKind::Io, message);
        match (access, is_refusal(&e)) {
            (Access::ReadWrite, true) => error.with_hint("open it with --readonly").with_source(e),
            _ => error.with_source(e),
        }
    };
    let mut file = match access {
        Access::ReadWrite => open_for_writing(&name),
        Access::ReadOnly => match File::open(&name) {
            // A copy of a database need not have the file.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => match open_for_writing(&name) {
                // Where it cannot be made nobody opens the database for writing.
                Err(e) if is_refusal(&e) => File::open(path),
                made => made,
            },
            there => there,
        },
    }
    .map_err(failed)?;
    let operation = match access {
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
    };
    match flock(&file, operation) {
        Ok(()) => {}
        Err(e) if e == rustix::io::Errno::WOULDBLOCK => {
            let holder = onehop_store::lock_holder(&file);
            if holder == format!(" (process {})", std::process::id()) {
                let message = format!("the database {} is open in this process already", path.display());
                let hint = "open another session of it; in Python, cursor() of its connection does";
                return Err(Error::new(ErrorKind::Locked, message).with_hint(hint));
            }
            let message = format!("the database {} is open in another process{holder}", path.display());
            return Err(
                Error::new(ErrorKind::Locked, message).with_hint("close it there, or open it in both with --readonly")
            );
        }
        Err(e) => return Err(failed(e.into())),
    }
    if access == Access::ReadWrite {
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(failed)?;
    }
    Ok(Lock { file, process: std::process::id() })
}

fn open_for_writing(name: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(name)
}

fn is_refusal(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem)
}
