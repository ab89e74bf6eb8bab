//! Pages on a file: shadow paging by flips of whole pages, without a journal.
//!
//! A new version of a page is written to a free slot, never over the old one. What makes a commit is threaded through these
//! slots themselves: the header of each says which commit it is part of and where the next part lies. So a commit of one page
//! is one `pwrite` of 4,096 bytes and one `fdatasync`; there is nothing else to write.
//!
//! # The chain
//! 1. The superblock names the slot where the first commit after it begins; the last part of a commit names the slot where the
//!    next one will begin. That slot is reserved beforehand. Parts are numbered; the last one is marked.
//! 2. A part counts if its checksum is right and it is of the present *epoch*, which is the number of the last checkpoint. A
//!    commit counts if all its parts do, and the commits before it. So the order in which parts become durable does not matter,
//!    and one fence is enough. (`Syncs::Two` does not rely on checksums for that: the last part is written when all others are
//!    durable.)
//! 3. Within an epoch a slot is written as a link at most once, and a commit is tried at most once: after a failure the backend
//!    is poisoned, and opening begins a new epoch, durably, before anything is written. So a slot of this epoch where a link is
//!    expected is that link, never one of another attempt. Parts need not name their predecessors.
//! 4. What a transaction spills goes to slots that are no links; a part of the commit lists them with their checksums.
//! 5. Pages that a commit frees are listed in spare bytes of its headers, or in parts of their own.
//!
//! # The table
//! Where each page is, and its slot's checksum: 8 bytes a page, in memory, and in a tree of table pages as of the last
//! checkpoint. A checkpoint writes the tables that changed to free slots, fences, and writes a superblock with the new root, a
//! new epoch and an empty chain. It is due when it costs less than a twentieth of what the chain has, in bytes and in waits.
//!
//! # Which slots may be written
//! - A slot that commit `n` released: once `n` is durable.
//! - A link of the chain (or a spilled page it lists), even if its page has a newer version: once a checkpoint made the chain
//!   needless. Until then recovery goes through it.
//! - A slot of an old table: once the superblock with the new root is durable in both copies.
//!
//! # Recovery
//! 1. [`Medium::settle`], since what is read may otherwise never have reached the device. (After a clean close there is no
//!    need, and what the system has cached stays.)
//! 2. The newest superblock; its tables; the chain as far as it is whole.
//! 3. The superblock is written with the end of the chain in it. Without that seal, a crash in step 4 could make a torn commit
//!    whole: where a part lacked a sector, a table may bring one of the same bytes. (Crash tests found it, with sectors of zeros.)
//! 4. A checkpoint. It writes free slots only, and then the superblock with the next epoch.
//!
//! A crash anywhere in it leaves what was there before.
//!
//! An acknowledged commit whose slot was damaged afterwards looks like one that a crash has torn. Therefore each commit also
//! names the slot where the one *after the next* begins: if there is one, the next was acknowledged, and its loss is reported.
//! Slots that are damaged together lie side by side, and so do commits: some slots behind the end of the chain are searched for
//! later ones as well.
//!
//! # Not guaranteed
//! Damage to the very last commit before a crash cannot be told from a torn commit, and is treated as one. After a clean close
//! there is no chain, and all damage is found.

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

/// The first slot that is not the superblocks'.
const FIRST_SLOT: u32 = (SUPERBLOCKS_END / SLOT_BYTES as u64) as u32;
/// A page's number is below this many times the number of slots, plus [`PAGES_MIN`]: pages are dense, and a greater number is
/// damage that must not cost memory.
const PAGES_PER_SLOT: u64 = 64;
const PAGES_MIN: u64 = 65_536;
/// Slots that are written at once at most, if they lie side by side.
const RUN_SLOTS: usize = 64;

/// How a file is used. Only `uuid` is kept in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlipOptions {
    /// Fences of a commit.
    pub(crate) syncs: Syncs,
    /// The store's name, of a new one; at random if there is none here.
    pub(crate) uuid: Option<[u8; 16]>,
    /// Slots that a new store has room for, if the medium does.
    pub(crate) initial_slots: u32,
    /// Slots that are kept free for commits that make room, or a 64th of all if that is more. An eighth of all, if there are not
    /// twice as many.
    pub(crate) reserve_min_slots: u32,
    /// Slots by which it grows at least.
    pub(crate) growth_min_slots: u32,
    /// Slots by which it grows at most, unless one commit needs more. In between, it is a quarter of what it has.
    pub(crate) growth_max_slots: u32,
    /// The chain is never cut shorter than this many slots.
    pub(crate) chain_min_slots: u32,
    /// The chain is never longer than this many slots, or a sixteenth of all if that is more.
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
    /// Of a store so small that what takes thousands of commits elsewhere happens after a few.
    pub(crate) fn tiny(syncs: Syncs) -> Self {
        Self {
            syncs,
            uuid: Some([7; 16]),
            initial_slots: 12,
            // Slots are written again as soon as they may be, which is what crashes are to meet.
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
    /// What checksums begin with: a slot of another store is never taken for one of this.
    seed: u32,
    /// Where the committed version of each page is.
    pages: RwLock<Vec<Entry>>,
    writer: Mutex<Writer>,
    failure: OnceLock<String>,
}

/// All that only who commits needs.
#[derive(Debug)]
struct Writer {
    superblock: Superblock,
    /// The number of the last checkpoint.
    epoch: u64,
    /// The last commit.
    commit: u64,
    /// Where the next commit begins; reserved.
    next: u32,
    /// Where the one after it begins; reserved.
    after: u32,
    space: Space,
    tables: Tables,
    /// Slots that recovery would go through, and the pages whose bytes are in them, if any.
    chain: Vec<(u32, Option<PageNo>)>,
    /// The same slots, as a set.
    chained: SlotSet,
    /// The last part of the last commit since the checkpoint.
    last: Option<Entry>,
    /// What the open transaction has written ahead.
    spilled: BTreeMap<PageNo, Entry>,
    /// Whoever opens the store next looks for no chain: there must not be one.
    is_closed: bool,
    stats: BackendStats,
}

/// The layout's own part of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Body {
    epoch: u64,
    /// The last commit that the tables know.
    commit: u64,
    next: u32,
    after: u32,
    root: Entry,
    /// Page numbers that the tables have room for.
    pages: u32,
    /// The last commit of the chain, if that is decided; [`OPEN_END`] if it is found out by looking.
    end: u64,
}

/// The chain goes on as far as it is whole.
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

    /// Nothing was written since the checkpoint.
    fn is_clean(&self) -> bool {
        self.end == self.commit
    }
}

impl FlipBackend {
    /// The writer, if it may write.
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

    /// Lets no commit through any more if `result` leaves unknown what is durable.
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

    /// Where the committed version of `page` is.
    fn entry(&self, page: PageNo) -> Entry {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.get(page.0 as usize).copied().unwrap_or(Entry::NONE)
    }

    /// Reads a page from where `entry` says that it is.
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

    /// Whether the file holds what was written last: another store may have been copied into it.
    ///
    /// Looked at before anything is written, so that a file that was brought back is left as it is.
    fn verify_contents(&self, writer: &Writer) -> Result<()> {
        let Some(named) = self.medium.named() else { return Ok(()) };
        if named.is_unchanged(Moment::now()) {
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

    /// Whether the last part of the last commit is where it was written or, after a checkpoint, the superblock.
    fn has_last_written(&self, writer: &Writer) -> Result<bool> {
        let Some(last) = writer.last else { return writer.superblock.is_on(&*self.medium) };
        let mut checksum = [0; 4];
        self.medium.read(position(last.slot), &mut checksum)?;
        Ok(u32::from_le_bytes(checksum) == last.checksum)
    }

    /// Whether the file still has its name. Looked at before anything is acknowledged.
    fn verify_name(&self) -> Result<()> {
        self.medium.named().map_or(Ok(()), |named| named.check(self.medium.len()))
    }

    /// A checkpoint of a file that is still this store's.
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
            // Between the look-up and the read a commit may have moved the page, and another have written where it was.
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

/// Where on the medium `slot` is.
fn position(slot: u32) -> u64 {
    u64::from(slot) * SLOT_BYTES as u64
}

fn holds_page(kind: Kind) -> bool {
    matches!(kind, Kind::Page | Kind::Spilled)
}

/// The greatest number that a page may have, plus one, on a medium of `slots`.
fn pages_limit(slots: u32) -> u64 {
    u64::from(slots) * PAGES_PER_SLOT + PAGES_MIN
}

const _: () = assert!(SUPERBLOCKS_END.is_multiple_of(SLOT_BYTES as u64) && LINE_BYTES == 64);
