//! Renames: one operation within a directory, five between two, whatever is below the name.
//!
//! Within a directory the old name goes and the new one comes in one operation.
//!
//! From directory A to directory B, with T a new transaction:
//! 1. B: `r/T` = pending.
//! 2. A: `n/OLD` = what it was, tagged *moving to B by T*.
//! 3. B: if `r/T` is pending and `n/NEW` as seen: `r/T` = committed, `n/NEW` = the node; what it replaces is garbage.
//!    **This is the moment of the rename.**
//! 4. A: `n/OLD` goes.
//! 5. B: `r/T` goes.
//!
//! Who reads `n/OLD` and finds the tag asks B: if T is committed there is no such name, else there is. So at every moment there
//! is one of the two names. Who wants to *change* `n/OLD` first brings the move to an end: a committed one is carried out; one
//! that is pending after its lease is **first** made impossible (`r/T` = aborted, which step 3 compares with), **then** the
//! tag is removed. No record means aborted: `r/T` goes only after the tag is known to be gone, and is there before the tag is.
//!
//! What a crash leaves, by the last step that was done: 1: a record that nobody refers to. 2: the old name, with a tag.
//! 3: the new name, and a tag that says so. 4: a record. B is listed as having unfinished business since step 1, so the
//! collector finds all of them. A step without an answer that happens later finds other bytes than it compares with, except
//! step 1 and 2 of a client that has given up: those leave a record, or a tag without one.
//!
//! If B is removed meanwhile, step 3 fails (it is not live), and the collector finishes B's records before it removes B. If
//! A is, the collector asks about each tag in it before it calls what is tagged its own.
//!
//! A *directory* must not become part of itself. Whether it would is looked up, which is worth something only while nobody else
//! moves directories between directories: these moves have a turn, an entry of the object `moves` with T and B. Who takes the
//! turn from one whose lease is over first makes T impossible, even if its step 1 is still to come.

use super::super::objects::{ReadOp, WriteOp};
use super::super::{Error, Problem, Result};
use super::directory::{Look, Outcome, Settled, State, comparisons_first, object_of};
use super::path::Path;
use super::record::{Dentry, GARBAGE, Garbage, MOVES, Move, Node, Record, Tag, Verdict, id_key, name_key};
use super::write::Replace;
use super::{FileSystem, Id, Retry};

const OPERATION: &str = "rename";
pub(super) const TURNS: &str = "moves";
const TURN: &[u8] = b"turn";

/// Where something is.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    directory: Id,
    name: &'a str,
}

/// What an attempt came to.
enum Attempt {
    Done,
    /// Somebody was faster.
    Again,
    /// Somebody is in the middle of something: a transaction, or something short.
    Wait(Option<Id>),
}

impl From<Settled> for Attempt {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Free => Self::Again,
            Settled::Wait(holder) => Self::Wait(holder),
        }
    }
}

impl FileSystem {
    /// Gives a file or a directory another name. The directory that the new name is in must be there.
    ///
    /// # Errors
    /// If the new name is taken, unless by a file that may be replaced by this one.
    pub fn rename(&self, from: &str, to: &str, replace: Replace) -> Result<()> {
        let (source, target) = (Path::parse(OPERATION, from)?, Path::parse(OPERATION, to)?);
        let (source_parents, source_name) = source.split(OPERATION)?;
        let (target_parents, target_name) = target.split(OPERATION)?;
        let mut retry = self.retry(OPERATION, &source);
        let from = Place { directory: self.walk(OPERATION, &source, source_parents)?, name: source_name };
        let to = Place { directory: self.walk(OPERATION, &target, target_parents)?, name: target_name };
        if from.directory == to.directory {
            return self.rename_here(from, target_name, &target, replace, &mut retry);
        }
        loop {
            let Some(dentry) = self.child(from.directory, from.name)? else {
                return Err(source.error(OPERATION, Problem::NotFound));
            };
            let transaction = self.new_id()?;
            let attempt = match dentry.node {
                Node::File(_) => self.move_over(transaction, from, to, &target, replace, &dentry.node, &mut retry),
                Node::Directory(id) => {
                    let turn = self.take_turn(transaction, to.directory, &mut retry)?;
                    let way = self.walk_all(OPERATION, &target, target_parents);
                    let attempt = match way {
                        Ok(way) if way.contains(&id) => Err(source.error(OPERATION, Problem::Impossible)),
                        // Somebody has moved it meanwhile.
                        Ok(way) if way.last().copied().unwrap_or(Id::ROOT) != to.directory => {
                            Err(target.error(OPERATION, Problem::NotFound))
                        }
                        Ok(_) => self.move_over(transaction, from, to, &target, replace, &dentry.node, &mut retry),
                        Err(error) => Err(error),
                    };
                    self.give_turn_back(&turn);
                    attempt
                }
            };
            match attempt? {
                Attempt::Done => return Ok(()),
                Attempt::Again => retry.again()?,
                Attempt::Wait(holder) => retry.wait(holder)?,
            }
        }
    }

    fn rename_here(
        &self,
        from: Place<'_>,
        to: &str,
        target: &Path<'_>,
        replace: Replace,
        retry: &mut Retry<'_>,
    ) -> Result<()> {
        let (old_key, new_key) = (name_key(from.name), name_key(to));
        let stamp = self.new_id()?;
        let mut asked = false;
        loop {
            let mut look = self.look_live(from.directory, vec![old_key.clone(), new_key.clone()], retry)?;
            if look.dentry(to)?.is_some_and(|there| there.stamp == stamp) {
                return Ok(());
            }
            if let Some(settled) = self.settle_both(&look, &[from.name, to])? {
                if let Settled::Wait(holder) = settled {
                    retry.wait(holder)?;
                }
                continue;
            }
            let Some(dentry) = look.dentry(from.name)? else {
                return Err(retry.error(if asked { Problem::OutcomeUnknown } else { Problem::NotFound }));
            };
            if from.name == to {
                return Ok(());
            }
            let Some(op) = self.replacing(&mut look, to, target, replace, &dentry.node)? else {
                retry.again()?;
                continue;
            };
            let renamed = Dentry { stamp, ..dentry };
            let op = op
                .entry_is(old_key.clone(), look.raw(&old_key))
                .remove_entry(old_key.clone())
                .set_entry(new_key.clone(), renamed.encode());
            match self.attempt(&object_of(from.directory), comparisons_first(op))? {
                Outcome::Done => return Ok(()),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => asked = true,
            }
        }
    }

    /// Gets the tags of names out of the way; `None`: there were none.
    fn settle_both(&self, look: &Look, names: &[&str]) -> Result<Option<Settled>> {
        for name in names {
            if let Some(dentry) = look.dentry(name)?.filter(|dentry| dentry.tag.is_some()) {
                let raw = look.raw(&name_key(name)).unwrap_or_default();
                return self.settle(look.directory, name, &raw, &dentry).map(Some);
            }
        }
        Ok(None)
    }

    /// The beginning of an operation that puts `node` where `name` is: compares what is there, and makes garbage of it if it
    /// may be replaced. `None`: look again.
    fn replacing(
        &self,
        look: &mut Look,
        name: &str,
        target: &Path<'_>,
        replace: Replace,
        node: &Node,
    ) -> Result<Option<WriteOp>> {
        let key = name_key(name);
        let Some(there) = look.dentry(name)? else { return Ok(Some(self.in_live(OPERATION).entry_is(key, None))) };
        match (&there.node, node, replace) {
            (_, _, Replace::Never) => return Err(target.error(OPERATION, Problem::Exists)),
            (Node::Directory(_), ..) => return Err(target.error(OPERATION, Problem::IsADirectory)),
            (_, Node::Directory(_), _) => return Err(target.error(OPERATION, Problem::NotADirectory)),
            (Node::File(file), _, Replace::Only(id)) if file.id != id => {
                return Err(target.error(OPERATION, Problem::Changed));
            }
            _ => {}
        }
        let old = look.raw(&key);
        let garbage = Garbage { stamp: self.new_id()?, since_ms: self.now_ms(), condemned: false, node: there.node };
        let Some(op) = self.in_listed(look.directory, &mut look.hint, OPERATION)? else { return Ok(None) };
        Ok(Some(op.entry_is(key, old).set_entry(id_key(GARBAGE, garbage.node.id()), garbage.encode())))
    }

    #[allow(clippy::too_many_arguments)]
    fn move_over(
        &self,
        transaction: Id,
        from: Place<'_>,
        to: Place<'_>,
        target: &Path<'_>,
        replace: Replace,
        node: &Node,
        retry: &mut Retry<'_>,
    ) -> Result<Attempt> {
        let record_key = id_key(MOVES, transaction);
        let due_ms = self.due_ms(self.inner.options.move_lease);
        let record = Move {
            stamp: self.new_id()?,
            due_ms,
            verdict: Verdict::Pending,
            from: from.directory,
            name: from.name.to_owned(),
        };
        let pending = record.encode();

        // Step 1. What cannot be is found out before anything is tagged.
        let mut there = self.look_live(to.directory, vec![name_key(to.name)], retry)?;
        if let Some(settled) = self.settle_both(&there, &[to.name])? {
            return Ok(settled.into());
        }
        if self.replacing(&mut there, to.name, target, replace, node)?.is_none() {
            return Ok(Attempt::Again);
        }
        let Some(op) = self.in_listed(there.directory, &mut there.hint, OPERATION)? else { return Ok(Attempt::Again) };
        let op = op.entry_is(record_key.clone(), None).set_entry(record_key.clone(), pending.clone());
        match self.attempt(&object_of(to.directory), op)? {
            Outcome::Done => {}
            Outcome::Conflict => return Ok(Attempt::Again),
            // Nothing refers to it, and nothing will.
            Outcome::Unknown(error) => return Err(error),
        }

        // Step 2.
        let tagged = match self.tag_source(transaction, from, to, node, retry) {
            Ok(Ok(tagged)) => tagged,
            Ok(Err(attempt)) => {
                self.drop_record(to.directory, &record_key, &pending);
                return Ok(attempt);
            }
            Err(error) => {
                self.drop_record(to.directory, &record_key, &pending);
                return Err(error);
            }
        };

        // Step 3.
        let moved = Dentry { stamp: self.new_id()?, tag: None, ..tagged.clone() };
        let committed = Move { stamp: self.new_id()?, verdict: Verdict::Committed, ..record.clone() }.encode();
        let step = |retry: &mut Retry<'_>| {
            self.commit_move(to, &record_key, &pending, &committed, target, replace, &moved, retry)
        };
        if let Err(error) = step(retry) {
            // Only who has made the commit impossible may remove the tag.
            if error.problem() != Some(Problem::OutcomeUnknown) {
                match self.abort_move(to.directory, transaction, &record, &pending) {
                    Ok(true) => {}
                    // The directory is gone, and nothing is committed in it any more; or others have undone the move.
                    Ok(false) => match self.verdict(to.directory, transaction)? {
                        None => {}
                        Some((record, _)) if record.verdict == Verdict::Aborted => {}
                        Some(_) => return Err(retry.error(Problem::OutcomeUnknown)),
                    },
                    Err(_) => return Err(retry.error(Problem::OutcomeUnknown)),
                }
                let _ = self.untag(from.directory, from.name, &tagged.encode(), &tagged);
            }
            return if error.problem() == Some(Problem::Busy) { Ok(Attempt::Again) } else { Err(error) };
        }

        // Step 4 and 5. It has happened: what is left, others do as well.
        let gone = self.swap("finish moving", from.directory, &name_key(from.name), &tagged.encode(), None);
        if gone.is_ok() {
            self.drop_record(to.directory, &record_key, &committed);
        }
        Ok(Attempt::Done)
    }

    /// Step 2: the dentry with its tag.
    fn tag_source(
        &self,
        transaction: Id,
        from: Place<'_>,
        to: Place<'_>,
        node: &Node,
        retry: &mut Retry<'_>,
    ) -> Result<std::result::Result<Dentry, Attempt>> {
        let key = name_key(from.name);
        let look = self.look_live(from.directory, vec![key.clone()], retry)?;
        if let Some(settled) = self.settle_both(&look, &[from.name])? {
            return Ok(Err(settled.into()));
        }
        // Another one would need another turn.
        let Some(dentry) = look.dentry(from.name)?.filter(|dentry| dentry.node == *node) else {
            return Ok(Err(Attempt::Again));
        };
        let tag = Some(Tag::Moving { to: to.directory, transaction });
        let tagged = Dentry { stamp: self.new_id()?, tag, ..dentry };
        let op = self.in_live(OPERATION).entry_is(key.clone(), look.raw(&key)).set_entry(key, tagged.encode());
        match self.attempt(&object_of(from.directory), op)? {
            Outcome::Done => Ok(Ok(tagged)),
            Outcome::Conflict => Ok(Err(Attempt::Again)),
            // The tag may come later, and will have no record: whoever meets it removes it.
            Outcome::Unknown(error) => Err(error),
        }
    }

    /// Step 3. [`Problem::Busy`]: the move was undone by others; [`Problem::OutcomeUnknown`] is what it says.
    #[allow(clippy::too_many_arguments)]
    fn commit_move(
        &self,
        to: Place<'_>,
        record_key: &[u8],
        pending: &[u8],
        committed: &[u8],
        target: &Path<'_>,
        replace: Replace,
        moved: &Dentry,
        retry: &mut Retry<'_>,
    ) -> Result<()> {
        let key = name_key(to.name);
        let mut asked = false;
        loop {
            let look = self.look_live(to.directory, vec![key.clone(), record_key.to_vec()], retry);
            let mut look = match look {
                Err(_) if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                look => look?,
            };
            match look.raw(record_key) {
                Some(record) if record == committed => return Ok(()),
                Some(record) if record == pending => {}
                _ if look.dentry(to.name)?.is_some_and(|there| there.stamp == moved.stamp) => return Ok(()),
                // It was committed and others have finished it, and moved the file on; or they have undone it.
                _ if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                _ => return Err(retry.error(Problem::Busy)),
            }
            if let Some(settled) = self.settle_both(&look, &[to.name])? {
                if let Settled::Wait(holder) = settled {
                    retry.wait(holder)?;
                }
                continue;
            }
            let Some(op) = self.replacing(&mut look, to.name, target, replace, &moved.node)? else {
                retry.again()?;
                continue;
            };
            let op = op
                .entry_is(record_key, Some(pending.to_vec()))
                .set_entry(record_key, committed)
                .set_entry(key.clone(), moved.encode());
            match self.attempt(&object_of(to.directory), comparisons_first(op))? {
                Outcome::Done => return Ok(()),
                Outcome::Conflict => retry.again()?,
                Outcome::Unknown(_) if asked => return Err(retry.error(Problem::OutcomeUnknown)),
                Outcome::Unknown(_) => asked = true,
            }
        }
    }

    /// A record that nobody refers to any more; if it stays, the collector removes it.
    fn drop_record(&self, directory: Id, key: &[u8], stored: &[u8]) {
        let op =
            WriteOp::new("forget a move in").assert_exists().entry_is(key, Some(stored.to_vec())).remove_entry(key);
        // Nobody waits for it, and nothing depends on it.
        self.inner.meta.start_write(&object_of(directory), op, Box::new(|_| {}));
    }

    /// Waits until nobody else moves directories between directories.
    fn take_turn(&self, transaction: Id, to: Id, retry: &mut Retry<'_>) -> Result<Vec<u8>> {
        loop {
            let due_ms = self.due_ms(self.inner.options.move_lease);
            let name = transaction.to_string();
            let turn = Move { stamp: self.new_id()?, due_ms, verdict: Verdict::Pending, from: to, name }.encode();
            let read = ReadOp::new("read").entries(vec![TURN.to_vec()]);
            let now = self.inner.meta.read(TURNS, read)?.entry(TURN).map(<[u8]>::to_vec);
            if let Some(theirs) = &now
                && !self.end_turn(theirs)?
            {
                retry.wait(None)?;
                continue;
            }
            let op = WriteOp::new("take a turn in").assert_exists().entry_is(TURN, now).set_entry(TURN, turn.clone());
            match self.attempt(TURNS, comparisons_first(op))? {
                Outcome::Done => return Ok(turn),
                Outcome::Conflict => retry.again()?,
                // If it is ours, it ends with its lease.
                Outcome::Unknown(error) => return Err(error),
            }
        }
    }

    /// Makes the move impossible that has the turn; false: it may go on.
    fn end_turn(&self, theirs: &[u8]) -> Result<bool> {
        // What makes no sense is no turn.
        let Some(turn) = Move::decode(theirs) else { return Ok(true) };
        let Some(transaction) = Id::parse(&turn.name) else { return Ok(true) };
        if self.now_ms() < turn.due_ms {
            return Ok(false);
        }
        let key = id_key(MOVES, transaction);
        let Some(mut look) = self.look(turn.from, vec![key.clone()])? else { return Ok(true) };
        if look.state == State::Dead {
            return Ok(true);
        }
        let Some(stored) = look.raw(&key) else {
            // Its first step may still come, and must find this.
            let from = Move { stamp: self.new_id()?, verdict: Verdict::Aborted, ..turn.clone() };
            let Some(op) = self.in_listed(look.directory, &mut look.hint, OPERATION)? else { return Ok(false) };
            let op = op.entry_is(key.clone(), None).set_entry(key, from.encode());
            return Ok(matches!(self.attempt(&object_of(turn.from), op)?, Outcome::Done));
        };
        let Some(record) = look.record::<Move>(&key)? else { return Ok(false) };
        match record.verdict {
            Verdict::Pending => self.abort_move(turn.from, transaction, &record, &stored),
            Verdict::Committed | Verdict::Aborted => Ok(true),
        }
    }

    fn give_turn_back(&self, turn: &[u8]) {
        let op = WriteOp::new("give back a turn in").entry_is(TURN, Some(turn.to_vec())).remove_entry(TURN);
        // If this fails, it ends with its lease.
        let _: std::result::Result<(), Error> = self.inner.meta.write(TURNS, op);
    }
}
