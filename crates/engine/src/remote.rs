//! Segments that lie in a directory on a Ceph cluster, and whose directory that is.
//!
//! Two catalogs that both stand for the files of one directory would remove each other's segments as orphans: two databases that
//! were given one URL, or a database and a copy of its local directory, which is what a backup is. The lock of the local
//! directory keeps neither apart. So the directory has a *mark*, a file without bytes whose name is [`MARK`] and 128 random bits, and
//! the catalog says which. A mark says more than who: it is another one after each commit that brings segments, so that a catalog
//! of before such a commit is found out. It changes by a rename, which is one operation that fails if the name is not there: who is
//! not the owner any more cannot go on, whatever it believes.
//!
//! A commit that brings segments, with M the mark and N a new one, in the writer's place:
//! 1. The segments are in the cluster, with their names.
//! 2. The catalog says that the mark is M *or* N. Durable.
//! 3. M is renamed to N. An error here is the statement's, and nothing has happened.
//! 4. The commit: the segments, and that the mark is N.
//!
//! A crash after 2 leaves M or N, and the catalog admits both. An answer that is lost leaves both possible for this process as well:
//! it looks which one is there before the next step 2, and leaves in the catalog all that may still come.
//!
//! Opening for writing, with what the catalog admits:
//! 1. There is one mark, and it is admitted. If none is there and no segment either, the database was being made: make it.
//! 2. The mark changes, as above: another process that has gone on with a copy fails with its next segments from here on.
//! 3. Files that no catalog mentions are collected, but not if the mark was one that the catalog only admits: whether that commit
//!    happened, a copy from that very moment could not tell. Nor if 2 failed, as it does on a full cluster: the database is
//!    open all the same, so that tables can be dropped.
//!
//! A segment's name has random bits of who wrote it, so no two processes ever write one name. A segment that goes is removed only
//! after a look at the mark. Between the look and the removal there is a moment in which somebody might take over: that is all of
//! it that is not excluded.

use std::sync::{Arc, Mutex, PoisonError};

use onehop_ceph::{Connections, Location};
use onehop_io::rados::fs::{Id, Kind, Replace};
use onehop_io::rados::{Problem, RadosVolume};
use onehop_io::{Operation, ReadAt, Volume, WriteAt};

use crate::catalog::{Catalog, SegmentPlace};
use crate::directory::Orphans;
use crate::directory::is_segment_name;
use crate::files::Sites;
use crate::rights::Access;
use crate::settings::Settings;
use crate::{Error, ErrorKind, Result};

/// What the names of marks begin with.
const MARK: &str = "owner-";

/// The directory of a database's segments.
#[derive(Debug)]
pub(crate) struct RemoteSegments {
    volume: RadosVolume,
    /// As the catalog has it.
    url: String,
    /// What the mark may be. More than one, if an answer was lost.
    marks: Mutex<Vec<String>>,
    /// Of the names of segments that are written here.
    writer: Id,
}

/// A URL of a directory as catalogs have it: one text for one place.
pub(crate) fn canonical(url: &str) -> Result<Location> {
    let invalid = |reason: String| {
        Error::new(ErrorKind::Invalid, format!("cannot keep segments under '{url}': {reason}"))
            .with_hint("segments lie in the database's directory, or on a Ceph cluster: rados://POOL[.NAMESPACE]/PATH")
    };
    if !url.starts_with("rados://") {
        return Err(invalid("it is not a place on a cluster".into()));
    }
    let mut location = Location::parse(url).map_err(|e| invalid(e.to_string()))?;
    if url.chars().any(char::is_control) {
        return Err(invalid("it has a control character".into()));
    }
    location.path = match location.path.trim_matches('/') {
        "" => return Err(invalid("it is the root of a file system; name a directory in it".into())),
        path => format!("/{path}"),
    };
    Ok(location)
}

/// Sees to it that a new database can have a directory, which is made; and the mark that it is to have.
pub(crate) fn prepare(
    location: &Location,
    connections: &Arc<Connections>,
    settings: &Settings,
) -> Result<SegmentPlace> {
    let volume = connect(location, connections, settings)?;
    let failed = |e| about(location, Operation::Create, e);
    volume.fs().create_directory_all(volume.path()).map_err(failed)?;
    if let Some(entry) = volume.fs().list(volume.path()).map_err(failed)?.first() {
        let message = format!("cannot keep the segments of a new database in {location}: it is not empty");
        let hint = match entry.name.starts_with(MARK) || is_segment_name(&entry.name) {
            true => "it is another database's; choose another directory, or open that database by its own",
            false => "choose a new or an empty directory",
        };
        return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint(hint));
    }
    Ok(SegmentPlace { url: location.to_string(), marks: vec![new_mark()?] })
}

/// The database's segments lie elsewhere than where it is said that they do.
pub(crate) fn lies_elsewhere(database: &str, recorded: Option<&SegmentPlace>, wanted: &Location) -> Error {
    let (place, hint) = match recorded {
        Some(place) => (place.url.as_str(), "leave the URL out: the database knows where they are"),
        None => (
            "its own directory",
            "leave the URL out; to have them on a cluster, make a new database there and copy the tables",
        ),
    };
    let message = format!("the segments of the database {database} lie in {place}, not in {wanted}");
    Error::new(ErrorKind::Invalid, message).with_hint(hint)
}

fn connect(location: &Location, connections: &Arc<Connections>, settings: &Settings) -> Result<RadosVolume> {
    let fs = Sites::new(Arc::clone(connections), settings).file_system(&location.authority)?;
    Ok(RadosVolume::new(fs, location))
}

/// What a cluster has said, about a place.
fn about(place: &impl ToString, operation: Operation, e: onehop_io::rados::Error) -> Error {
    crate::files::refused_by_cluster(operation, &place.to_string(), &e)
}

fn new_mark() -> Result<String> {
    Ok(format!("{MARK}{}", new_id()?))
}

fn new_id() -> Result<Id> {
    Id::random()
        .map_err(|e| Error::new(ErrorKind::Io, format!("cannot get random numbers of the system: {e}")).with_source(e))
}

impl RemoteSegments {
    /// The directory that a catalog speaks of. `record` makes durable what the catalog says of it; files that no catalog mentions
    /// are the caller's to collect.
    pub fn open(
        place: SegmentPlace,
        catalog: &Catalog,
        access: Access,
        connections: &Arc<Connections>,
        settings: &Settings,
        record: &mut dyn FnMut(&SegmentPlace) -> Result<()>,
    ) -> Result<(Self, Orphans)> {
        let location = canonical(&place.url).map_err(|e| Error::new(ErrorKind::Corrupt, e.message()))?;
        let volume = connect(&location, connections, settings)?;
        let first = place.marks.first().cloned();
        let SegmentPlace { url, marks } = place;
        let opened = Self { volume, url, marks: Mutex::new(marks), writer: new_id()? };
        let found = opened.find(catalog, access)?;
        if access == Access::ReadOnly {
            return Ok((opened, Orphans::Leave));
        }
        let is_certain = found == first;
        let mut is_recorded = true;
        let mut recorded = |place: &SegmentPlace| record(place).inspect_err(|_| is_recorded = false);
        match opened.advance(&mut recorded) {
            Ok(place) => record(&place)?,
            // The mark is ours, and the cluster cannot change it now. What the catalog has refused is another matter.
            Err(e) if e.kind() == ErrorKind::Io && is_recorded => return Ok((opened, Orphans::Leave)),
            Err(e) => return Err(e),
        }
        Ok((opened, if is_certain { Orphans::Collect } else { Orphans::Leave }))
    }

    /// The mark, which is one that the catalog admits; `None`: the database is read, and was never made to its end.
    fn find(&self, catalog: &Catalog, access: Access) -> Result<Option<String>> {
        let (mut marks, has_segments) = self.look()?;
        let admitted = self.admitted();
        let is_new = marks.is_empty() && !has_segments && catalog.tables.values().all(|t| t.segments.is_empty());
        if let ([mark], true) = (&admitted[..], is_new) {
            if access == Access::ReadOnly {
                return Ok(None);
            }
            self.make(mark)?;
            // Two who make one at the same time both see both.
            (marks, _) = self.look()?;
            if marks.len() > 1 {
                self.volume.remove(mark)?;
            }
        }
        match &marks[..] {
            [mark] if admitted.contains(mark) => Ok(Some(mark.clone())),
            _ => Err(self.not_ours(&marks)),
        }
    }

    fn make(&self, mark: &str) -> Result<()> {
        let failed = |e| about(&self.url, Operation::Create, e);
        let (fs, path) = (self.volume.fs(), self.volume.path());
        fs.create_directory_all(path).map_err(failed)?;
        let made = fs.create_file(&format!("{path}/{mark}"), Replace::Never, Arc::default());
        made.and_then(|writer| writer.close()).map_err(failed)?;
        Ok(())
    }

    /// The marks that are there, and whether segments are.
    fn look(&self) -> Result<(Vec<String>, bool)> {
        let entries = match self.volume.fs().list(self.volume.path()) {
            Err(e) if e.problem() == Some(Problem::NotFound) => Vec::new(),
            listed => listed.map_err(|e| about(&self.url, Operation::List, e))?,
        };
        let files = entries.into_iter().filter(|entry| entry.kind == Kind::File).map(|entry| entry.name);
        let (marks, others): (Vec<_>, Vec<_>) = files.partition(|name| name.starts_with(MARK));
        Ok((marks, others.iter().any(|name| is_segment_name(name))))
    }

    fn admitted(&self) -> Vec<String> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn not_ours(&self, found: &[String]) -> Error {
        let url = &self.url;
        let own = self.admitted().last().cloned().unwrap_or_default();
        let lead = format!("the segments in {url} are not those of this database");
        let (reason, hint) = match found {
            [] => (
                "the directory has no mark of an owner".to_string(),
                format!("look what became of it (`onehop rados ls {url}`); restore the segments from a backup"),
            ),
            [other] => (
                "another database has gone on with them, or this catalog is a copy of before its last commits"
                    .to_string(),
                format!(
                    "open the one that has gone on. Only if it is gone for good, and this is the one to go on with: \
                     `onehop rados mv {url}/{other} {url}/{own}`, and then `onehop check`"
                ),
            ),
            _ => (
                format!("the directory has {} marks of owners", found.len()),
                format!("`onehop rados rm {url}/{MARK}...` removes the mark of a database that is not to have them"),
            ),
        };
        Error::new(ErrorKind::Conflict, format!("{lead}: {reason}")).with_hint(hint)
    }

    /// Changes the mark: steps 2 and 3. What is returned is for the catalog to say next.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the directory has another owner; that of the cluster, after which nothing has happened.
    pub fn advance(&self, record: &mut dyn FnMut(&SegmentPlace) -> Result<()>) -> Result<SegmentPlace> {
        let admitted = self.admitted();
        let now = match &admitted[..] {
            [one] => one.clone(),
            _ => {
                let (found, _) = self.look()?;
                match &found[..] {
                    [mark] if admitted.contains(mark) => mark.clone(),
                    _ => return Err(self.not_ours(&found)),
                }
            }
        };
        let next = new_mark()?;
        // The one that is there first: see `Orphans`.
        let others = admitted.into_iter().filter(|mark| *mark != now);
        let marks: Vec<String> = std::iter::once(now.clone()).chain(others).chain([next.clone()]).collect();
        let set = |marks: &[String]| *self.marks.lock().unwrap_or_else(PoisonError::into_inner) = marks.to_vec();
        record(&SegmentPlace { url: self.url.clone(), marks: marks.clone() })?;
        set(&marks);
        let (fs, path) = (self.volume.fs(), self.volume.path());
        match fs.rename(&format!("{path}/{now}"), &format!("{path}/{next}"), Replace::Never) {
            Ok(()) => {
                set(std::slice::from_ref(&next));
                Ok(SegmentPlace { url: self.url.clone(), marks: vec![next] })
            }
            Err(e) if e.problem() == Some(Problem::NotFound) => {
                let (found, _) = self.look()?;
                Err(self.not_ours(&found))
            }
            Err(e) => Err(about(&self.url, Operation::Write, e)),
        }
    }

    /// Whether the mark is still ours.
    fn is_ours(&self) -> onehop_io::Result<bool> {
        let stat = |mark: &String| self.volume.fs().stat(&format!("{}/{mark}", self.volume.path()));
        for mark in self.admitted() {
            match stat(&mark) {
                Ok(_) => return Ok(true),
                Err(e) if e.problem() == Some(Problem::NotFound) => {}
                Err(e) => return Err(onehop_io::Error::new(Operation::Open, &self.url, e)),
            }
        }
        Ok(false)
    }

    /// What the names of segments that are written here end with, before their suffix.
    pub fn writer(&self) -> Id {
        self.writer
    }
}

impl Volume for RemoteSegments {
    fn name(&self) -> &str {
        self.volume.name()
    }

    fn open(&self, name: &str) -> onehop_io::Result<Arc<dyn ReadAt>> {
        self.volume.open(name)
    }

    fn open_for_update(&self, name: &str) -> onehop_io::Result<Arc<dyn WriteAt>> {
        self.volume.open_for_update(name)
    }

    fn create(&self, name: &str) -> onehop_io::Result<Arc<dyn WriteAt>> {
        self.volume.create(name)
    }

    fn rename(&self, from: &str, to: &str) -> onehop_io::Result<()> {
        self.volume.rename(from, to)
    }

    fn remove(&self, name: &str) -> onehop_io::Result<()> {
        if !self.is_ours()? {
            let reason = std::io::Error::other("another database has gone on with the directory");
            return Err(onehop_io::Error::new(Operation::Remove, format!("{}/{name}", self.url), reason));
        }
        self.volume.remove(name)
    }

    fn list(&self) -> onehop_io::Result<Vec<String>> {
        self.volume.list()
    }

    fn sync(&self) -> onehop_io::Result<()> {
        self.volume.sync()
    }

    fn folder(&self, name: &str) -> onehop_io::Result<Arc<dyn Volume>> {
        self.volume.folder(name)
    }
}
