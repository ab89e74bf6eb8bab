//! Stores on mapped memory: the kind of memory, and the flushes of a single-page commit.
//!
//! 1. A store is created on a medium that passes every call on to the mapped file and counts the
//!    flushed lines and the fences. The figures are therefore those of the instructions, not of the
//!    store's own counters.
//! 2. The store gets a thousand keys, and each value is replaced once. After that, pages are in
//!    pairs of slots, which is the steady state.
//! 3. Transactions replace one value each. Changed lines are those of the tree, as the store's
//!    statistics report them. Commits that change more than a page, or that end with a checkpoint,
//!    which does deferred work of others, are excluded.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onehop_store::medium::{Domain, Emulation, Granularity, Medium, Pmem};
use onehop_store::{Options, Store};
use serde::{Deserialize, Serialize};

use super::drive::{Data, Key, Worker, value};
use super::{Error, Result};
use crate::osp::random::Random;

/// The size of a cache line, in bytes.
const LINE_BYTES: u64 = 64;
/// The number of keys, and of examined commits.
const KEYS: u64 = 1_000;

/// Mapped memory, and single-page commits to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mapped {
    /// The domain in which flushed and fenced lines are safe: `device`, `processor caches`, or
    /// `operating system`. The last survives the process and not the machine.
    pub domain: String,
    /// True if the domain is persistent memory of the device.
    pub is_persistent: bool,
    /// The instruction that flushes lines.
    pub flushes_with: String,
    /// The number of examined single-page commits.
    pub single_page_commits: u64,
    /// The number of those that flushed the changed lines and one more.
    pub single_page_commits_of_updated_lines_plus_one: u64,
    /// The number of lines that such a commit changed.
    pub updated_lines_per_commit: f64,
    /// The number of lines that it flushed.
    pub flushed_lines_per_commit: f64,
    /// The number of fences that it waited for.
    pub fences_per_commit: f64,
}

/// A mapped file that counts flushes and fences.
#[derive(Debug)]
struct Counted {
    inner: Pmem,
    lines: AtomicU64,
    fences: AtomicU64,
}

impl Medium for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn granularity(&self) -> Granularity {
        self.inner.granularity()
    }

    fn domain(&self) -> Domain {
        self.inner.domain()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn grow(&self, len: u64) -> onehop_store::Result<()> {
        self.inner.grow(len)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> onehop_store::Result<()> {
        self.inner.read(at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> onehop_store::Result<()> {
        self.inner.write(at, bytes)
    }

    fn flush(&self, at: u64, len: usize) -> onehop_store::Result<()> {
        let lines = (at % LINE_BYTES + len as u64).div_ceil(LINE_BYTES);
        self.lines.fetch_add(if len == 0 { 0 } else { lines }, Relaxed);
        self.inner.flush(at, len)
    }

    fn fence(&self) -> onehop_store::Result<()> {
        self.fences.fetch_add(1, Relaxed);
        self.inner.fence()
    }
}

/// A file, removed when dropped.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Harmless if it fails: the next run reports a leftover file.
        let _ = fs::remove_file(&self.0);
    }
}

/// Examines mapped memory at `path`, which must not exist. Values and seed are those of `data`.
///
/// # Errors
/// Returns the store's error. Fails if `path` exists.
pub fn look(path: &Path, data: &Data) -> Result<Mapped> {
    let inner = Pmem::create(path, Emulation::Allowed)?;
    let _removed = Removed(path.into());
    let (domain, flushes_with) = (inner.domain(), inner.flushes_with().to_string());
    let counted = Arc::new(Counted { inner, lines: AtomicU64::new(0), fences: AtomicU64::new(0) });
    let store = Store::create_on(Arc::clone(&counted) as Arc<dyn Medium>, &Options::default())?;
    let mut random = Random::new(data.seed);
    let mut pair = |key: u64| -> (Key, Vec<u8>) { (key.to_be_bytes(), value(data, &mut random)) };
    let all: Vec<_> = (0..KEYS).map(&mut pair).collect();
    (&store).commit(&all)?;
    for key in 0..KEYS {
        (&store).commit(&[pair(key)])?;
    }
    store.checkpoint()?;
    let counts = || (counted.lines.load(Relaxed), counted.fences.load(Relaxed), store.stats());
    let mut sum = Sum::default();
    for key in 0..KEYS {
        let pair = pair(key);
        let before = counts();
        (&store).commit(&[pair])?;
        let after = counts();
        let (_, pages, updated) = after.2.last_batch;
        if pages == 1 && after.2.backend.checkpoints == before.2.backend.checkpoints {
            sum.add(updated, after.0 - before.0, after.1 - before.1);
        }
    }
    if sum.commits == 0 {
        return Err(Error::Driver(format!("no commit of {KEYS} changed one page alone").into()));
    }
    let each = |count: u64| count as f64 / sum.commits as f64;
    Ok(Mapped {
        domain: domain.to_string(),
        is_persistent: matches!(domain, Domain::Device | Domain::Caches),
        flushes_with,
        single_page_commits: sum.commits,
        single_page_commits_of_updated_lines_plus_one: sum.expected,
        updated_lines_per_commit: each(sum.updated),
        flushed_lines_per_commit: each(sum.flushed),
        fences_per_commit: each(sum.fences),
    })
}

/// The totals of single-page commits.
#[derive(Default)]
struct Sum {
    commits: u64,
    /// The number of commits that flushed the changed lines and one more.
    expected: u64,
    updated: u64,
    flushed: u64,
    fences: u64,
}

impl Sum {
    fn add(&mut self, updated: u64, flushed: u64, fences: u64) {
        self.commits += 1;
        self.expected += u64::from(flushed == updated + 1);
        self.updated += updated;
        self.flushed += flushed;
        self.fences += fences;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_of_one_page_flushes_what_it_changed_and_one_line_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.store");
        let mapped = look(&path, &Data { keys: 1, value_bytes: 100, seed: 1 }).unwrap();
        assert!(mapped.single_page_commits >= KEYS * 9 / 10, "{mapped:?}");
        assert_eq!(mapped.single_page_commits_of_updated_lines_plus_one, mapped.single_page_commits);
        assert_eq!(mapped.flushed_lines_per_commit, mapped.updated_lines_per_commit + 1.0);
        assert!(
            (2.0..=4.0).contains(&mapped.updated_lines_per_commit) && mapped.fences_per_commit == 2.0,
            "{mapped:?}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(&path, "mine").unwrap();
        assert!(matches!(look(&path, &Data { keys: 1, value_bytes: 100, seed: 1 }), Err(Error::Store(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
