//! Small transactions on the store: rates, latencies, write amplification, waits for the device,
//! and the time to open a store after a crash.
//!
//! 1. A store is created and filled. Every point then runs on it in turn, once unmeasured and once
//!    measured. After each of the two runs the store does its deferred work (a checkpoint), so that
//!    its bytes are counted, and its time is not.
//! 2. For recovery, stores of several sizes are created, and get transactions without a following
//!    checkpoint. The file is copied while the store is open, which yields the state after a crash
//!    of the process. The copy is opened with the clock running.
//! 3. [`insert`]: single-row inserts by SQL, beside the same in a bare store.
//! 4. [`mapped`]: the flushes of a single-page commit on mapped memory.

pub mod drive;
pub mod insert;
pub mod mapped;
pub mod report;
pub mod written;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onehop_store::medium::Domain;
use onehop_store::{MediumKind, Options, Store};
use serde::{Deserialize, Serialize};

use crate::osp::random::Distribution;
use drive::{Data, Driven, Failure, Key, Point, Worker, drive, fill};
use report::Measured;
use written::Written;

/// The name of the tree of pairs.
const TREE: &str = "pairs";
/// The number of transactions that a store has to recover.
const UNSETTLED_COMMITS: u64 = 1_000;

/// The result of the benchmark's steps.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store returned an error.
    #[error("{0}")]
    Store(#[from] onehop_store::Error),
    /// An operation on a file of the benchmark failed.
    #[error("cannot {attempt} {path}: {source}")]
    File {
        /// The attempted operation.
        attempt: &'static str,
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The driver returned an error that is not the store's.
    #[error("{0}")]
    Driver(Failure),
    /// The benchmark was cancelled.
    #[error("the benchmark was cancelled")]
    Cancelled,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure.downcast::<onehop_store::Error>() {
            Ok(error) => Error::Store(*error),
            Err(other) => Error::Driver(other),
        }
    }
}

/// The medium of a store, as detected when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// A file.
    File,
    /// Persistent memory.
    Pmem,
    /// A mapped file that is not persistent memory: the same instructions, but they only make the
    /// operating system's memory durable, which survives the process and not the machine.
    Mapped,
}

impl Medium {
    /// Returns the medium of a store that was requested as `kind`.
    fn of(kind: MediumKind, domain: Domain) -> Self {
        match (kind, domain) {
            (MediumKind::File, _) | (MediumKind::Auto, Domain::System | Domain::Process) => Self::File,
            (MediumKind::Pmem, Domain::System | Domain::Process) => Self::Mapped,
            (MediumKind::Pmem | MediumKind::Auto, Domain::Device | Domain::Caches) => Self::Pmem,
        }
    }

    /// Returns the name in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Pmem => "pmem",
            Self::Mapped => "mapped",
        }
    }
}

/// A store in a file of its own, removed when dropped.
#[derive(Debug)]
pub struct Bench {
    store: Store,
    medium: Medium,
    path: PathBuf,
    data: Data,
    keep: bool,
    /// The number of runs so far. Each has keys and values of its own.
    runs: u32,
}

impl drive::Store for Store {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Worker for &Store {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let transaction = self.write()?;
        let mut tree = transaction.tree(TREE)?;
        for (key, value) in pairs {
            tree.insert(key, value)?;
        }
        drop(tree);
        Ok(transaction.commit()?)
    }
}

impl Bench {
    /// Creates a store at `path`, which must not exist, and fills it. With `keep` the file stays.
    ///
    /// # Errors
    /// Returns the store's error. Fails if `path` exists.
    pub fn new(path: &Path, data: Data, options: &Options, keep: bool) -> Result<Self> {
        Store::create(path, options)?;
        // From here on the drop may remove the file.
        let store = Store::open(path, options)?;
        let medium = Medium::of(options.medium, store.domain());
        let bench = Self { store, medium, path: path.into(), data, keep, runs: 0 };
        fill(&bench.store, &data)?;
        bench.store.checkpoint()?;
        Ok(bench)
    }

    /// Runs a point for `ramp`, and then for `runtime`, measured.
    ///
    /// # Errors
    /// Returns the store's error. Fails if `cancel` is set.
    pub fn measure(
        &mut self,
        point: &Point,
        ramp: Duration,
        runtime: Duration,
        cancel: &AtomicBool,
    ) -> Result<Measured> {
        self.run(point, ramp, cancel)?;
        self.store.checkpoint()?;
        let (before, stats) = (self.written(), self.store.stats());
        let driven = self.run(point, runtime, cancel)?;
        self.store.checkpoint()?;
        let written = self.written().since(&before);
        Ok(Measured::new(self.medium, point, &self.data, &driven, &written, &stats, &self.store.stats()))
    }

    /// Returns the medium of the store.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Returns the length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    fn run(&mut self, point: &Point, time: Duration, cancel: &AtomicBool) -> Result<Driven> {
        self.runs += 1;
        let driven = drive(&self.store, &self.data, point, self.runs, time, cancel)?;
        if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(driven) }
    }

    fn written(&self) -> Written {
        Written::now(&self.path)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.keep {
            // Harmless if it fails: the next run reports a leftover file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The time to open a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovered {
    /// The medium.
    pub medium: Medium,
    /// The number of keys.
    pub keys: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// The number of one-key transactions since the last requested checkpoint; the store may have
    /// made one itself.
    pub unsettled_commits: u64,
    /// The time to open the file as of a crash.
    pub crashed_open_ns: u64,
    /// The time to open the file after a close.
    pub closed_open_ns: u64,
}

/// Creates a store with this number of keys at `path`, which must not exist, and opens its state
/// after a simulated crash.
///
/// # Errors
/// Returns the store's error. Fails if `path` exists, or if the recovered store lacks keys.
pub fn recover(path: &Path, data: Data, options: &Options, cancel: &AtomicBool) -> Result<Recovered> {
    let bench = Bench::new(path, data, options, false)?;
    let mut worker = &bench.store;
    let mut random = crate::osp::random::Random::new(data.seed);
    let mut keys = crate::osp::random::Keys::new(Distribution::Uniform, data.keys, data.seed);
    for _ in 0..UNSETTLED_COMMITS {
        let value = (0..data.value_bytes).map(|_| random.bits() as u8).collect();
        worker.commit(&[(keys.draw().to_be_bytes(), value)])?;
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
    }
    let copy = Copy::of(path)?;
    let file_bytes = bench.file_bytes();
    let crashed_open_ns = opened(&copy.0, &data, options)?;
    // The first call has closed it.
    let closed_open_ns = opened(&copy.0, &data, options)?;
    Ok(Recovered {
        medium: bench.medium,
        keys: data.keys,
        file_bytes,
        unsettled_commits: UNSETTLED_COMMITS,
        crashed_open_ns,
        closed_open_ns,
    })
}

/// Opens a store, checks that it has its keys, and closes it. Returns the time of opening.
fn opened(path: &Path, data: &Data, options: &Options) -> Result<u64> {
    let began = Instant::now();
    let store = Store::open(path, options)?;
    let taken = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let found = store.read()?.tree(TREE)?.len()?;
    if found != data.keys {
        return Err(Error::Driver(format!("{found} keys of {} are left in {}", data.keys, path.display()).into()));
    }
    store.close()?;
    Ok(taken)
}

/// A copy of a file, removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn of(path: &Path) -> Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push("-crashed");
        let copy = Self(name.into());
        fs::copy(path, &copy.0).map_err(|source| Error::File {
            attempt: "copy",
            path: path.display().to_string(),
            source,
        })?;
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DATA: Data = Data { keys: 2_000, value_bytes: 100, seed: 1 };
    const POINT: Point = Point { transaction_keys: 10, keys: Distribution::Uniform, threads: 2 };

    #[test]
    fn a_point_is_measured_and_the_file_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.store");
        let go = AtomicBool::new(false);
        let mut bench = Bench::new(&path, DATA, &Options::default(), false).unwrap();
        let time = Duration::from_millis(30);
        let measured = bench.measure(&POINT, time, time, &go).unwrap();
        assert!(measured.commits > 0 && measured.commits_per_sec > 0.0);
        assert!(measured.p50_ns <= measured.p99_ns && measured.p99_ns <= measured.max_ns);
        assert_eq!(measured.useful_bytes_per_commit, 1_080.0);
        // A page has at least ten keys. There is at least one fence per group of as many
        // transactions as there are threads.
        assert!(measured.store_written_bytes_per_commit >= 4_096.0, "{measured:?}");
        assert!(measured.fences_per_commit >= 0.5 && measured.commits_per_batch <= 2.0, "{measured:?}");
        assert!(bench.store.check().unwrap().is_sound());
        assert!(matches!(bench.measure(&POINT, time, time, &AtomicBool::new(true)), Err(Error::Cancelled)));
        drop(bench);
        assert!(!path.exists());
    }

    #[test]
    fn mapped_memory_is_called_what_it_is_and_its_lines_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (path, go) = (folder.path().join("a.store"), AtomicBool::new(false));
        let options = Options::default().medium(MediumKind::Pmem);
        let mut bench = Bench::new(&path, DATA, &options, false).unwrap();
        // The machine of the tests may have persistent memory.
        let expected = if bench.store.domain() == Domain::System { Medium::Mapped } else { Medium::Pmem };
        let point = Point { transaction_keys: 1, threads: 1, ..POINT };
        let time = Duration::from_millis(30);
        let measured = bench.measure(&point, time, time, &go).unwrap();
        assert_eq!((bench.medium(), measured.medium), (expected, expected));
        let units = measured.data_units_per_commit
            + measured.journal_units_per_commit
            + measured.consolidation_units_per_commit
            + measured.table_units_per_commit;
        assert!((units - measured.flushed_lines_per_commit).abs() < 1e-9, "{measured:?}");
        assert!(measured.changed_pages_per_commit >= 1.0 && measured.changed_lines_per_commit >= 2.0, "{measured:?}");
        // A commit writes lines, not the page.
        assert!(measured.store_written_bytes_per_commit < 4_096.0, "{measured:?}");
        drop(bench);
        let recovered = recover(&path, DATA, &options, &go).unwrap();
        assert_eq!((recovered.medium, recovered.keys), (expected, 2_000));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_written_over_and_what_is_kept_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.store");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Bench::new(&path, DATA, &Options::default(), false), Err(Error::Store(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();
        drop(Bench::new(&path, DATA, &Options::default(), true).unwrap());
        assert_eq!(
            Store::open(&path, &Options::default()).unwrap().read().unwrap().tree(TREE).unwrap().len().unwrap(),
            2_000
        );
    }

    #[test]
    fn a_crashed_store_has_all_its_keys_and_both_files_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.store");
        let recovered = recover(&path, DATA, &Options::default(), &AtomicBool::new(false)).unwrap();
        assert_eq!((recovered.keys, recovered.unsettled_commits), (2_000, UNSETTLED_COMMITS));
        assert!(recovered.file_bytes > 200_000 && recovered.crashed_open_ns > 0 && recovered.closed_open_ns > 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
