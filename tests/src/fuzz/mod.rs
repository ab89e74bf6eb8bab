//! Fuzz targets: what reads bytes from strangers, over mutated inputs.
//!
//! A target takes bytes and must come back: [`Outcome::Accepted`] or [`Outcome::Refused`]. It must not
//! panic (a panic that something catches counts), not abort, not hang, and not hold more memory than
//! its limit. Inputs come from seeds in `fuzz/corpus/TARGET`, from seeds that a target makes when it
//! starts, and from what has failed before, which is kept in the corpus. [`Mutator`] damages them: the
//! same damage for the same number, so that one number repeats a failure.
//!
//! Where images are large, or of random identity, an input is no image but the [`damage`] to one.
//!
//! A target runs in a process of its own ([`worker`]). What watches it ([`watch`]) outlives aborts and
//! hangs, and has the target go on behind the input.

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

/// What an input came to, if nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was read, all of it.
    Accepted,
    /// There was an error, as there should be.
    Refused,
}

/// What an input came to, or what is wrong with that.
pub type Verdict = Result<Outcome, String>;

/// A reader of bytes.
pub trait Target {
    /// Inputs that are made anew in each process, besides those of the corpus.
    fn seeds(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Damages an input. `other` is what parts may come from.
    fn mutate(&self, mutator: &mut Mutator, input: &[u8], other: &[u8]) -> Vec<u8> {
        mutator.mutate(input, other)
    }

    /// Reads an input.
    fn run(&mut self, input: &[u8]) -> Verdict;

    /// Says what is wrong after some inputs, or all, that no single one shows.
    ///
    /// # Errors
    /// What is wrong.
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// The name of a target, and what it is made by.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name, which is that of its corpus.
    pub name: &'static str,
    /// Inputs of a short run.
    pub short_inputs: u64,
    /// Bytes that its process may hold.
    pub most_bytes: u64,
    make: fn() -> Made,
}

/// A target, or why there is none.
pub type Made = Result<Box<dyn Target>, Error>;

impl Entry {
    const fn new(name: &'static str, short_inputs: u64, most_mib: u64, make: fn() -> Made) -> Self {
        Self { name, short_inputs, most_bytes: most_mib << 20, make }
    }

    /// Makes it.
    ///
    /// # Errors
    /// What it stands on cannot be made.
    pub fn make(&self) -> Made {
        (self.make)()
    }

    /// The inputs that are kept in the repository, by their names: none, if it has no folder there.
    ///
    /// # Errors
    /// The corpus cannot be read.
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

/// All targets. Statements may have 256 MiB, and what several of them leave comes on top.
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

/// Judges what a statement came to.
fn judge<T>(result: &Result<T, Error>) -> Verdict {
    match result {
        Ok(_) => Ok(Outcome::Accepted),
        Err(e) if e.kind() == ErrorKind::Internal => Err(format!("internal: {}", causes(e))),
        Err(_) => Ok(Outcome::Refused),
    }
}

/// An error and what it was caused by.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What several judgements come to: the first failure, or acceptance if nothing was refused.
fn together(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let mut outcome = Outcome::Accepted;
    for verdict in verdicts {
        if verdict? == Outcome::Refused {
            outcome = Outcome::Refused;
        }
    }
    Ok(outcome)
}
