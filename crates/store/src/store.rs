//! The store: what is opened, and what hands out transactions.

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

/// Named ordered maps in one file, in persistent memory, or in plain memory. A handle: clones of it are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// What handles and transactions share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) pages: Arc<Pages>,
    access: Access,
    maintainer: Option<Maintainer>,
    /// Let go when all else is over.
    _lock: Option<Lock>,
}

impl Inner {
    /// Makes durable what was committed for later, and leaves the medium so that opening it again has nothing to recover.
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
        // Nobody is left to be told. What was acknowledged is durable, and the next open recovers.
        let _ = self.close();
    }
}

/// What a store has done since it was opened, and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// What the medium has been told.
    pub backend: BackendStats,
    /// Transactions that are durable.
    pub transactions: u64,
    /// Batches that they became durable in: less than `transactions` where threads commit together.
    pub batches: u64,
    /// Pages that batches have changed.
    pub changed_pages: u64,
    /// Lines of 64 bytes that batches have changed.
    pub changed_lines: u64,
    /// Transactions, pages and lines of the last batch.
    pub last_batch: (u64, u64, u64),
    /// Pages that had to be read from the medium.
    pub cache_misses: u64,
    /// Pages in memory.
    pub cached_pages: u64,
    /// Live snapshots.
    pub snapshots: u64,
    /// Versions of pages that are kept for them.
    pub versions: u64,
}

impl Store {
    /// A store that lives and dies with the process.
    pub fn memory() -> Result<Self> {
        Self::on(Arc::new(Volatile::default()), &Options::default(), None)
    }

    /// Opens the store at `path`; makes one if there is nothing and `options` allow to write.
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
    /// [`Error::Locked`] if somebody has it open, [`Error::Unknown`] if it is not a store, [`Error::Corrupt`] if it is damaged.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        // A pipe would keep whoever opens it waiting, and a device looks like a file without bytes, to be made a store.
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
                // Compaction has put another file there.
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

    /// Makes an empty store at `path`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] with `AlreadyExists` if there is something.
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<()> {
        copy::make(path.as_ref(), options, Existing::Keep, |_| Ok(()))
    }

    /// Makes an empty store in a new file. A crash may leave half of it.
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

    /// Makes an empty store on an empty medium.
    pub fn create_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Self> {
        Self::on(create_backend(medium, options)?, options, None)
    }

    /// Opens the store on a medium, which nobody else may have open meanwhile.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not a store, [`Error::Corrupt`] if it is damaged.
    pub fn open_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Self> {
        Self::on(open_backend(medium, options)?, options, None)
    }

    /// A store on `backend`. A new one gets its tree of trees.
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
            // Nothing was ever committed to it: as good as an empty store, and not to be changed.
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

    /// Begins a transaction that may change things; waits for the one before it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn write(&self) -> Result<WriteTransaction> {
        self.check_access()?;
        Ok(WriteTransaction::new(self.inner.pages.write()?, &self.inner))
    }

    /// Begins a transaction that may change things, unless there is one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn try_write(&self) -> Result<Option<WriteTransaction>> {
        self.check_access()?;
        Ok(self.inner.pages.try_write()?.map(|transaction| WriteTransaction::new(transaction, &self.inner)))
    }

    /// How often commits that were in order have been taken back for lack of room since the store was opened: see
    /// [`WriteTransaction::epoch`].
    pub fn epoch(&self) -> u64 {
        self.inner.pages.epoch()
    }

    /// Begins a transaction that reads what is durable now.
    pub fn read(&self) -> Result<ReadTransaction> {
        Ok(ReadTransaction::new(&self.inner))
    }

    /// Makes durable what was committed for later. Who has a [`Pending`](crate::Pending) waits for that, and hears about one
    /// transaction instead of all.
    ///
    /// # Errors
    /// [`Error::Full`] if the last that was committed found no room: all that were not durable before it are lost.
    pub fn sync(&self) -> Result<()> {
        self.inner.pages.sync()
    }

    /// Brings the medium's tables up to date, so that opening the store again has little to do. Waits for a commit that is under
    /// way, and for a transaction that has outgrown its memory until it ends: a thread that has that one waits for itself.
    pub fn checkpoint(&self) -> Result<()> {
        self.check_access()?;
        self.inner.pages.alone(|backend| backend.checkpoint())
    }

    /// Walks everything: every page in use belongs to one tree, once; keys are in order; what the medium keeps has its checksum.
    /// Writers wait meanwhile.
    ///
    /// # Errors
    /// What keeps it from looking. What it finds is in the report.
    pub fn check(&self) -> Result<Report> {
        let _writer = match self.inner.access {
            Access::ReadWrite => Some(self.inner.pages.write()?),
            Access::ReadOnly => None,
        };
        self.inner.pages.alone(|_| report::check(&self.inner.pages))
    }

    /// Copies what is durable now to a new store at `path`, which is whole and durable on return. Writers go on meanwhile; the copy
    /// has full pages and no free ones.
    ///
    /// # Errors
    /// [`Error::Io`] with `AlreadyExists` if there is something at `path`; [`Error::SnapshotTooOld`] if writers outran it.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        let snapshot = self.read()?;
        copy::make(path.as_ref(), &Options::default(), Existing::Keep, |copy| copy::copy(&snapshot, copy))
    }

    /// Copies the store in the file at `path` to a new one at `to`, as [`backup`](Self::backup) does, or, if a process has it open for
    /// writing, page by page, as of one of its commits: neither waits for the other. What is copied may be a commit that was not
    /// durable yet.
    ///
    /// # Errors
    /// [`Error::Io`] with `AlreadyExists` if there is something at `to`; [`Error::Locked`] if a process writes to it and it lies on
    /// memory, of which only that process can make a backup; [`Error::Corrupt`] if it is damaged.
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

    /// The same without a lock, so that a process may open it for writing meanwhile. A store on memory is locked all the same.
    ///
    /// # Errors
    /// As of [`backup_file`](Self::backup_file).
    pub fn backup_live(path: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (path, to) = (path.as_ref(), to.as_ref());
        match Superblock::read(&File::open_read_only(path)?)?.layout {
            Layout::Flips => copy::live(path, to),
            Layout::Lines => Self::backup_file(path, to),
        }
    }

    /// The same of the store on the file that `open` opens for reading, to an empty medium: for simulations.
    ///
    /// # Errors
    /// As of [`backup_live`](Self::backup_live).
    #[doc(hidden)]
    pub fn copy_live(open: &mut dyn FnMut() -> Result<Arc<dyn Medium>>, to: Arc<dyn Medium>) -> Result<()> {
        copy::live_on(open, to)
    }

    /// Makes the file at `path`, which nobody has open, as small as it can be: a copy takes its place, whole or not at all, with
    /// its permissions. It stays on what it lies on, unless `options` say otherwise.
    ///
    /// # Errors
    /// [`Error::Locked`] if somebody has it open; the store is as it was after any error.
    pub fn compact(path: impl AsRef<Path>, options: &Options) -> Result<()> {
        // Through links: it is the file that is replaced, not a link to it.
        let path = path.as_ref();
        let path = path.canonicalize().map_err(|e| Error::io("compact", &path.display().to_string(), e))?;
        if path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0) {
            // Opening it would make a store of it.
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

    /// Closes the store, and says whether that went well; dropping the last handle does the same and says nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another handle or a transaction is still there: it stays open until those are gone.
    /// [`Error::Full`] if it closed, and what was committed for later was lost.
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(inner) => inner.close(),
            None => Err(Error::Invalid("a transaction or another handle of the store is open".into())),
        }
    }

    /// Does a bounded piece of the work that can wait, and says whether there may be more: for a thread that has nothing else to do.
    /// [`Maintenance::WhenIdle`] has one that does. Waits as [`checkpoint`](Self::checkpoint) does.
    pub fn maintain(&self) -> Result<bool> {
        self.check_access()?;
        self.inner.pages.alone(|backend| backend.maintain())
    }

    /// Where what is committed is safe. [`Domain::System`] means that it outlives the process and not the machine: what looks like
    /// persistent memory is mapped from the system's.
    pub fn domain(&self) -> Domain {
        self.inner.pages.backend().domain()
    }

    /// What it has done since it was opened, and what it has.
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

/// Makes an empty store of an empty medium, in the layout for its granularity.
fn create_backend(medium: Arc<dyn Medium>, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(match medium.granularity() {
        Granularity::Line => Arc::new(LineBackend::create(medium, &of_lines(options))?),
        Granularity::Page => Arc::new(FlipBackend::create(medium, of_flips(options))?),
    })
}

/// Opens what is on a medium.
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
