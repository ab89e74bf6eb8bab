//! Pages on a file: shadow paging by flips of whole pages, without a journal.
//!
//! A new version of a page is written to a free slot, never over the old one. A commit is linked
//! through these slots themselves: the header of each names the commit that it is part of and the
//! slot of the next part. So a commit of one page is one `pwrite` of 4,096 bytes and one
//! `fdatasync`; there is nothing else to write.
//!
//! # The chain
//! 1. The superblock names the slot where the first commit after it begins. The last part of a
//!    commit names the slot where the next one will begin. That slot is reserved beforehand. Parts
//!    are numbered, and the last one is marked.
//! 2. A part is valid if its checksum matches and it is of the present *epoch*, which is the number
//!    of the last checkpoint. A commit is valid if all its parts are, and the commits before it. So
//!    the order in which parts become durable does not matter, and one fence is enough.
//!    (`Syncs::Two` does not rely on checksums for that: the last part is written when all others
//!    are durable.)
//! 3. Within an epoch a slot is written as a link at most once, and a commit is tried at most once.
//!    After a failure the backend is poisoned, and opening begins a new epoch, durably, before
//!    anything is written. So a slot of this epoch at the position of a link is that link, never
//!    one of another attempt. Parts need not name their predecessors.
//! 4. Spilled pages of a transaction go to slots that are not links. A part of the commit lists
//!    them with their checksums.
//! 5. Pages that a commit frees are listed in spare bytes of its headers, or in parts of their own.
//!
//! # The table
//! The table has the slot of each page, and the slot's checksum: 8 bytes a page, in memory, and in
//! a tree of table pages as of the last checkpoint. A checkpoint writes the tables that changed to
//! free slots, fences, and writes a superblock with the new root, a new epoch and an empty chain.
//! It is due when it costs less than a twentieth of the cost of the chain, in bytes and in waits.
//!
//! # Reuse of slots
//! - A slot that commit `n` released may be written once `n` is durable.
//! - A link of the chain (or a spilled page it lists) may be written once a checkpoint has replaced
//!   the chain, even if its page has a newer version. Until then recovery reads it.
//! - A slot of an old table may be written once the superblock with the new root is durable in both
//!   copies.
//!
//! # Recovery
//! 1. [`Medium::settle`], since the bytes read may otherwise never have reached the device. (After
//!    a clean close there is no need, and the system's cache stays.)
//! 2. Read the newest superblock, its tables, and the chain as far as it is whole.
//! 3. Write the superblock with the end of the chain in it. Without that seal, a crash in step 4
//!    could make a torn commit whole: if a part lacked a sector, a table may bring one of the same
//!    bytes. (Crash tests found it, with sectors of zeros.)
//! 4. Make a checkpoint. It writes free slots only, and then the superblock with the next epoch.
//!
//! A crash during recovery leaves the state before it.
//!
//! An acknowledged commit whose slot was damaged afterwards looks like one that a crash has torn.
//! Therefore each commit also names the slot where the one *after the next* begins. If that slot
//! has a commit, the next was acknowledged, and its loss is reported. Slots that are damaged
//! together are adjacent, and so are commits: recovery searches some slots behind the end of the
//! chain for later ones as well.
//!
//! # Not guaranteed
//! Damage to the very last commit before a crash cannot be told from a torn commit, and is treated
//! as one. After a clean close there is no chain, and all damage is found.

mod check;
mod checkpoint;
mod commit;
mod live;
mod recover;
mod slot;
mod space;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

pub(crate) use self::live::{Open, copy_live};
use self::slot::{Entry, Kind, Slot};
use self::space::{SlotSet, Space};
use self::table::Tables;
use crate::backend::{Backend, BackendStats, Batch, Image, LINE_BYTES, Lines, PageNo, SLOT_BYTES};
use crate::bytes::{u32_at, u64_at};
use crate::medium::{Domain, Medium, Moment};
use crate::mutant::skips;
use crate::options::{Access, Syncs};
use crate::superblock::{BODY_BYTES, SUPERBLOCKS_END, Superblock};
use crate::{Error, Result};

/// The first slot behind the superblocks.
const FIRST_SLOT: u32 = (SUPERBLOCKS_END / SLOT_BYTES as u64) as u32;
/// A page's number is below this many times the number of slots, plus [`PAGES_MIN`]: pages are
/// dense, and a greater number is damage that must not cost memory.
const PAGES_PER_SLOT: u64 = 64;
const PAGES_MIN: u64 = 65_536;
/// The maximum number of adjacent slots that are written at once.
const RUN_SLOTS: usize = 64;

/// Options of a store on a file. The file keeps only `uuid`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlipOptions {
    /// The number of fences of a commit.
    pub(crate) syncs: Syncs,
    /// The unique identifier of a new store, or `None` for a random one.
    pub(crate) uuid: Option<[u8; 16]>,
    /// The number of slots of a new store, if the medium has space for them.
    pub(crate) initial_slots: u32,
    /// The number of slots reserved for commits that free space, or a 64th of all slots if that is
    /// more. It is an eighth of all slots if there are fewer than twice as many.
    pub(crate) reserve_min_slots: u32,
    /// The minimum growth in slots, unless the medium has space for less.
    pub(crate) growth_min_slots: u32,
    /// The maximum growth in slots, unless one commit needs more. Between the limits, the store
    /// grows by a quarter.
    pub(crate) growth_max_slots: u32,
    /// The length of the chain, in slots, below which a commit makes no checkpoint. Idle
    /// checkpoints do not observe it.
    pub(crate) chain_min_slots: u32,
    /// The length of the chain, in slots, at which a checkpoint is always due, or a sixteenth of
    /// all slots if that is more.
    pub(crate) chain_max_slots: u32,
}

impl Default for FlipOptions {
    fn default() -> Self {
        Self {
            syncs: Syncs::One,
            uuid: None,
            initial_slots: 64,
            reserve_min_slots: 32,
            growth_min_slots: 32,
            growth_max_slots: 65_536,
            chain_min_slots: 256,
            chain_max_slots: 16_384,
        }
    }
}

#[cfg(test)]
impl FlipOptions {
    /// Returns the options of a store so small that rare events happen after a few commits.
    pub(crate) fn tiny(syncs: Syncs) -> Self {
        Self {
            syncs,
            uuid: Some([7; 16]),
            initial_slots: 12,
            // Slots are reused as early as possible, so that crashes meet reuse.
            reserve_min_slots: 0,
            growth_min_slots: 4,
            growth_max_slots: 4,
            chain_min_slots: 3,
            chain_max_slots: 6,
        }
    }
}

/// Pages on a medium of pages.
#[derive(Debug)]
pub(crate) struct FlipBackend {
    medium: Arc<dyn Medium>,
    options: FlipOptions,
    access: Access,
    /// The seed of checksums: a slot of another store never passes as one of this store.
    seed: u32,
    /// The slot of the committed version of each page.
    pages: RwLock<Vec<Entry>>,
    writer: Mutex<Writer>,
    failure: OnceLock<String>,
}

/// The state that only the committing thread needs.
#[derive(Debug)]
struct Writer {
    superblock: Superblock,
    /// The number of the last checkpoint.
    epoch: u64,
    /// The number of the last commit.
    commit: u64,
    /// The reserved slot where the next commit begins.
    next: u32,
    /// The reserved slot where the commit after the next begins.
    after: u32,
    space: Space,
    tables: Tables,
    /// The slots that recovery would read, each with the page whose bytes it has, if any.
    chain: Vec<(u32, Option<PageNo>)>,
    /// The same slots, as a set.
    chained: SlotSet,
    /// The last part of the last commit since the checkpoint.
    last: Option<Entry>,
    /// The pages that the open transaction has written ahead.
    spilled: BTreeMap<PageNo, Entry>,
    /// True if the store was closed: the next open follows no chain, so there must not be one.
    is_closed: bool,
    stats: BackendStats,
}

/// The layout's own part of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Body {
    epoch: u64,
    /// The last commit in the tables.
    commit: u64,
    next: u32,
    after: u32,
    root: Entry,
    /// The number of page numbers that the tables have entries for.
    pages: u32,
    /// The last commit of the chain, if it is fixed, or [`OPEN_END`] if recovery finds it.
    end: u64,
}

/// The chain extends as far as it is whole.
const OPEN_END: u64 = u64::MAX;

impl Body {
    fn encode(self) -> [u8; BODY_BYTES] {
        let mut body = [0; BODY_BYTES];
        body[..8].copy_from_slice(&self.epoch.to_le_bytes());
        body[8..16].copy_from_slice(&self.commit.to_le_bytes());
        body[16..24].copy_from_slice(&self.end.to_le_bytes());
        let words = [self.next, self.after, self.root.slot, self.root.checksum, self.pages];
        for (bytes, word) in body[24..].chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        body
    }

    fn decode(body: &[u8; BODY_BYTES]) -> Self {
        Self {
            epoch: u64_at(body, 0),
            commit: u64_at(body, 8),
            end: u64_at(body, 16),
            next: u32_at(body, 24),
            after: u32_at(body, 28),
            root: Entry { slot: u32_at(body, 32), checksum: u32_at(body, 36) },
            pages: u32_at(body, 40),
        }
    }

    /// Returns true if nothing was written since the checkpoint.
    fn is_clean(&self) -> bool {
        self.end == self.commit
    }
}

impl FlipBackend {
    /// Returns the writer, if it may write.
    fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let object = || self.medium.name().to_string();
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly { object: object() });
        }
        let writer = self.writer.lock().map_err(|_| Error::Poisoned {
            object: object(),
            reason: "a thread stopped in the middle of a commit".into(),
        })?;
        if writer.is_closed {
            return Err(Error::Invalid(format!("{} was closed", object())));
        }
        match self.failure.get() {
            Some(reason) => Err(Error::Poisoned { object: object(), reason: reason.clone() }),
            None => Ok(writer),
        }
    }

    /// Poisons the backend if `result` leaves the durable state unknown.
    fn poisoning<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && !matches!(error, Error::Full { .. } | Error::Invalid(_) | Error::Poisoned { .. })
            && !skips("flips.poison")
        {
            // Only the first failure is kept.
            let _ = self.failure.set(error.to_string());
        }
        result
    }

    /// Returns the location of the committed version of `page`.
    fn entry(&self, page: PageNo) -> Entry {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.get(page.0 as usize).copied().unwrap_or(Entry::NONE)
    }

    /// Reads a page from the location `entry`.
    fn read_at(&self, page: PageNo, entry: Entry, into: &mut Image) -> Result<()> {
        let mut slot = Slot::zeroed();
        self.medium.read(position(entry.slot), &mut slot.0)?;
        match slot.header(self.seed, "flips.read.checksum") {
            Some((header, checksum))
                if (checksum == entry.checksum || skips("flips.read.version"))
                    && header.page == page.0
                    && holds_page(header.kind) =>
            {
                into.0.copy_from_slice(slot.content());
                Ok(())
            }
            found => {
                let what = match found {
                    None => "its checksum is wrong".to_string(),
                    Some((header, _)) if header.page == page.0 && holds_page(header.kind) => {
                        format!("it is the version of commit {}, not the last", header.commit)
                    }
                    Some((header, _)) => format!("it is a {:?} of number {}", header.kind, header.page),
                };
                Err(Error::corrupt(self.medium.name(), format!("{page}, in slot {}: {what}", entry.slot)))
            }
        }
    }

    /// Checks that the file holds the last write: another store may have been copied into it.
    ///
    /// Called before any write, so that a file that was restored stays unchanged.
    fn verify_contents(&self, writer: &Writer) -> Result<()> {
        let Some(named) = self.medium.named() else { return Ok(()) };
        if named.was_checked(Instant::now()) || named.is_unchanged(Moment::now()) {
            return Ok(());
        }
        let is_there = self.has_last_written(writer);
        if let Ok(true) = is_there {
            return Ok(());
        }
        // A part that cannot be read may have been cut off.
        named.check(self.medium.len())?;
        is_there.and(Err(named.displaced("written over by another process")))
    }

    /// Returns true if the last part of the last commit is in its slot or, after a checkpoint, if
    /// the superblock is in place.
    fn has_last_written(&self, writer: &Writer) -> Result<bool> {
        let Some(last) = writer.last else { return writer.superblock.is_on(&*self.medium) };
        let mut checksum = [0; 4];
        self.medium.read(position(last.slot), &mut checksum)?;
        Ok(u32::from_le_bytes(checksum) == last.checksum)
    }

    /// Checks that the file still has its name. Called before any acknowledgement.
    fn verify_name(&self) -> Result<()> {
        self.medium.named().map_or(Ok(()), |named| named.check(self.medium.len()))
    }

    /// Makes a checkpoint of a file that is still this store's.
    fn checkpoint_own(&self, writer: &mut Writer, then: checkpoint::Then) -> Result<()> {
        self.verify_name()?;
        self.verify_contents(writer)?;
        self.write_checkpoint(writer, then)
    }

    fn write_slots(&self, writer: &mut Writer, first: u32, bytes: &[u8]) -> Result<()> {
        writer.stats.written_bytes += bytes.len() as u64;
        self.medium.write(position(first), bytes)?;
        self.medium.flush(position(first), bytes.len())
    }

    fn fence(&self, writer: &mut Writer) -> Result<()> {
        writer.stats.fences += 1;
        self.medium.fence()
    }
}

impl Backend for FlipBackend {
    fn name(&self) -> &str {
        self.medium.name()
    }

    fn domain(&self) -> Domain {
        self.medium.domain()
    }

    fn pages(&self) -> Vec<PageNo> {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        (0..).map(PageNo).zip(pages.iter()).filter(|(_, entry)| !entry.is_none()).map(|(page, _)| page).collect()
    }

    fn read(&self, page: PageNo, into: &mut Image) -> Result<()> {
        let mut entry = self.entry(page);
        loop {
            if entry.is_none() {
                return Err(Error::corrupt(self.medium.name(), format!("{page} is referred to and not in use")));
            }
            let result = self.read_at(page, entry, into);
            // Between the look-up and the read, a commit may have moved the page, and another may
            // have overwritten its slot.
            let now = self.entry(page);
            if result.is_ok() || now == entry {
                return result;
            }
            entry = now;
        }
    }

    fn commit(&self, batch: &Batch) -> Result<u64> {
        let mut writer = self.writer()?;
        let before = writer.stats.written_bytes;
        let result = self.write_commit(&mut writer, batch);
        self.poisoning(result).map(|()| writer.stats.written_bytes - before)
    }

    fn spill(&self, page: PageNo, image: &Image, _lines: Lines) -> Result<()> {
        let mut writer = self.writer()?;
        let result = self.write_spilled(&mut writer, page, image);
        self.poisoning(result)
    }

    fn read_spilled(&self, page: PageNo, into: &mut Image) -> Result<()> {
        let entry = self.writer()?.spilled.get(&page).copied();
        match entry {
            Some(entry) => self.read_at(page, entry, into),
            None => Err(Error::Invalid(format!("{page} of {} was not spilled", self.medium.name()))),
        }
    }

    fn discard_spilled(&self) {
        if let Ok(mut writer) = self.writer() {
            self.forget_spilled(&mut writer);
        }
    }

    fn checkpoint(&self) -> Result<()> {
        let mut writer = self.writer()?;
        if writer.chain.is_empty() {
            return Ok(());
        }
        let result = self.checkpoint_own(&mut writer, checkpoint::Then::GoOn);
        self.poisoning(result)
    }

    fn maintain(&self) -> Result<bool> {
        let mut writer = self.writer()?;
        if !self.checkpoint_is_due(&writer, checkpoint::When::Idle) {
            return Ok(false);
        }
        let result = self.checkpoint_own(&mut writer, checkpoint::Then::GoOn);
        self.poisoning(result).map(|()| true)
    }

    fn close(&self) -> Result<()> {
        let mut writer = self.writer()?;
        self.forget_spilled(&mut writer);
        let result = self.checkpoint_own(&mut writer, checkpoint::Then::Close);
        self.poisoning(result)?;
        writer.is_closed = true;
        Ok(())
    }

    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()> {
        self.check_all(found)
    }

    fn stats(&self) -> BackendStats {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        BackendStats {
            pages: writer.tables.used_pages(),
            slots: u64::from(writer.space.slots() - FIRST_SLOT),
            free_slots: u64::from(writer.space.free_count()),
            ..writer.stats
        }
    }
}

/// Returns the position of `slot` on the medium.
fn position(slot: u32) -> u64 {
    u64::from(slot) * SLOT_BYTES as u64
}

fn holds_page(kind: Kind) -> bool {
    matches!(kind, Kind::Page | Kind::Spilled)
}

/// Returns the exclusive bound of page numbers on a medium of `slots` slots.
fn pages_limit(slots: u32) -> u64 {
    u64::from(slots) * PAGES_PER_SLOT + PAGES_MIN
}

const _: () = assert!(SUPERBLOCKS_END.is_multiple_of(SLOT_BYTES as u64) && LINE_BYTES == 64);
