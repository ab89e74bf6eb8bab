//! Sending a file: its intent, its chunks, its name.
//!
//! What is sent waits: for the intent, for a place in [line](super::turns), for all writers' [budget](super::budget). Who must not wait
//! for that has the [outbox](super::outbox) send.

use std::sync::Arc;
use std::time::Duration;

use super::super::objects::{Pending, WriteOnce, WriteOp};
use super::super::{Code, Error, Problem, Result};
use super::directory::{Outcome, Settled, object_of};
use super::path::Path;
use super::read::{CRCS, chunk_name};
use super::record::{Dentry, Extent, FileNode, GARBAGE, Garbage, INTENTS, Intent, Node, Record, id_key, name_key};
use super::reserve::{self, Reserve, Reserved, Since};
use super::transaction::Beginning;
use super::turns::{Room, Seat, Turn};
use super::{Entry, FileSystem, FsOptions, Id, Replace};
use crate::{Hop, Ledger};

pub(super) const OPERATION: &str = "write";
/// Chunks that an intent is good for at first; then twice as many each time. Files are mostly as long as a power of two, or a
/// little longer: these need not wait for another intent with their last chunk.
pub(super) const FIRST_CHUNKS: u64 = 48;

/// The directory that a file is to have its name in.
#[derive(Debug)]
pub(super) enum Place {
    Directory(Id),
    Staged(Staging),
}

/// That of a task attempt, which may still be about to begin.
#[derive(Debug)]
pub(super) struct Staging {
    pub beginning: Arc<Beginning>,
    /// Where intents come from: no file has an operation of its own for that.
    pub reserve: Arc<Reserve>,
}

impl Place {
    /// The directory, once it is there.
    fn directory(&self) -> Result<Id> {
        match self {
            Self::Directory(id) => Ok(*id),
            Self::Staged(staging) => staging.beginning.directory(),
        }
    }
}

/// What a file is to become.
#[derive(Debug)]
pub(super) struct Target {
    pub path: String,
    pub place: Place,
    pub name: String,
    pub replace: Replace,
    /// What the directory was like when it was last looked at. Looking again would wait for whatever is being written to it,
    /// so it is taken for granted until an operation has found it otherwise.
    pub hint: Vec<u8>,
    /// What had the name then.
    pub seen: Option<(Vec<u8>, Dentry)>,
}

/// A whole chunk, or a file's last one.
#[derive(Debug)]
pub(super) struct Chunk {
    pub bytes: WriteOnce,
    /// The CRC-32C of each of its blocks.
    pub crcs: Vec<u8>,
    /// Where it waits, if it does.
    pub seat: Option<Seat>,
}

/// What there is of a file in the cluster, and is still to come.
#[derive(Debug)]
pub(super) struct Sender {
    fs: FileSystem,
    target: Target,
    id: Id,
    /// As it is stored; `None`: there is none yet.
    intent: Option<Vec<u8>>,
    reserved: u64,
    renew_at_ms: u64,
    chunks: u64,
    in_flight: Vec<Pending<()>>,
    /// Its own, or its task attempt's.
    turn: Arc<Turn>,
    /// No answer to something: it may still happen.
    unanswered: bool,
    failed: Option<Error>,
    ledger: Arc<Ledger>,
}

pub(super) fn refused(there: Option<&Dentry>, replace: Replace) -> Option<Problem> {
    match (there.map(|dentry| &dentry.node), replace) {
        (None, Replace::Only(_)) => Some(Problem::Changed),
        (None, _) => None,
        (Some(_), Replace::Never) => Some(Problem::Exists),
        (Some(Node::Directory(_)), _) => Some(Problem::IsADirectory),
        (Some(Node::File(file)), Replace::Only(id)) if file.id != id => Some(Problem::Changed),
        (Some(Node::File(_)), _) => None,
    }
}

/// For how long an intent of a task attempt's is good. What an attempt has written goes a grace time after it has ended: who writes
/// must have heard of that before.
pub(super) fn good_for_in_attempts(options: &FsOptions) -> Duration {
    (options.lease / 2).min(options.grace / 2)
}

/// The file of this identity, as an intent has it: with all chunks that are promised.
pub(super) fn promised(id: Id, chunks: u64, chunk_bytes: u32) -> Node {
    let len = chunks.saturating_mul(u64::from(chunk_bytes));
    Node::File(FileNode { id, extents: vec![Extent { id, len, chunk_bytes }] })
}

impl Sender {
    /// Nothing is sent yet. What will be is counted in `ledger`.
    pub fn new(fs: &FileSystem, target: Target, turn: Arc<Turn>, ledger: Arc<Ledger>) -> Result<Self> {
        Ok(Self {
            fs: fs.clone(),
            target,
            // Another one with each intent.
            id: fs.new_id()?,
            intent: None,
            reserved: 0,
            renew_at_ms: 0,
            chunks: 0,
            in_flight: Vec::new(),
            turn,
            unanswered: false,
            failed: None,
            ledger,
        })
    }

    /// What has failed, as far as it is known: nothing more is sent then.
    pub fn failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Sends a chunk, and waits for what that takes.
    pub fn send(&mut self, chunk: Chunk) -> Result<()> {
        let room = self.turn.room();
        self.look_at_answers()?;
        self.promise()?;
        self.send_to(room, chunk);
        Ok(())
    }

    /// Sends a chunk; or gives it back, if it would have to wait for the others' turn, or for the file's first intent.
    pub fn try_send(&mut self, chunk: Chunk) -> Result<Option<Chunk>> {
        self.look_at_answers()?;
        if self.intent.is_none() {
            return Ok(Some(chunk));
        }
        let Some(room) = self.turn.try_room() else { return Ok(Some(chunk)) };
        self.promise()?;
        self.send_to(room, chunk);
        Ok(None)
    }

    fn send_to(&mut self, room: Room, chunk: Chunk) {
        let Chunk { bytes: whole, crcs, seat } = chunk;
        let bytes = whole.len();
        let permit = self.fs.inner.budget.take(bytes);
        // Not before: whoever gets it next has another chunk.
        drop(seat);
        self.ledger.moved(Hop::HostToHost, whole.copied_when_sent());
        let (name, held) = (chunk_name(self.id, self.chunks), Box::new((room, permit)));
        self.in_flight.push(self.fs.inner.data.submit_write_once(&name, whole, (CRCS, &crcs), held));
        self.chunks += 1;
        self.ledger.write_op();
        self.ledger.moved(Hop::HostToStorage, bytes);
    }

    /// Sends a file's last chunk, and gives it its name once all of it is in the cluster.
    ///
    /// # Errors
    /// If anything could not be written, or the name is taken. Nothing is visible then, except perhaps after
    /// [`Problem::OutcomeUnknown`].
    pub fn finish(&mut self, last: Option<Chunk>, len: u64) -> Result<Entry> {
        // Others need not wait for what comes before the names.
        self.target.place.directory()?;
        let turn = Arc::clone(&self.turn);
        let _hold = turn.hold();
        if let Some(last) = last {
            self.send(last)?;
        }
        self.failed()?;
        if self.chunks == 0 {
            // An empty file has an intent as well: the name takes its place.
            self.promise()?;
        }
        self.wait_for_answers();
        self.failed()?;
        if self.chunks != len.div_ceil(u64::from(self.fs.inner.superblock.chunk_bytes)) {
            let (pool, object) = (self.fs.inner.data.name().into(), chunk_name(self.id, self.chunks));
            return self.fail(Error::Corrupt { pool, object, what: format!("it was not sent, of {len} bytes") });
        }
        let entry = self.link(len)?;
        if self.is_staged() {
            self.turn.linger();
        }
        Ok(entry)
    }

    fn fail<T>(&mut self, error: Error) -> Result<T> {
        self.unanswered |= error.is(Code::TIMED_OUT);
        self.failed = Some(error.clone());
        Err(error)
    }

    /// What has failed meanwhile.
    fn look_at_answers(&mut self) -> Result<()> {
        for pending in std::mem::take(&mut self.in_flight) {
            match pending.answer() {
                Some(answer) => self.landed(answer),
                None => self.in_flight.push(pending),
            }
        }
        self.failed()
    }

    fn wait_for_answers(&mut self) {
        for pending in std::mem::take(&mut self.in_flight) {
            let answer = pending.wait();
            self.landed(answer);
        }
    }

    /// A chunk has been answered for.
    fn landed(&mut self, answer: Result<()>) {
        if let Err(error) = answer {
            self.unanswered |= error.is(Code::TIMED_OUT);
            self.failed.get_or_insert(error);
        }
    }

    /// Sees to it that the intent is good for one more chunk.
    fn promise(&mut self) -> Result<()> {
        let now_ms = self.fs.now_ms();
        if self.intent.is_some() && self.chunks < self.reserved && now_ms < self.renew_at_ms {
            return Ok(());
        }
        let reserved = if self.chunks < self.reserved { self.reserved } else { (self.reserved * 2).max(FIRST_CHUNKS) };
        if let (Place::Staged(staging), None) = (&self.target.place, &self.intent) {
            let reserved = staging
                .beginning
                .directory()
                .and_then(|directory| staging.reserve.take(&self.fs, directory, &self.target.path, &self.target.hint));
            return match reserved {
                Ok((Reserved { id, intent, renew_at_ms }, since)) => {
                    (self.id, self.intent, self.reserved) = (id, Some(intent), FIRST_CHUNKS);
                    self.renew_at_ms = renew_at_ms;
                    if since == Since::Now { Ok(()) } else { self.promise() }
                }
                Err(error) => self.fail(error),
            };
        }
        let good_for = if self.is_staged() {
            good_for_in_attempts(&self.fs.inner.options)
        } else {
            self.fs.inner.options.lease / 2
        };
        let lease = self.fs.inner.options.lease;
        match self.store_intent(reserved, self.fs.due_ms(lease)) {
            Ok(intent) => {
                self.intent = Some(intent);
                self.reserved = reserved;
                self.renew_at_ms = now_ms.saturating_add(super::millis(good_for));
                Ok(())
            }
            Err(error) => self.fail(error),
        }
    }

    /// Whether it is a task attempt's.
    fn is_staged(&self) -> bool {
        matches!(self.target.place, Place::Staged(_))
    }

    /// The file, if it has all chunks that are promised.
    fn node(&self, chunks: u64) -> Node {
        promised(self.id, chunks, self.fs.inner.superblock.chunk_bytes)
    }

    fn extents(&self, len: u64) -> Vec<Extent> {
        let chunk_bytes = self.fs.inner.superblock.chunk_bytes;
        if len == 0 { Vec::new() } else { vec![Extent { id: self.id, len, chunk_bytes }] }
    }

    /// The first intent, or a new one in the place of the old.
    fn store_intent(&mut self, reserved: u64, due_ms: u64) -> Result<Vec<u8>> {
        let directory = self.target.place.directory()?;
        if let Some(old) = &self.intent {
            let intent = Intent { stamp: self.fs.new_id()?, due_ms, node: self.node(reserved) }.encode();
            let key = id_key(INTENTS, self.id);
            // A directory with files being written may be about to be removed, and stay; an attempt that has ended has ended.
            let (begin, problem) = if self.is_staged() {
                (self.fs.in_live(OPERATION), Problem::AttemptEnded)
            } else {
                (WriteOp::new(OPERATION).assert_exists(), Problem::LeaseLost)
            };
            return match self.fs.swap_in(begin, directory, &key, old, Some(&intent))? {
                true => Ok(intent),
                false => Err(self.error(problem)),
            };
        }
        let (fs, chunk_bytes) = (&self.fs, self.fs.inner.superblock.chunk_bytes);
        let new = || {
            let (id, stamp) = (fs.new_id()?, fs.new_id()?);
            Ok((id, Intent { stamp, due_ms, node: promised(id, reserved, chunk_bytes) }.encode()))
        };
        let ((id, intent), _) = reserve::store(fs, directory, &self.target.path, &mut self.target.hint, 1, new)?;
        self.id = id;
        Ok(intent)
    }

    /// The moment when the file becomes visible.
    fn link(&mut self, len: u64) -> Result<Entry> {
        let (fs, directory) = (self.fs.clone(), self.target.place.directory()?);
        let path_text = self.target.path.clone();
        let path = Path::parse(OPERATION, &path_text)?;
        let mut retry = fs.retry(OPERATION, &path);
        let intent = self.intent.clone().ok_or_else(|| self.error(Problem::LeaseLost))?;
        let (key, intent_key, own_garbage) =
            (name_key(&self.target.name), id_key(INTENTS, self.id), id_key(GARBAGE, self.id));
        let node = Node::File(FileNode { id: self.id, extents: self.extents(len) });
        let dentry = Dentry { stamp: fs.new_id()?, mtime_ms: fs.now_ms(), node, tag: None };
        let entry = Entry::of(path.names.last().copied().unwrap_or_default(), &dentry);
        let mut asked = false;
        // First as it was when the file was begun, without looking.
        let mut known = true;
        loop {
            if !known {
                let keys = vec![key.clone(), intent_key.clone(), own_garbage.clone()];
                let look = match fs.look_live(directory, keys, &mut retry) {
                    Err(error) if asked && error.problem() != Some(Problem::NotFound) => {
                        return self.fail(self.error(Problem::OutcomeUnknown));
                    }
                    look => look?,
                };
                if look.raw(&intent_key).as_deref() != Some(&intent) {
                    let condemned = look.record::<Garbage>(&own_garbage)?.is_some_and(|garbage| garbage.condemned);
                    // Only our own operation takes the intent away without condemning the file.
                    return if asked && !condemned { Ok(entry) } else { self.fail(self.error(Problem::LeaseLost)) };
                }
                self.target.seen = look.raw(&key).zip(look.dentry(&self.target.name)?);
                self.target.hint = look.hint;
            }
            known = false;
            if let Some((raw, there)) = self.target.seen.as_ref().filter(|(_, there)| there.tag.is_some()) {
                if let Settled::Wait(holder) = fs.settle(directory, &self.target.name, raw, there)? {
                    retry.wait(holder)?;
                }
                continue;
            }
            if let Some(problem) = refused(self.target.seen.as_ref().map(|(_, there)| there), self.target.replace) {
                return self.fail(self.error(problem));
            }
            let Some(op) = fs.in_listed(directory, &mut self.target.hint, OPERATION)? else {
                retry.again()?;
                continue;
            };
            let mut op = op
                .entry_is(intent_key.clone(), Some(intent.clone()))
                .entry_is(key.clone(), self.target.seen.as_ref().map(|(raw, _)| raw.clone()))
                .remove_entry(intent_key.clone())
                .set_entry(key.clone(), dentry.encode());
            if let Some((_, old)) = &self.target.seen {
                let garbage =
                    Garbage { stamp: fs.new_id()?, since_ms: fs.now_ms(), condemned: false, node: old.node.clone() };
                op = op.set_entry(id_key(GARBAGE, garbage.node.id()), garbage.encode());
            }
            match fs.attempt(&object_of(directory), op)? {
                Outcome::Done => return Ok(entry),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked => return self.fail(self.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => {
                    asked = true;
                    self.unanswered = true;
                }
            }
        }
    }

    /// What cannot be cleaned up now, the collector finds; after an operation without an answer all of it.
    pub fn clean_up(&mut self) {
        self.wait_for_answers();
        // Without an intent there is nothing, and no attempt need begin for that.
        let Some(intent) = self.intent.take() else { return };
        let Ok(directory) = self.target.place.directory() else { return };
        // Whatever fails from here on, the collector does later.
        if self.unanswered {
            // A chunk or the name may still come. The name must find no intent; chunks have the grace time to come in.
            let _ = self.fs.condemn(directory, self.id, &intent, self.node(self.reserved));
        } else if self.fs.purge_chunks(&FileNode { id: self.id, extents: self.extents(self.sent_bytes()) }).is_ok() {
            let _ = self.fs.swap("give up", directory, &id_key(INTENTS, self.id), &intent, None);
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.chunks.saturating_mul(u64::from(self.fs.inner.superblock.chunk_bytes))
    }

    fn error(&self, problem: Problem) -> Error {
        Error::Path { operation: OPERATION, path: self.target.path.clone(), problem }
    }
}
