//! An open database: its committed state as readers see it, and the one way to change it.
//!
//! - A reader takes a [`Snapshot`] and keeps it: the catalog and the open segments as they were when its statement
//!   began. Nobody waits for anybody.
//! - A writer has the [`WriterPlace`](crate::writer::WriterPlace) while it makes the next snapshot of the newest one and hands
//!   its changes to the store, which puts them in order. Then the next writer goes on from there, and what was handed over
//!   becomes durable: several commits at once where several wait. Only then readers get to see it.
//! - A commit that found no room has not happened, nor has what was put in order after it: the next writer goes on from what the
//!   store has. After any other failure nobody knows what is durable, so the database refuses further commits until it is opened
//!   again.
//! - A commit whose files have lost their names is not acknowledged, and none after it: see
//!   [`Names`](crate::directory::Names).
//! - Files of segments that a commit removed are deleted when the last snapshot that can read them is gone.
//!
//! A directory holds `store`, `LOCK`, `segments/`, and `lost+found/` where segments had to be kept that are not the
//! catalog's. The lock is the operating system's, so that it cannot outlive
//! its process: exclusive for writing, shared for reading.

mod commit;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use onehop_ceph::{Authority, Connections};
use onehop_io::rados::FileSystem;
use onehop_io::{Hop, Ledger, LedgerSnapshot, LocalFile, LocalVolume, MemoryVolume, RequestedPath, Volume};
use onehop_pipeline::backend::{Devices, SegmentKey};
use onehop_segment::{BlockCache, OriginRecord};
use onehop_store::Committed;
use onehop_store::mutant::skips;

pub(crate) use self::commit::Commit;
use crate::arrays::export::Exports;
use crate::catalog::{self, Catalog, CatalogStore, Change, Place, SegmentPlace};
use crate::directory::{
    Lock, Names, SEGMENTS_FOLDER, cannot_make, collect_remote_orphans, free_id, lock, no_database,
    refuse_foreign_directory, refuse_lost_catalog, segment_name,
};
use crate::edit::TableEdit;
use crate::functions::Helpers;
use crate::history::History;
use crate::life::Life;
use crate::orphans::Orphans;
use crate::place::Known;
use crate::plans::Plans;
use crate::remote::{self, RemoteSegments};
use crate::rights::Access;
use crate::runtimes::Runtimes;
use crate::segments::OwnSegments;
use crate::settings::Settings;
use crate::snapshot::{Snapshot, Table, load};
use crate::step::{Step, refuse_same_names};
use crate::task;
use crate::writer::{WriterPlace, Writing};
use crate::{Activity, Error, ErrorKind, Observer, Query, Result};

/// How to open a database.
#[derive(Clone, Debug, Default)]
pub struct DatabaseOptions {
    /// May it be changed?
    pub access: Access,
    /// Settings by name, as from the command line (`threads`, `memory_limit` ...).
    pub settings: Vec<(String, String)>,
    /// Where the segments of a database that is made lie, if not in its directory: `rados://POOL[.NAMESPACE]/PATH`. One that is
    /// there knows where its are; another place is an error.
    pub segments: Option<String>,
    /// File systems of clusters that are known already. Databases that are given the same share connections.
    pub connections: Arc<Connections>,
}

/// An open database. Cheap to clone; closed when the last clone and the last session are dropped.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<Inner>,
}

/// Where a database is.
#[derive(Debug)]
enum Home {
    /// In the process, and it ends with it.
    Memory,
    /// In a directory, which is locked.
    Directory(PathBuf, Lock),
    /// In a volume that somebody else keeps.
    Volume,
}

#[derive(Debug)]
struct Inner {
    path: Option<PathBuf>,
    access: Access,
    settings: Settings,
    segments: Arc<dyn Volume>,
    /// The same, if they lie in the database's own directory, and may be changed.
    own: Option<Arc<OwnSegments>>,
    /// The same, if they lie on a cluster.
    remote: Option<Arc<RemoteSegments>>,
    /// Hot blocks of all tables, for all sessions.
    cache: Arc<BlockCache>,
    /// What ran last, in all sessions.
    history: Arc<History>,
    /// Devices that queries may run on.
    known: Arc<Known>,
    /// File systems of clusters that statements have asked for.
    connections: Arc<Connections>,
    /// Of queries over what readers see.
    plans: Plans,
    /// Processes that run functions, for all sessions.
    helpers: Arc<Helpers>,
    /// Arrays that other processes may have.
    exports: Exports,
    /// Memory that statements draw on, for all sessions.
    runtimes: Arc<Runtimes>,
    store: Arc<dyn CatalogStore>,
    /// What is durable.
    snapshot: RwLock<Arc<Snapshot>>,
    /// What the next writer goes on from. Changed in the writer's place only.
    head: Mutex<Arc<Snapshot>>,
    writer: Arc<WriterPlace>,
    /// Held while a snapshot is published.
    publishing: Mutex<()>,
    /// Why it is not known what is durable: a commit failed half-way, or would not be found again.
    doubt: OnceLock<String>,
    /// Databases of temporary tables have the same.
    next_id: Arc<AtomicU64>,
    /// The id of the next row that is in no segment.
    next_row: AtomicU64,
    _lock: Option<Lock>,
}

/// The path that stands for a database in memory.
pub const MEMORY: &str = ":memory:";

impl Database {
    /// Opens a database directory, making it if it is not there (and `options.access` allows). [`MEMORY`] is no directory, but
    /// a database in memory.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if another process has it open, [`ErrorKind::Corrupt`] if its catalog is damaged,
    /// [`ErrorKind::NotFound`] if it is not there and may not be made.
    pub fn open(path: &Path, options: &DatabaseOptions) -> Result<Self> {
        if path == Path::new(MEMORY) {
            return Self::memory(options);
        }
        let settings = Settings::new(&options.settings)?;
        if options.access == Access::ReadWrite {
            std::fs::create_dir_all(path).map_err(|e| cannot_make(path, e))?;
        } else if ![catalog::STORE_FILE, catalog::MANIFEST_FILE].iter().any(|file| path.join(file).is_file()) {
            return Err(no_database(path));
        }
        refuse_foreign_directory(path)?;
        let lock = lock(path, options.access)?;
        // Each statement says by which path it reads: the session's.
        let root: Arc<dyn Volume> = Arc::new(LocalVolume::open(path, RequestedPath::Auto)?);
        let requested = settings.io_path();
        let database = Self::with_volume(root, Home::Directory(path.to_path_buf(), lock), options, settings)?;
        if requested == RequestedPath::HostDirect {
            // Where no file can be read past the page cache, no statement could: the first to say so is this.
            let files = [catalog::STORE_FILE, catalog::MANIFEST_FILE].map(|file| path.join(file));
            if let Some(file) = files.iter().find(|file| file.is_file()) {
                LocalFile::open(file, requested)?;
            }
        }
        Ok(database)
    }

    /// A database that lives and dies with the process.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is to be read only, or to have its segments elsewhere.
    pub fn memory(options: &DatabaseOptions) -> Result<Self> {
        let settings = Settings::new(&options.settings)?;
        let root = Arc::new(MemoryVolume::new(MEMORY));
        if options.access == Access::ReadOnly {
            let message = "a database in memory is new, and opened read-only it stays empty";
            let error = Error::new(ErrorKind::Invalid, message);
            return Err(error.with_hint("name the directory of a database, or open it for writing"));
        }
        if options.segments.is_some() {
            let message = "a database in memory has no segments on a cluster: nothing would know of them when it ends";
            return Err(Error::new(ErrorKind::Invalid, message).with_hint("name a directory for the database"));
        }
        Self::with_volume(root, Home::Memory, options, settings)
    }

    /// A database on any volume: for tests of crashes. Nothing keeps two of them apart.
    #[doc(hidden)]
    pub fn on_volume(root: Arc<dyn Volume>, options: &DatabaseOptions) -> Result<Self> {
        Self::with_volume(root, Home::Volume, options, Settings::new(&options.settings)?)
    }

    fn with_volume(root: Arc<dyn Volume>, home: Home, options: &DatabaseOptions, settings: Settings) -> Result<Self> {
        task::govern().map_err(|e| {
            Error::new(ErrorKind::Resources, "no thread to be had for the clock and the limits of statements")
                .with_source(e)
        })?;
        let DatabaseOptions { access, connections, .. } = options;
        let (access, connections) = (*access, Arc::clone(connections));
        let wanted = options.segments.as_deref().map(remote::canonical).transpose()?;
        let segments = || root.folder(SEGMENTS_FOLDER);
        let place = match &home {
            Home::Memory => Place::Memory,
            Home::Directory(path, _) => Place::Directory(path),
            Home::Volume => Place::Volume,
        };
        let store = catalog::open(&root, place, access, || {
            refuse_lost_catalog(&*root, &*segments()?)?;
            wanted.as_ref().map(|location| remote::prepare(location, &connections, &settings)).transpose()
        })?;
        let catalog = store.load()?;
        let place = store.segment_place()?;
        if let Some(wanted) = wanted.filter(|wanted| place.as_ref().is_none_or(|place| place.url != wanted.to_string()))
        {
            return Err(remote::lies_elsewhere(root.name(), place.as_ref(), &wanted));
        }
        let (segments, own, remote): (Arc<dyn Volume>, _, _) = match place {
            None => {
                let own = own_segments(&root, segments()?, &home, access, &*store, &catalog)?;
                (own.clone().map_or_else(segments, |own| Ok(own as _))?, own, None)
            }
            Some(place) => {
                let mut record = |place: &SegmentPlace| {
                    Ok(store.commit(&catalog, &[Change::PutPlace { place: place.clone() }])?.wait().map(drop)?)
                };
                let opened = RemoteSegments::open(place, &catalog, access, &connections, &settings, &mut record);
                let (remote, orphans) = opened?;
                let remote = Arc::new(remote);
                // The next opening finds again those that cannot be removed.
                let _ = collect_remote_orphans(&*remote, &catalog, access, orphans);
                (Arc::clone(&remote) as _, None, Some(remote))
            }
        };
        let (path, lock) = match home {
            Home::Directory(path, lock) => (Some(path), Some(lock)),
            Home::Memory | Home::Volume => (None, None),
        };
        let free = path.as_deref().filter(|_| own.is_some()).map_or(0, free_id);
        let next_id = Arc::new(AtomicU64::new(catalog.next_id.max(free)));
        let cache = BlockCache::new(usize::try_from(settings.cache_bytes()).unwrap_or(usize::MAX));
        let cache = Arc::new(cache);
        let (snapshot, next_row) = load(catalog, None, &*store, &segments)?;
        let snapshot = Arc::new(snapshot);
        let known = Arc::new(Known::default());
        if let (Some(path), None) = (&path, &remote) {
            known.stores_in(path);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                path,
                access,
                settings,
                segments,
                own,
                remote,
                cache,
                history: Arc::default(),
                known,
                connections,
                plans: Plans::default(),
                helpers: Arc::default(),
                exports: Exports::default(),
                runtimes: Arc::default(),
                store: Arc::from(store),
                head: Mutex::new(Arc::clone(&snapshot)),
                snapshot: RwLock::new(snapshot),
                writer: Arc::default(),
                publishing: Mutex::default(),
                doubt: OnceLock::new(),
                next_id,
                next_row: AtomicU64::new(next_row),
                _lock: lock,
            }),
        })
    }

    /// A database for a session's temporary tables: its segments are in `segments`, all else in memory. It shares with this one
    /// what is no table, so that what the settings say of memory and devices is about both.
    pub(crate) fn for_temporary_tables(&self, segments: Arc<dyn Volume>) -> Result<Self> {
        let here = &*self.inner;
        let root: Arc<dyn Volume> = Arc::new(MemoryVolume::new(":temporary:"));
        let store = catalog::open(&root, Place::Memory, Access::ReadWrite, || Ok(None))?;
        let (snapshot, next_row) = load(store.load()?, None, &*store, &segments)?;
        let snapshot = Arc::new(snapshot);
        Ok(Self {
            inner: Arc::new(Inner {
                path: None,
                access: Access::ReadWrite,
                settings: here.settings.clone(),
                segments,
                own: None,
                remote: None,
                cache: Arc::clone(&here.cache),
                history: Arc::clone(&here.history),
                known: Arc::clone(&here.known),
                connections: Arc::clone(&here.connections),
                plans: Plans::default(),
                helpers: Arc::clone(&here.helpers),
                exports: Exports::default(),
                runtimes: Arc::default(),
                store: Arc::from(store),
                head: Mutex::new(Arc::clone(&snapshot)),
                snapshot: RwLock::new(snapshot),
                writer: Arc::default(),
                publishing: Mutex::default(),
                doubt: OnceLock::new(),
                next_id: Arc::clone(&here.next_id),
                next_row: AtomicU64::new(next_row),
                _lock: None,
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

    /// Has statements find a file system under `rados://POOL[.NAMESPACE]`, in place of what the cluster of the setting
    /// `ceph.conf` has there: one that is connected to in another way, or in memory.
    pub fn mount(&self, authority: Authority, fs: FileSystem) {
        self.inner.connections.mount(authority, fs);
    }

    /// File systems of clusters.
    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.inner.connections
    }

    /// Bytes of the process's `memory_limit`: what sessions begin with.
    pub fn memory_limit_bytes(&self) -> u64 {
        self.inner.settings.memory_limit_bytes()
    }

    /// Somebody has clients: `onehop_activity` asks them from now on, for as long as they are there.
    pub fn watch(&self, activity: &Arc<dyn Activity>) {
        self.inner.history.activities.set(activity);
    }

    /// Who is told of statements that begin from now on, when they end, for as long as it is there. Whoever comes last is.
    pub fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.history.observers.set(observer);
    }

    /// The statements that ran last in this process, and those that run, in the order in which they began.
    pub fn queries(&self) -> Vec<Arc<Query>> {
        self.inner.history.queries()
    }

    /// What all statements since it was opened have moved.
    pub fn moved(&self) -> LedgerSnapshot {
        self.inner.history.ledger.snapshot()
    }

    /// What is committed now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.inner.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The folder of segment files.
    pub(crate) fn segments(&self) -> &Arc<dyn Volume> {
        &self.inner.segments
    }

    /// The catalog's and fresh rows' store.
    pub(crate) fn store(&self) -> &Arc<dyn CatalogStore> {
        &self.inner.store
    }

    /// Hot blocks.
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.inner.cache
    }

    /// The settings that sessions begin with.
    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Memory that statements draw on.
    pub(crate) fn runtimes(&self) -> &Arc<Runtimes> {
        &self.inner.runtimes
    }

    /// Processes that run functions.
    pub(crate) fn helpers(&self) -> &Arc<Helpers> {
        &self.inner.helpers
    }

    /// What other processes were given of it, and for how long.
    pub(crate) fn exports(&self) -> &Exports {
        &self.inner.exports
    }

    /// Plans of queries over [`snapshot`](Self::snapshot).
    pub(crate) fn plans(&self) -> &Plans {
        &self.inner.plans
    }

    /// What ran last.
    pub(crate) fn history(&self) -> &Arc<History> {
        &self.inner.history
    }

    /// An id that no table or segment has or had.
    pub(crate) fn new_id(&self) -> u64 {
        self.inner.next_id.fetch_add(1, SeqCst)
    }

    /// A name for a segment of a table that no file has or had.
    pub(crate) fn new_segment_name(&self, table: u64) -> String {
        segment_name(table, self.new_id(), self.inner.remote.as_ref().map(|remote| remote.writer()))
    }

    /// Ids for so many rows that are in no segment, ascending, above all that have been given so far. In the writer's place.
    pub(crate) fn new_rows(&self, count: usize, _writing: &Writing) -> std::ops::Range<u64> {
        let first = self.inner.next_row.fetch_add(count as u64, SeqCst);
        first..first + count as u64
    }

    /// Whether a commit failed half-way. Files that it mentions must stay: the durable catalog may be the one that does.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.inner.doubt.get().is_some()
    }

    /// Fails if an earlier commit did: what this one would go on from may not have happened.
    fn refuse_in_doubt(&self) -> Result<()> {
        let Some(why) = self.inner.doubt.get() else { return Ok(()) };
        let message =
            format!("an earlier commit failed half-way, so it is not known which state is on storage ({why})");
        Err(Error::new(ErrorKind::Io, message).with_hint("close the database and open it again"))
    }

    /// Refuses all later commits.
    fn doubt(&self, why: &Error) {
        // Only the first reason is kept.
        let _ = self.inner.doubt.set(why.message().to_string());
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.inner.access {
            Access::ReadWrite => self.refuse_in_doubt(),
            Access::ReadOnly => {
                let error = Error::new(ErrorKind::ReadOnly, "the database is open for reading only");
                Err(error.with_hint("open it without --readonly"))
            }
        }
    }

    /// The writer's place, waited for as long as the settings say.
    pub(crate) async fn writing(&self, settings: &Settings) -> Result<Writing> {
        self.writing_within(settings.lock_timeout()).await
    }

    /// The writer's place, waited for so long; `None` is for ever.
    pub(crate) async fn writing_within(&self, limit: Option<Duration>) -> Result<Writing> {
        self.check_writable()?;
        self.inner.writer.take(limit).await
    }

    /// As [`writing`](Self::writing), for threads outside of a runtime.
    pub(crate) fn writing_blocking(&self, settings: &Settings) -> Result<Writing> {
        self.check_writable()?;
        self.inner.writer.take_blocking(settings.lock_timeout())
    }

    /// What a writer goes on from: all that is in order, durable or not yet.
    ///
    /// # Errors
    /// Those of reading the store, which is done if commits have been taken back.
    pub(crate) fn head(&self, _writing: &Writing) -> Result<Arc<Snapshot>> {
        // Where it is not known what is durable, no file may go that what is there may mention.
        self.refuse_in_doubt()?;
        let mut head = self.inner.head.lock().unwrap_or_else(PoisonError::into_inner);
        if self.inner.store.is_behind() && !skips("commit.reload") {
            let store = &*self.inner.store;
            let loaded = store.load().and_then(|catalog| load(catalog, Some(&head), store, &self.inner.segments));
            // What cannot be read cannot be gone on from.
            let loaded = loaded.inspect_err(|e| self.doubt(e));
            let (mut durable, next_row) = loaded?;
            (durable.number, durable.epoch) = (head.number + 1, head.epoch + 1);
            self.inner.next_row.fetch_max(next_row, SeqCst);
            // Files that nobody will ever mention make room.
            self.drop_segments(&head, &durable);
            *head = Arc::new(durable);
            self.publish(Arc::clone(&head));
        }
        Ok(Arc::clone(&head))
    }

    /// Changes the catalog: `change` edits a copy and says what it did. If it fails, nothing happened.
    pub(crate) fn change<T>(
        &self,
        writing: Writing,
        change: impl FnOnce(&mut Catalog) -> Result<(T, Vec<Change>)>,
    ) -> Result<(T, Commit)> {
        let before = self.head(&writing)?;
        let mut next = Catalog::clone(&before.catalog);
        let (result, changes) = change(&mut next)?;
        refuse_same_names(&before.catalog, &next)?;
        let after = before.with_catalog(next, &self.inner.segments)?;
        Ok((result, self.hand_over(writing, &before, after, &changes)?))
    }

    /// Publishes other versions of tables, of which nothing becomes durable: for tests.
    pub(crate) fn replace_tables(
        &self,
        mut change: impl FnMut(&Table, &Writing) -> Result<Option<Table>>,
    ) -> Result<()> {
        let writing = self.writing_blocking(&self.inner.settings)?;
        let before = self.head(&writing)?;
        let mut after = Snapshot::clone(&before);
        for table in after.tables.iter_mut() {
            if let Some(changed) = change(table, &writing)? {
                *table = Arc::new(changed);
            }
        }
        after.number += 1;
        let after = Arc::new(after);
        *self.inner.head.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&after);
        self.publish(after);
        Ok(())
    }

    /// Changes tables. If it fails, nothing happened.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if a table is gone; [`ErrorKind::Conflict`] if rows are to be removed of one that is not what it
    /// was in `seen`.
    pub(crate) fn edit(&self, writing: Writing, edits: &[(String, TableEdit)], seen: &Snapshot) -> Result<Commit> {
        let before = self.head(&writing)?;
        let (after, changes) = before.edited(edits, seen)?;
        self.hand_over(writing, &before, after, &changes)
    }

    /// Does what a transaction has done, which looked at `seen`. If it fails, nothing happened.
    ///
    /// # Errors
    /// As of [`edit`](Self::edit), and what changes of the catalog say of the one that is there by now.
    pub(crate) fn carry_out(&self, writing: Writing, steps: &[Step], seen: &Snapshot) -> Result<Commit> {
        let before = self.head(&writing)?;
        let (after, changes) = before.after(steps, seen, &self.inner.segments)?;
        self.hand_over(writing, &before, after, &changes)
    }

    /// Puts a commit in order. It is in the store's hands when this returns, whatever becomes of whoever waits for it.
    fn hand_over(
        &self,
        writing: Writing,
        before: &Snapshot,
        mut after: Snapshot,
        changes: &[Change],
    ) -> Result<Commit> {
        self.refuse_in_doubt()?;
        after.number = before.number + 1;
        if !Arc::ptr_eq(&after.catalog, &before.catalog) {
            let catalog = Arc::make_mut(&mut after.catalog);
            catalog.generation += 1;
            if !skips("commit.next-id") {
                catalog.next_id = self.inner.next_id.load(SeqCst);
            }
        }
        let brought = brought_segments(changes, &after.catalog);
        if !brought.is_empty() {
            self.make_names_durable(&brought)?;
        }
        let besides = self.besides(before, &after, !brought.is_empty())?;
        let has_life = besides.iter().any(|change| matches!(change, Change::PutIdentity { .. }));
        let pending = match besides.is_empty() {
            true => self.inner.store.commit(&after.catalog, changes)?,
            false => self.inner.store.commit(&after.catalog, &[changes, &besides].concat())?,
        };
        let after = Arc::new(after);
        *self.inner.head.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&after);
        if skips("commit.publish-durable") {
            self.publish(Arc::clone(&after));
        }
        drop(writing);
        Ok(Commit { database: self.clone(), pending, after, has_life })
    }

    /// Makes the names of segments durable that a commit is about to mention.
    fn make_names_durable(&self, brought: &[&str]) -> Result<()> {
        if let Some(own) = &self.inner.own {
            own.finish(brought.iter().copied())?;
        }
        if skips("commit.sync-names") || skips("commit.names-first") {
            return Ok(());
        }
        // Whether the names are durable is not known: no commit may count on it any more.
        let synced = self.inner.segments.sync().map_err(Error::from);
        synced.inspect_err(|e| {
            if !skips("commit.doubt-names") {
                self.doubt(e)
            }
        })
    }

    /// Changes that the database adds to those of a statement: the place of segments, the identity, and removed files that are
    /// gone.
    fn besides(&self, before: &Snapshot, after: &Snapshot, brings_segments: bool) -> Result<Vec<Change>> {
        let mut besides = Vec::new();
        if let Some(remote) = self.inner.remote.as_ref().filter(|_| brings_segments) {
            let place = remote.advance(&mut |place: &SegmentPlace| self.record_place(before, place))?;
            besides.push(Change::PutPlace { place });
        }
        if let Some(own) = &self.inner.own {
            besides.extend(own.life().change().filter(|_| brings_segments));
            // Commits of rows alone write no page of the catalog.
            if !Arc::ptr_eq(&after.catalog, &before.catalog) {
                let files = own.take_gone();
                besides.extend((!files.is_empty()).then_some(Change::ForgetRemoved { files }));
            }
        }
        Ok(besides)
    }

    /// The origin that segments of this process have in their footers; `None` for databases that end with the process, and on
    /// clusters.
    pub(crate) fn origin(&self) -> Option<OriginRecord> {
        let generation = self.snapshot().catalog.generation;
        self.inner.own.as_ref().map(|own| own.life().origin(generation))
    }

    /// Says where segments lie, before anything else is committed that depends on it.
    fn record_place(&self, before: &Snapshot, place: &SegmentPlace) -> Result<()> {
        let pending = self.inner.store.commit(&before.catalog, &[Change::PutPlace { place: place.clone() }])?;
        self.known_of(pending.wait()).map(drop)
    }

    /// What the store says has become of a commit.
    fn known_of(&self, outcome: onehop_store::Result<Committed>) -> Result<Committed> {
        outcome.map_err(Error::from).inspect_err(|e| {
            // Without room, nothing has happened.
            if e.kind() != ErrorKind::Resources && !skips("commit.doubt") {
                self.doubt(e);
            }
        })
    }

    /// Checks that the files still have their names: another process may have removed or replaced them.
    fn check_names(&self) -> Result<()> {
        let checked = self.inner.own.as_ref().map_or(Ok(()), |own| own.check_commit());
        checked.inspect_err(|e| self.doubt(e))
    }

    /// What the store has written for a commit. In a directory it is a file, by way of the page cache.
    fn count_written(&self, bytes: usize, ledger: &Ledger) {
        ledger.moved(Hop::HostToStorage, bytes);
        if self.inner.path.is_some() {
            ledger.moved(Hop::HostToHost, bytes);
        }
    }

    /// Shows readers a snapshot that is durable, unless they see a later one already.
    fn publish(&self, after: Arc<Snapshot>) {
        let _publishing = self.inner.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        if before.number >= after.number {
            return;
        }
        if !Arc::ptr_eq(&before.catalog, &after.catalog) {
            self.drop_segments(&before, &after);
        }
        *self.inner.snapshot.write().unwrap_or_else(PoisonError::into_inner) = after;
        self.inner.plans.forget();
    }

    /// Lets go of segments that are no longer mentioned: their files with the last reader, device memory now.
    fn drop_segments(&self, before: &Snapshot, after: &Snapshot) {
        let kept = after.segment_names();
        let mut gone = Vec::new();
        for segment in before.tables.iter().flat_map(|table| &table.segments) {
            if !kept.contains(segment.entry.file.as_str()) {
                segment.is_dropped.store(true, SeqCst);
                if skips("snapshot.keep-files") {
                    let _ = self.inner.segments.remove(&segment.entry.file);
                }
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
    }

    /// Verifies all that the store keeps: each finding is a sentence.
    pub(crate) fn check_store(&self, found: &mut dyn FnMut(String)) -> Result<()> {
        self.inner.store.check(found)
    }
}

/// Names of segments that changes bring into a catalog.
fn brought_segments<'a>(changes: &'a [Change], catalog: &'a Catalog) -> Vec<&'a str> {
    let brought = changes.iter().flat_map(|change| match change {
        Change::AddSegments { segments, .. } => segments.as_slice(),
        Change::PutTable { name } => catalog.tables.get(name).map_or(&[][..], |table| &table.segments),
        _ => &[],
    });
    brought.map(|segment| segment.file.as_str()).collect()
}

/// Opens a database's own folder of segments for writing, and collects orphans. `None` for reading, and for databases that end
/// with the process.
fn own_segments(
    root: &Arc<dyn Volume>,
    folder: Arc<dyn Volume>,
    home: &Home,
    access: Access,
    store: &dyn CatalogStore,
    catalog: &Catalog,
) -> Result<Option<Arc<OwnSegments>>> {
    let names = match home {
        _ if access == Access::ReadOnly => return Ok(None),
        Home::Memory => return Ok(None),
        Home::Directory(path, lock) => Some(Names::new(path, lock)?),
        Home::Volume => None,
    };
    let orphans = Orphans::find(&*folder, catalog, &store.removed()?)?;
    orphans.collect(&**root, &*folder)?;
    let forgotten = orphans.removed.into_iter().chain(orphans.gone).collect();
    Ok(Some(Arc::new(OwnSegments::new(folder, names, Life::begin(store.identity()?)?, forgotten))))
}
