//! Finds and moves or removes files in the directory of a database that are not where they belong.
//!
//! Opening a database to write does most of it, see [`orphans`](crate::orphans). Left to this are segments in `lost+found/` that the
//! catalog misses, after the right store was brought back, and copies of the store that were cut short.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use onehop_io::{Ledger, LocalFile, RequestedPath};
use onehop_segment::Segment;

use crate::catalog::{Identity, NEW_FILE, STORE_FILE, SegmentEntry};
use crate::database::{Database, DatabaseOptions};
use crate::directory::{LOST, SEGMENTS_FOLDER};
use crate::orphans::Orphans;
use crate::rights::Access;
use crate::{Error, ErrorKind, Result, life, units};

/// A kind of file that is not where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A segment, or its marker, that was being written when a process ended.
    Unfinished,
    /// A segment that a commit took out.
    Removed,
    /// A segment that the store does not know.
    Unknown,
    /// A segment that is kept in `lost+found/`.
    Kept,
    /// A segment that is not there, and is in `lost+found/`.
    Misplaced,
    /// A segment that is not there.
    Missing,
    /// A file that was cut short beside the store.
    LeftOver,
}

impl What {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::Removed => "removed",
            Self::Unknown => "unknown",
            Self::Kept => "kept",
            Self::Misplaced => "misplaced",
            Self::Missing => "missing",
            Self::LeftOver => "left_over",
        }
    }

    /// The repair of such a file; `None` if it is left as it is.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Unfinished | Self::Removed | Self::LeftOver => Some("remove"),
            Self::Unknown => Some("move to lost+found"),
            Self::Misplaced => Some("move back to segments"),
            Self::Kept | Self::Missing => None,
        }
    }
}

/// A file that is not where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub what: What,
    /// The file, in the database's directory.
    pub file: String,
    /// A description: rows, columns, origin, table.
    pub about: String,
}

/// Lists what a repair of the database at `path` would find, and changes nothing.
///
/// # Errors
/// It cannot be opened for reading.
pub fn survey(path: &Path, options: &DatabaseOptions) -> Result<Vec<Finding>> {
    let options = DatabaseOptions { access: Access::ReadOnly, ..options.clone() };
    look(&Database::open(path, &options)?)
}

/// Repairs the database at `path`. Returns the findings before the repair.
///
/// # Errors
/// It cannot be opened for writing, or a file cannot be moved or removed.
pub fn repair(path: &Path, options: &DatabaseOptions) -> Result<Vec<Finding>> {
    let found = survey(path, options)?;
    let options = DatabaseOptions { access: Access::ReadWrite, ..options.clone() };
    // Garbage goes, and what is unknown is kept, by opening it. As long as it is open, no other process is at work in it.
    let database = Database::open(path, &options)?;
    let failed = |file: &str, e: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot put right {}/{file}: {e}", path.display())).with_source(e)
    };
    for finding in found.iter().filter(|finding| finding.what == What::LeftOver) {
        match fs::remove_file(path.join(&finding.file)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&finding.file, e)),
            _ => {}
        }
    }
    for (segment, lost) in misplaced(path, &database) {
        let to = path.join(SEGMENTS_FOLDER).join(&segment.file);
        fs::rename(path.join(LOST).join(&lost), to).map_err(|e| failed(&segment.file, e))?;
    }
    for folder in [LOST, SEGMENTS_FOLDER] {
        let folder = path.join(folder);
        if folder.is_dir() {
            fs::File::open(&folder).and_then(|folder| folder.sync_all()).map_err(|e| failed(SEGMENTS_FOLDER, e))?;
        }
    }
    Ok(found)
}

/// All findings of an open database.
pub(crate) fn look(database: &Database) -> Result<Vec<Finding>> {
    let Some(path) = database.path() else { return Ok(Vec::new()) };
    let (store, snapshot) = (database.store(), database.snapshot());
    let mut found = left_overs(path);
    if store.segment_place()?.is_some() {
        return Ok(found);
    }
    let identity = store.identity()?;
    let orphans = Orphans::find(&**database.segments(), &snapshot.catalog, &store.removed()?)?;
    let mut of = |what: What, names: &[String], about: &dyn Fn(&str) -> String| {
        found.extend(names.iter().map(|name| Finding {
            what,
            file: format!("{SEGMENTS_FOLDER}/{name}"),
            about: about(name),
        }));
    };
    of(What::Unfinished, &orphans.unfinished, &|_| "was being written when its process ended".into());
    of(What::Unfinished, &orphans.markers, &|_| "marks a segment that was being written when its process ended".into());
    of(What::Removed, &orphans.removed, &|_| "was taken out by a commit, whose process ended".into());
    of(What::Unknown, &orphans.unknown, &|name| describe(&path.join(SEGMENTS_FOLDER).join(name), identity.as_ref()));
    found.extend(kept(path, identity.as_ref()));
    found.extend(missing(path, database));
    Ok(found)
}

/// Files beside the store that were cut short.
fn left_overs(path: &Path) -> Vec<Finding> {
    let is_left_over = |name: &str| name == NEW_FILE || name.starts_with(&format!("{STORE_FILE}.new-"));
    let of =
        |file: String| Finding { what: What::LeftOver, file, about: "a copy of the store that was cut short".into() };
    names_in(path).into_iter().filter(|name| is_left_over(name)).map(of).collect()
}

/// Segments in `lost+found/`.
fn kept(path: &Path, identity: Option<&Identity>) -> Vec<Finding> {
    let lost = path.join(LOST);
    let segments = names_in(&lost).into_iter().filter(|name| name.contains(".seg"));
    let of = |name: String| Finding {
        what: What::Kept,
        about: describe(&lost.join(&name), identity),
        file: format!("{LOST}/{name}"),
    };
    segments.map(of).collect()
}

/// Segments that are not where the catalog says that they are.
fn missing(path: &Path, database: &Database) -> Vec<Finding> {
    let misplaced = misplaced(path, database);
    let mut found = Vec::new();
    for (table, segment) in lacking(path, database) {
        let place = misplaced.iter().find(|(of, _)| of.file == segment.file);
        let (what, where_it_is) = match place {
            Some((_, lost)) => (What::Misplaced, format!(", and is {LOST}/{lost}")),
            None => (What::Missing, String::new()),
        };
        let about = format!("{} of table \"{table}\"{where_it_is}", units::plural(segment.rows, "row"));
        found.push(Finding { what, file: format!("{SEGMENTS_FOLDER}/{}", segment.file), about });
    }
    found
}

/// Tables and their segments whose files are not there.
fn lacking(path: &Path, database: &Database) -> Vec<(String, SegmentEntry)> {
    let snapshot = database.snapshot();
    let all = snapshot.catalog.tables.iter().flat_map(|(name, table)| table.segments.iter().map(move |s| (name, s)));
    let is_there = |segment: &SegmentEntry| path.join(SEGMENTS_FOLDER).join(&segment.file).exists();
    all.filter(|(_, segment)| !is_there(segment)).map(|(name, segment)| (name.clone(), segment.clone())).collect()
}

/// Segments whose files are in `lost+found/`, and how these are called there.
fn misplaced(path: &Path, database: &Database) -> Vec<(SegmentEntry, String)> {
    let lost = path.join(LOST);
    let kept: Vec<(String, Option<u32>, u64)> = names_in(&lost)
        .into_iter()
        .filter_map(|name| {
            let file = LocalFile::open(&lost.join(&name), RequestedPath::Buffered).ok()?;
            let bytes = onehop_io::ReadAt::len(&file).ok()?;
            Some((name, Segment::checksum_of(&file), bytes))
        })
        .collect();
    let found = |segment: &SegmentEntry| {
        let is_it = |(_, checksum, bytes): &&(String, Option<u32>, u64)| {
            checksum.is_some() && *checksum == segment.checksum && *bytes == segment.bytes
        };
        kept.iter().find(is_it).map(|(name, ..)| name.clone())
    };
    let lacking = lacking(path, database).into_iter();
    lacking.filter_map(|(_, segment)| found(&segment).map(|name| (segment, name))).collect()
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Describes a file: rows, columns and origin if it is a segment.
fn describe(file: &Path, identity: Option<&Identity>) -> String {
    let opened = LocalFile::open(file, RequestedPath::Buffered).map_err(Error::from);
    let segment = opened.and_then(|file| Ok(Segment::open(Arc::new(file), &Ledger::default())?));
    match segment {
        Ok(segment) => {
            let columns: Vec<&str> = segment.schema().fields().iter().map(|field| field.name().as_str()).collect();
            let rows = units::plural(segment.rows(), "row");
            format!("{rows} of ({}), {}", columns.join(", "), life::describe(segment.origin(), identity))
        }
        Err(e) => format!("not a whole segment: {}", e.message()),
    }
}
