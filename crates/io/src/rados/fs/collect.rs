//! Collecting garbage, in two phases, from what directories say themselves.
//!
//! Phase 1 makes sure that something *is* garbage for good: an intent whose lease is over is condemned (from then on nothing can
//! get a name by it), a rename or a transaction whose lease is over is undone or finished. Phase 2, after the grace time, removes chunks and
//! directories of what is garbage, and then the entry that says so. Everything can be done twice, by several at once, and can
//! end anywhere.
//!
//! A directory that is garbage is *dead* first: nothing can be added to it or moved out of it any more. Then what is in it is
//! garbage as well, with two questions to be asked first:
//! - A name with a tag may have been moved out. If the move is committed, it is not ours. If it is not, it must not be any
//!   more: it is undone first. If there is no record, the tag is looked at *again*: the record goes after the tag.
//! - A rename into it that is committed may not have taken the old name away yet. That is done before the record goes with the
//!   directory: without a record the old name would count again.
//! - A name that is staged is asked about: if its transaction is committed, what is staged is ours, and so is what was before;
//!   if it is not, and cannot be any more, only what was before is.
//!
//! Transactions are listed beside the directories. `transaction::finish` has what is done with them.

use std::collections::VecDeque;

use super::super::objects::{ReadOp, WriteOp};
use super::super::{Code, Result};
use super::clock::millis;
use super::directory::{Look, SHARDS, Settled, State, object_of};
use super::read::chunk_name;
use super::record::{
    Dentry, FileNode, GARBAGE, Garbage, INTENTS, Intent, MOVES, Move, NAMES, Node, STAGED, Tag, Verdict, key_id,
    name_key,
};
use super::transaction::{Fate, object};
use super::{FileSystem, Id};

/// Removals in flight.
const PURGES: usize = 16;
const PAGE_ENTRIES: u64 = 1024;

/// What directories are listed for. Intents and marks become garbage, so garbage is looked for last: what is gone under one
/// prefix is found under a later one.
pub(super) const UNFINISHED: [&[u8]; 4] = [INTENTS, MOVES, STAGED, GARBAGE];

/// What a collection has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Directories that had unfinished business.
    pub directories: u64,
    /// Intents that became garbage.
    pub condemned: u64,
    /// Renames that others had left.
    pub moves: u64,
    /// Transactions that were aborted because nobody had renewed them.
    pub transactions: u64,
    /// Files and directories whose chunks and objects were removed.
    pub removed: u64,
    /// What is not due yet.
    pub waiting: u64,
}

/// Whether an entry is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dealt {
    Gone,
    Later,
}

impl FileSystem {
    /// Collects what is due. May be run by anybody, at any time.
    pub fn collect(&self) -> Result<Collected> {
        let mut collected = Collected::default();
        let forget = |object: &str, key: &[u8], listed: &[u8]| {
            // Unless it has been listed again since.
            let op = WriteOp::new("forget a directory in").assert_exists();
            let op = op.entry_is(key, Some(listed.to_vec())).remove_entry(key);
            self.attempt(object, op).map(drop)
        };
        // Transactions first: directories may wait for them.
        self.each_listed("t.", |at, id, listed| match self.collect_transaction(id, listed, &mut collected)? {
            Dealt::Gone => forget(at, object::object_of(id).as_bytes(), listed),
            Dealt::Later => {
                collected.waiting += 1;
                Ok(())
            }
        })?;
        self.each_listed("d.", |at, id, ticket| {
            if self.collect_directory(id, &mut collected)? {
                forget(at, object_of(id).as_bytes(), ticket)?;
            }
            Ok(())
        })?;
        Ok(collected)
    }

    /// Everything of a kind that is listed as unfinished: the list's object, what it is, what the list says of it.
    pub(super) fn each_listed(&self, prefix: &str, mut each: impl FnMut(&str, Id, &[u8]) -> Result<()>) -> Result<()> {
        for shard in 0..SHARDS {
            let object = format!("g.{shard:x}");
            let mut after = Vec::new();
            loop {
                let page = ReadOp::new("list").page(prefix, after.clone(), PAGE_ENTRIES);
                let page = match self.inner.meta.read(&object, page) {
                    Err(error) if error.is(Code::NOT_FOUND) => break,
                    page => page?,
                };
                for (key, listed) in &page.entries {
                    if let Some(id) = std::str::from_utf8(key).ok().and_then(|key| Id::parse(key.strip_prefix(prefix)?))
                    {
                        each(&object, id, listed)?;
                    }
                }
                match page.entries.last() {
                    Some((key, _)) if page.more => after.clone_from(key),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Collects in one directory; true: it need not be listed any more.
    fn collect_directory(&self, id: Id, collected: &mut Collected) -> Result<bool> {
        let Some(look) = self.look(id, Vec::new())? else { return Ok(true) };
        match look.state {
            State::Live => {}
            State::Emptying { .. } => {
                self.revive(&look)?;
            }
            // It goes with what it is garbage of, or with its transaction.
            State::Sealed | State::Filling | State::Dead => return Ok(false),
        }
        collected.directories += 1;
        let mut left = 0;
        for prefix in UNFINISHED {
            self.each_entry(id, prefix, |look, key, value| {
                let dealt = match prefix {
                    INTENTS => self.collect_intent(look, key, value, collected)?,
                    MOVES => self.collect_move(look, key, value, collected)?,
                    STAGED => {
                        key_id(STAGED, key).map_or(Ok(Dealt::Later), |id| self.collect_mark(look.directory, id))?
                    }
                    _ => self.collect_garbage(look, key, value, collected)?,
                };
                left += u64::from(dealt == Dealt::Later);
                Ok(())
            })?;
        }
        collected.waiting += left;
        if left > 0 || !self.unlist(&look)? {
            return Ok(false);
        }
        // Nobody can have added anything since, without another ticket; before that somebody may have.
        let mut found = false;
        for prefix in UNFINISHED {
            self.each_entry(id, prefix, |_, _, _| {
                found = true;
                Ok(())
            })?;
        }
        if found && let Some(mut look) = self.look(id, Vec::new())? {
            self.in_listed(look.directory, &mut look.hint, "list")?;
        }
        Ok(!found)
    }

    /// All entries of a directory with a prefix. Those that are added meanwhile may be among them or not.
    pub(super) fn each_entry(
        &self,
        id: Id,
        prefix: &[u8],
        mut each: impl FnMut(&Look, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut after = Vec::new();
        while let Some(look) = self.look_page(id, prefix, &after, PAGE_ENTRIES)? {
            for (key, value) in look.entries() {
                each(&look, key, value)?;
            }
            match look.entries().last() {
                Some((key, _)) if look.more() => after.clone_from(key),
                _ => break,
            }
        }
        Ok(())
    }

    fn collect_intent(&self, look: &Look, key: &[u8], value: &[u8], collected: &mut Collected) -> Result<Dealt> {
        let intent: Intent = look.decode(key, value)?;
        if self.now_ms() >= intent.due_ms && self.condemn(look.directory, intent.node.id(), value, intent.node)? {
            collected.condemned += 1;
        }
        // It is garbage now, or its writer was faster.
        Ok(Dealt::Later)
    }

    fn collect_garbage(&self, look: &Look, key: &[u8], value: &[u8], collected: &mut Collected) -> Result<Dealt> {
        let garbage: Garbage = look.decode(key, value)?;
        let due_ms = garbage.since_ms.saturating_add(millis(self.inner.options.grace));
        if self.now_ms() < due_ms || self.purge(&garbage.node)? == Dealt::Later {
            return Ok(Dealt::Later);
        }
        collected.removed += 1;
        self.swap("forget", look.directory, key, value, None)?;
        Ok(Dealt::Gone)
    }

    /// Ends a rename into a directory that is live.
    fn collect_move(&self, look: &Look, key: &[u8], value: &[u8], collected: &mut Collected) -> Result<Dealt> {
        let record: Move = look.decode(key, value)?;
        let Some(transaction) = key_id(MOVES, key) else { return Ok(Dealt::Later) };
        if self.now_ms() < record.due_ms {
            return Ok(Dealt::Later);
        }
        if record.verdict == Verdict::Pending {
            if self.abort_move(look.directory, transaction, &record, value)? {
                collected.moves += 1;
            }
            return Ok(Dealt::Later);
        }
        self.end_source(look.directory, transaction, &record)?;
        // One that was undone stays for a while: its first step may still come, and must find it.
        let keep_ms = record.due_ms.saturating_add(millis(self.inner.options.grace));
        if record.verdict == Verdict::Aborted && self.now_ms() < keep_ms {
            return Ok(Dealt::Later);
        }
        if record.verdict == Verdict::Committed {
            collected.moves += 1;
        }
        self.swap("forget a move in", look.directory, key, value, None)?;
        Ok(Dealt::Gone)
    }

    /// Carries out at the old name what was decided at the new one. Returns when it is done.
    fn end_source(&self, to: Id, transaction: Id, record: &Move) -> Result<()> {
        loop {
            let key = name_key(&record.name);
            let Some(look) = self.look(record.from, vec![key.clone()])? else { return Ok(()) };
            let Some(dentry) = look.dentry(&record.name)? else { return Ok(()) };
            if dentry.tag != Some(Tag::Moving { to, transaction }) {
                return Ok(());
            }
            let raw = look.raw(&key).unwrap_or_default();
            let done = match record.verdict {
                Verdict::Committed => self.swap("finish moving", record.from, &key, &raw, None)?,
                Verdict::Aborted | Verdict::Pending => self.untag(record.from, &record.name, &raw, &dentry)?,
            };
            if done {
                return Ok(());
            }
        }
    }

    /// Removes what garbage is made of.
    pub(super) fn purge(&self, node: &Node) -> Result<Dealt> {
        match node {
            Node::File(file) => self.purge_chunks(file).map(|()| Dealt::Gone),
            Node::Directory(id) => self.purge_directory(*id),
        }
    }

    /// Removes the chunks of a file that has no name.
    pub(super) fn purge_chunks(&self, file: &FileNode) -> Result<()> {
        let mut in_flight = VecDeque::new();
        let chunks = file.extents.iter().flat_map(|extent| (0..extent.chunks()).map(|n| chunk_name(extent.id, n)));
        for chunk in chunks.map(Some).chain(std::iter::repeat_n(None, PURGES)) {
            if in_flight.len() == PURGES || chunk.is_none() {
                let Some(oldest): Option<super::super::Pending<()>> = in_flight.pop_front() else { continue };
                match oldest.wait() {
                    Err(error) if error.is(Code::NOT_FOUND) => {}
                    result => result?,
                }
            }
            if let Some(chunk) = chunk {
                in_flight.push_back(self.inner.data.submit_write(&chunk, WriteOp::new("remove").remove()));
            }
        }
        Ok(())
    }

    /// Removes a directory that has no name, with all that is in it.
    pub(super) fn purge_directory(&self, id: Id) -> Result<Dealt> {
        self.kill(id)?;
        // What is read from here on was there when it died, or is less.
        let mut later = false;
        self.each_entry(id, b"", |look, key, value| {
            let dealt = if let Some(name) = key.strip_prefix(NAMES) {
                self.purge_name(id, &String::from_utf8_lossy(name), look.decode(key, value)?)?
            } else if key.starts_with(INTENTS) {
                self.purge(&look.decode::<Intent>(key, value)?.node)?
            } else if key.starts_with(GARBAGE) {
                self.purge(&look.decode::<Garbage>(key, value)?.node)?
            } else if let Some(transaction) = key_id(MOVES, key) {
                // A pending one cannot be committed any more: the directory is not live.
                self.end_source(id, transaction, &look.decode(key, value)?)?;
                Dealt::Gone
            } else {
                Dealt::Gone
            };
            later |= dealt == Dealt::Later;
            Ok(())
        })?;
        if later {
            return Ok(Dealt::Later);
        }
        match self.inner.meta.write(&object_of(id), WriteOp::new("remove").remove()) {
            Err(error) if error.is(Code::NOT_FOUND) => {}
            result => result?,
        }
        Ok(Dealt::Gone)
    }

    /// Removes what a name in a dead directory stands for, if it still stands for it.
    fn purge_name(&self, directory: Id, name: &str, dentry: Dentry) -> Result<Dealt> {
        let mut now = Some(dentry);
        while let Some(dentry) = now {
            match &dentry.tag {
                None | Some(Tag::Emptying { .. }) => return self.purge(&dentry.node),
                Some(Tag::Moving { to, transaction }) => match self.verdict(*to, *transaction)? {
                    // It has another name.
                    Some((record, _)) if record.verdict == Verdict::Committed => return Ok(Dealt::Gone),
                    Some((record, stored)) if record.verdict == Verdict::Pending => {
                        let due = self.now_ms() >= record.due_ms;
                        if !(due && self.abort_move(*to, *transaction, &record, &stored)?) {
                            return Ok(Dealt::Later);
                        }
                    }
                    _ => {}
                },
                Some(Tag::Staged { transaction, before }) => {
                    if self.fate(*transaction)? == Fate::Committed {
                        // What was before is garbage of this directory, whether it says so already or not.
                        let before = before.as_ref().map_or(Ok(Dealt::Gone), |before| self.purge(&before.node))?;
                        let now = self.purge(&dentry.node)?;
                        return Ok(if before == Dealt::Gone { now } else { Dealt::Later });
                    }
                    // What is staged is the transaction's. What was before is ours, once it cannot be committed any more.
                }
            }
            // It is undone, or it is all over. The tag tells which: it goes before the record does.
            let key = name_key(name);
            let Some(look) = self.look(directory, vec![key.clone()])? else { return Ok(Dealt::Gone) };
            let again = look.dentry(name)?;
            if let Some(again) = &again
                && again.stamp == dentry.stamp
            {
                let raw = look.raw(&key).unwrap_or_default();
                if let Settled::Wait(_) = self.settle(directory, name, &raw, again)? {
                    return Ok(Dealt::Later);
                }
                now = self.look(directory, vec![key])?.map(|look| look.dentry(name)).transpose()?.flatten();
            } else {
                now = again;
            }
        }
        Ok(Dealt::Gone)
    }
}
