//! The seam: objects by name, each changed by compound operations that happen whole or not at all.
//!
//! This is all that the file layer knows of a cluster. A pool of a cluster is one implementation
//! ([`Pool`](super::Pool)), the other is in memory and misbehaves on purpose ([`SimPool`](super::SimPool)).
//!
//! An object has bytes, attributes (few and small) and entries (an ordered map of byte strings; not in erasure-coded
//! pools). What is promised:
//! - A [`WriteOp`] is atomic and durable when it has succeeded. Its comparisons are looked at first, against what was there
//!   before; if one does not hold, nothing changes, and the error is [`Code::CONFLICT`](super::Code::CONFLICT), or
//!   [`Code::NOT_FOUND`](super::Code::NOT_FOUND) if there is no object to compare with.
//! - A [`ReadOp`] sees one state of the object.
//! - Operations on one object have an order. Operations on different objects have none, unless one was started after the
//!   other's answer.
//!
//! What is not promised: that an operation that ended in [`Code::TIMED_OUT`](super::Code::TIMED_OUT) did not happen, or will
//! not happen *later*, after operations that were answered meanwhile. Whoever relies on it that something does not happen
//! any more has to make it impossible, by changing what the operation compares with.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc;

use super::pool::BuiltWrite;
use super::{Code, Error, Result};

/// A step of a [`WriteOp`].
#[derive(Clone, Debug)]
pub(crate) enum WriteStep {
    AssertExists,
    AttributeIs(&'static str, Vec<u8>),
    /// An empty value: there is no such entry.
    EntryIs(Vec<u8>, Vec<u8>),
    Create,
    CreateNew,
    SetAttribute(&'static str, Vec<u8>),
    SetEntry(Vec<u8>, Vec<u8>),
    RemoveEntry(Vec<u8>),
    WriteFull(Vec<u8>),
    Remove,
}

/// Changes of one object that happen together or not at all. Steps are carried out in order, comparisons before changes.
#[derive(Clone, Debug)]
pub struct WriteOp {
    pub(crate) operation: &'static str,
    pub(crate) steps: Vec<WriteStep>,
}

impl WriteOp {
    /// An operation without steps; `operation` is what errors say was attempted: "link", "remove".
    pub fn new(operation: &'static str) -> Self {
        Self { operation, steps: Vec::new() }
    }

    fn with(mut self, step: WriteStep) -> Self {
        self.steps.push(step);
        self
    }

    /// Only if the object is there: without this most steps create it.
    #[must_use]
    pub fn assert_exists(self) -> Self {
        self.with(WriteStep::AssertExists)
    }

    /// Only if an attribute has this value.
    #[must_use]
    pub fn attribute_is(self, name: &'static str, value: impl Into<Vec<u8>>) -> Self {
        self.with(WriteStep::AttributeIs(name, value.into()))
    }

    /// Only if an entry has this value; `None`: only if there is no such entry.
    #[must_use]
    pub fn entry_is(self, key: impl Into<Vec<u8>>, value: Option<Vec<u8>>) -> Self {
        self.with(WriteStep::EntryIs(key.into(), value.unwrap_or_default()))
    }

    /// Creates the object if it is not there.
    #[must_use]
    pub fn create(self) -> Self {
        self.with(WriteStep::Create)
    }

    /// Creates the object, or fails with [`Code::EXISTS`](super::Code::EXISTS).
    #[must_use]
    pub fn create_new(self) -> Self {
        self.with(WriteStep::CreateNew)
    }

    /// Sets an attribute.
    #[must_use]
    pub fn set_attribute(self, name: &'static str, value: impl Into<Vec<u8>>) -> Self {
        self.with(WriteStep::SetAttribute(name, value.into()))
    }

    /// Sets an entry. Values are not empty: [`Self::entry_is`] could not tell them from none.
    #[must_use]
    pub fn set_entry(self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        let value = value.into();
        debug_assert!(!value.is_empty());
        self.with(WriteStep::SetEntry(key.into(), value))
    }

    /// Removes an entry, if it is there.
    #[must_use]
    pub fn remove_entry(self, key: impl Into<Vec<u8>>) -> Self {
        self.with(WriteStep::RemoveEntry(key.into()))
    }

    /// The object's bytes are these, and no others.
    #[must_use]
    pub fn write_full(self, bytes: Vec<u8>) -> Self {
        self.with(WriteStep::WriteFull(bytes))
    }

    /// Removes the object.
    #[must_use]
    pub fn remove(self) -> Self {
        self.with(WriteStep::Remove)
    }
}

/// The bytes of an object that never changes once it is there: a chunk of a file. They are gathered where they are sent from, each
/// piece while the processor still has it at hand, and not all of them at the end. Made by [`Objects::gather`].
#[derive(Debug)]
pub struct WriteOnce {
    /// What errors say was attempted.
    pub(super) operation: &'static str,
    pub(super) len: usize,
    pub(super) held: Held,
    /// Whether the pool copies the bytes once more when they are sent.
    pub(super) is_copied: bool,
}

/// Where the bytes are.
#[derive(Debug)]
pub(super) enum Held {
    Bytes(Vec<u8>),
    /// The library has them.
    Operation(BuiltWrite),
}

impl WriteOnce {
    /// In memory, where there is room for so many bytes.
    pub(super) fn in_memory(operation: &'static str, most_bytes: usize, is_copied: bool) -> Self {
        Self { operation, len: 0, held: Held::Bytes(Vec::with_capacity(most_bytes)), is_copied }
    }

    /// Bytes that will be copied once more when this is sent.
    pub(super) fn copied_when_sent(&self) -> usize {
        if self.is_copied { self.len } else { 0 }
    }

    /// Adds what comes next, which is copied.
    pub fn add(&mut self, bytes: &[u8]) {
        match &mut self.held {
            Held::Bytes(held) => held.extend_from_slice(bytes),
            Held::Operation(built) => built.write(self.len, bytes),
        }
        self.len += bytes.len();
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What to read of entries.
#[derive(Clone, Debug)]
pub(crate) enum EntriesWanted {
    Keys(Vec<Vec<u8>>),
    Page { prefix: Vec<u8>, after: Vec<u8>, limit: u64 },
}

/// What to read of one object, all of it as it is at one moment. An object that is not there is an error.
#[derive(Clone, Debug)]
pub struct ReadOp {
    pub(crate) operation: &'static str,
    pub(crate) size: bool,
    pub(crate) attributes: bool,
    pub(crate) entries: Option<EntriesWanted>,
    pub(crate) bytes: Option<(u64, usize)>,
}

impl ReadOp {
    /// Nothing yet; `operation` is what errors say was attempted.
    pub fn new(operation: &'static str) -> Self {
        Self { operation, size: false, attributes: false, entries: None, bytes: None }
    }

    /// How many bytes the object has.
    #[must_use]
    pub fn size(mut self) -> Self {
        self.size = true;
        self
    }

    /// All attributes.
    #[must_use]
    pub fn attributes(mut self) -> Self {
        self.attributes = true;
        self
    }

    /// The entries with these keys, as far as they are there.
    #[must_use]
    pub fn entries(mut self, keys: Vec<Vec<u8>>) -> Self {
        self.entries = Some(EntriesWanted::Keys(keys));
        self
    }

    /// Entries whose keys begin with `prefix`, in order, from behind `after` on; at most `limit`, or fewer.
    #[must_use]
    pub fn page(mut self, prefix: impl Into<Vec<u8>>, after: impl Into<Vec<u8>>, limit: u64) -> Self {
        self.entries = Some(EntriesWanted::Page { prefix: prefix.into(), after: after.into(), limit });
        self
    }

    /// Bytes of the object; fewer at its end.
    #[must_use]
    pub fn bytes(mut self, offset: u64, len: usize) -> Self {
        self.bytes = Some((offset, len));
        self
    }
}

/// What a [`ReadOp`] has read; what was not asked for is empty.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Bytes that the object has.
    pub size: u64,
    /// Its attributes.
    pub attributes: BTreeMap<String, Vec<u8>>,
    /// The entries that were asked for, in order of keys.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether there are entries behind those.
    pub more: bool,
    /// The bytes that were asked for.
    pub bytes: Vec<u8>,
}

impl Reply {
    /// The entry of this key.
    pub fn entry(&self, key: &[u8]) -> Option<&[u8]> {
        let at = self.entries.binary_search_by(|(has, _)| has.as_slice().cmp(key)).ok()?;
        Some(&self.entries[at].1)
    }
}

/// Who is told how an operation ended, once, from any thread, the caller's own among them.
///
/// It must not wait for anything, nor own what it would take the library's threads to drop: a cluster, a pool.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// Objects by name: one namespace of one pool. All methods may be called from many threads.
pub trait Objects: Send + Sync + fmt::Debug {
    /// The name to use in messages.
    fn name(&self) -> &str;

    /// Starts a change.
    fn start_write(&self, object: &str, op: WriteOp, done: Done<()>);

    /// Starts to read.
    fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>);

    /// Begins to gather an object that never changes, of at most so many bytes, for this pool. Pieces that begin at a multiple of
    /// a page are cheapest.
    fn gather(&self, operation: &'static str, most_bytes: usize) -> WriteOnce {
        WriteOnce::in_memory(operation, most_bytes, false)
    }

    /// Starts to write an object that never changes, of bytes gathered for this pool, with an attribute and its value.
    fn start_write_once(&self, object: &str, whole: WriteOnce, attribute: (&'static str, &[u8]), done: Done<()>) {
        let Held::Bytes(bytes) = whole.held else {
            let (pool, object) = (self.name().into(), object.into());
            return done(Err(Error::Object { pool, object, operation: whole.operation, code: Code(libc::EXDEV) }));
        };
        let op = WriteOp::new(whole.operation).write_full(bytes).set_attribute(attribute.0, attribute.1);
        self.start_write(object, op, done);
    }

    /// The names of all objects, in no order: one request per placement group and thousand. For checks; nothing else
    /// needs it.
    fn list(&self) -> Result<Vec<String>>;

    /// Starts a change that can be waited for.
    fn submit_write(&self, object: &str, op: WriteOp) -> Pending<()> {
        let (pending, done) = Pending::new(self.name(), object, op.operation);
        self.start_write(object, op, done);
        pending
    }

    /// Starts to read what can be waited for.
    fn submit_read(&self, object: &str, op: ReadOp) -> Pending<Reply> {
        let (pending, done) = Pending::new(self.name(), object, op.operation);
        self.start_read(object, op, done);
        pending
    }

    /// Starts to write an object that never changes, which can be waited for, and drops something when it has ended, whether anybody
    /// waits or not.
    fn submit_write_once(
        &self,
        object: &str,
        whole: WriteOnce,
        attribute: (&'static str, &[u8]),
        held: Box<dyn Send>,
    ) -> Pending<()> {
        let (pending, done) = Pending::new(self.name(), object, whole.operation);
        let release = move |result| {
            drop(held);
            done(result);
        };
        self.start_write_once(object, whole, attribute, Box::new(release));
        pending
    }

    /// Changes an object and waits for it.
    fn write(&self, object: &str, op: WriteOp) -> Result<()> {
        self.submit_write(object, op).wait()
    }

    /// Reads of an object.
    fn read(&self, object: &str, op: ReadOp) -> Result<Reply> {
        self.submit_read(object, op).wait()
    }
}

/// An operation that has been started. Dropping it changes nothing: the operation goes on.
#[derive(Debug)]
pub struct Pending<T> {
    answer: mpsc::Receiver<Result<T>>,
    nobody: Error,
}

impl<T: Send + 'static> Pending<T> {
    fn new(pool: &str, object: &str, operation: &'static str) -> (Self, Done<T>) {
        let (send, answer) = mpsc::sync_channel(1);
        // Nobody tells us any more: as good as no answer.
        let nobody = Error::Object { pool: pool.into(), object: object.into(), operation, code: Code::TIMED_OUT };
        // Nobody waits for it any more: that is allowed.
        (Self { answer, nobody }, Box::new(move |result| drop(send.try_send(result))))
    }

    /// The answer, if it has come; then there is no other.
    pub(crate) fn answer(&self) -> Option<Result<T>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(self.nobody.clone())),
        }
    }

    /// Waits for the answer, which comes: a cluster's operations have a time limit.
    pub fn wait(self) -> Result<T> {
        self.answer.recv().unwrap_or(Err(self.nobody))
    }
}
