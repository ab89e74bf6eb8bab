//! What follows from a transaction's end: staged names become plain or what they were, and what is not needed goes. Anybody
//! may do any of it, at any time, more than once: each operation compares the staged dentries, and no two of these are equal.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::{Result, WriteOp};
use super::super::clock::millis;
use super::super::collect::{Collected, Dealt};
use super::super::directory::{Outcome, Settled, comparisons_first, object_of as directory_object};
use super::super::record::{
    Before, Dentry, GARBAGE, Garbage, INTENTS, Intent, NAMES, Record, STAGED, Tag, id_key, key_id, name_key,
};
use super::super::side_by_side::side_by_side;
use super::super::{FileSystem, Id};
use super::commit::BATCH;
use super::object::{
    ATTEMPTS, Attempt, Condition, Fate, Lease, Look, MADE, State, TOUCHED, WAITS, WINNERS, Winner, object_of, shard_of,
};
use super::or_gone;

/// Transactions that are asked whom they wait for, until a circle is found.
const MOST_WAITING: usize = 256;

/// What becomes of staged names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Settling {
    /// The transaction is committed.
    Keep,
    /// It is aborted, or there is none.
    Discard,
}

/// A staged name: what it is, as bytes and what they mean.
pub(super) type StagedName = (String, Vec<u8>, Dentry);

/// What a commit has staged in one directory.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// The mark, as it was stored last.
    pub mark: Vec<u8>,
    pub names: Vec<StagedName>,
}

/// What is left of a committed transaction whose names are settled.
#[derive(Debug, Default)]
pub(super) enum Leftovers {
    /// Directories of the attempts that count, and nothing in them but names of files.
    Winners(Vec<Id>),
    /// Other attempts as well, or files that were never closed.
    #[default]
    Others,
}

fn is_staged_by(transaction: Id, dentry: &Dentry) -> bool {
    matches!(&dentry.tag, Some(Tag::Staged { transaction: by, .. }) if *by == transaction)
}

impl FileSystem {
    /// Gets a staged name out of the way of a change.
    pub(in super::super) fn settle_staged(
        &self,
        directory: Id,
        name: &str,
        raw: &[u8],
        dentry: &Dentry,
        transaction: Id,
    ) -> Result<Settled> {
        let settling = match self.fate(transaction)? {
            Fate::Committed => Settling::Keep,
            Fate::Aborted | Fate::Gone => Settling::Discard,
            Fate::Open { due_ms } if self.now_ms() < due_ms => return Ok(Settled::Wait(Some(transaction))),
            Fate::Open { .. } => {
                let Some(look) = self.look_transaction(transaction, Vec::new())? else { return Ok(Settled::Free) };
                // From here on it cannot be committed, and only then is the name brought back.
                if !look.is_due(self.now_ms()) || !self.abort_overdue(&look)? {
                    return Ok(Settled::Free);
                }
                Settling::Discard
            }
        };
        let names = [(name.to_owned(), raw.to_vec(), dentry.clone())];
        // Whatever comes of it is seen by looking again.
        self.settle_names("settle", directory, &names, settling, None)?;
        Ok(Settled::Free)
    }

    /// Settles some names of one directory, and removes the mark if they are the last ones. No look at whether the directory is listed:
    /// while it has a staged name it has a mark, and while it has a mark it is listed.
    fn settle_names(
        &self,
        operation: &'static str,
        directory: Id,
        names: &[StagedName],
        settling: Settling,
        mark: Option<(&[u8], &[u8])>,
    ) -> Result<Outcome> {
        let mut op = WriteOp::new(operation).assert_exists();
        for (name, raw, dentry) in names {
            let key = name_key(name);
            op = op.entry_is(key.clone(), Some(raw.clone()));
            let Some(Tag::Staged { before, .. }) = &dentry.tag else { continue };
            op = match (settling, before) {
                (Settling::Keep, before) => {
                    let plain = Dentry { stamp: self.new_id()?, tag: None, ..dentry.clone() };
                    let op = op.set_entry(key, plain.encode());
                    match before {
                        None => op,
                        Some(Before { node, .. }) => {
                            let (stamp, since_ms) = (self.new_id()?, self.now_ms());
                            let garbage = Garbage { stamp, since_ms, condemned: false, node: node.clone() };
                            op.set_entry(id_key(GARBAGE, node.id()), garbage.encode())
                        }
                    }
                }
                (Settling::Discard, Some(Before { mtime_ms, node })) => {
                    let (stamp, mtime_ms, node) = (self.new_id()?, *mtime_ms, node.clone());
                    op.set_entry(key, Dentry { stamp, mtime_ms, node, tag: None }.encode())
                }
                (Settling::Discard, None) => op.remove_entry(key),
            };
        }
        if let Some((key, value)) = mark {
            op = op.entry_is(key, Some(value.to_vec())).remove_entry(key);
        }
        self.attempt(&directory_object(directory), comparisons_first(op))
    }

    /// Settles what the committer knows to be all staged names of a directory.
    pub(super) fn settle_known(&self, transaction: Id, directory: Id, touched: &Touched) -> Result<()> {
        match self.settle_known_as(transaction, directory, touched, Settling::Keep)? {
            Outcome::Done => Ok(()),
            // Others have been at it.
            Outcome::Conflict | Outcome::Unknown(_) => self.settle_directory(transaction, directory, Settling::Keep),
        }
    }

    /// The same, or the opposite, as far as everything is as the committer has left it.
    pub(super) fn settle_known_as(
        &self,
        transaction: Id,
        directory: Id,
        touched: &Touched,
        settling: Settling,
    ) -> Result<Outcome> {
        let key = id_key(STAGED, transaction);
        let batches = touched.names.chunks(BATCH);
        let last = batches.len().saturating_sub(1);
        for (number, names) in batches.enumerate() {
            let mark = (number == last).then_some((&key[..], &touched.mark[..]));
            match self.settle_names("settle", directory, names, settling, mark)? {
                Outcome::Done => {}
                other => return Ok(other),
            }
        }
        Ok(Outcome::Done)
    }

    /// Whether `ours`, which is held up by `other`, is the one that has to give way: because `other` is held up by it, at first or
    /// second hand, and it is the last in order of those that are in this together. So one of them does, and the others need not.
    pub(super) fn has_to_give_way(&self, ours: Id, other: Id) -> Result<bool> {
        // From `other` on: who is held up by whom, and by whom each was reached.
        let (mut reached, mut waiting) = (BTreeMap::from([(other, ours)]), vec![other]);
        while let Some(at) = waiting.pop() {
            let mut holders = Vec::new();
            self.each_record(at, WAITS, |look, key, _| {
                if let State::Committing { .. } = look.state {
                    holders.extend(key_id(WAITS, key));
                }
                Ok(())
            })?;
            for holder in holders {
                if holder == ours {
                    let way = std::iter::successors(Some(at), |at| reached.get(at).copied().filter(|to| *to != ours));
                    return Ok(way.take(MOST_WAITING).all(|id| id < ours));
                }
                if reached.len() < MOST_WAITING && !reached.contains_key(&holder) {
                    reached.insert(holder, at);
                    waiting.push(holder);
                }
            }
        }
        Ok(false)
    }

    /// Settles all names of a directory that a transaction that has ended has staged, and removes its mark.
    pub(in super::super) fn settle_directory(&self, transaction: Id, directory: Id, settling: Settling) -> Result<()> {
        let key = id_key(STAGED, transaction);
        loop {
            // First the mark: if names are staged while we go through them, by an operation that is late, it is another one.
            let Some(look) = self.look(directory, vec![key.clone()])? else { return Ok(()) };
            let Some(mark) = look.raw(&key) else { return Ok(()) };
            let (mut after, mut is_all) = (Vec::new(), true);
            while let Some(look) = self.look_page(directory, NAMES, &after, 1024)? {
                let mut staged = Vec::new();
                for (key, raw) in look.entries() {
                    let dentry: Dentry = look.decode(key, raw)?;
                    if is_staged_by(transaction, &dentry) {
                        let name = String::from_utf8_lossy(&key[NAMES.len()..]).into_owned();
                        staged.push((name, raw.clone(), dentry));
                    }
                }
                if !staged.is_empty() {
                    match self.settle_names("settle", directory, &staged, settling, None)? {
                        Outcome::Done => {}
                        Outcome::Conflict => is_all = false,
                        Outcome::Unknown(error) => return Err(error),
                    }
                }
                match look.entries().last() {
                    Some((key, _)) if look.more() => after.clone_from(key),
                    _ => break,
                }
            }
            if is_all && self.swap("settle", directory, &key, &mark, None)? {
                return Ok(());
            }
        }
    }

    /// Settles all names of a transaction that has ended. Attempts that still write get to know.
    pub(super) fn settle_transaction(&self, transaction: Id, settling: Settling) -> Result<()> {
        let mut touched = Vec::new();
        self.each_record(transaction, TOUCHED, |_, key, _| {
            touched.extend(key_id(TOUCHED, key));
            Ok(())
        })?;
        side_by_side(self.inner.options.at_once, touched, |directory| {
            self.settle_directory(transaction, directory, settling)
        })?;
        self.end_losers(transaction)
    }

    /// Ends the directories of all attempts that do not count: who still writes there gets to know.
    pub(super) fn end_losers(&self, transaction: Id) -> Result<()> {
        let (winners, attempts) = self.attempts_of(transaction)?;
        let losers = attempts.into_iter().filter(|directory| !winners.contains(directory)).collect();
        side_by_side(self.inner.options.at_once, losers, |directory| self.kill(directory)).map(drop)
    }

    /// The directories of the attempts that count, none if it is not committed; and of all attempts.
    fn attempts_of(&self, transaction: Id) -> Result<(BTreeSet<Id>, Vec<Id>)> {
        let (mut winners, mut attempts) = (BTreeSet::new(), Vec::new());
        self.each_record(transaction, WINNERS, |look, key, value| {
            let winner: Winner = look.decode(key, value)?;
            if let State::Committed { .. } = look.state {
                winners.insert(winner.directory);
            }
            Ok(())
        })?;
        self.each_record(transaction, ATTEMPTS, |look, key, value| {
            attempts.push(look.decode::<Attempt>(key, value)?.directory);
            Ok(())
        })?;
        Ok((winners, attempts))
    }

    /// Removes what is left of a committed transaction all of whose attempts count. Their files are others' now.
    pub(super) fn forget_winners(&self, transaction: Id, directories: Vec<Id>) -> Result<()> {
        side_by_side(self.inner.options.at_once, directories, |directory| {
            or_gone(self.inner.meta.write(&directory_object(directory), WriteOp::new("remove").remove()))
        })?;
        self.forget_transaction(transaction)
    }

    /// Removes a transaction that nothing refers to any more.
    fn forget_transaction(&self, transaction: Id) -> Result<()> {
        or_gone(self.inner.meta.write(&object_of(transaction), WriteOp::new("remove").remove()))?;
        let forget = WriteOp::new("forget a transaction in").remove_entry(object_of(transaction));
        self.inner.meta.write(&shard_of(transaction), forget)
    }

    /// Deals with a transaction that is listed; gone: it need not be listed any more.
    pub(in super::super) fn collect_transaction(
        &self,
        transaction: Id,
        listed: &[u8],
        collected: &mut Collected,
    ) -> Result<Dealt> {
        let Some(mut look) = self.look_transaction(transaction, Vec::new())? else {
            // Dealt with; or not made yet, and who makes it looks afterwards whether it is still listed.
            let due_ms = Lease::decode(listed).map_or(0, |lease| lease.due_ms);
            return Ok(if self.now_ms() < due_ms { Dealt::Later } else { Dealt::Gone });
        };
        if look.is_due(self.now_ms()) && self.abort_overdue(&look)? {
            collected.transactions += 1;
            let Some(again) = self.look_transaction(transaction, Vec::new())? else { return Ok(Dealt::Later) };
            look = again;
        }
        let (settling, at_ms) = match look.state {
            State::Pending | State::Committing { .. } => {
                self.collect_aborted_attempts(&look)?;
                return Ok(Dealt::Later);
            }
            State::Committed { at_ms } => (Settling::Keep, at_ms),
            State::Aborted { at_ms } => (Settling::Discard, at_ms),
        };
        self.settle_transaction(transaction, settling)?;
        if self.now_ms() < at_ms.saturating_add(millis(self.inner.options.grace)) {
            return Ok(Dealt::Later);
        }
        self.dissolve(transaction, settling)
    }

    /// Removes what attempts have written that were aborted, and whose transaction goes on.
    fn collect_aborted_attempts(&self, look: &Look) -> Result<()> {
        let mut aborted = Vec::new();
        self.each_record(look.transaction, ATTEMPTS, |look, key, value| {
            let attempt: Attempt = look.decode(key, value)?;
            if let Condition::Aborted { since_ms } = attempt.condition
                && self.now_ms() >= since_ms.saturating_add(millis(self.inner.options.grace))
            {
                aborted.push((key.to_vec(), value.to_vec(), attempt));
            }
            Ok(())
        })?;
        for (key, value, attempt) in aborted {
            if self.purge_directory(attempt.directory)? == Dealt::Later {
                continue;
            }
            let gone = Attempt { stamp: self.new_id()?, condition: Condition::Gone, ..attempt };
            let op = WriteOp::new("forget a task attempt of").assert_exists();
            let op = op.entry_is(key.clone(), Some(value)).set_entry(key, gone.encode());
            // If this fails, the next one does it again.
            self.attempt(&object_of(look.transaction), op)?;
        }
        Ok(())
    }

    /// Removes a transaction that has ended, whose names are settled, and everything that nothing refers to any more: all that
    /// attempts have written but for the files of those that count, and directories that an aborted commit has made.
    fn dissolve(&self, transaction: Id, settling: Settling) -> Result<Dealt> {
        let (winners, attempts) = self.attempts_of(transaction)?;
        let dealt = side_by_side(self.inner.options.at_once, attempts, |directory| {
            if winners.contains(&directory) { self.purge_but_names(directory) } else { self.purge_directory(directory) }
        })?;
        if dealt.contains(&Dealt::Later) {
            return Ok(Dealt::Later);
        }
        if settling == Settling::Discard {
            let mut made = Vec::new();
            self.each_record(transaction, MADE, |_, key, _| {
                made.extend(key_id(MADE, key));
                Ok(())
            })?;
            // Not what is in them: that is the attempts'.
            side_by_side(self.inner.options.at_once, made, |id| {
                or_gone(self.inner.meta.write(&directory_object(id), WriteOp::new("remove").remove()))
            })?;
        }
        self.forget_transaction(transaction)?;
        Ok(Dealt::Gone)
    }

    /// Removes the directory of an attempt that counts: what has a name in it has another name now.
    fn purge_but_names(&self, directory: Id) -> Result<Dealt> {
        self.kill(directory)?;
        for prefix in [INTENTS, GARBAGE] {
            self.each_entry(directory, prefix, |look, key, value| {
                let node = if prefix == INTENTS {
                    look.decode::<Intent>(key, value)?.node
                } else {
                    look.decode::<Garbage>(key, value)?.node
                };
                self.purge(&node).map(drop)
            })?;
        }
        or_gone(self.inner.meta.write(&directory_object(directory), WriteOp::new("remove").remove()))?;
        Ok(Dealt::Gone)
    }

    /// Deals with the mark of a transaction in a directory that is listed.
    pub(in super::super) fn collect_mark(&self, directory: Id, transaction: Id) -> Result<Dealt> {
        let settling = match self.fate(transaction)? {
            Fate::Committed => Settling::Keep,
            Fate::Aborted | Fate::Gone => Settling::Discard,
            // It is listed itself, and is dealt with there.
            Fate::Open { .. } => return Ok(Dealt::Later),
        };
        self.settle_directory(transaction, directory, settling)?;
        Ok(Dealt::Gone)
    }
}
