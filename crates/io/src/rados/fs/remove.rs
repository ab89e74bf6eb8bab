//! Removals. A name goes in one operation, and with it everything below: what it stood for becomes garbage of the directory that
//! the name was in, and the collector does the rest.
//!
//! A directory that must be *empty* to go, D in P under NAME, takes a token K:
//! 1. P: `n/NAME` is tagged *being emptied by K*.
//! 2. D: its state becomes *emptying by K*: nothing is added to it any more.
//! 3. Is anything in it? Then both are taken back, the tag first.
//! 4. P: the tagged name goes.
//!
//! Who meets D in that state after the lease takes both back in the same order. The tag goes first because step 4 compares with
//! it: once it is gone the removal cannot happen, and only then may D fill again. A step that happens late leaves a tag
//! without a state, or a state without a tag: the former ends with its lease, the latter at once.

use super::super::{Problem, Result};
use super::directory::{Outcome, Settled, State, object_of};
use super::path::Path;
use super::record::{Dentry, GARBAGE, Garbage, NAMES, Node, Record, Tag, id_key, name_key};
use super::{FileSystem, Id, Retry};

const OPERATION: &str = "remove";

/// What a removal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    File,
    Anything,
}

impl FileSystem {
    /// Removes a file. Who has it open can go on reading it for the grace time.
    pub fn remove_file(&self, path: &str) -> Result<()> {
        self.unlink(path, Wanted::File).map(drop)
    }

    /// Removes a file, or a directory with all that is in it, at one moment.
    pub fn remove_all(&self, path: &str) -> Result<()> {
        if let Node::Directory(id) = self.unlink(path, Wanted::Anything)? {
            // It has happened. This is so that who still has the directory in hand gets to know soon.
            let _ = self.kill(id);
        }
        Ok(())
    }

    /// Removes a directory if it is empty.
    pub fn remove_directory(&self, path: &str) -> Result<()> {
        let path = Path::parse(OPERATION, path)?;
        let (parents, name) = path.split(OPERATION)?;
        let mut retry = self.retry(OPERATION, &path);
        let parent = self.walk(OPERATION, &path, parents)?;
        let (tagged, id) = self.tag_emptying(parent, name, &mut retry)?;
        let Some(Tag::Emptying { token, due_ms }) = tagged.tag else { return Err(retry.error(Problem::Busy)) };
        let state = State::Emptying { token, due_ms, parent, name: name.to_owned() };
        let raw = tagged.encode();
        let result = self.empty(parent, name, &raw, id, &state, &mut retry);
        if result.as_ref().is_err_and(|error| error.problem() != Some(Problem::OutcomeUnknown)) {
            // In this order: see above. What is not taken back here, others take back when the lease is over.
            if let Ok(true) = self.untag(parent, name, &raw, &tagged) {
                let _ = self.change_state(id, &state, &State::Live);
            }
        }
        result
    }

    /// Step 1.
    fn tag_emptying(&self, parent: Id, name: &str, retry: &mut Retry<'_>) -> Result<(Dentry, Id)> {
        let key = name_key(name);
        loop {
            let look = self.look_live(parent, vec![key.clone()], retry)?;
            let Some(dentry) = look.dentry(name)? else { return Err(retry.error(Problem::NotFound)) };
            let raw = look.raw(&key).unwrap_or_default();
            if dentry.tag.is_some() {
                if let Settled::Wait(holder) = self.settle(parent, name, &raw, &dentry)? {
                    retry.wait(holder)?;
                }
                continue;
            }
            let Node::Directory(id) = dentry.node else { return Err(retry.error(Problem::NotADirectory)) };
            let due_ms = self.due_ms(self.inner.options.move_lease);
            let tag = Some(Tag::Emptying { token: self.new_id()?, due_ms });
            let tagged = Dentry { stamp: self.new_id()?, tag, ..dentry };
            let op = self.in_live(OPERATION).entry_is(key.clone(), Some(raw)).set_entry(key.clone(), tagged.encode());
            match self.attempt(&object_of(parent), op)? {
                Outcome::Done => return Ok((tagged, id)),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(error) => return Err(error),
            }
        }
    }

    /// Steps 2 to 4.
    fn empty(&self, parent: Id, name: &str, tagged: &[u8], id: Id, state: &State, retry: &mut Retry<'_>) -> Result<()> {
        while !self.change_state(id, &State::Live, state)? {
            // Left over from somebody whose tag is gone: ours is in its place.
            let look = self.look(id, Vec::new())?.ok_or_else(|| retry.error(Problem::NotFound))?;
            self.revive(&look)?;
            retry.again()?;
        }
        if let Some(problem) = self.in_the_way(id)? {
            return Err(retry.error(problem));
        }
        let garbage =
            Garbage { stamp: self.new_id()?, since_ms: self.now_ms(), condemned: false, node: Node::Directory(id) };
        let key = name_key(name);
        let mut asked = false;
        loop {
            let mut look = self.look_live(parent, vec![key.clone(), id_key(GARBAGE, id)], retry)?;
            if asked && look.raw(&id_key(GARBAGE, id)).is_some() {
                break;
            }
            if look.raw(&key).as_deref() != Some(tagged) {
                return Err(retry.error(if asked { Problem::OutcomeUnknown } else { Problem::Busy }));
            }
            let Some(op) = self.in_listed(look.directory, &mut look.hint, OPERATION)? else {
                retry.again()?;
                continue;
            };
            let op = op
                .entry_is(key.clone(), Some(tagged.to_vec()))
                .remove_entry(key.clone())
                .set_entry(id_key(GARBAGE, id), garbage.encode());
            match self.attempt(&object_of(parent), op)? {
                Outcome::Done => break,
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => asked = true,
            }
        }
        let _ = self.kill(id);
        Ok(())
    }

    /// Why a directory is not empty. Names that were moved away are none; those that are staged are, until their transaction has
    /// ended: it may be committed when the directory is gone.
    fn in_the_way(&self, id: Id) -> Result<Option<Problem>> {
        let mut after = Vec::new();
        'page: loop {
            let Some(look) = self.look_page(id, NAMES, &after, 64)? else { return Ok(None) };
            for (key, value) in look.entries() {
                let name = String::from_utf8_lossy(&key[NAMES.len()..]).into_owned();
                let dentry: Dentry = look.decode(key, value)?;
                if let Some(Tag::Staged { .. }) = dentry.tag {
                    match self.settle(id, &name, value, &dentry)? {
                        Settled::Wait(holder) => return Ok(Some(holder.map_or(Problem::Busy, Problem::InTransaction))),
                        // It is what it is to be: whether that is anything is to be seen.
                        Settled::Free => continue 'page,
                    }
                }
                if self.visible(id, &name, Some(dentry))?.is_some() {
                    return Ok(Some(Problem::NotEmpty));
                }
            }
            match look.entries().last() {
                Some((key, _)) if look.more() => after.clone_from(key),
                _ => return Ok(None),
            }
        }
    }

    fn unlink(&self, path: &str, wanted: Wanted) -> Result<Node> {
        let path = Path::parse(OPERATION, path)?;
        let (parents, name) = path.split(OPERATION)?;
        let mut retry = self.retry(OPERATION, &path);
        let parent = self.walk(OPERATION, &path, parents)?;
        let key = name_key(name);
        let mut asked: Option<Node> = None;
        loop {
            let garbage_key = asked.as_ref().map(|node| id_key(GARBAGE, node.id()));
            let keys = [Some(key.clone()), garbage_key.clone()].into_iter().flatten().collect();
            let mut look = self.look_live(parent, keys, &mut retry)?;
            if garbage_key.is_some_and(|key| look.raw(&key).is_some()) {
                return asked.ok_or_else(|| retry.error(Problem::OutcomeUnknown));
            }
            let Some(dentry) = look.dentry(name)? else {
                let problem = if asked.is_some() { Problem::OutcomeUnknown } else { Problem::NotFound };
                return Err(retry.error(problem));
            };
            let raw = look.raw(&key).unwrap_or_default();
            if dentry.tag.is_some() {
                if let Settled::Wait(holder) = self.settle(parent, name, &raw, &dentry)? {
                    retry.wait(holder)?;
                }
                continue;
            }
            if wanted == Wanted::File && matches!(dentry.node, Node::Directory(_)) {
                return Err(retry.error(Problem::IsADirectory));
            }
            let garbage =
                Garbage { stamp: self.new_id()?, since_ms: self.now_ms(), condemned: false, node: dentry.node.clone() };
            let Some(op) = self.in_listed(look.directory, &mut look.hint, OPERATION)? else {
                retry.again()?;
                continue;
            };
            let op = op
                .entry_is(key.clone(), Some(raw))
                .remove_entry(key.clone())
                .set_entry(id_key(GARBAGE, dentry.node.id()), garbage.encode());
            match self.attempt(&object_of(parent), op)? {
                Outcome::Done => return Ok(dentry.node),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked.is_some() => return Err(retry.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => asked = Some(dentry.node),
            }
        }
    }
}
