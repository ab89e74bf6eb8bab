//! One directory's object: looking at it, and changing it under conditions.

use super::super::objects::WriteOp;
use super::super::{Code, Error, Objects, Problem, ReadOp, Reply, Result};
use super::path::Path;
use super::record::{
    Dentry, GARBAGE, Garbage, INTENTS, Intent, MOVES, Move, Node, Record, Tag, Verdict, id_key, name_key,
};
use super::transaction::{Fate, Fates};
use super::{FileSystem, Id, Retry};

/// Lists of directories with unfinished business.
pub(super) const SHARDS: u128 = 16;

const OPERATION: &str = "make directory";
const STATE: &str = "state";
const HINT: &str = "hint";
const LIVE: &[u8] = b"live";
const DEAD: &[u8] = b"dead";
const SEALED: &[u8] = b"sealed";
const FILLING: &[u8] = b"filling";
/// What the hint of a task attempt's directory begins with: it is found by its transaction, not by a list.
pub(super) const OF_TRANSACTION: &[u8] = b"t.";

pub(super) fn object_of(directory: Id) -> String {
    format!("d.{directory}")
}

pub(super) fn shard_of(directory: Id) -> String {
    format!("g.{:x}", directory.0 % SHARDS)
}

/// A new directory, in this state; a hint that begins with `-` says that it may not be listed.
pub(super) fn new_object(state: &State, hint: &[u8]) -> WriteOp {
    WriteOp::new("make").create_new().set_attribute(STATE, state.encode()).set_attribute(HINT, hint)
}

/// A change of a new directory before it has a name: whether anything comes after it.
pub(super) fn filled(is_last: bool) -> WriteOp {
    let op = WriteOp::new("fill").assert_exists().attribute_is(STATE, FILLING);
    if is_last { op.set_attribute(STATE, LIVE) } else { op }
}

/// A directory's object, empty. Who has made it before us has made the same.
pub(super) fn make_object(meta: &dyn Objects, directory: Id, hint: &[u8]) -> Result<()> {
    match meta.write(&object_of(directory), new_object(&State::Live, hint)) {
        Err(error) if error.is(Code::EXISTS) => Ok(()),
        result => result,
    }
}

/// What may be done in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Everything.
    Live,
    /// Nothing for the moment: somebody removes it, if it is empty. Its entry in the parent has the same token.
    Emptying { token: Id, due_ms: u64, parent: Id, name: String },
    /// Nothing is added any more: a task attempt that is committed.
    Sealed,
    /// Nothing but what its maker has begun to put into it, before it has a name.
    Filling,
    /// Nothing ever again.
    Dead,
}

impl State {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Live => LIVE.to_vec(),
            Self::Dead => DEAD.to_vec(),
            Self::Sealed => SEALED.to_vec(),
            Self::Filling => FILLING.to_vec(),
            Self::Emptying { token, due_ms, parent, name } => {
                format!("emptying {token} {due_ms} {parent} {name}").into_bytes()
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            LIVE => Some(Self::Live),
            DEAD => Some(Self::Dead),
            SEALED => Some(Self::Sealed),
            FILLING => Some(Self::Filling),
            _ => {
                let mut words = std::str::from_utf8(bytes).ok()?.strip_prefix("emptying ")?.splitn(4, ' ');
                Some(Self::Emptying {
                    token: Id::parse(words.next()?)?,
                    due_ms: words.next()?.parse().ok()?,
                    parent: Id::parse(words.next()?)?,
                    name: words.next()?.to_owned(),
                })
            }
        }
    }
}

/// A directory at one moment.
#[derive(Debug)]
pub(super) struct Look {
    pub directory: Id,
    pub state: State,
    pub hint: Vec<u8>,
    reply: Reply,
    pool: String,
}

impl Look {
    /// An entry that was asked for.
    pub fn raw(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.reply.entry(key).map(<[u8]>::to_vec)
    }

    pub fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.reply.entry(key).map(|value| self.decode(key, value)).transpose()
    }

    pub fn dentry(&self, name: &str) -> Result<Option<Dentry>> {
        self.record(&name_key(name))
    }

    pub fn decode<R: Record>(&self, key: &[u8], value: &[u8]) -> Result<R> {
        R::decode(value).ok_or_else(|| Error::Corrupt {
            pool: self.pool.clone(),
            object: object_of(self.directory),
            what: format!("its entry {} is damaged or of another version", String::from_utf8_lossy(key)),
        })
    }

    /// The entries of a page.
    pub fn entries(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.reply.entries
    }

    pub fn more(&self) -> bool {
        self.reply.more
    }
}

/// How a change ended, where the caller can go on.
#[derive(Debug)]
pub(super) enum Outcome {
    Done,
    /// Something was not as it was compared with, or is not there at all.
    Conflict,
    /// No answer.
    Unknown(Error),
}

/// What became of a tag that was in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Look again.
    Free,
    /// Its owner may still be at it: this transaction, or somebody who will soon have done.
    Wait(Option<Id>),
}

/// Comparisons are looked at before anything is changed, on every kind of [`Objects`].
pub(super) fn comparisons_first(mut op: WriteOp) -> WriteOp {
    use super::super::objects::WriteStep;
    op.steps.sort_by_key(|step| {
        !matches!(step, WriteStep::AssertExists | WriteStep::AttributeIs(..) | WriteStep::EntryIs(..))
    });
    op
}

impl FileSystem {
    /// A directory and some of its entries; `None`: it is gone.
    pub(super) fn look(&self, directory: Id, keys: Vec<Vec<u8>>) -> Result<Option<Look>> {
        self.look_by(directory, ReadOp::new("look at").entries(keys))
    }

    /// A directory and a page of its entries.
    pub(super) fn look_page(&self, directory: Id, prefix: &[u8], after: &[u8], limit: u64) -> Result<Option<Look>> {
        self.look_by(directory, ReadOp::new("list").page(prefix, after, limit))
    }

    fn look_by(&self, directory: Id, op: ReadOp) -> Result<Option<Look>> {
        let meta = &self.inner.meta;
        let reply = match meta.read(&object_of(directory), op.attributes()) {
            Err(error) if error.is(Code::NOT_FOUND) => return Ok(None),
            reply => reply?,
        };
        let corrupt = |what: &str| Error::Corrupt {
            pool: meta.name().into(),
            object: object_of(directory),
            what: format!("its {what} makes no sense"),
        };
        let state = reply.attributes.get(STATE).and_then(|state| State::decode(state));
        let state = state.ok_or_else(|| corrupt(STATE))?;
        let hint = reply.attributes.get(HINT).cloned().ok_or_else(|| corrupt(HINT))?;
        Ok(Some(Look { directory, state, hint, reply, pool: meta.name().into() }))
    }

    /// The same, of a directory that can be changed: waits while somebody is removing it.
    pub(super) fn look_live(&self, directory: Id, keys: Vec<Vec<u8>>, retry: &mut Retry<'_>) -> Result<Look> {
        loop {
            let look = self.look(directory, keys.clone())?.ok_or_else(|| retry.error(Problem::NotFound))?;
            match &look.state {
                State::Live => return Ok(look),
                State::Sealed | State::Filling | State::Dead => {
                    let ended = look.hint.starts_with(OF_TRANSACTION);
                    return Err(retry.error(if ended { Problem::AttemptEnded } else { Problem::NotFound }));
                }
                State::Emptying { .. } => {
                    if let Settled::Wait(holder) = self.revive(&look)? {
                        retry.wait(holder)?;
                    }
                }
            }
        }
    }

    /// Changes an object; errors that the caller can do something about are outcomes.
    pub(super) fn attempt(&self, object: &str, op: WriteOp) -> Result<Outcome> {
        match self.inner.meta.write(object, op) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if error.is(Code::CONFLICT) || error.is(Code::NOT_FOUND) => Ok(Outcome::Conflict),
            Err(error) if error.is(Code::TIMED_OUT) => Ok(Outcome::Unknown(error)),
            Err(error) => Err(error),
        }
    }

    /// A change of a directory that must be live.
    pub(super) fn in_live(&self, operation: &'static str) -> WriteOp {
        WriteOp::new(operation).assert_exists().attribute_is(STATE, LIVE)
    }

    /// A change of a live directory that adds unfinished business: the directory is listed first. `None`: look again.
    pub(super) fn in_listed(
        &self,
        directory: Id,
        hint: &mut Vec<u8>,
        operation: &'static str,
    ) -> Result<Option<WriteOp>> {
        if hint.starts_with(b"-") {
            let ticket = self.new_id()?.to_string().into_bytes();
            let list = WriteOp::new("list a directory in").set_entry(object_of(directory), ticket.clone());
            self.inner.meta.write(&shard_of(directory), list)?;
            let take = WriteOp::new("list").assert_exists().attribute_is(HINT, hint.clone());
            match self.attempt(&object_of(directory), take.set_attribute(HINT, ticket.clone()))? {
                Outcome::Done => *hint = ticket,
                Outcome::Conflict => return Ok(None),
                Outcome::Unknown(error) => return Err(error),
            }
        }
        Ok(Some(self.in_live(operation).attribute_is(HINT, hint.clone())))
    }

    /// Replaces the hint of a directory that is not listed any more; false: somebody was faster.
    pub(super) fn unlist(&self, look: &Look) -> Result<bool> {
        let hint = format!("-{}", self.new_id()?);
        let op = WriteOp::new("list").assert_exists().attribute_is(HINT, look.hint.clone()).set_attribute(HINT, hint);
        // No answer: as good as no, the next collector tries again.
        Ok(matches!(self.attempt(&object_of(look.directory), op)?, Outcome::Done))
    }

    /// Replaces one entry of a directory, in whatever state it is. True: the entry became `new` by us.
    pub(super) fn swap(
        &self,
        operation: &'static str,
        directory: Id,
        key: &[u8],
        old: &[u8],
        new: Option<&[u8]>,
    ) -> Result<bool> {
        self.swap_in(WriteOp::new(operation).assert_exists(), directory, key, old, new)
    }

    /// The same, as long as what the beginning of the operation compares holds.
    pub(super) fn swap_in(
        &self,
        begin: WriteOp,
        directory: Id,
        key: &[u8],
        old: &[u8],
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let mut unknown = None;
        for _ in 0..3 {
            let op = begin.clone().entry_is(key, Some(old.to_vec()));
            let op = match new {
                Some(new) => op.set_entry(key, new),
                None => op.remove_entry(key),
            };
            match self.inner.meta.write(&object_of(directory), op) {
                Ok(()) => return Ok(true),
                Err(error) if error.is(Code::TIMED_OUT) => unknown = Some(error),
                Err(error) if error.is(Code::CONFLICT) || error.is(Code::NOT_FOUND) => {
                    if unknown.is_none() {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
            // No answer to this one or to one before: what is there tells, for values are never stored twice.
            let now = self.look(directory, vec![key.to_vec()])?.and_then(|look| look.raw(key));
            if now.as_deref() == new {
                return Ok(true);
            }
            if now.as_deref() != Some(old) {
                return Ok(false);
            }
        }
        unknown.map_or(Ok(false), Err)
    }

    /// Ends a directory, whatever was going on in it.
    pub(super) fn kill(&self, directory: Id) -> Result<()> {
        let op = WriteOp::new("end").assert_exists().set_attribute(STATE, DEAD);
        match self.inner.meta.write(&object_of(directory), op) {
            Err(error) if error.is(Code::NOT_FOUND) => Ok(()),
            result => result,
        }
    }

    /// Changes a directory's state; false: it was not as it was seen.
    pub(super) fn change_state(&self, directory: Id, from: &State, to: &State) -> Result<bool> {
        self.change_state_by(WriteOp::new("change"), directory, from, to)
    }

    /// The same with other changes, in one operation.
    pub(super) fn change_state_by(&self, op: WriteOp, directory: Id, from: &State, to: &State) -> Result<bool> {
        let op = comparisons_first(op.assert_exists().attribute_is(STATE, from.encode()));
        match self.attempt(&object_of(directory), op.set_attribute(STATE, to.encode()))? {
            Outcome::Done => Ok(true),
            Outcome::Conflict => Ok(false),
            Outcome::Unknown(_) => Ok(self.look(directory, Vec::new())?.is_some_and(|look| look.state == *to)),
        }
    }

    /// Makes a directory live again whose removal was given up. The parent's entry comes first: while it has the tag, who
    /// removes the directory may still do it.
    pub(super) fn revive(&self, look: &Look) -> Result<Settled> {
        let State::Emptying { token, due_ms, parent, name } = &look.state else { return Ok(Settled::Free) };
        if let Some(above) = self.look(*parent, vec![name_key(name)])?
            && let Some(dentry) = above.dentry(name)?
            && matches!(dentry.tag, Some(Tag::Emptying { token: seen, .. }) if seen == *token)
        {
            if self.now_ms() < *due_ms {
                return Ok(Settled::Wait(None));
            }
            let raw = above.raw(&name_key(name)).unwrap_or_default();
            if !self.untag(*parent, name, &raw, &dentry)? {
                return Ok(Settled::Free);
            }
        }
        self.change_state(look.directory, &look.state, &State::Live)?;
        Ok(Settled::Free)
    }

    /// Removes the tag of a dentry; false: it was not there any more.
    pub(super) fn untag(&self, directory: Id, name: &str, raw: &[u8], dentry: &Dentry) -> Result<bool> {
        let plain = Dentry { stamp: self.new_id()?, tag: None, ..dentry.clone() };
        self.swap("untag", directory, &name_key(name), raw, Some(&plain.encode()))
    }

    /// How a move stands. No record: it was never begun, or undone, or it is long over.
    pub(super) fn verdict(&self, to: Id, transaction: Id) -> Result<Option<(Move, Vec<u8>)>> {
        let key = id_key(MOVES, transaction);
        let Some(look) = self.look(to, vec![key.clone()])? else { return Ok(None) };
        Ok(look.record::<Move>(&key)?.zip(look.raw(&key)))
    }

    /// What a name stands for at the moment: a dentry that was moved away is none, one that is staged is what its transaction
    /// says.
    pub(super) fn visible(&self, directory: Id, name: &str, seen: Option<Dentry>) -> Result<Option<Dentry>> {
        self.visible_among(directory, name, seen, &mut Fates::default())
    }

    /// The same, of one of many names, whose transactions are asked once.
    pub(super) fn visible_among(
        &self,
        directory: Id,
        name: &str,
        mut seen: Option<Dentry>,
        fates: &mut Fates,
    ) -> Result<Option<Dentry>> {
        loop {
            let Some(dentry) = seen else { return Ok(None) };
            match &dentry.tag {
                None | Some(Tag::Emptying { .. }) => return Ok(Some(dentry)),
                Some(Tag::Moving { to, transaction }) => {
                    match self.verdict(*to, *transaction)?.map(|(record, _)| record.verdict) {
                        Some(Verdict::Committed) => return Ok(None),
                        Some(Verdict::Pending) => return Ok(Some(dentry)),
                        Some(Verdict::Aborted) | None => {}
                    }
                }
                Some(Tag::Staged { transaction, .. }) => match fates.of(self, *transaction)? {
                    Fate::Committed => return Ok(Some(dentry)),
                    Fate::Open { .. } | Fate::Aborted => return Ok(dentry.before()),
                    Fate::Gone => {}
                },
            }
            // Between our two looks it may have been committed, carried out and forgotten.
            let again = self.look(directory, vec![name_key(name)])?;
            let again = again.map(|look| look.dentry(name)).transpose()?.flatten();
            if let Some(again) = again.as_ref().filter(|again| again.stamp == dentry.stamp) {
                return Ok(again.before());
            }
            seen = again;
        }
    }

    /// Gets a tag out of the way of a change.
    pub(super) fn settle(&self, directory: Id, name: &str, raw: &[u8], dentry: &Dentry) -> Result<Settled> {
        match &dentry.tag {
            None => Ok(Settled::Free),
            Some(Tag::Emptying { due_ms, .. }) => {
                if self.now_ms() < *due_ms {
                    return Ok(Settled::Wait(None));
                }
                self.untag(directory, name, raw, dentry)?;
                Ok(Settled::Free)
            }
            Some(Tag::Moving { to, transaction }) => self.settle_move(directory, name, raw, dentry, *to, *transaction),
            Some(Tag::Staged { transaction, .. }) => self.settle_staged(directory, name, raw, dentry, *transaction),
        }
    }

    fn settle_move(
        &self,
        directory: Id,
        name: &str,
        raw: &[u8],
        dentry: &Dentry,
        to: Id,
        transaction: Id,
    ) -> Result<Settled> {
        let record = self.verdict(to, transaction)?;
        match record.as_ref().map(|(record, _)| record.verdict) {
            Some(Verdict::Committed) => {
                self.swap("finish moving", directory, &name_key(name), raw, None)?;
            }
            Some(Verdict::Aborted) | None => {
                self.untag(directory, name, raw, dentry)?;
            }
            Some(Verdict::Pending) => {
                let Some((record, stored)) = record else { return Ok(Settled::Free) };
                if self.now_ms() < record.due_ms {
                    return Ok(Settled::Wait(None));
                }
                // From here on it cannot be committed, and only then is the tag removed.
                if self.abort_move(to, transaction, &record, &stored)? {
                    self.untag(directory, name, raw, dentry)?;
                }
            }
        }
        Ok(Settled::Free)
    }

    /// Makes it impossible to commit a move; false: it is not pending any more.
    pub(super) fn abort_move(&self, to: Id, transaction: Id, record: &Move, stored: &[u8]) -> Result<bool> {
        let aborted = Move { stamp: self.new_id()?, verdict: Verdict::Aborted, ..record.clone() };
        self.swap("undo a move in", to, &id_key(MOVES, transaction), stored, Some(&aborted.encode()))
    }

    /// Walks down to a directory.
    pub(super) fn walk(&self, operation: &'static str, path: &Path<'_>, names: &[&str]) -> Result<Id> {
        Ok(self.walk_all(operation, path, names)?.pop().unwrap_or(Id::ROOT))
    }

    /// The same, with all directories on the way, without the root.
    pub(super) fn walk_all(&self, operation: &'static str, path: &Path<'_>, names: &[&str]) -> Result<Vec<Id>> {
        let mut way = Vec::with_capacity(names.len());
        for name in names {
            let at = way.last().copied().unwrap_or(Id::ROOT);
            match self.child(at, name)?.map(|dentry| dentry.node) {
                Some(Node::Directory(id)) => way.push(id),
                Some(Node::File(_)) => return Err(path.error(operation, Problem::NotADirectory)),
                None => return Err(path.error(operation, Problem::NotFound)),
            }
        }
        Ok(way)
    }

    /// What has this name in a directory.
    pub(super) fn child(&self, directory: Id, name: &str) -> Result<Option<Dentry>> {
        let Some(look) = self.look(directory, vec![name_key(name)])? else { return Ok(None) };
        if look.state == State::Dead {
            return Ok(None);
        }
        self.visible(directory, name, look.dentry(name)?)
    }

    /// Makes a directory, and those above it that are missing. One that is there is well.
    pub fn create_directory_all(&self, path: &str) -> Result<()> {
        let path = Path::parse(OPERATION, path)?;
        self.make_way(&path, &path.names.clone()).map(drop)
    }

    /// Makes a directory in one that is there.
    ///
    /// # Errors
    /// If anything has this name.
    pub fn create_directory(&self, path: &str) -> Result<()> {
        let path = Path::parse(OPERATION, path)?;
        let (parents, name) = path.split(OPERATION).map_err(|_| path.error(OPERATION, Problem::Exists))?;
        let parent = self.walk(OPERATION, &path, parents)?;
        match self.make_directory(&path, parent, name)? {
            Made::New(_) => Ok(()),
            Made::There(_) => Err(path.error(OPERATION, Problem::Exists)),
        }
    }

    /// Walks down, making what is missing.
    pub(super) fn make_way(&self, path: &Path<'_>, names: &[&str]) -> Result<Id> {
        let mut at = Id::ROOT;
        for name in names {
            let there = self.child(at, name)?.map(|dentry| dentry.node);
            let node = match there {
                Some(node) => node,
                None => match self.make_directory(path, at, name)? {
                    Made::New(id) => Node::Directory(id),
                    Made::There(node) => node,
                },
            };
            let Node::Directory(id) = node else { return Err(path.error(OPERATION, Problem::NotADirectory)) };
            at = id;
        }
        Ok(at)
    }

    /// An intent, the object, the name.
    fn make_directory(&self, path: &Path<'_>, parent: Id, name: &str) -> Result<Made> {
        let mut retry = self.retry(OPERATION, path);
        let Some(new) = self.promise_directory(parent, Some(name), &mut retry)? else {
            // Taken already.
            return self.taken(parent, name)?.map(Made::There).ok_or_else(|| retry.error(Problem::Busy));
        };
        new.make(self)?;
        self.link_directory(parent, name, &new, false, &mut retry)
    }

    /// Gives a directory that has an intent its name. `has_files`: there may be something in it, which the collector is left to
    /// find; an empty one that is not needed is removed at once.
    pub(super) fn link_directory(
        &self,
        parent: Id,
        name: &str,
        new: &NewDirectory,
        has_files: bool,
        retry: &mut Retry<'_>,
    ) -> Result<Made> {
        let (name_key, intent_key) = (name_key(name), id_key(INTENTS, new.id));
        let dentry =
            Dentry { stamp: self.new_id()?, mtime_ms: self.now_ms(), node: Node::Directory(new.id), tag: None };
        let mut asked = false;
        loop {
            let look = self.look_live(parent, vec![name_key.clone(), intent_key.clone()], retry)?;
            let there = look.dentry(name)?;
            if there.as_ref().is_some_and(|there| there.node == dentry.node) {
                return Ok(Made::New(new.id));
            }
            if look.raw(&intent_key).as_deref() != Some(&new.intent) {
                if asked {
                    // It had the name, and somebody has moved or removed it since; or it was condemned.
                    return Err(retry.error(Problem::OutcomeUnknown));
                }
                if !has_files {
                    // Condemned, perhaps collected before the object was made.
                    let _ = self.inner.meta.write(&object_of(new.id), WriteOp::new("remove").remove());
                }
                return Err(retry.error(Problem::LeaseLost));
            }
            if let Some(there) = there {
                let Some(seen) = self.visible(parent, name, Some(there.clone()))? else {
                    let raw = look.raw(&name_key).unwrap_or_default();
                    if let Settled::Wait(holder) = self.settle(parent, name, &raw, &there)? {
                        retry.wait(holder)?;
                    }
                    continue;
                };
                if asked || has_files {
                    // Ours may still come, and must find no intent.
                    let _ = self.condemn(parent, new.id, &new.intent, Node::Directory(new.id));
                } else {
                    self.forget_directory(parent, new.id, &intent_key, &new.intent);
                }
                return Ok(Made::There(seen.node));
            }
            let op = self
                .in_live(OPERATION)
                .entry_is(intent_key.clone(), Some(new.intent.clone()))
                .entry_is(name_key.clone(), None)
                .remove_entry(intent_key.clone())
                .set_entry(name_key.clone(), dentry.encode());
            match self.attempt(&object_of(parent), op)? {
                Outcome::Done => return Ok(Made::New(new.id)),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => asked = true,
            }
        }
    }

    /// An intent for a directory; `None`: the name is taken. Without a name, none is looked at.
    pub(super) fn promise_directory(
        &self,
        parent: Id,
        name: Option<&str>,
        retry: &mut Retry<'_>,
    ) -> Result<Option<NewDirectory>> {
        let keys: Vec<Vec<u8>> = name.map(name_key).into_iter().collect();
        let mut unknown = false;
        loop {
            // A new one each time: an intent that comes late must not be one that was used.
            let id = self.new_id()?;
            let due_ms = self.due_ms(self.inner.options.lease);
            let intent = Intent { stamp: self.new_id()?, due_ms, node: Node::Directory(id) }.encode();
            let mut look = self.look_live(parent, keys.clone(), retry)?;
            if let Some(name) = name
                && let Some(there) = look.dentry(name)?
            {
                if there.tag.is_none() || self.visible(parent, name, Some(there.clone()))?.is_some() {
                    return Ok(None);
                }
                let raw = look.raw(&name_key(name)).unwrap_or_default();
                if let Settled::Wait(holder) = self.settle(parent, name, &raw, &there)? {
                    retry.wait(holder)?;
                }
                continue;
            }
            let Some(op) = self.in_listed(look.directory, &mut look.hint, OPERATION)? else {
                retry.again()?;
                continue;
            };
            let key = id_key(INTENTS, id);
            let op = keys.iter().fold(op, |op, key| op.entry_is(key.clone(), None));
            let op = op.entry_is(key.clone(), None).set_entry(key, intent.clone());
            match self.attempt(&object_of(parent), op)? {
                Outcome::Done => return Ok(Some(NewDirectory { id, intent })),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(error) if unknown => return Err(error),
                Outcome::Unknown(_) => unknown = true,
            }
        }
    }

    /// What has a name that was said to be taken.
    fn taken(&self, parent: Id, name: &str) -> Result<Option<Node>> {
        Ok(self.child(parent, name)?.map(|dentry| dentry.node))
    }

    /// A directory that was to be made, and that somebody else has made. Whatever goes wrong here stays an intent, which the
    /// collector finds.
    fn forget_directory(&self, parent: Id, id: Id, intent_key: &[u8], intent: &[u8]) {
        let removed = self.inner.meta.write(&object_of(id), WriteOp::new("remove").remove());
        if removed.map_or_else(|error| error.is(Code::NOT_FOUND), |()| true) {
            let _ = self.swap(OPERATION, parent, intent_key, intent, None);
        }
    }

    /// Makes garbage of an intent: nothing can get a name by it any more. False: it was gone.
    pub(super) fn condemn(&self, directory: Id, id: Id, intent: &[u8], node: Node) -> Result<bool> {
        let garbage = Garbage { stamp: self.new_id()?, since_ms: self.now_ms(), condemned: true, node };
        let key = id_key(INTENTS, id);
        let op = WriteOp::new("condemn").assert_exists().entry_is(key.clone(), Some(intent.to_vec()));
        let op = op.remove_entry(key).set_entry(id_key(GARBAGE, id), garbage.encode());
        match self.attempt(&object_of(directory), op)? {
            Outcome::Done => Ok(true),
            Outcome::Conflict => Ok(false),
            Outcome::Unknown(error) => Err(error),
        }
    }
}

/// A directory that has an intent.
#[derive(Debug)]
pub(super) struct NewDirectory {
    pub id: Id,
    pub intent: Vec<u8>,
}

impl NewDirectory {
    /// Makes its object.
    pub fn make(&self, fs: &FileSystem) -> Result<()> {
        make_object(&*fs.inner.meta, self.id, b"-")
    }
}

/// What came of a name.
pub(super) enum Made {
    New(Id),
    There(Node),
}
