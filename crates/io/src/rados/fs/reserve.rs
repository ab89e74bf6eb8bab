//! Intents that a task attempt has ready for its next files.
//!
//! A file needs an intent before its first chunk. Files of an attempt come one after the other, often many of them, into a
//! directory in which nobody else changes anything: so intents are stored several at a time, first one, then twice as many
//! each time, up to [`MOST`]. A file that finds one ready costs an operation less.
//!
//! An intent is used once. Those that are left are taken away by the operation that seals the attempt's directory, or go with
//! the directory. One that gets old while it waits is renewed by its file before that sends anything, as any other: if the
//! attempt has ended, the writer hears of it then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::Result;
use super::super::objects::WriteOp;
use super::clock::millis;
use super::directory::{Outcome, object_of};
use super::path::Path;
use super::record::{INTENTS, Intent, Record, id_key};
use super::send::{FIRST_CHUNKS, OPERATION, good_for_in_attempts, promised};
use super::{FileSystem, Id};

/// Intents of one operation. Few in tests, so that they have more than one.
const MOST: usize = if cfg!(test) { 2 } else { 64 };

/// An intent that is stored, and whose it is.
#[derive(Debug)]
pub(super) struct Reserved {
    pub id: Id,
    pub intent: Vec<u8>,
    pub renew_at_ms: u64,
}

/// Since when an intent has been stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// This moment: it need not be looked at again.
    Now,
    /// Some time.
    Before,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Reserved>,
    /// How many were stored the last time.
    last: usize,
}

/// Intents of one directory that no file has yet.
#[derive(Debug, Default)]
pub(super) struct Reserve(Mutex<State>);

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one, and since when it has been there. Who comes while more are being stored waits for that.
    pub fn take(&self, fs: &FileSystem, directory: Id, path: &str, hint: &[u8]) -> Result<(Reserved, Since)> {
        let mut state = self.lock();
        if let Some(ready) = state.ready.pop() {
            return Ok((ready, Since::Before));
        }
        let count = (state.last * 2).clamp(1, MOST);
        let options = &fs.inner.options;
        let renew_at_ms = fs.now_ms().saturating_add(millis(good_for_in_attempts(options)));
        let new = || {
            let (id, due_ms) = (fs.new_id()?, fs.due_ms(options.lease));
            let node = promised(id, FIRST_CHUNKS, fs.inner.superblock.chunk_bytes);
            Ok((id, Intent { stamp: fs.new_id()?, due_ms, node }.encode()))
        };
        let (next, others) = store(fs, directory, path, &mut hint.to_vec(), count, new)?;
        let reserved = |(id, intent)| Reserved { id, intent, renew_at_ms };
        (state.last, state.ready) = (count, others.into_iter().map(reserved).collect());
        Ok((reserved(next), Since::Now))
    }

    /// Has an operation take away those that are left.
    pub fn give_back(&self, op: WriteOp) -> WriteOp {
        let mut state = self.lock();
        state.last = 0;
        std::mem::take(&mut state.ready).iter().fold(op, |op, left| op.remove_entry(id_key(INTENTS, left.id)))
    }
}

/// A file's identity and its intent.
type Stored = (Id, Vec<u8>);

/// Stores so many `new` intents at once: the first one, and the others.
pub(super) fn store(
    fs: &FileSystem,
    directory: Id,
    path: &str,
    hint: &mut Vec<u8>,
    count: usize,
    new: impl Fn() -> Result<Stored>,
) -> Result<(Stored, Vec<Stored>)> {
    let path = Path::parse(OPERATION, path)?;
    let mut retry = fs.retry(OPERATION, &path);
    let mut unknown = false;
    loop {
        // Other files each time. An intent that gets no answer may come when its file has a name, and would have it collected:
        // that nothing is there is no comparison that holds only once.
        let (first, others) = (new()?, (1..count).map(|_| new()).collect::<Result<Vec<_>>>()?);
        let Some(op) = fs.in_listed(directory, hint, OPERATION)? else {
            retry.again()?;
            *hint = fs.look_live(directory, Vec::new(), &mut retry)?.hint;
            continue;
        };
        let all = || others.iter().chain([&first]);
        let op = all().fold(op, |op, (id, _)| op.entry_is(id_key(INTENTS, *id), None));
        let op = all().fold(op, |op, (id, intent)| op.set_entry(id_key(INTENTS, *id), intent.clone()));
        match fs.attempt(&object_of(directory), op)? {
            Outcome::Done => return Ok((first, others)),
            Outcome::Conflict => {
                retry.again()?;
                *hint = fs.look_live(directory, Vec::new(), &mut retry)?.hint;
            }
            Outcome::Unknown(error) if unknown => return Err(error),
            Outcome::Unknown(_) => unknown = true,
        }
    }
}
