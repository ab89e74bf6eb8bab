//! Fuzz targets: parsers of untrusted bytes, run over mutated inputs.
//!
//! A target takes bytes and must return [`Outcome::Accepted`] or [`Outcome::Refused`]. It must not
//! panic (a caught panic counts), abort, hang, or exceed its memory limit. Inputs come from seeds
//! in `fuzz/corpus/TARGET`, from seeds that a target creates when it starts, and from earlier
//! failures, which are kept in the corpus. [`Mutator`] damages them deterministically by a number,
//! so that one number repeats a failure.
//!
//! For images that are large, or have random identities, an input encodes the [`damage`] to an
//! image.
//!
//! A target runs in a process of its own ([`worker`]). Its watcher ([`watch`]) survives aborts and
//! hangs, and restarts the target after the failing input.

mod attached;
pub mod damage;
mod databases;
mod engine;
mod files;
mod mutator;
pub mod panics;
mod pipe;
mod protocol;
mod records;
mod seals;
mod segments;
mod server;
mod settings;
mod statements;
mod stores;
mod users;
pub mod watch;
pub mod worker;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use onehop_engine::{Error, ErrorKind};

pub use self::mutator::Mutator;

/// The outcome of an input without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The input was read completely.
    Accepted,
    /// The input was refused with an error.
    Refused,
}

/// The outcome of an input, or the description of a failure.
pub type Verdict = Result<Outcome, String>;

/// A parser under test.
pub trait Target {
    /// Returns inputs that are created anew in each process, besides those of the corpus.
    fn seeds(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Damages an input. Parts may come from `other`.
    fn mutate(&self, mutator: &mut Mutator, input: &[u8], other: &[u8]) -> Vec<u8> {
        mutator.mutate(input, other)
    }

    /// Runs the target on an input.
    fn run(&mut self, input: &[u8]) -> Verdict;

    /// Checks for failures over several inputs that no single one shows.
    ///
    /// # Errors
    /// Returns the description of a failure.
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// The name of a target, and its constructor.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name, also that of its corpus.
    pub name: &'static str,
    /// The number of inputs of a short run.
    pub short_inputs: u64,
    /// The memory limit of its process, in bytes.
    pub most_bytes: u64,
    make: fn() -> Made,
}

/// A target, or the reason it cannot be created.
pub type Made = Result<Box<dyn Target>, Error>;

impl Entry {
    const fn new(name: &'static str, short_inputs: u64, most_mib: u64, make: fn() -> Made) -> Self {
        Self { name, short_inputs, most_bytes: most_mib << 20, make }
    }

    /// Creates the target.
    ///
    /// # Errors
    /// Fails if a prerequisite of the target cannot be created.
    pub fn make(&self) -> Made {
        (self.make)()
    }

    /// Returns the inputs in the repository, by their paths, or none if there is no folder for
    /// them.
    ///
    /// # Errors
    /// Fails if the corpus cannot be read.
    pub fn corpus(&self, root: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let folder = root.join(self.name);
        if !folder.exists() {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder)? {
            paths.push(entry?.path());
        }
        paths.sort();
        paths.into_iter().map(|path| fs::read(&path).map(|bytes| (path, bytes))).collect()
    }
}

/// All targets. Statements are limited to 256 MiB. The limits here include the memory that several
/// statements retain.
pub const TARGETS: &[Entry] = &[
    Entry::new("parquet", 150, 1024, || files::queried("parquet")),
    Entry::new("arrow", 150, 1024, || files::queried("arrow")),
    Entry::new("arrow_stream", 150, 1024, || files::queried("arrows")),
    Entry::new("csv", 150, 1024, || files::queried("csv")),
    Entry::new("tbl", 150, 1024, || files::queried("tbl")),
    Entry::new("json", 150, 1024, || files::queried("json")),
    Entry::new("gz", 60, 1024, || files::queried("csv.gz")),
    Entry::new("bz2", 60, 1024, || files::queried("csv.bz2")),
    Entry::new("xz", 60, 1024, || files::queried("csv.xz")),
    Entry::new("zst", 60, 1024, || files::queried("csv.zst")),
    Entry::new("copy_csv", 150, 1024, || files::copied("csv")),
    Entry::new("copy_tbl", 150, 1024, || files::copied("tbl")),
    Entry::new("copy_json", 150, 1024, || files::copied("json")),
    Entry::new("paths", 150, 1024, files::paths),
    Entry::new("sql", 150, 1024, statements::planned),
    Entry::new("execute", 150, 1024, statements::executed),
    Entry::new("prepared", 100, 1024, statements::prepared),
    Entry::new("settings", 300, 1024, settings::target),
    Entry::new("segment", 3000, 256, segments::target),
    Entry::new("store_flips", 600, 256, || stores::target(stores::Layout::Flips)),
    Entry::new("store_lines", 600, 256, || stores::target(stores::Layout::Lines)),
    Entry::new("records", 40, 1024, records::target),
    Entry::new("database", 40, 1024, databases::target),
    Entry::new("pipe", 100, 1024, pipe::target),
    Entry::new("wire", 150, 1024, protocol::conversations),
    Entry::new("values", 300, 1024, protocol::values),
    Entry::new("copy_binary", 150, 1024, protocol::copy_binary),
    Entry::new("attached", 2000, 256, attached::target),
    Entry::new("http", 100, 1024, server::http),
    Entry::new("users", 500, 256, users::target),
];

/// Judges the outcome of a statement.
fn judge<T>(result: &Result<T, Error>) -> Verdict {
    match result {
        Ok(_) => Ok(Outcome::Accepted),
        Err(e) if e.kind() == ErrorKind::Internal => Err(format!("internal: {}", causes(e))),
        Err(_) => Ok(Outcome::Refused),
    }
}

/// Returns an error with its causes.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Combines several verdicts: the first failure, or acceptance if none refused.
fn together(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let mut outcome = Outcome::Accepted;
    for verdict in verdicts {
        if verdict? == Outcome::Refused {
            outcome = Outcome::Refused;
        }
    }
    Ok(outcome)
}
