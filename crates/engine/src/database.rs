//! An open database: its committed state as readers see it, and the one way to change it.
//!
//! - A reader takes a [`Snapshot`] and keeps it: the catalog and the open segments as they were when its statement
//!   began. Nobody waits for anybody.
//! - A writer goes through [`Database::commit`]: copy the catalog, change the copy, make it durable, publish it. One at
//!   a time. After a failed commit nobody knows which catalog is durable, so the database refuses further commits
//!   until it is opened again.
//! - Files of segments that a commit removed are deleted when the last snapshot that can read them is gone.
//!
//! A directory holds `catalog`, `LOCK`, and `segments/`. The lock is the operating system's, so that it cannot outlive
//! its process: exclusive for writing, shared for reading.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use arrow::datatypes::{FieldRef, SchemaRef};
use onehop_io::{Ledger, LocalFile, LocalVolume, MemoryVolume, RequestedPath, Volume};
use onehop_pipeline::backend::{Devices, SegmentKey};
use onehop_segment::{BlockCache, Segment};
use rustix::fs::{FlockOperation, flock};

use crate::catalog::{self, Catalog, CatalogStore, Change, ManifestStore, SegmentEntry, TableEntry};
use crate::history::History;
use crate::place::Known;
use crate::settings::Settings;
use crate::{Error, ErrorKind, Result, Session};

/// May the database be changed?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes; no other process may have the database open.
    #[default]
    ReadWrite,
    /// Reads only; other readers are welcome.
    ReadOnly,
}

/// How to open a database.
#[derive(Clone, Debug, Default)]
pub struct DatabaseOptions {
    /// May it be changed?
    pub access: Access,
    /// Settings by name, as from the command line (`threads`, `memory_limit` ...).
    pub settings: Vec<(String, String)>,
}

/// An open database. Cheap to clone; closed when the last clone and the last session are dropped.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: Option<PathBuf>,
    access: Access,
    settings: Settings,
    segments: Arc<dyn Volume>,
    /// Hot blocks of all tables, for all sessions.
    cache: Arc<BlockCache>,
    /// What ran last, in all sessions.
    history: Arc<History>,
    /// Devices that queries may run on.
    known: Arc<Known>,
    store: Box<dyn CatalogStore>,
    snapshot: RwLock<Arc<Snapshot>>,
    /// Held while a commit is made.
    writer: Mutex<()>,
    /// A commit failed half-way: nobody knows which catalog is durable.
    is_in_doubt: AtomicBool,
    next_id: AtomicU64,
    _lock: Option<Lock>,
}

/// A database as of one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// What was committed.
    pub catalog: Catalog,
    tables: BTreeMap<String, Arc<Table>>,
}

/// A table as of one moment.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its description.
    pub entry: TableEntry,
    /// Its columns.
    pub schema: SchemaRef,
    /// Its segments, in the order of the entry.
    pub segments: Vec<Arc<SegmentFile>>,
}

/// A segment file, opened when it is first needed.
#[derive(Debug)]
pub struct SegmentFile {
    /// What the catalog says of it.
    pub entry: SegmentEntry,
    /// The name of its table.
    table: String,
    /// The columns of its table.
    schema: SchemaRef,
    volume: Arc<dyn Volume>,
    open: OnceLock<Arc<Segment>>,
    /// No catalog mentions it any more: the last reader removes the file.
    is_dropped: AtomicBool,
}

impl SegmentFile {
    fn new(entry: SegmentEntry, table: &str, schema: &SchemaRef, volume: &Arc<dyn Volume>) -> Self {
        let (table, schema, volume) = (table.to_string(), Arc::clone(schema), Arc::clone(volume));
        Self { entry, table, schema, volume, open: OnceLock::new(), is_dropped: AtomicBool::new(false) }
    }

    /// The open segment.
    pub fn segment(&self) -> Result<&Arc<Segment>> {
        if let Some(segment) = self.open.get() {
            return Ok(segment);
        }
        let file = match self.volume.open(&self.entry.file) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Err(self.corrupt("is missing").with_source(e)),
            Err(e) => return Err(e.into()),
        };
        let segment = Segment::open(file, &Ledger::default())?;
        self.check(&segment)?;
        Ok(self.open.get_or_init(|| Arc::new(segment)))
    }

    /// A whole segment under the wrong name is as bad as a damaged one.
    fn check(&self, segment: &Segment) -> Result<()> {
        if segment.rows() != self.entry.rows {
            let (has, says) = (segment.rows(), self.entry.rows);
            return Err(self.corrupt(&format!("has {has} rows, and the catalog says {says}")));
        }
        let bytes = segment.file().len()?;
        if bytes != self.entry.bytes {
            return Err(self.corrupt(&format!("has {bytes} bytes, and the catalog says {}", self.entry.bytes)));
        }
        let (has, says) = (segment.schema().fields(), self.schema.fields());
        let is_same = |(a, b): (&FieldRef, &FieldRef)| a.name() == b.name() && a.data_type() == b.data_type();
        if has.len() != says.len() || !has.iter().zip(says).all(is_same) {
            return Err(self.corrupt("has the columns of another table"));
        }
        // Every whole segment matches its own checksums: only the catalog knows which one belongs here.
        if self.entry.checksum.is_some_and(|checksum| checksum != segment.checksum()) {
            return Err(
                self.corrupt("is whole, and not the one that was loaded: another segment has been put in its place")
            );
        }
        Ok(())
    }

    /// The segment, if somebody has opened it.
    pub fn opened(&self) -> Option<&Arc<Segment>> {
        self.open.get()
    }

    fn corrupt(&self, reason: &str) -> Error {
        let (folder, file) = (self.volume.name(), &self.entry.file);
        let message = format!("the segment file {folder}/{file} of table \"{}\" {reason}", self.table);
        let hint = "`onehop check` lists everything that is damaged; load the table again from its source";
        Error::new(ErrorKind::Corrupt, message).with_hint(hint)
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        if self.is_dropped.load(SeqCst) {
            // What cannot be removed now is an orphan, which the next open collects.
            let _ = self.volume.remove(&self.entry.file);
        }
    }
}

impl Snapshot {
    /// A table by its exact name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.get(name)
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values()
    }
}

impl Database {
    /// Opens a database directory, making it if it is not there (and `options.access` allows).
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process has it open, [`ErrorKind::Corrupt`] if its catalog is damaged,
    /// [`ErrorKind::NotFound`] if it is not there and may not be made.
    pub fn open(path: &Path, options: &DatabaseOptions) -> Result<Self> {
        let settings = Settings::new(&options.settings)?;
        if options.access == Access::ReadWrite {
            std::fs::create_dir_all(path).map_err(|e| cannot_make(path, e))?;
        } else if !path.join(catalog::FILE).is_file() {
            let message = format!("there is no database at {}", path.display());
            return Err(Error::new(ErrorKind::NotFound, message).with_hint("open it without --readonly to make one"));
        }
        refuse_foreign_directory(path)?;
        let lock = lock(path, options.access)?;
        // Each statement says by which path it reads: the session's.
        let root: Arc<dyn Volume> = Arc::new(LocalVolume::open(path, RequestedPath::Auto)?);
        let requested = settings.io_path();
        let database = Self::with_volume(root, Some((path.to_path_buf(), lock)), options.access, settings)?;
        if requested == RequestedPath::HostDirect {
            // Where no file can be read past the page cache, no statement could: the first to say so is this.
            LocalFile::open(&path.join(catalog::FILE), requested)?;
        }
        Ok(database)
    }

    /// A database that lives and dies with the process.
    pub fn memory(options: &DatabaseOptions) -> Result<Self> {
        let settings = Settings::new(&options.settings)?;
        Self::with_volume(Arc::new(MemoryVolume::new(":memory:")), None, Access::ReadWrite, settings)
    }

    /// A database on any volume: for tests of crashes. Nothing keeps two of them apart.
    #[doc(hidden)]
    pub fn on_volume(root: Arc<dyn Volume>, options: &DatabaseOptions) -> Result<Self> {
        Self::with_volume(root, None, options.access, Settings::new(&options.settings)?)
    }

    fn with_volume(
        root: Arc<dyn Volume>,
        place: Option<(PathBuf, Lock)>,
        access: Access,
        settings: Settings,
    ) -> Result<Self> {
        let store = ManifestStore::new(Arc::clone(&root));
        let (catalog, segments) = match store.load()? {
            Some(catalog) => (catalog, root.folder(SEGMENTS_FOLDER)?),
            None if access == Access::ReadOnly => {
                let message = format!("there is no database at {}", root.name());
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            None => {
                let segments = root.folder(SEGMENTS_FOLDER)?;
                refuse_lost_catalog(&*root, &*segments)?;
                // The folder's own name must be durable before anything in it can be.
                root.sync()?;
                let catalog = Catalog { generation: 1, next_id: 1, ..Catalog::default() };
                store.commit(&catalog, &[])?;
                (catalog, segments)
            }
        };
        if access == Access::ReadWrite {
            collect_orphans(&*segments, &catalog)?;
        }
        let (path, lock) = place.map_or((None, None), |(path, lock)| (Some(path), Some(lock)));
        let next_id = AtomicU64::new(catalog.next_id);
        let cache = BlockCache::new(usize::try_from(settings.cache_bytes()).unwrap_or(usize::MAX));
        let cache = Arc::new(cache);
        let snapshot = Snapshot::build(catalog, None, &segments)?;
        Ok(Self {
            inner: Arc::new(Inner {
                path,
                access,
                settings,
                segments,
                cache,
                history: Arc::default(),
                known: Arc::default(),
                store: Box::new(store),
                snapshot: RwLock::new(Arc::new(snapshot)),
                writer: Mutex::default(),
                is_in_doubt: AtomicBool::new(false),
                next_id,
                _lock: lock,
            }),
        })
    }

    /// The directory; `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }

    /// Lets queries run on devices, which are looked for when a query is large enough to be worth one, or asks for one. What is
    /// registered first stays.
    pub fn register_devices(&self, devices: Arc<dyn Devices>) {
        self.inner.known.register(devices);
    }

    /// Devices that queries may run on.
    pub(crate) fn known(&self) -> &Arc<Known> {
        &self.inner.known
    }

    /// A new session on it.
    pub fn session(&self) -> Result<Session> {
        Session::new(self.clone(), self.inner.settings.clone())
    }

    /// What is committed now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.inner.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The folder of segment files.
    pub(crate) fn segments(&self) -> &Arc<dyn Volume> {
        &self.inner.segments
    }

    /// Hot blocks.
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.inner.cache
    }

    /// What ran last.
    pub(crate) fn history(&self) -> &Arc<History> {
        &self.inner.history
    }

    /// An id that no table or segment has or had.
    pub(crate) fn new_id(&self) -> u64 {
        self.inner.next_id.fetch_add(1, SeqCst)
    }

    /// Whether a commit failed half-way. Files that it mentions must stay: the durable catalog may be the one that does.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.inner.is_in_doubt.load(SeqCst)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.inner.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => {
                let error = Error::new(ErrorKind::ReadOnly, "the database is open for reading only");
                Err(error.with_hint("open it without --readonly"))
            }
        }
    }

    /// Changes the catalog: `change` edits a copy and says what it did. If it fails, nothing happened.
    pub(crate) fn commit<T>(&self, change: impl FnOnce(&mut Catalog) -> Result<(T, Vec<Change>)>) -> Result<T> {
        self.check_writable()?;
        let _writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_in_doubt() {
            let message = "an earlier commit failed half-way, so it is not known which state is on storage";
            return Err(Error::new(ErrorKind::Io, message).with_hint("close the database and open it again"));
        }
        let before = self.snapshot();
        let mut next = before.catalog.clone();
        let (result, changes) = change(&mut next)?;
        // A statement looks before it works; somebody may have been faster since.
        if let Some(name) = next.tables.keys().find(|name| next.views.contains_key(*name)) {
            let kind = if before.catalog.views.contains_key(name) { "view" } else { "table" };
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a {kind} \"{name}\"")));
        }
        next.generation += 1;
        next.next_id = self.inner.next_id.load(SeqCst);
        let after = Snapshot::build(next, Some(&before), &self.inner.segments)?;
        if let Err(e) = self
            .inner
            .segments
            .sync()
            .map_err(Error::from)
            .and_then(|()| self.inner.store.commit(&after.catalog, &changes))
        {
            self.inner.is_in_doubt.store(true, SeqCst);
            return Err(e);
        }
        self.publish(&before, after);
        Ok(result)
    }

    fn publish(&self, before: &Snapshot, after: Snapshot) {
        let kept: std::collections::HashSet<&str> =
            after.tables.values().flat_map(|t| &t.segments).map(|s| s.entry.file.as_str()).collect();
        let mut gone = Vec::new();
        for segment in before.tables.values().flat_map(|table| &table.segments) {
            if !kept.contains(segment.entry.file.as_str()) {
                segment.is_dropped.store(true, SeqCst);
                let columns = segment.schema.fields().len();
                gone.extend(
                    segment
                        .opened()
                        .into_iter()
                        .flat_map(|segment| (0..columns).map(|column| (SegmentKey::of(segment), column))),
                );
            }
        }
        // Readers of an older snapshot find them on storage.
        let found = self.inner.known.devices().map_or(&[][..], |devices| devices.found());
        for residency in found.iter().filter_map(|backend| backend.residency()) {
            residency.evict(&gone);
            residency.sweep();
        }
        drop(kept);
        *self.inner.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
    }
}

impl Snapshot {
    /// A snapshot of `catalog` that shares the segments it has in common with `before`.
    fn build(catalog: Catalog, before: Option<&Snapshot>, volume: &Arc<dyn Volume>) -> Result<Self> {
        let open: BTreeMap<&str, &Arc<SegmentFile>> = before
            .into_iter()
            .flat_map(|before| before.tables.values().flat_map(|table| &table.segments))
            .map(|segment| (segment.entry.file.as_str(), segment))
            .collect();
        let mut tables = BTreeMap::new();
        for (name, entry) in &catalog.tables {
            if let Some(same) = before.and_then(|b| b.tables.get(name)).filter(|table| table.entry == *entry) {
                tables.insert(name.clone(), Arc::clone(same));
                continue;
            }
            let schema: SchemaRef = Arc::new(entry.schema()?);
            let segments = entry.segments.iter().map(|segment| match open.get(segment.file.as_str()) {
                Some(open) => Arc::clone(open),
                None => Arc::new(SegmentFile::new(segment.clone(), name, &schema, volume)),
            });
            let table = Table {
                name: name.clone(),
                schema: Arc::clone(&schema),
                segments: segments.collect(),
                entry: entry.clone(),
            };
            tables.insert(name.clone(), Arc::new(table));
        }
        Ok(Self { catalog, tables })
    }
}

/// Removes segment files that no catalog mentions: what a crash, or a removal that failed, left behind.
fn collect_orphans(segments: &dyn Volume, catalog: &Catalog) -> Result<()> {
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
fn refuse_lost_catalog(root: &dyn Volume, segments: &dyn Volume) -> Result<()> {
    if !segments.list()?.iter().any(|name| is_segment_name(name)) {
        return Ok(());
    }
    let message = format!("{}/{} is missing, and there are segment files", root.name(), catalog::FILE);
    Err(Error::new(ErrorKind::Corrupt, message)
        .with_hint("restore the catalog from a backup; to begin anew, remove the directory"))
}

const SEGMENT_SUFFIX: &str = ".seg";
const SEGMENTS_FOLDER: &str = "segments";
const LOCK_FILE: &str = "LOCK";

/// The file of a segment of a table, by their ids.
pub(crate) fn segment_name(table: u64, segment: u64) -> String {
    format!("{table:08}-{segment:08}{SEGMENT_SUFFIX}")
}

/// Whether a name is one that [`segment_name`] makes: files that are not ours are left alone.
fn is_segment_name(name: &str) -> bool {
    let is_id = |text: &str| text.len() >= 8 && text.bytes().all(|b| b.is_ascii_digit());
    let ids = name.strip_suffix(SEGMENT_SUFFIX).and_then(|ids| ids.split_once('-'));
    ids.is_some_and(|(table, segment)| is_id(table) && is_id(segment))
}

fn cannot_make(path: &Path, e: std::io::Error) -> Error {
    let reason = if path.is_file() { "it is a file".to_string() } else { e.to_string() };
    Error::new(ErrorKind::Io, format!("cannot make the database directory {}: {reason}", path.display())).with_source(e)
}

/// A directory that holds other things must not become a database by a slip of the hand.
fn refuse_foreign_directory(path: &Path) -> Result<()> {
    let entries = std::fs::read_dir(path).map_err(|e| cannot_make(path, e))?;
    let names: Vec<String> =
        entries.filter_map(|entry| entry.ok().map(|e| e.file_name().to_string_lossy().into_owned())).collect();
    // What there is without a catalog when making a database was cut short.
    let is_begun = |name: &String| [LOCK_FILE, SEGMENTS_FOLDER, catalog::NEW_FILE].contains(&name.as_str());
    if names.iter().any(|name| name == catalog::FILE) || names.iter().all(is_begun) {
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
struct Lock {
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

fn lock(path: &Path, access: Access) -> Result<Lock> {
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
            let mut holder = String::new();
            // Who holds it is a courtesy: the lock itself does not depend on what is written in the file.
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => String::new(),
                pid => format!(" (process {pid})"),
            };
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
