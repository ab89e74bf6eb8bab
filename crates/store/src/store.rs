//! The store, which opens a medium and creates transactions.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Backend, BackendStats};
use crate::copy::{self, Existing};
use crate::flips::{FlipBackend, FlipOptions};
use crate::lines::{self, LineBackend};
use crate::lock::Lock;
use crate::maintenance::Maintainer;
use crate::medium::{Domain, Emulation, File, Granularity, Medium, Pmem};
use crate::options::{Access, Maintenance, MediumKind, Options};
use crate::pages::{Limits, Pages, Transaction, Volatile};
use crate::read::ReadTransaction;
use crate::report::{self, Report};
use crate::superblock::{Layout, Superblock};
use crate::tree::{self, CATALOG};
use crate::write::WriteTransaction;
use crate::{Error, Result};

/// Named ordered maps in one file, in persistent memory, or in plain memory. This is a handle: its
/// clones are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// State that handles and transactions share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pages: Arc<Pages>,
    access: Access,
    maintainer: Option<Maintainer>,
    /// The lock, released last.
    _lock: Option<Lock>,
}

impl Inner {
    /// Makes deferred commits durable, and leaves the medium so that the next open has nothing to
    /// recover.
    fn close(&self) -> Result<()> {
        if let Some(maintainer) = &self.maintainer {
            maintainer.stop();
        }
        match self.access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => self.pages.close(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No caller is left to receive the error. Acknowledged commits are durable, and the next
        // open recovers.
        let _ = self.close();
    }
}

/// Counters since the opening of a store, and its present sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Counters of the medium.
    pub backend: BackendStats,
    /// The number of durable transactions.
    pub transactions: u64,
    /// The number of their batches: less than `transactions` if threads commit together.
    pub batches: u64,
    /// The number of pages that batches have changed.
    pub changed_pages: u64,
    /// The number of lines of 64 bytes that batches have changed.
    pub changed_lines: u64,
    /// The number of transactions, pages and lines of the last batch.
    pub last_batch: (u64, u64, u64),
    /// The number of pages that were read from the medium.
    pub cache_misses: u64,
    /// The number of pages in memory.
    pub cached_pages: u64,
    /// The number of live snapshots.
    pub snapshots: u64,
    /// The number of page versions that are kept for them.
    pub versions: u64,
}

impl Store {
    /// Creates a store that lives as long as the process.
    pub fn memory() -> Result<Self> {
        Self::on(Arc::new(Volatile::default()), &Options::default(), None)
    }

    /// Opens the store at `path`. Creates one if the path does not exist and `options` allow
    /// writing.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fruit.store");
    /// use onehop_store::{Options, Store};
    ///
    /// let store = Store::open(&path, &Options::default())?;
    /// let transaction = store.write()?;
    /// transaction.tree("colours")?.insert("apple", "red")?;
    /// transaction.commit()?;
    ///
    /// let snapshot = store.read()?;
    /// assert_eq!(snapshot.tree("colours")?.get("apple")?.unwrap(), b"red");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Locked`] if another handle has it open, [`Error::Unknown`] if it is not a store,
    /// [`Error::Corrupt`] if it is damaged.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        // Opening a pipe would block, and a device looks like an empty file, in which a store would
        // be created.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(Error::Unknown { object: path.display().to_string(), reason: "it is not a file".into() });
        }
        loop {
            if options.access == Access::ReadWrite && !path.exists() {
                match Self::create(path, options) {
                    // Another process was faster.
                    Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                    Ok(()) => {}
                }
            }
            let lock = Lock::acquire(path, options.access)?;
            if !lock.is_of(path)? {
                // Compaction has replaced the file.
                continue;
            }
            let file = match options.access {
                Access::ReadWrite => File::open(path)?,
                Access::ReadOnly => File::open_read_only(path)?,
            };
            if file.is_empty() && options.access == Access::ReadWrite {
                return Self::on(create_backend(Arc::new(file), options)?, options, Some(lock));
            }
            let medium: Arc<dyn Medium> = match (Superblock::read(&file)?.layout, options.access) {
                (Layout::Flips, _) => Arc::new(file),
                (Layout::Lines, Access::ReadWrite) => Arc::new(Pmem::open(path, Emulation::Allowed)?),
                (Layout::Lines, Access::ReadOnly) => Arc::new(Pmem::open_read_only(path, Emulation::Allowed)?),
            };
            return Self::on(open_backend(medium, options)?, options, Some(lock));
        }
    }

    /// Creates an empty store at `path`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] with `AlreadyExists` if the path exists.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<()> {
        copy::make(path.as_ref(), options, Existing::Keep, |_| Ok(()))
    }

    /// Creates an empty store in a new file. A crash may leave an incomplete file.
    pub(crate) fn create_in_place(path: &Path, options: &Options) -> Result<Self> {
        let is_memory = match options.medium {
            MediumKind::Auto => Pmem::is_persistent(path),
            MediumKind::File => false,
            MediumKind::Pmem => true,
        };
        let medium: Arc<dyn Medium> = match is_memory {
            true => Arc::new(Pmem::create(path, Emulation::Allowed)?),
            false => Arc::new(File::create(path)?),
        };
        let lock = Lock::acquire(path, Access::ReadWrite)?;
        let options = options.clone().access(Access::ReadWrite);
        Self::on(create_backend(medium, &options)?, &options, Some(lock))
    }

    /// Creates an empty store on an empty medium.
    pub fn create_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Self> {
        Self::on(create_backend(medium, options)?, options, None)
    }

    /// Opens the store on a medium, which no other handle may have open meanwhile.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not a store, [`Error::Corrupt`] if it is damaged.
    pub fn open_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Self> {
        Self::on(open_backend(medium, options)?, options, None)
    }

    /// Opens a store on `backend`. A new store gets its tree of trees.
    pub(crate) fn on(backend: Arc<dyn Backend>, options: &Options, lock: Option<Lock>) -> Result<Self> {
        let limits = Limits {
            cache_bytes: options.cache_bytes,
            transaction_bytes: options.transaction_bytes,
            version_bytes: options.version_bytes,
        };
        let in_use = backend.pages();
        let is_new = in_use.is_empty();
        if !is_new && in_use[0] != CATALOG {
            return Err(Error::corrupt(backend.name(), "page 0, where the tree of trees begins, is missing"));
        }
        let backend: Arc<dyn Backend> = match options.access {
            // Nothing was ever committed to it: it reads as an empty store, and must not be
            // changed.
            Access::ReadOnly if is_new => Arc::new(Volatile::default()),
            _ => backend,
        };
        let pages = Pages::new(backend, limits, tree::verify);
        if is_new {
            make_catalog(pages.write()?)?;
        }
        let maintainer = match (options.access, options.maintenance) {
            (Access::ReadWrite, Maintenance::WhenIdle) => Maintainer::of(&pages),
            (Access::ReadOnly, _) | (_, Maintenance::ByCommits) => None,
        };
        Ok(Self { inner: Arc::new(Inner { pages, access: options.access, maintainer, _lock: lock }) })
    }

    fn check_access(&self) -> Result<()> {
        match self.inner.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly { object: self.inner.pages.backend().name().into() }),
        }
    }

    /// Begins a write transaction. Waits for the previous one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn write(&self) -> Result<WriteTransaction> {
        self.check_access()?;
        Ok(WriteTransaction::new(self.inner.pages.write()?, &self.inner))
    }

    /// Begins a write transaction, unless there is one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn try_write(&self) -> Result<Option<WriteTransaction>> {
        self.check_access()?;
        Ok(self.inner.pages.try_write()?.map(|transaction| WriteTransaction::new(transaction, &self.inner)))
    }

    /// Returns the number of times that ordered commits were rolled back for lack of space since
    /// the store was opened: see [`WriteTransaction::epoch`].
    pub fn epoch(&self) -> u64 {
        self.inner.pages.epoch()
    }

    /// Begins a transaction that reads the present durable state.
    pub fn read(&self) -> Result<ReadTransaction> {
        Ok(ReadTransaction::new(&self.inner))
    }

    /// Makes deferred commits durable. A caller with a [`Pending`](crate::Pending) waits for that
    /// instead, and gets the result of one transaction instead of all.
    ///
    /// # Errors
    /// [`Error::Full`] if the last commit found no space: all commits that were not durable before
    /// it are lost.
    pub fn sync(&self) -> Result<()> {
        self.inner.pages.sync()
    }

    /// Brings the medium's tables up to date, so that the next open has little to do. Waits for a
    /// running commit, and for the end of a transaction that has outgrown its memory. A thread that
    /// holds such a transaction deadlocks.
    pub fn checkpoint(&self) -> Result<()> {
        self.check_access()?;
        self.inner.pages.alone(|backend| backend.checkpoint())
    }

    /// Verifies the whole store: every page in use belongs to one tree, once; keys are in order;
    /// everything on the medium matches its checksum. Writers wait meanwhile.
    ///
    /// # Errors
    /// An error that prevents the check. Damage is listed in the report.
    pub fn check(&self) -> Result<Report> {
        let _writer = match self.inner.access {
            Access::ReadWrite => Some(self.inner.pages.write()?),
            Access::ReadOnly => None,
        };
        self.inner.pages.alone(|_| report::check(&self.inner.pages))
    }

    /// Copies the present durable state to a new store at `path`, which is whole and durable on
    /// return. Writers continue meanwhile. The copy has full pages and no free ones.
    ///
    /// # Errors
    /// [`Error::Io`] with `AlreadyExists` if `path` exists; [`Error::SnapshotTooOld`] if writers
    /// outran the copy.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        let snapshot = self.read()?;
        copy::make(path.as_ref(), &Options::default(), Existing::Keep, |copy| copy::copy(&snapshot, copy))
    }

    /// Copies the store in the file at `path` to a new one at `to`, as [`backup`](Self::backup)
    /// does. If a process has the store open for writing, copies it page by page, as of one of its
    /// commits, and neither process waits for the other. That commit may not have been durable yet.
    ///
    /// # Errors
    /// [`Error::Io`] with `AlreadyExists` if `to` exists; [`Error::Locked`] if a process writes to
    /// it and it lies on memory, of which only that process can make a backup; [`Error::Corrupt`]
    /// if it is damaged.
    pub fn backup_file(path: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (path, to) = (path.as_ref(), to.as_ref());
        match Self::open(path, &Options::default().access(Access::ReadOnly)) {
            Ok(store) => store.backup(to),
            Err(Error::Locked { .. }) if Superblock::read(&File::open_read_only(path)?)?.layout == Layout::Flips => {
                copy::live(path, to)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies a file as [`backup_file`](Self::backup_file) does, without a lock, so that a process
    /// may open the store for writing meanwhile. A store on memory is locked nevertheless.
    ///
    /// # Errors
    /// Those of [`backup_file`](Self::backup_file).
    pub fn backup_live(path: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (path, to) = (path.as_ref(), to.as_ref());
        match Superblock::read(&File::open_read_only(path)?)?.layout {
            Layout::Flips => copy::live(path, to),
            Layout::Lines => Self::backup_file(path, to),
        }
    }

    /// Copies as [`backup_live`](Self::backup_live) does, from the file that `open` opens for
    /// reading to an empty medium: for simulations.
    ///
    /// # Errors
    /// Those of [`backup_live`](Self::backup_live).
    #[doc(hidden)]
    pub fn copy_live(open: &mut dyn FnMut() -> Result<Arc<dyn Medium>>, to: Arc<dyn Medium>) -> Result<()> {
        copy::live_on(open, to)
    }

    /// Makes the file at `path`, which no process has open, as small as possible. A copy replaces
    /// it, whole or not at all, with its permissions. The kind of medium stays, unless `options`
    /// specify another.
    ///
    /// # Errors
    /// [`Error::Locked`] if another handle has it open. The store is unchanged after any error.
    pub fn compact(path: impl AsRef<Path>, options: &Options) -> Result<()> {
        // Resolves links: compaction replaces the file, not a link to it.
        let path = path.as_ref();
        let path = path.canonicalize().map_err(|e| Error::io("compact", &path.display().to_string(), e))?;
        if path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0) {
            // Opening it would create a store in it.
            return Err(Error::Unknown { object: path.display().to_string(), reason: "it is not a store".into() });
        }
        let store = Self::open(&path, options)?;
        store.check_access()?;
        let medium = match (options.medium, Superblock::read(&File::open_read_only(&path)?)?.layout) {
            (MediumKind::Auto, Layout::Flips) => MediumKind::File,
            (MediumKind::Auto, Layout::Lines) => MediumKind::Pmem,
            (chosen, _) => chosen,
        };
        let snapshot = store.read()?;
        let options = options.clone().medium(medium);
        copy::make(&path, &options, Existing::Replace, |copy| copy::copy(&snapshot, copy))
    }

    /// Closes the store, and returns the result. Dropping the last handle does the same without a
    /// result.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another handle or a transaction exists: the store stays open until
    /// those are dropped. [`Error::Full`] if the store closed, and deferred commits were lost.
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(inner) => inner.close(),
            None => Err(Error::Invalid("a transaction or another handle of the store is open".into())),
        }
    }

    /// Does a bounded piece of the deferrable work, for a thread with nothing else to do. Returns
    /// true if there may be more. [`Maintenance::WhenIdle`] starts such a thread. Waits as
    /// [`checkpoint`](Self::checkpoint) does.
    pub fn maintain(&self) -> Result<bool> {
        self.check_access()?;
        self.inner.pages.alone(|backend| backend.maintain())
    }

    /// Returns the domain in which commits are safe. [`Domain::System`] means that they outlive the
    /// process and not the machine: the apparent persistent memory is mapped from the system's
    /// memory.
    pub fn domain(&self) -> Domain {
        self.inner.pages.backend().domain()
    }

    /// Returns the counters since the opening, and the present sizes.
    pub fn stats(&self) -> Stats {
        let pages = self.inner.pages.stats();
        Stats {
            backend: self.inner.pages.backend().stats(),
            transactions: pages.transactions,
            batches: pages.groups,
            changed_pages: pages.pages,
            changed_lines: pages.lines,
            last_batch: (pages.latest.transactions, pages.latest.pages, pages.latest.lines),
            cache_misses: pages.cache_misses,
            cached_pages: pages.cached_pages,
            snapshots: pages.snapshots,
            versions: pages.versions,
        }
    }
}

/// Creates an empty store on an empty medium, in the layout for its granularity.
fn create_backend(medium: Arc<dyn Medium>, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(match medium.granularity() {
        Granularity::Line => Arc::new(LineBackend::create(medium, &of_lines(options))?),
        Granularity::Page => Arc::new(FlipBackend::create(medium, of_flips(options))?),
    })
}

/// Opens the store on a medium.
fn open_backend(medium: Arc<dyn Medium>, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(match Superblock::read(&*medium)?.layout {
        Layout::Lines => Arc::new(LineBackend::open(medium, &of_lines(options))?),
        Layout::Flips => Arc::new(FlipBackend::open(medium, of_flips(options), options.access)?),
    })
}

fn of_lines(options: &Options) -> lines::Options {
    lines::Options { commit_by: options.commit_by, shadow_slots: options.shadow_pages, ..lines::Options::default() }
}

fn of_flips(options: &Options) -> FlipOptions {
    FlipOptions { syncs: options.syncs, ..FlipOptions::default() }
}

fn make_catalog(mut transaction: Transaction) -> Result<()> {
    let root = tree::create(&mut transaction)?;
    debug_assert_eq!(root, CATALOG);
    transaction.commit()
}
