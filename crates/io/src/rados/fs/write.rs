//! Writing a file: an intent, chunks in parallel, a name.
//!
//! 1. Before the first chunk the directory has an intent, with a lease and the number of chunks that there may be. It is
//!    renewed, with more chunks, before a chunk beyond them is sent, and when half of the lease is over. That of a file of a task
//!    attempt is renewed when half of the grace time is over as well, if the attempt goes on.
//! 2. What comes is given to the library in pieces, which it copies at once, and when it has a whole chunk of them, that is sent:
//!    checksums and copies are made of bytes that the processor's cache still has. A writer waits when as much of it is in flight
//!    as its [turn](super::turns) allows, or all writers' budget; whichever chunk is answered first makes room for the next.
//! 3. [`Writer::close`] waits for all of them, then one operation takes the intent away and puts the name in its place.
//!
//! A writer that is dropped without being closed leaves its intent: nothing of it is visible, and the collector finds it.
//! [`Writer::abort`] cleans up at once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::super::objects::{Pending, WriteOnce, WriteOp};
use super::super::{Code, Error, Problem, Result};
use super::directory::{OF_TRANSACTION, Outcome, Settled, object_of};
use super::path::Path;
use super::read::{BLOCK_BYTES, CRCS, chunk_name};
use super::record::{Dentry, Extent, FileNode, GARBAGE, Garbage, INTENTS, Intent, Node, Record, id_key, name_key};
use super::reserve::{Reserve, Reserved, Since};
use super::turns::Turn;
use super::{Entry, FileSystem, FsOptions, Id};
use crate::{Hop, Ledger};

const OPERATION: &str = "write";
/// What is given to the library at once, a multiple of [`BLOCK_BYTES`]. A processor's second cache has it beside other things; an OSD
/// does not notice that a chunk came in so many pieces.
const PIECE_BYTES: usize = 256 << 10;
/// Chunks that an intent is good for at first; then twice as many each time.
pub(super) const FIRST_CHUNKS: u64 = 32;

/// Whether a name that is taken may be given to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// No: that is an error.
    Never,
    /// If it is a file's.
    File,
    /// If it is the file's of this identity.
    Only(Id),
}

/// A file that is being written. Nothing of it is visible before [`Self::close`] has succeeded.
#[derive(Debug)]
pub struct Writer {
    fs: FileSystem,
    path: String,
    directory: Id,
    name: String,
    replace: Replace,
    /// What the directory was like when it was last looked at. Looking again would wait for whatever is being written to it,
    /// so it is taken for granted until an operation has found it otherwise.
    hint: Vec<u8>,
    seen: Option<(Vec<u8>, Dentry)>,
    id: Id,
    /// As it is stored; `None`: there is none yet.
    intent: Option<Vec<u8>>,
    reserved: u64,
    renew_at_ms: u64,
    /// What is not a piece yet.
    buffer: Vec<u8>,
    /// The pieces of a chunk so far, and the CRC-32C of each of their blocks.
    gathered: Option<WriteOnce>,
    crcs: Vec<u8>,
    chunk_bytes: usize,
    chunks: u64,
    len: u64,
    in_flight: Vec<Pending<()>>,
    /// Its own, or its task attempt's.
    turn: Arc<Turn>,
    /// Where the intent comes from, if not from an operation of its own.
    reserve: Option<Arc<Reserve>>,
    /// No answer to something: it may still happen.
    unanswered: bool,
    failed: Option<Error>,
    ledger: Arc<Ledger>,
}

impl FileSystem {
    /// What a [`Writer`] passes on without a copy of its own, if it gets that much at once, always.
    pub fn piece_bytes(&self) -> usize {
        PIECE_BYTES.min(self.inner.superblock.chunk_bytes as usize)
    }

    /// Begins a file, in a directory that is there. What is moved is counted in `ledger`.
    pub fn create_file(&self, path: &str, replace: Replace, ledger: Arc<Ledger>) -> Result<Writer> {
        let parsed = Path::parse(OPERATION, path)?;
        let (parents, _) = parsed.split(OPERATION)?;
        let directory = self.walk(OPERATION, &parsed, parents)?;
        self.create_file_in(directory, path, replace, ledger)
    }

    /// The same in a directory by its identity, which may have no name. The last name of the path is the file's.
    pub(super) fn create_file_in(
        &self,
        directory: Id,
        path: &str,
        replace: Replace,
        ledger: Arc<Ledger>,
    ) -> Result<Writer> {
        let parsed = Path::parse(OPERATION, path)?;
        let (_, name) = parsed.split(OPERATION)?;
        let mut retry = self.retry(OPERATION, &parsed);
        let look = self.look_live(directory, vec![name_key(name)], &mut retry)?;
        let seen = look.raw(&name_key(name)).zip(look.dentry(name)?);
        // As early as it can be known: the name may be taken meanwhile, which is seen at the end.
        let there = self.visible(directory, name, seen.as_ref().map(|(_, dentry)| dentry.clone()))?;
        if let Some(problem) = refused(there.as_ref(), replace) {
            return Err(parsed.error(OPERATION, problem));
        }
        let turn = Arc::new(self.inner.turns.join());
        Writer::begin(self, path, directory, name.into(), replace, look.hint, seen, turn, ledger)
    }
}

impl Writer {
    /// A file that is to have a name in a directory, which was last seen like this.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn begin(
        fs: &FileSystem,
        path: &str,
        directory: Id,
        name: String,
        replace: Replace,
        hint: Vec<u8>,
        seen: Option<(Vec<u8>, Dentry)>,
        turn: Arc<Turn>,
        ledger: Arc<Ledger>,
    ) -> Result<Self> {
        let chunk_bytes = fs.inner.superblock.chunk_bytes as usize;
        Ok(Self {
            fs: fs.clone(),
            path: path.into(),
            directory,
            name,
            replace,
            hint,
            seen,
            // Another one with each intent.
            id: fs.new_id()?,
            intent: None,
            reserved: 0,
            renew_at_ms: 0,
            buffer: Vec::new(),
            gathered: None,
            crcs: Vec::new(),
            chunk_bytes,
            chunks: 0,
            len: 0,
            in_flight: Vec::new(),
            turn,
            reserve: None,
            unanswered: false,
            failed: None,
            ledger,
        })
    }
}

impl Writer {
    /// Takes its intent from there.
    pub(super) fn reserved_by(self, reserve: &Arc<Reserve>) -> Self {
        Self { reserve: Some(Arc::clone(reserve)), ..self }
    }
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

impl Writer {
    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.len
    }

    /// Adds bytes; pieces of [`PIECE_BYTES`], where a piece begins, without a copy here. After an error nothing more can be added.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while !bytes.is_empty() {
            let gathered = self.gathered.as_ref().map_or(0, WriteOnce::len);
            let piece = PIECE_BYTES.min(self.chunk_bytes - gathered);
            let (now, later) = bytes.split_at(bytes.len().min(piece - self.buffer.len()));
            bytes = later;
            self.len += now.len() as u64;
            if now.len() == piece {
                self.gather(now, self.chunk_bytes);
            } else {
                self.keep(now, piece);
            }
            if self.gathered.as_ref().is_some_and(|gathered| gathered.len() == self.chunk_bytes) {
                self.send_chunk()?;
            }
        }
        Ok(())
    }

    /// Copies what is less than a piece, until it is one.
    fn keep(&mut self, bytes: &[u8], piece: usize) {
        if self.buffer.capacity() < piece {
            // A small file takes as much as it has.
            let want = (self.buffer.len() + bytes.len()).next_power_of_two().min(piece);
            self.buffer.reserve_exact(want.max(BLOCK_BYTES).saturating_sub(self.buffer.len()));
        }
        self.buffer.extend_from_slice(bytes);
        self.ledger.moved(Hop::HostToHost, bytes.len());
        if self.buffer.len() == piece {
            self.gather_kept(self.chunk_bytes);
        }
    }

    /// What was kept is a piece. The buffer keeps its memory: what was used is there already.
    fn gather_kept(&mut self, most_bytes: usize) {
        let mut piece = std::mem::take(&mut self.buffer);
        self.gather(&piece, most_bytes);
        piece.clear();
        self.buffer = piece;
    }

    /// Gives a piece, of whole blocks unless it is the file's last one, to the library, which copies it.
    fn gather(&mut self, piece: &[u8], most_bytes: usize) {
        let gathered = self.gathered.get_or_insert_with(|| self.fs.inner.data.gather(OPERATION, most_bytes));
        // First: the copy writes to memory that the cache does not have, and takes the place of what it has.
        self.crcs.extend(piece.chunks(BLOCK_BYTES).flat_map(|block| crc32c::crc32c(block).to_le_bytes()));
        gathered.add(piece);
        self.ledger.moved(Hop::HostToHost, piece.len());
    }

    /// Gives the file its name, once all of it is in the cluster.
    ///
    /// # Errors
    /// If anything could not be written, or the name is taken: then nothing is visible, and what was written is cleaned up,
    /// except after [`Problem::OutcomeUnknown`], where only the collector can tell.
    pub fn close(mut self) -> Result<Entry> {
        match self.finish() {
            Ok(entry) => Ok(entry),
            Err(error) => {
                if error.problem() != Some(Problem::OutcomeUnknown) {
                    self.clean_up();
                }
                Err(error)
            }
        }
    }

    /// Gives the file up. What cannot be cleaned up now, the collector finds.
    pub fn abort(mut self) {
        self.clean_up();
    }

    fn finish(&mut self) -> Result<Entry> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let turn = Arc::clone(&self.turn);
        let _hold = turn.hold();
        if !self.buffer.is_empty() {
            self.gather_kept(self.buffer.len());
        }
        if self.gathered.is_some() {
            self.send_chunk()?;
        } else {
            // An empty file has an intent as well: the name takes its place.
            self.promise()?;
        }
        for pending in std::mem::take(&mut self.in_flight) {
            let answer = pending.wait();
            self.landed(answer);
        }
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.link(),
        }
    }

    fn fail<T>(&mut self, error: Error) -> Result<T> {
        self.unanswered |= error.is(Code::TIMED_OUT);
        self.failed = Some(error.clone());
        Err(error)
    }

    /// Sends what is gathered.
    fn send_chunk(&mut self) -> Result<()> {
        let (gathered, crcs) = (self.gathered.take(), std::mem::take(&mut self.crcs));
        let Some(chunk) = gathered else { return Ok(()) };
        let bytes = chunk.len();
        let room = self.turn.room();
        // What has failed meanwhile is known now.
        let in_flight = std::mem::take(&mut self.in_flight);
        for pending in in_flight {
            match pending.answer() {
                Some(answer) => self.landed(answer),
                None => self.in_flight.push(pending),
            }
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.promise()?;
        let permit = self.fs.inner.budget.take(bytes);
        self.ledger.moved(Hop::HostToHost, chunk.copied_when_sent());
        let (name, held) = (chunk_name(self.id, self.chunks), Box::new((room, permit)));
        self.in_flight.push(self.fs.inner.data.submit_write_once(&name, chunk, (CRCS, &crcs), held));
        self.chunks += 1;
        self.ledger.write_op();
        self.ledger.moved(Hop::HostToStorage, bytes);
        Ok(())
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
        if let Some(reserve) = self.reserve.clone().filter(|_| self.intent.is_none()) {
            return match reserve.take(&self.fs, self.directory, &self.path, &self.hint) {
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
        self.hint.starts_with(OF_TRANSACTION)
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
        if let Some(old) = &self.intent {
            let intent = Intent { stamp: self.fs.new_id()?, due_ms, node: self.node(reserved) }.encode();
            let key = id_key(INTENTS, self.id);
            // A directory with files being written may be about to be removed, and stay; an attempt that has ended has ended.
            let (begin, problem) = if self.is_staged() {
                (self.fs.in_live(OPERATION), Problem::AttemptEnded)
            } else {
                (WriteOp::new(OPERATION).assert_exists(), Problem::LeaseLost)
            };
            return match self.fs.swap_in(begin, self.directory, &key, old, Some(&intent))? {
                true => Ok(intent),
                false => Err(self.error(problem)),
            };
        }
        let (fs, path_text) = (self.fs.clone(), self.path.clone());
        let path = Path::parse(OPERATION, &path_text)?;
        let mut retry = fs.retry(OPERATION, &path);
        let mut unknown = false;
        loop {
            // Another file each time. An intent that gets no answer may come when its file has a name, and would have it
            // collected: that nothing is there is no comparison that holds only once.
            self.id = fs.new_id()?;
            let intent = Intent { stamp: fs.new_id()?, due_ms, node: self.node(reserved) }.encode();
            let Some(op) = fs.in_listed(self.directory, &mut self.hint, OPERATION)? else {
                retry.again()?;
                self.hint = fs.look_live(self.directory, Vec::new(), &mut retry)?.hint;
                continue;
            };
            let key = id_key(INTENTS, self.id);
            let op = op.entry_is(key.clone(), None).set_entry(key, intent.clone());
            match fs.attempt(&object_of(self.directory), op)? {
                Outcome::Done => return Ok(intent),
                Outcome::Conflict => {
                    retry.again()?;
                    self.hint = fs.look_live(self.directory, Vec::new(), &mut retry)?.hint;
                }
                Outcome::Unknown(error) if unknown => return Err(error),
                Outcome::Unknown(_) => unknown = true,
            }
        }
    }

    /// The moment when the file becomes visible.
    fn link(&mut self) -> Result<Entry> {
        let fs = self.fs.clone();
        let path_text = self.path.clone();
        let path = Path::parse(OPERATION, &path_text)?;
        let mut retry = fs.retry(OPERATION, &path);
        let intent = self.intent.clone().ok_or_else(|| self.error(Problem::LeaseLost))?;
        let (key, intent_key, own_garbage) = (name_key(&self.name), id_key(INTENTS, self.id), id_key(GARBAGE, self.id));
        let node = Node::File(FileNode { id: self.id, extents: self.extents(self.len) });
        let dentry = Dentry { stamp: fs.new_id()?, mtime_ms: fs.now_ms(), node, tag: None };
        let entry = Entry::of(path.names.last().copied().unwrap_or_default(), &dentry);
        let mut asked = false;
        // First as it was when the file was begun, without looking.
        let mut known = true;
        loop {
            if !known {
                let keys = vec![key.clone(), intent_key.clone(), own_garbage.clone()];
                let look = match fs.look_live(self.directory, keys, &mut retry) {
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
                self.seen = look.raw(&key).zip(look.dentry(&self.name)?);
                self.hint = look.hint;
            }
            known = false;
            if let Some((raw, there)) = self.seen.as_ref().filter(|(_, there)| there.tag.is_some()) {
                if let Settled::Wait(holder) = fs.settle(self.directory, &self.name, raw, there)? {
                    retry.wait(holder)?;
                }
                continue;
            }
            if let Some(problem) = refused(self.seen.as_ref().map(|(_, there)| there), self.replace) {
                return self.fail(self.error(problem));
            }
            let Some(op) = fs.in_listed(self.directory, &mut self.hint, OPERATION)? else {
                retry.again()?;
                continue;
            };
            let mut op = op
                .entry_is(intent_key.clone(), Some(intent.clone()))
                .entry_is(key.clone(), self.seen.as_ref().map(|(raw, _)| raw.clone()))
                .remove_entry(intent_key.clone())
                .set_entry(key.clone(), dentry.encode());
            if let Some((_, old)) = &self.seen {
                let garbage =
                    Garbage { stamp: fs.new_id()?, since_ms: fs.now_ms(), condemned: false, node: old.node.clone() };
                op = op.set_entry(id_key(GARBAGE, garbage.node.id()), garbage.encode());
            }
            match fs.attempt(&object_of(self.directory), op)? {
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

    fn clean_up(&mut self) {
        for pending in std::mem::take(&mut self.in_flight) {
            let answer = pending.wait();
            self.landed(answer);
        }
        let Some(intent) = self.intent.take() else { return };
        // Whatever fails from here on, the collector does later.
        if self.unanswered {
            // A chunk or the name may still come. The name must find no intent; chunks have the grace time to come in.
            let _ = self.fs.condemn(self.directory, self.id, &intent, self.node(self.reserved));
        } else if self.fs.purge_chunks(&FileNode { id: self.id, extents: self.extents(self.sent_bytes()) }).is_ok() {
            let _ = self.fs.swap("give up", self.directory, &id_key(INTENTS, self.id), &intent, None);
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.chunks.saturating_mul(self.chunk_bytes as u64)
    }

    fn error(&self, problem: Problem) -> Error {
        Error::Path { operation: OPERATION, path: self.path.clone(), problem }
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)?;
        Ok(bytes.len())
    }

    /// Sends nothing: chunks are written once, and whole.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
