//! A database's directory: which files in it are ours, and the lock that keeps processes apart.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

use onehop_io::Volume;
use onehop_io::rados::fs::Id;
use rustix::fs::{FlockOperation, flock};

use crate::catalog::{self, Catalog};
use crate::database::Access;
use crate::remote::Orphans;
use crate::{Error, ErrorKind, Result};

const SEGMENT_SUFFIX: &str = ".seg";
/// The folder of segment files.
pub(crate) const SEGMENTS_FOLDER: &str = "segments";
const LOCK_FILE: &str = "LOCK";

/// Removes segment files that no catalog mentions: what a crash, or a removal that failed, left behind.
pub(crate) fn collect_orphans(
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
    let message = format!("{}/{} is missing, and there are segment files", root.name(), catalog::STORE_FILE);
    Err(Error::new(ErrorKind::Corrupt, message)
        .with_hint("restore that file from a backup; to begin anew, remove the directory"))
}

/// The file of a segment of a table, by their ids; and by who writes it, where others might write there too.
pub(crate) fn segment_name(table: u64, segment: u64, writer: Option<Id>) -> String {
    match writer {
        None => format!("{table:08}-{segment:08}{SEGMENT_SUFFIX}"),
        Some(writer) => format!("{table:08}-{segment:08}-{writer}{SEGMENT_SUFFIX}"),
    }
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
    // What there is without a store when making a database was cut short.
    let is_begun = |name: &String| [LOCK_FILE, SEGMENTS_FOLDER, catalog::NEW_FILE].contains(&name.as_str());
    let is_whole = |name: &String| [catalog::STORE_FILE, catalog::MANIFEST_FILE].contains(&name.as_str());
    if names.iter().any(is_whole) || names.iter().all(is_begun) {
        return Ok(());
    }
    let message = format!("{} is a directory with other things in it, not a database", path.display());
    Err(Error::new(ErrorKind::Invalid, message).with_hint("name an empty or a new directory"))
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
        let error = Error::new(ErrorKind::Io, format!("cannot lock the database {}: {e}", path.display()));
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
