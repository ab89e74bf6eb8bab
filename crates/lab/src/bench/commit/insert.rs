//! Single-row inserts by SQL, beside the same bytes in a bare store: the cost of `INSERT` in
//! addition to its commit.
//!
//! A row is a number and a string, and the statement is prepared once, as in programs that insert
//! many rows. The database and the store are on the same file system. Each runs in every round,
//! alternately, and the median counts. Ids ascend in both, as they do in a table's fresh rows.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onehop_engine::{Database, DatabaseOptions, Prepared, Session};
use onehop_store::{Options, Store};
use serde::{Deserialize, Serialize};

use super::drive::{self, Data, Driven, Failure, Key, Point, Worker, drive};
use super::{Error, Result, TREE};
use crate::osp::random::Distribution;

/// The number of rounds, of which the median is taken.
const ROUNDS: u32 = 5;

/// The results: medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inserted {
    /// The number of sessions or threads.
    pub threads: usize,
    /// The rate of rows put into the store, each in a transaction.
    pub store_commits_per_sec: f64,
    /// The rate of single-row `INSERT`s.
    pub sql_commits_per_sec: f64,
    /// The median latency of the store.
    pub store_p50_ns: u64,
    /// The median latency of `INSERT`.
    pub sql_p50_ns: u64,
    /// The median of the rounds' ratios.
    pub sql_to_store_ratio: f64,
}

/// A database and a store, removed when dropped.
#[derive(Debug)]
pub struct Inserts {
    database: Database,
    store: Store,
    data: Data,
    next: AtomicU64,
    runs: u32,
    /// The runtime of all sessions.
    runtime: tokio::runtime::Runtime,
    /// The folder, dropped last.
    _folder: Folder,
}

/// A folder, removed when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

/// The database, as a store of rows.
struct Sql<'a>(&'a Inserts);

/// A bare store, as one of rows.
struct Bare<'a>(&'a Inserts);

struct SqlWorker<'a> {
    inserts: &'a Inserts,
    session: Session,
    insert: Prepared,
}

impl Inserts {
    /// Creates both in a folder at `path`, which must not exist.
    ///
    /// # Errors
    /// Returns the errors of the database and the store. Fails if `path` exists.
    pub fn new(path: &Path, data: Data) -> Result<Self> {
        fs::create_dir(path).map_err(|source| Error::File {
            attempt: "make the folder",
            path: path.display().to_string(),
            source,
        })?;
        let folder = Folder(path.into());
        let store = path.join("rows.store");
        Store::create(&store, &Options::default())?;
        let store = Store::open(&store, &Options::default())?;
        let database = Database::open(&path.join("rows.onehop"), &DatabaseOptions::default()).map_err(sql)?;
        let session = database.session().map_err(sql)?;
        let runtime = runtime()?;
        let made = runtime.block_on(session.sql("CREATE TABLE pairs (id BIGINT, value VARCHAR)"));
        made.map_err(sql)?;
        Ok(Self { database, store, data, next: AtomicU64::new(1), runs: 0, runtime, _folder: folder })
    }

    /// Measures both alternately, each for `runtime` in all, with this number of threads.
    ///
    /// # Errors
    /// Returns the errors of the database and the store. Fails if `cancel` is set.
    pub fn measure(&mut self, threads: usize, runtime: Duration, cancel: &AtomicBool) -> Result<Inserted> {
        let share = runtime / ROUNDS;
        // Not measured: warms up threads, files and first pages.
        self.round(threads, share / 2, cancel)?;
        let rounds = (0..ROUNDS).map(|_| self.round(threads, share, cancel)).collect::<Result<Vec<_>>>()?;
        let of = |value: &dyn Fn(&[Driven; 2]) -> f64| median(rounds.iter().map(value).collect());
        let p50 = |driven: &Driven| driven.latencies.value_at_quantile(0.5) as f64;
        Ok(Inserted {
            threads,
            store_commits_per_sec: of(&|[store, _]| rate(store)),
            sql_commits_per_sec: of(&|[_, sql]| rate(sql)),
            store_p50_ns: of(&|[store, _]| p50(store)) as u64,
            sql_p50_ns: of(&|[_, sql]| p50(sql)) as u64,
            sql_to_store_ratio: of(&|[store, sql]| rate(sql) / rate(store)),
        })
    }

    /// Measures the store, and then the database.
    fn round(&mut self, threads: usize, time: Duration, cancel: &AtomicBool) -> Result<[Driven; 2]> {
        self.runs += 1;
        let point = Point { transaction_keys: 1, keys: Distribution::Uniform, threads };
        let store = drive(&Bare(self), &self.data, &point, self.runs, time, cancel)?;
        let sql = drive(&Sql(self), &self.data, &point, self.runs, time, cancel)?;
        if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok([store, sql]) }
    }

    /// Returns the id of the next row.
    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Harmless if it fails: the next run reports a leftover folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl drive::Store for Bare<'_> {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        Ok(Box::new(Bare(self.0)))
    }
}

impl Worker for Bare<'_> {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let transaction = self.0.store.write()?;
        let mut tree = transaction.tree(TREE)?;
        for (_, value) in pairs {
            tree.insert(self.0.id().to_be_bytes(), value)?;
        }
        drop(tree);
        Ok(transaction.commit()?)
    }
}

impl drive::Store for Sql<'_> {
    fn worker(&self) -> Result<Box<dyn Worker + '_>, Failure> {
        let session = self.0.database.session()?;
        let insert = session.prepare("INSERT INTO pairs VALUES ($1, $2)")?;
        Ok(Box::new(SqlWorker { inserts: self.0, session, insert }))
    }
}

impl Worker for SqlWorker<'_> {
    fn commit(&mut self, pairs: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        for (_, value) in pairs {
            let row = [(self.inserts.id() as i64).into(), text(value).into()];
            self.inserts.runtime.block_on(self.session.execute(&self.insert, &row))?;
        }
        Ok(())
    }
}

/// Returns a string with as many characters as there are bytes.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    text.extend(bytes.iter().map(|byte| char::from(b'a' + byte % 26)));
    text
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().map_err(|e| Error::Driver(e.into()))
}

fn sql(error: onehop_engine::Error) -> Error {
    Error::Driver(error.into())
}

fn rate(driven: &Driven) -> f64 {
    driven.commits as f64 / driven.elapsed.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DATA: Data = Data { keys: 100, value_bytes: 100, seed: 1 };

    #[test]
    fn both_are_measured_all_rows_are_there_and_the_folder_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inserts");
        let mut inserts = Inserts::new(&path, DATA).unwrap();
        let inserted = inserts.measure(2, Duration::from_millis(200), &AtomicBool::new(false)).unwrap();
        assert!(inserted.store_commits_per_sec > 0.0 && inserted.sql_commits_per_sec > 0.0);
        assert!(inserted.sql_p50_ns > 0 && inserted.store_p50_ns > 0 && inserted.sql_to_store_ratio > 0.0);
        let in_store = inserts.store.read().unwrap().tree(TREE).unwrap().len().unwrap();
        let table = inserts.database.snapshot();
        let in_table = table.table("pairs").unwrap().rows();
        // Each row had an id of its own, and went to one of them.
        assert_eq!(in_store + in_table, inserts.next.load(Ordering::Relaxed) - 1);
        let stopped = inserts.measure(1, Duration::from_millis(20), &AtomicBool::new(true));
        assert!(matches!(stopped, Err(Error::Cancelled)));
        drop(inserts);
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        assert!(matches!(Inserts::new(&path, DATA), Err(Error::File { .. })));
    }
}
