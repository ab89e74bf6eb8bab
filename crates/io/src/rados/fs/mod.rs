//! Files and directories on two pools: names in a replicated one, bytes in any.
//!
//! # Layout
//! | object | pool | what it is |
//! |---|---|---|
//! | `super` | names | version, features, chunk size, data pool: text, a line each ([`superblock`]) |
//! | `d.ID` | names | a directory: its names and its unfinished business as entries ([`record`]), its state as attributes |
//! | `t.ID` | names | a transaction: how it stands, its task attempts, what its commit touches ([`transaction`]) |
//! | `g.SHARD` | names | which directories have unfinished business, and which transactions there are |
//! | `moves` | names | whose turn it is to move a directory into another one |
//! | `f.ID.N` | data | chunk N of what writer ID has written, once, and the CRC-32C of each block of it as an attribute |
//!
//! `ID`s are 128 random bits. A chunk is never written again and never written over; a directory's object stays what it is
//! however often the directory moves. So nothing is copied by a rename, whatever is below the name.
//!
//! A directory is one object: some 100,000 names are well, 200,000 make the cluster warn. It is not split yet; the version in
//! `super` is there for that.
//!
//! # The one rule
//! **What a directory knows about a file or a directory below it, it knows in one entry at a time**: an *intent* (`i/`), a
//! *name* (`n/`) or *garbage* (`x/`); and every step from one to the next is a single compound operation on the directory's
//! object, which compares the bytes of what it replaces.
//!
//! ```text
//!           write, mkdir             close                     remove, overwrite
//!  nothing ────────────► intent i/ID ──────► name n/NAME ──────────────────────► garbage x/ID ──► nothing
//!                            │                 │     ▲                               ▲     after the grace time, and
//!                            │                 └─────┘ rename                        │     when all chunks are gone
//!                            └───────────────────────────────────────────────────────┘
//!                              lease over: condemned by the collector
//! ```
//!
//! From this follows, for a crash of any client at any point:
//! - *Visible whole or not at all*: a name appears in one operation, after all chunks were answered for.
//! - *Nothing live is collected*: the collector removes chunks of what is garbage. What is garbage was an intent, whose
//!   removal makes the operation that would give it a name fail for ever (it compares with the intent); or a name, which the
//!   same operation took away. No clock and no lease has a part in this: a lease only says when it is polite.
//! - *All garbage is found*: chunks are written only under an intent that is there, and says how many there may be.
//! - A file that a *transaction* has staged is the one thing that two entries may know: its attempt's and a name that is tagged. Which of
//!   them counts is what the transaction's state says, and that changes once.
//! - *An operation that got no answer* may happen later. It compares with bytes that were never there before and never will be
//!   again, so it happens at most once, and whoever has replaced what it compares with has made it impossible. That *nothing*
//!   is there is no such comparison: it holds again later. So what begins with nothing, an intent or the record of a move, is
//!   asked for once under each ID, and one without an answer is never used.
//!
//! # Finding garbage without looking everywhere
//! A directory's attribute `hint` is a *ticket* while `g.SHARD` lists it, and begins with `-` while it may not. Intents, garbage
//! and records of moves are added by operations that compare the ticket. A client takes one in this order: list the
//! directory with a new ticket, then replace the `-` that it has *seen*. The collector gives one back in this order: read what
//! the list says, set the hint to a new `-`, look whether there is really nothing, take the directory off the list if it says
//! what it said. A client whose first half is from before that finds another `-`, one whose second half was faster makes the
//! collector's step fail.
//!
//! # Renames, removals, collection, transactions
//! The headers of [`rename`], [`remove`], [`collect`] and [`transaction`] have their protocols.
//!
//! # What is not promised
//! - One listing is not of one moment: pages are.
//! - A directory that somebody has a file open in may be removed: closing the file then says that nothing has this name.
//! - A chunk of a writer that stood still between looking at the clock and sending, for longer than its lease, stays as an
//!   object that nobody knows. Only [`FileSystem::check`] with `Depth::Objects` finds it.
//! - `a` and `a/b` cannot both be files.

pub(super) mod budget;
mod check;
pub(super) mod clock;
mod collect;
mod concat;
mod directory;
mod id;
mod list;
mod outbox;
mod path;
mod read;
mod record;
mod remove;
mod rename;
mod reserve;
mod send;
mod side_by_side;
mod superblock;
mod times;
mod transaction;
mod tree;
mod turns;
mod write;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use check::{Depth, Findings};
pub use clock::{Clock, SimClock, SystemClock};
pub use collect::Collected;
pub use id::Id;
pub use list::{Entry, Kind, Page};
pub use read::{BLOCK_BYTES, File, Piece, Reader};
pub use transaction::{
    Staged, StagedFiles, TaskAttempt, Transaction, TransactionOptions, TransactionState, TransactionStatus,
};
pub use tree::TreeWriter;
pub use write::{Replace, Writer};

use super::combine::Combined;
use super::{Cluster, Code, Error, Objects, Problem, ReadOp, Result, WriteOp};
use budget::Budget;
use clock::millis;
use path::Path;
use superblock::{Feature, Superblock};
use transaction::Known;
use turns::Turns;

/// How a client works; nothing here is stored, but for `chunk_bytes` when a file system is made.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// Bytes of a chunk, 64 KiB to 64 MiB, a multiple of 64 KiB. 4 to 8 MiB keep OSDs busiest, which have memory
    /// of 8 MiB from the system for each, and of 4 MiB at hand.
    pub chunk_bytes: u32,
    /// Bytes that a file, or a task attempt with all its files, has in flight when it is its turn; others have two chunks while
    /// somebody is before them.
    pub window_bytes: usize,
    /// Bytes that all writers of a file system have in flight.
    pub in_flight_bytes: usize,
    /// Bytes that wait for their turn beside those, all writers' together, while the next ones are made. 0: who has made a chunk sends it,
    /// and waits itself.
    pub waiting_bytes: usize,
    /// Bytes that one reader reads ahead.
    pub read_ahead_bytes: usize,
    /// How long a writer may be silent.
    pub lease: Duration,
    /// How long readers can go on with a file that was removed.
    pub grace: Duration,
    /// How long a move into another directory, or the removal of an empty one, may take before others undo it.
    pub move_lease: Duration,
    /// How long to go on trying while others are in the way.
    pub patience: Duration,
    /// Objects that the commit of a transaction works on at once, each by a thread.
    pub at_once: usize,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: 4 << 20,
            window_bytes: 64 << 20,
            in_flight_bytes: 192 << 20,
            waiting_bytes: 64 << 20,
            read_ahead_bytes: 32 << 20,
            lease: Duration::from_secs(24 * 3600),
            grace: Duration::from_secs(3600),
            move_lease: Duration::from_secs(60),
            patience: Duration::from_secs(120),
            at_once: 32,
        }
    }
}

/// A file system. Cheap to clone; all methods may be called from many threads.
#[derive(Clone, Debug)]
pub struct FileSystem {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    meta: Arc<dyn Objects>,
    data: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    budget: Budget,
    turns: Turns,
    options: FsOptions,
    superblock: Superblock,
    /// Those of the superblock, and those that were added since.
    features: Mutex<BTreeSet<Feature>>,
    /// What was learned of transactions and need not be asked for again.
    known: Mutex<BTreeMap<Id, Known>>,
}

impl FileSystem {
    /// Makes an empty file system: names in one pool, bytes in another (or the same), in a namespace of both.
    ///
    /// # Errors
    /// If there is one already, which is left as it is.
    pub fn create(cluster: &Arc<Cluster>, meta: &str, data: &str, space: &str, options: FsOptions) -> Result<Self> {
        let (names, bytes) = (cluster.pool(meta, space)?, cluster.pool(data, space)?);
        Self::create_on(names, bytes, data, Arc::new(SystemClock), options)
    }

    /// Opens a file system by its pool of names.
    ///
    /// # Errors
    /// If there is none, or one of another version.
    pub fn open(cluster: &Arc<Cluster>, meta: &str, space: &str, options: FsOptions) -> Result<Self> {
        let names = cluster.pool(meta, space)?;
        let superblock = Superblock::read(&*names)?;
        let bytes = cluster.pool(&superblock.data_pool, space)?;
        Ok(Self::assemble(names, bytes, Arc::new(SystemClock), options, superblock))
    }

    /// Makes a file system on objects of any kind. `data_pool` is what [`Self::open`] finds the bytes by.
    pub fn create_on(
        meta: Arc<dyn Objects>,
        data: Arc<dyn Objects>,
        data_pool: &str,
        clock: Arc<dyn Clock>,
        options: FsOptions,
    ) -> Result<Self> {
        let superblock = Superblock::new(data_pool, options.chunk_bytes)?;
        // These first: a file system that is there has them.
        directory::make_object(&*meta, Id::ROOT, b"-")?;
        meta.write(rename::TURNS, WriteOp::new("make").create())?;
        let names = ReadOp::new("look at").page(record::NAMES, Vec::new(), 1);
        let has_names = !meta.read(&directory::object_of(Id::ROOT), names)?.entries.is_empty();
        if has_names && Superblock::read(&*meta).is_err_and(|error| error.is(Code::NOT_FOUND)) {
            let what = "it is missing, and there are files that it says how to read".to_string();
            return Err(Error::Corrupt { pool: meta.name().into(), object: superblock::NAME.into(), what });
        }
        superblock.write(&*meta)?;
        Ok(Self::assemble(meta, data, clock, options, superblock))
    }

    /// Opens a file system on objects of any kind.
    pub fn open_on(
        meta: Arc<dyn Objects>,
        data: Arc<dyn Objects>,
        clock: Arc<dyn Clock>,
        options: FsOptions,
    ) -> Result<Self> {
        let superblock = Superblock::read(&*meta)?;
        Ok(Self::assemble(meta, data, clock, options, superblock))
    }

    fn assemble(
        meta: Arc<dyn Objects>,
        data: Arc<dyn Objects>,
        clock: Arc<dyn Clock>,
        options: FsOptions,
        superblock: Superblock,
    ) -> Self {
        let budget = Budget::new(options.in_flight_bytes);
        let chunks = |bytes: usize| bytes / superblock.chunk_bytes as usize;
        let turns = Turns::new(chunks(options.window_bytes), chunks(options.waiting_bytes));
        let (features, known) = (Mutex::new(superblock.features.clone()), Mutex::default());
        let meta = Combined::new(meta);
        Self { inner: Arc::new(Inner { meta, data, clock, budget, turns, options, superblock, features, known }) }
    }

    /// Has the superblock say that something is used that not every version knows.
    fn use_feature(&self, feature: Feature) -> Result<()> {
        let known = || self.inner.features.lock().unwrap_or_else(PoisonError::into_inner);
        if !known().contains(&feature) {
            let now = Superblock::add_feature(&*self.inner.meta, feature)?;
            *known() = now.features;
        }
        Ok(())
    }

    /// The name to use in messages.
    pub fn name(&self) -> &str {
        self.inner.meta.name()
    }

    /// The pool of the bytes.
    pub fn data_pool(&self) -> &str {
        &self.inner.superblock.data_pool
    }

    /// Bytes of a chunk, of files that are written now.
    pub fn chunk_bytes(&self) -> u32 {
        self.inner.superblock.chunk_bytes
    }

    fn now_ms(&self) -> u64 {
        self.inner.clock.now_ms()
    }

    fn due_ms(&self, lease: Duration) -> u64 {
        self.now_ms().saturating_add(millis(lease))
    }

    fn new_id(&self) -> Result<Id> {
        Id::random().map_err(|error| Error::Cluster {
            what: "get random numbers of the system".into(),
            code: Code(error.raw_os_error().unwrap_or(libc::EIO)),
        })
    }

    /// How often to try while others are in the way.
    fn retry<'a>(&'a self, operation: &'static str, path: &'a Path<'a>) -> Retry<'a> {
        Retry { fs: self, operation, path, until_ms: self.due_ms(self.inner.options.patience), pause_ms: 0 }
    }
}

/// Tries again, at once at first, then at ever longer intervals, until patience ends.
struct Retry<'a> {
    fs: &'a FileSystem,
    operation: &'static str,
    path: &'a Path<'a>,
    until_ms: u64,
    pause_ms: u64,
}

impl Retry<'_> {
    /// Somebody was faster.
    fn again(&mut self) -> Result<()> {
        self.again_behind(None)
    }

    /// Somebody is in the middle of something: this transaction, or something short.
    fn wait(&mut self, holder: Option<Id>) -> Result<()> {
        self.pause_ms = self.pause_ms.max(5);
        self.again_behind(holder)
    }

    fn again_behind(&mut self, holder: Option<Id>) -> Result<()> {
        if self.fs.now_ms() >= self.until_ms {
            return Err(self.error(holder.map_or(Problem::Busy, Problem::InTransaction)));
        }
        if self.pause_ms > 0 {
            self.fs.inner.clock.sleep(Duration::from_millis(self.pause_ms));
        }
        self.pause_ms = (self.pause_ms * 2).clamp(1, 200);
        Ok(())
    }

    fn error(&self, problem: Problem) -> Error {
        self.path.error(self.operation, problem)
    }
}
