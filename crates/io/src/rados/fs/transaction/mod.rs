//! Transactions: many files, in many directories, written by many processes, that become visible at one moment or never.
//!
//! # Who does what
//! A *transaction* T is an object ([`object`]). *Task attempts* write files into directories of their own that have no name
//! anywhere, but in T: as into any other, each under an intent, and each whole once it has a name there. That name says where
//! the file is to be and whether it may replace what is there ([`attempt`]). One attempt of each task is made the one that counts: it
//! is *sealed* (its directory takes nothing more), then T says so, in an operation that compares that T is pending and that no
//! other attempt of the task counts: the first one wins.
//!
//! # The commit
//! 1. T: pending → *committing* by K. From here on no attempt is added or committed: who tries compares with `pending`.
//! 2. The winners' directories are listed, and the directories that the files are to be in are looked up: only reading.
//! 3. T: which directories will be touched, which will be made.
//! 4. Missing directories, and those that replace others, are made with all that will be in them. Nothing refers to them.
//! 5. In each directory D that is there, up to 1,000 names in one operation: they become *staged* dentries, which have what is new,
//!    what was before, and T; and D gets a mark `s/T`. The operation compares each name with what was seen there.
//! 6. T: committing by K → committed. **This is the moment at which all of it becomes visible.**
//! 7. In each D staged dentries become plain ones, what was before becomes garbage of D, and the mark goes with the last of them.
//! 8. The attempts' directories go, then T, then T's place in the list.
//!
//! Who reads a staged dentry asks T: committed means the new one; anything else, or no T at all, means what was before. Whoever
//! wants to *change* the name first brings it to an end: forward if T is committed, back if it is aborted. If T is neither, its
//! lease says how long to wait; then T is **first** aborted (step 6 compares with what it takes away), **then** names are
//! brought back.
//!
//! # Two that hold up each other
//! Whoever meets, in steps 2 to 5, a name that is staged by a transaction U that is being committed waits for U. Before it waits, T says so: an
//! entry `w/U`. Each time it looks again it also asks U for its `w/`, and those for theirs: if that leads back to T, none of them
//! would ever go on. The one of them with the greatest identity *gives way*: it brings back all that it has staged, removes
//! the directories that it has made, waits until the one that holds it up has ended, and goes on with step 2. It is still being committed
//! by K, so all that was said of that holds; and it holds up nobody while it waits. An entry `w/U` stays, though T may not be
//! held up any more: then somebody gives way who need not have, and loses a little time.
//!
//! # Why it holds
//! - *All or nothing*: the one thing that readers ask is T's state, and step 6 changes it once. Step 7 changes nothing that
//!   anybody sees.
//! - *Who owns chunks*: until T is committed its attempts' directories do, and nothing that removes staged names or directories
//!   made by step 4 removes chunks. From step 6 on the dentries do: then the directories of *winners* go without the chunks
//!   that have names in them, as T's entries say, which nobody can change since step 1.
//! - *No T means not committed*: T goes only after the marks have gone from all directories that step 3 has named. Whoever saw a
//!   staged dentry and then no T looks at the dentry again, or changes it by comparing it.
//! - *Zombies*: an attempt that goes on after T has ended, or after it has itself been committed or aborted, finds its
//!   directory sealed, dead or gone, and T not pending. A writer asks before it sends more, when half of the grace time is over;
//!   what it has sent until then is removed when all of it is over.
//! - *Operations without an answer*: one of steps 1 and 6 is asked for again, and looked for: states are never come back to.
//!   One of steps 3 to 5 ends the commit: T is aborted, and **never** committed, so that a dentry that is staged late, even in
//!   the place of nothing, which is there again and again, is one of an aborted transaction. It comes with its mark, and D is listed,
//!   so the collector finds it when there is no T any more. For the same reason a commit is never gone on with by somebody
//!   else: one committer, one set of stamps, each operation sent once.
//!
//! # What a crash leaves
//! Before step 6: T, which anybody aborts when its lease is over: a long one while tasks work, when nobody is held up by it, and
//! one of [`FsOptions::move_lease`](super::FsOptions) from step 1 on. After step 6: T, which anybody carries out. T has been in
//! the list of its shard (`g.N`) since before it was made, so the collector finds it; it has the list of its directories; and in these it finds
//! staged names by paging through them, once there is a mark. What an aborted transaction has written goes after the grace time.
//!
//! # What is promised, and what is not
//! - A directory that is *renamed* while a transaction has staged names in it, or below it, takes them along: they belong to the
//!   directory, not to the path.
//! - A directory that is *removed with all that is in it*, or replaced by another transaction, takes along what is staged below
//!   it, even if that is committed a moment later: as if it had been committed a moment before. The other directories are not
//!   affected.
//! - A directory with names staged by a transaction that has not ended is *not empty* for who removes it if it is.
//! - A directory that disappears between steps 2 and 5 makes the commit fail. One that appears is used.
//! - What is put into a directory that is being replaced goes with it.
//! - Whoever writes, renames or removes a *staged name* waits for the transaction, for as long as its patience lasts. Transactions
//!   that stage the same names are committed one after the other, in whatever order they stage them.
//! - Attempts are told that they have ended when somebody carries out what follows from that. If the committer dies after step 6
//!   and nobody collects for a grace time, a zombie may send a chunk that only [`FileSystem::check`] finds.
//! - A client that has stood still for longer than lease and grace time, between finding out how T stands and making a
//!   directory of an attempt or of the commit, may leave an object that only [`FileSystem::check`] finds; so may an operation
//!   that makes one, has no answer, and comes as late as that.

mod attempt;
mod commit;
mod finish;
pub(super) mod object;
mod plan;
mod staged;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;

use std::fmt;
use std::time::Duration;

pub(super) use attempt::Beginning;
pub use attempt::TaskAttempt;
pub(super) use finish::Settling;
pub(super) use object::{Fate, Fates, Known};
pub use staged::{Staged, StagedFiles};

use super::super::objects::{ReadOp, WriteOp};
use super::super::{Code, Error, Result, TransactionProblem};
use super::clock::millis;
use super::directory::Outcome;
use super::path::Path;
use super::record::{Mark, Record};
use super::superblock::Feature;
use super::{FileSystem, Id};
use object::{
    ATTEMPTS, Attempt, Condition, DUE, Lease, Look, REPLACED, STATE, State, TOUCHED, WINNERS, object_of, shard_of,
};

/// How a transaction is begun.
#[derive(Clone, Copy, Debug)]
pub struct TransactionOptions {
    /// For how long nobody may hear of it before others may abort it: [`Transaction::renew`], and each task attempt that is
    /// begun or committed, begin it again.
    pub lease: Duration,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(3600) }
    }
}

/// How a transaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// Task attempts may be added and committed.
    Pending,
    /// Somebody is committing it; nothing is visible yet.
    Committing,
    /// All of it is visible.
    Committed,
    /// Nothing of it is visible, nor ever will be.
    Aborted,
}

impl From<State> for TransactionState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => Self::Pending,
            State::Committing { .. } => Self::Committing,
            State::Committed { .. } => Self::Committed,
            State::Aborted { .. } => Self::Aborted,
        }
    }
}

impl fmt::Display for TransactionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "pending",
            Self::Committing => "committing",
            Self::Committed => "committed",
            Self::Aborted => "aborted",
        })
    }
}

/// What there is to know about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionStatus {
    /// Which one.
    pub id: Id,
    /// How it stands.
    pub state: TransactionState,
    /// Until when it must be renewed, in milliseconds since 1970.
    pub due_ms: u64,
    /// Task attempts that were begun and not aborted.
    pub attempts: u64,
    /// Tasks of which an attempt is committed, and which one.
    pub committed: Vec<(String, String)>,
    /// Directories that the commit replaces.
    pub replaced: Vec<String>,
    /// Directories that were there and in which it has staged names, or may have.
    pub touched: u64,
}

/// A transaction, by its identity: any number of processes may have one. Cheap to clone; all methods may be called from many
/// threads. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Transaction {
    fs: FileSystem,
    id: Id,
}

impl FileSystem {
    /// Begins a transaction. It is to be committed, aborted, or renewed within its lease.
    pub fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        const OPERATION: &str = "begin";
        self.use_feature(Feature::Transactions)?;
        let id = self.new_id()?;
        let lease_ms = millis(options.lease);
        let lease = Lease { due_ms: self.due_ms(options.lease), lease_ms }.encode();
        let (meta, key) = (&self.inner.meta, object_of(id));
        meta.write(&shard_of(id), WriteOp::new("list a transaction in").set_entry(key.clone(), lease.clone()))?;
        let make = WriteOp::new(OPERATION).create_new();
        meta.write(&key, make.set_attribute(STATE, State::Pending.encode()).set_attribute(DUE, lease))?;
        // Who found it in the list, and no object for as long as the lease, has taken it off.
        let listed = meta.read(&shard_of(id), ReadOp::new("read").entries(vec![key.clone().into_bytes()]))?;
        if listed.entry(key.as_bytes()).is_none() {
            let _ = meta.write(&key, WriteOp::new("remove").remove());
            return Err(error(OPERATION, id, TransactionProblem::Aborted));
        }
        self.remember(id, Known::Pending { lease_ms });
        Ok(Transaction { fs: self.clone(), id })
    }

    /// A transaction that somebody has begun. Nothing is asked: the first operation that needs it finds out whether it is there.
    pub fn transaction(&self, id: Id) -> Transaction {
        Transaction { fs: self.clone(), id }
    }

    /// All transactions that are not dealt with, in order of their identities.
    pub fn transactions(&self) -> Result<Vec<TransactionStatus>> {
        let mut all = Vec::new();
        for id in self.transaction_ids()? {
            match self.transaction(id).status() {
                // It has ended since.
                Err(Error::Transaction { .. }) => {}
                status => all.push(status?),
            }
        }
        all.sort_by_key(|status| status.id);
        Ok(all)
    }

    /// The identities of all transactions that are listed.
    pub(super) fn transaction_ids(&self) -> Result<Vec<Id>> {
        let mut ids = Vec::new();
        self.each_listed("t.", |_, id, _| {
            ids.push(id);
            Ok(())
        })?;
        Ok(ids)
    }
}

fn error(operation: &'static str, transaction: Id, problem: TransactionProblem) -> Error {
    Error::Transaction { operation, transaction, problem }
}

impl Transaction {
    /// Unlike that of every other transaction that was ever begun. [`FileSystem::transaction`] takes it, in any process.
    pub fn id(&self) -> Id {
        self.id
    }

    /// How it stands.
    ///
    /// # Errors
    /// If there is none: one that has ended is there until all of it is dealt with, which may be at once.
    pub fn state(&self) -> Result<TransactionState> {
        Ok(self.look("ask for the state of", Vec::new())?.state.into())
    }

    /// Says that somebody still cares about it: nobody else may abort it for another lease.
    ///
    /// # Errors
    /// If it has ended.
    pub fn renew(&self) -> Result<()> {
        const OPERATION: &str = "renew";
        loop {
            let look = self.look(OPERATION, Vec::new())?;
            if let State::Committed { .. } | State::Aborted { .. } = look.state {
                return Err(self.ended(OPERATION, look.state));
            }
            let op = WriteOp::new(OPERATION).assert_exists().attribute_is(STATE, look.state.encode());
            let op = op.set_attribute(DUE, self.renewed(look.lease_ms).encode());
            match self.fs.attempt(&object_of(self.id), op)? {
                Outcome::Done => return Ok(()),
                Outcome::Conflict => {}
                Outcome::Unknown(error) => return Err(error),
            }
        }
    }

    /// Has the commit replace a directory, whole, by one that has only what this transaction has written below it. One that is
    /// not there then is made. May be called more than once, by anybody, while the transaction is pending.
    pub fn replace_directory(&self, path: &str) -> Result<()> {
        self.replace_directories(&[path])
    }

    /// The same for many directories, 1,000 in one operation. After an error some may be replaced by the commit, and others not.
    pub fn replace_directories(&self, paths: &[&str]) -> Result<()> {
        const OPERATION: &str = "replace directory";
        let mut keys = Vec::with_capacity(paths.len());
        for path in paths {
            let parsed = Path::parse(OPERATION, path)?;
            parsed.split(OPERATION)?;
            keys.push([REPLACED, parsed.names.join("/").as_bytes()].concat());
        }
        for keys in keys.chunks(commit::BATCH) {
            let mark = Mark { stamp: self.fs.new_id()? }.encode();
            let op = keys.iter().fold(self.in_pending(OPERATION), |op, key| op.set_entry(key.clone(), mark.clone()));
            match self.fs.attempt(&object_of(self.id), op)? {
                Outcome::Done => {}
                Outcome::Conflict => return Err(self.not_pending(OPERATION)),
                Outcome::Unknown(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes sure that nothing of it ever becomes visible. May be called more than once.
    ///
    /// # Errors
    /// If it is committed. After another error it may be called again; if nobody does, the lease ends it.
    pub fn abort(&self) -> Result<()> {
        const OPERATION: &str = "abort";
        loop {
            // What was dealt with before we have come was aborted, or cannot be any more.
            let look = self.look(OPERATION, Vec::new())?;
            match look.state {
                State::Committed { .. } => return Err(self.ended(OPERATION, look.state)),
                State::Aborted { .. } => break,
                State::Pending | State::Committing { .. } => {
                    let aborted = State::Aborted { at_ms: self.fs.now_ms() };
                    if self.fs.decide(self.id, look.state, aborted, None, None)? {
                        break;
                    }
                }
            }
        }
        // It has happened: what is left, others do as well.
        let _ = self.fs.settle_transaction(self.id, Settling::Discard);
        Ok(())
    }

    /// What there is to know about it. Not of one moment, if there are more than 1,000 task attempts.
    pub fn status(&self) -> Result<TransactionStatus> {
        let look = self.look("look at", Vec::new())?;
        let mut status = TransactionStatus {
            id: self.id,
            state: look.state.into(),
            due_ms: look.due_ms,
            attempts: 0,
            committed: Vec::new(),
            replaced: Vec::new(),
            touched: 0,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.fs.each_record(self.id, b"", |look, key, value| {
            if key.starts_with(ATTEMPTS) {
                status.attempts += u64::from(look.decode::<Attempt>(key, value)?.condition == Condition::Open);
            } else if let Some(task) = key.strip_prefix(WINNERS) {
                status.committed.push((text(task), look.decode::<object::Winner>(key, value)?.attempt));
            } else if let Some(path) = key.strip_prefix(REPLACED) {
                status.replaced.push(format!("/{}", text(path)));
            } else {
                status.touched += u64::from(key.starts_with(TOUCHED));
            }
            Ok(())
        })?;
        Ok(status)
    }

    fn look(&self, operation: &'static str, keys: Vec<Vec<u8>>) -> Result<Look> {
        let look = self.fs.look_transaction(self.id, keys)?;
        look.ok_or_else(|| error(operation, self.id, TransactionProblem::NotThere))
    }

    /// The lease of one that is being worked on.
    fn renewed(&self, lease_ms: u64) -> Lease {
        Lease { due_ms: self.fs.now_ms().saturating_add(lease_ms), lease_ms }
    }

    /// A change of a transaction that must be pending.
    fn in_pending(&self, operation: &'static str) -> WriteOp {
        WriteOp::new(operation).assert_exists().attribute_is(STATE, State::Pending.encode())
    }

    fn ended(&self, operation: &'static str, state: State) -> Error {
        error(
            operation,
            self.id,
            match state {
                State::Committed { .. } => TransactionProblem::Committed,
                State::Committing { .. } => TransactionProblem::Committing,
                State::Pending | State::Aborted { .. } => TransactionProblem::Aborted,
            },
        )
    }

    /// Why a change of a pending one was not made.
    fn not_pending(&self, operation: &'static str) -> Error {
        match self.look(operation, Vec::new()) {
            Ok(look) => self.ended(operation, look.state),
            Err(error) => error,
        }
    }
}

/// Makes nothing of a missing object.
fn or_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is(Code::NOT_FOUND) => Ok(()),
        result => result,
    }
}
