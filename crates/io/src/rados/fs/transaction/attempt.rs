//! Task attempts: directories of their own, which nobody but their transaction knows.
//!
//! A name in such a directory says what is to be done with the file: a word, a slash, and the path that it is to have.
//!
//! | word | where the commit finds a file of this path already |
//! |---|---|
//! | `new` | it fails |
//! | `any` | that is replaced |
//! | an ID | that is replaced if it is this one, or the commit fails |
//!
//! An attempt is begun in this order: T gets its record; then its directory is made. Who finds the record finds the directory
//! or makes it, so one that is begun twice is the same. Once the directory is made, T is looked at again: who has
//! ended T before has not seen the directory.
//!
//! These are three operations in a row, a look before them where a client has not heard of T, and each of them is as late as the
//! chunks that the cluster has before it. So an attempt may begin while its first bytes are made: the first chunk of its files waits
//! for it, and its commit.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::thread;

use super::super::super::{Problem, Result, TransactionProblem, WriteOp};
use super::super::directory::{OF_TRANSACTION, Outcome, State as DirectoryState, make_object, object_of};
use super::super::path::Path;
use super::super::record::Record;
use super::super::reserve::Reserve;
use super::super::send::{Place, Staging, Target};
use super::super::turns::Turn;
use super::super::write::{Replace, Writer};
use super::super::{FileSystem, Id};
use super::object::{self, Attempt, Condition, DUE, State, Winner, attempt_key, winner_key};
use super::{Error, Transaction, error};
use crate::Ledger;

const BEGIN: &str = "begin a task attempt of";
const COMMIT: &str = "commit a task attempt of";
const ABORT: &str = "abort a task attempt of";
const WRITE: &str = "write";
const MAX_NAME_BYTES: usize = 256;

/// One attempt at a task of a transaction. Cheap to clone; all methods may be called from many threads. Dropping it changes
/// nothing.
#[derive(Clone, Debug)]
pub struct TaskAttempt {
    transaction: Transaction,
    task: Arc<str>,
    attempt: Arc<str>,
    beginning: Arc<Beginning>,
    /// Intents for the files to come.
    reserve: Arc<Reserve>,
    /// All its files' turn.
    turn: Arc<Turn>,
}

/// What there is once an attempt has begun.
#[derive(Clone, Debug)]
struct Begun {
    directory: Id,
    /// Its record in the transaction, as it was then.
    record: Arc<[u8]>,
}

/// How an attempt begins, once: who asks what has come of it waits for that.
pub(in super::super) struct Beginning(LazyLock<Result<Begun>, Box<dyn FnOnce() -> Result<Begun> + Send>>);

impl Beginning {
    /// It begins when somebody asks.
    fn later(transaction: Transaction, key: Vec<u8>) -> Self {
        Self(LazyLock::new(Box::new(move || transaction.begin_attempt(&key))))
    }

    /// It begins on a thread of its own; if there is none to be had, when somebody asks.
    fn beside(transaction: Transaction, key: Vec<u8>) -> Self {
        let begin = {
            let (transaction, key) = (transaction.clone(), key.clone());
            move || transaction.begin_attempt(&key)
        };
        match thread::Builder::new().name("onehop-attempt".into()).spawn(begin) {
            // A panic goes on where somebody sees it.
            Ok(begins) => Self(LazyLock::new(Box::new(|| begins.join().unwrap_or_else(|why| resume_unwind(why))))),
            Err(_) => Self::later(transaction, key),
        }
    }

    fn begun(&self) -> Result<&Begun> {
        self.0.as_ref().map_err(Clone::clone)
    }

    /// The attempt's directory.
    ///
    /// # Errors
    /// Why the attempt has not begun.
    pub fn directory(&self) -> Result<Id> {
        self.begun().map(|begun| begun.directory)
    }
}

impl fmt::Debug for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What has come of it would have to be waited for.
        f.write_str("Beginning")
    }
}

/// The name of a staged file in its attempt's directory.
fn staged_name(path: &Path<'_>, replace: Replace) -> String {
    let path = path.names.join("/");
    match replace {
        Replace::Never => format!("new/{path}"),
        Replace::File => format!("any/{path}"),
        Replace::Only(id) => format!("{id}/{path}"),
    }
}

/// What such a name says.
pub(super) fn parse_staged_name(name: &str) -> Option<(&str, Replace)> {
    let (word, path) = name.split_once('/')?;
    let replace = match word {
        "new" => Replace::Never,
        "any" => Replace::File,
        id => Replace::Only(Id::parse(id)?),
    };
    Some((path, replace))
}

/// What the hint of an attempt's directory says: who knows of it.
fn hint_of(transaction: Id) -> Vec<u8> {
    [OF_TRANSACTION, transaction.to_string().as_bytes()].concat()
}

impl Transaction {
    /// Begins an attempt of a task, or joins it: the same names are the same attempt, in whatever process.
    ///
    /// # Errors
    /// If the transaction is not pending, or the attempt was aborted.
    pub fn attempt(&self, task: &str, attempt: &str) -> Result<TaskAttempt> {
        let attempt = self.attempt_by(Beginning::later, task, attempt)?;
        attempt.beginning.begun()?;
        Ok(attempt)
    }

    /// The same, without waiting for the cluster: the attempt begins beside whatever the caller does. What [`Self::attempt`] fails
    /// with is then the error of the files' first chunks, of [`Writer::close`] and of [`TaskAttempt::commit`]; it stays so, and the
    /// attempt is good for nothing but [`TaskAttempt::abort`].
    ///
    /// # Errors
    /// If these are no names of a task and an attempt.
    pub fn start_attempt(&self, task: &str, attempt: &str) -> Result<TaskAttempt> {
        self.attempt_by(Beginning::beside, task, attempt)
    }

    fn attempt_by(&self, begin: fn(Self, Vec<u8>) -> Beginning, task: &str, attempt: &str) -> Result<TaskAttempt> {
        let bad = |name: &str| name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(['/', '\0']);
        if bad(task) || bad(attempt) {
            return Err(error(BEGIN, self.id, TransactionProblem::BadName));
        }
        Ok(TaskAttempt {
            transaction: self.clone(),
            task: task.into(),
            attempt: attempt.into(),
            beginning: Arc::new(begin(self.clone(), attempt_key(task, attempt))),
            reserve: Arc::default(),
            turn: Arc::new(self.fs.inner.turns.join()),
        })
    }

    fn begin_attempt(&self, key: &[u8]) -> Result<Begun> {
        let (record, raw) = self.record_attempt(key)?;
        make_object(&*self.fs.inner.meta, record.directory, &hint_of(self.id))?;
        match self.fs.look_transaction(self.id, vec![key.to_vec()])? {
            Some(look) if look.state == State::Pending && look.raw(key).as_ref() == Some(&raw) => {
                Ok(Begun { directory: record.directory, record: raw.into() })
            }
            // As long as it is there it knows of the directory, and sees to it.
            Some(look) if look.state != State::Pending => Err(self.ended(BEGIN, look.state)),
            Some(_) => Err(error(BEGIN, self.id, TransactionProblem::AttemptAborted)),
            None => {
                let remove = WriteOp::new("remove").remove();
                let _ = self.fs.inner.meta.write(&object_of(record.directory), remove);
                Err(error(BEGIN, self.id, TransactionProblem::NotThere))
            }
        }
    }

    /// The record of an attempt, whoever has stored it.
    fn record_attempt(&self, key: &[u8]) -> Result<(Attempt, Vec<u8>)> {
        let mut unknown = false;
        // First as if it were still pending and there were no record, without looking: that would take as long as what comes of it.
        let mut known = self.fs.known_lease_ms(self.id);
        loop {
            let lease_ms = match known.take() {
                Some(lease_ms) => lease_ms,
                None => {
                    let look = self.look(BEGIN, vec![key.to_vec()])?;
                    if look.state != State::Pending {
                        return Err(self.ended(BEGIN, look.state));
                    }
                    if let Some((record, raw)) = look.record::<Attempt>(key)?.zip(look.raw(key)) {
                        return match record.condition {
                            Condition::Open => Ok((record, raw)),
                            _ => Err(error(BEGIN, self.id, TransactionProblem::AttemptAborted)),
                        };
                    }
                    look.lease_ms
                }
            };
            // A record is never removed, so nothing is there but once.
            let record = Attempt { stamp: self.fs.new_id()?, directory: self.fs.new_id()?, condition: Condition::Open };
            let op = self.in_pending(BEGIN).entry_is(key, None).set_attribute(DUE, self.renewed(lease_ms).encode());
            match self.fs.attempt(&object::object_of(self.id), op.set_entry(key, record.encode()))? {
                Outcome::Done => return Ok((record, record.encode())),
                Outcome::Unknown(error) if unknown => return Err(error),
                Outcome::Unknown(_) => unknown = true,
                Outcome::Conflict => {}
            }
        }
    }
}

impl TaskAttempt {
    /// The task's name.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// The attempt's name.
    pub fn attempt(&self) -> &str {
        &self.attempt
    }

    /// Begins a file that will have this path when the transaction is committed; directories on the way that are missing are
    /// made then. Whether it may be there is seen then as well. A file that this attempt has written before under this path,
    /// with the same `replace`, is replaced. It is staged once [`Writer::close`] has succeeded.
    pub fn create(&self, path: &str, replace: Replace, ledger: Arc<Ledger>) -> Result<Writer> {
        let parsed = Path::parse(WRITE, path)?;
        parsed.split(WRITE)?;
        let staging = Staging { beginning: Arc::clone(&self.beginning), reserve: Arc::clone(&self.reserve) };
        let target = Target {
            path: path.into(),
            place: Place::Staged(staging),
            name: staged_name(&parsed, replace),
            replace: Replace::File,
            hint: hint_of(self.transaction.id),
            seen: None,
        };
        Writer::begin(&self.transaction.fs, target, Arc::clone(&self.turn), ledger)
    }

    /// Makes this the attempt of its task that counts. May be called more than once. Files that are not closed are discarded,
    /// and nothing can be added any more, whatever comes of it.
    ///
    /// # Errors
    /// If another attempt of the task counts: the first one that is committed wins.
    pub fn commit(&self) -> Result<()> {
        let (transaction, fs) = (&self.transaction, &self.transaction.fs);
        let begun = self.beginning.begun()?;
        // From here on: nobody else need wait for it to begin.
        let _hold = self.turn.hold();
        let (key, attempt) = (winner_key(&self.task), attempt_key(&self.task, &self.attempt));
        let directory = begun.directory;
        let winner = Winner { stamp: fs.new_id()?, directory, attempt: self.attempt.to_string() }.encode();
        // Whatever comes of that: if the attempt counts already, the transaction says so.
        let sealed = self.seal(directory);
        // First as it was when the attempt began, without looking.
        let mut known = fs.known_lease_ms(transaction.id).filter(|_| matches!(sealed, Ok(true)));
        let mut unknown = None;
        for _ in 0..8 {
            let lease_ms = match known.take() {
                Some(lease_ms) => lease_ms,
                None => match (self.look_before_commit(begun, &key, &attempt)?, &sealed) {
                    (None, _) => return Ok(()),
                    (Some(lease_ms), Ok(true)) => lease_ms,
                    (Some(_), Ok(false)) => {
                        return Err(error(COMMIT, transaction.id, TransactionProblem::AttemptAborted));
                    }
                    (Some(_), Err(error)) => return Err(error.clone()),
                },
            };
            // Who wins is never taken back, so this may be asked for more than once.
            let op = transaction
                .in_pending(COMMIT)
                .entry_is(attempt.clone(), Some(begun.record.to_vec()))
                .entry_is(key.clone(), None)
                .set_entry(key.clone(), winner.clone())
                .set_attribute(DUE, transaction.renewed(lease_ms).encode());
            match fs.attempt(&object::object_of(transaction.id), op)? {
                Outcome::Done => return Ok(()),
                Outcome::Conflict => {}
                Outcome::Unknown(error) => unknown = Some(error),
            }
        }
        Err(unknown.unwrap_or_else(|| transaction.not_pending(COMMIT)))
    }

    /// The transaction's lease, if this attempt may still become the one that counts; `None`: it is.
    fn look_before_commit(&self, begun: &Begun, winner: &[u8], attempt: &[u8]) -> Result<Option<u64>> {
        let transaction = &self.transaction;
        let look = transaction.look(COMMIT, vec![winner.to_vec(), attempt.to_vec()])?;
        if let Some(there) = look.record::<Winner>(winner)? {
            return match there.directory == begun.directory {
                true if !matches!(look.state, State::Aborted { .. }) => Ok(None),
                true => Err(transaction.ended(COMMIT, look.state)),
                false => Err(error(COMMIT, transaction.id, TransactionProblem::OtherAttempt(there.attempt))),
            };
        }
        if look.state != State::Pending {
            return Err(transaction.ended(COMMIT, look.state));
        }
        if look.raw(attempt).as_deref() != Some(&*begun.record) {
            return Err(error(COMMIT, transaction.id, TransactionProblem::AttemptAborted));
        }
        Ok(Some(look.lease_ms))
    }

    /// Sees to it that nothing is added to the directory any more, so that the commit finds all that there ever will be; false: the
    /// directory is dead or gone, and the transaction says why. It may be asked for in vain: who has not won is done with as well.
    fn seal(&self, directory: Id) -> Result<bool> {
        let (fs, (live, sealed)) = (&self.transaction.fs, (DirectoryState::Live, DirectoryState::Sealed));
        for _ in 0..8 {
            let seal = self.reserve.give_back(WriteOp::new("seal"));
            if fs.change_state_by(seal, directory, &live, &sealed)? {
                return Ok(true);
            }
            match fs.look(directory, Vec::new())?.map(|look| look.state) {
                Some(DirectoryState::Live) => {}
                Some(DirectoryState::Sealed) => return Ok(true),
                _ => break,
            }
        }
        Ok(false)
    }

    /// Discards what this attempt has written. May be called more than once, and after the transaction has ended.
    ///
    /// # Errors
    /// If the attempt is the one of its task that counts, and the transaction can still be committed.
    pub fn abort(&self) -> Result<()> {
        let (transaction, fs) = (&self.transaction, &self.transaction.fs);
        let (key, winner) = (attempt_key(&self.task, &self.attempt), winner_key(&self.task));
        // If it could not begin, half of that may have happened.
        let begun = self.beginning.begun().cloned().or_else(|error| match error {
            Error::Transaction { .. } => Err(error),
            _ => transaction.begin_attempt(&key),
        });
        let Begun { directory, record } = match begun {
            Ok(begun) => begun,
            // It, or the transaction, had ended before.
            Err(Error::Transaction { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        loop {
            let Some(look) = fs.look_transaction(transaction.id, vec![key.clone(), winner.clone()])? else {
                return Ok(());
            };
            if look.record::<Winner>(&winner)?.is_some_and(|winner| winner.directory == directory) {
                return match look.state {
                    State::Aborted { .. } => Ok(()),
                    _ => Err(error(ABORT, transaction.id, TransactionProblem::AttemptCommitted)),
                };
            }
            // It is discarded with the transaction, or without the others that count.
            if look.state != State::Pending || look.raw(&key).as_deref() != Some(&*record) {
                break;
            }
            let condition = Condition::Aborted { since_ms: fs.now_ms() };
            let aborted = Attempt { stamp: fs.new_id()?, directory, condition };
            let op = transaction
                .in_pending(ABORT)
                .entry_is(key.clone(), Some(record.to_vec()))
                .entry_is(winner.clone(), look.raw(&winner))
                .set_entry(key.clone(), aborted.encode());
            match fs.attempt(&object::object_of(transaction.id), op)? {
                Outcome::Done => break,
                Outcome::Conflict => {}
                Outcome::Unknown(error) => return Err(error),
            }
        }
        // Nothing was written under these. If they stay, they go with the directory.
        let give_back = self.reserve.give_back(WriteOp::new("give back").assert_exists());
        let _ = fs.attempt(&object_of(directory), give_back);
        // Who goes on writing gets to know soon.
        fs.kill(directory)
    }
}

impl FileSystem {
    /// An attempt's files, and whether there is anything else in its directory: files that were never closed, or replaced.
    pub(super) fn staged_files(&self, directory: Id) -> Result<(Vec<StagedFile>, Rest)> {
        use super::super::record::{Dentry, NAMES, Node};
        let (mut files, mut rest, mut after) = (Vec::new(), Rest::Nothing, Vec::new());
        loop {
            let corrupt = |what: &str| super::Error::Corrupt {
                pool: self.inner.meta.name().into(),
                object: object_of(directory),
                what: what.into(),
            };
            let look = self.look_page(directory, b"", &after, 1024)?;
            let look = look.ok_or_else(|| corrupt("it is missing: it has files of a transaction"))?;
            if look.state != DirectoryState::Sealed {
                return Err(corrupt("it has files of a committed task attempt and is not sealed"));
            }
            for (key, value) in look.entries() {
                let Some(name) = key.strip_prefix(NAMES) else {
                    rest = Rest::Something;
                    continue;
                };
                let dentry: Dentry = look.decode(key, value)?;
                let name = String::from_utf8_lossy(name);
                let Some((path, replace)) = parse_staged_name(&name) else {
                    return Err(corrupt(&format!("its entry {name} makes no sense")));
                };
                let Node::File(_) = &dentry.node else { return Err(corrupt("there is a directory in it")) };
                files.push(StagedFile { path: path.to_owned(), replace, mtime_ms: dentry.mtime_ms, node: dentry.node });
            }
            match look.entries().last() {
                Some((key, _)) if look.more() => after.clone_from(key),
                _ => return Ok((files, rest)),
            }
        }
    }
}

/// A file of a task attempt that counts.
#[derive(Clone, Debug)]
pub(super) struct StagedFile {
    /// Where it is to be.
    pub path: String,
    pub replace: Replace,
    pub mtime_ms: u64,
    pub node: super::super::record::Node,
}

/// What there is in an attempt's directory besides its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Nothing,
    Something,
}

impl StagedFile {
    pub fn error(&self, problem: Problem) -> super::Error {
        super::Error::Path { operation: "commit", path: format!("/{}", self.path), problem }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_staged_name_says_what_is_to_be_done() {
        for replace in [Replace::Never, Replace::File, Replace::Only(Id(7))] {
            let path = Path::parse("write", "/a b/x=1/part-0").unwrap();
            let name = staged_name(&path, replace);
            assert_eq!(parse_staged_name(&name), Some(("a b/x=1/part-0", replace)));
        }
        assert_eq!(parse_staged_name("other/a"), None);
    }
}
