//! The writer: stages pages, commits them, consolidates, makes checkpoints, and tracks free slots.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use super::Map;
use super::clock::Clock;
use super::journal::{Item, Journal};
use super::layout::{Body, Geometry, MOST_SLOTS, Slot};
use super::list;
use super::shadow::{self, Staged};
use super::superpage::{self, SuperPage};
use super::table::{Entry, PairEntry, Place};
use crate::backend::{BackendStats, Batch, Content, Image, LINE_BYTES, Lines, PageNo, Room, SLOT_LINES};
use crate::medium::Medium;
use crate::mutant::skips;
use crate::options::CommitBy;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// The number of changed lines from which a page is written as a whole into another slot, instead
/// of in a pair. Savings in the commit would be paid when the pair is consolidated.
const WHOLE_LINES: u32 = 48;
/// The number of pairs that `maintain` consolidates at a time.
const CONSOLIDATED_AT_ONCE: usize = 16;
/// The lines that one write of a superblock flushes: two sectors.
const SUPERBLOCK_LINES: u64 = 16;

/// The state that only the writer needs.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) medium: Arc<dyn Medium>,
    pub(super) geometry: Geometry,
    pub(super) shadow_slots: usize,
    /// The number of slots reserved for commits that free space.
    pub(super) reserve_slots: usize,
    pub(super) superblock: Superblock,
    pub(super) epoch: u64,
    /// True if this opening has begun its epoch, so that records may be written.
    pub(super) is_begun: bool,
    /// True if the superblock states that the store was closed.
    pub(super) is_clean: bool,
    pub(super) regions: u32,
    pub(super) journal: Journal,
    pub(super) super_page: SuperPage,
    /// The free slots. The last is taken first.
    pub(super) free: Vec<Slot>,
    /// The slots that have lists of the journal. They are free after the next checkpoint.
    pub(super) lists: Vec<Slot>,
    /// The pages whose location is not in the tables yet.
    pub(super) dirty: BTreeSet<PageNo>,
    pub(super) clock: Clock,
    /// The pages of the open transaction that are on the medium already.
    pub(super) spilled: HashMap<PageNo, Staged>,
    /// True if a line was flushed since the last fence.
    pub(super) is_fence_due: bool,
    pub(super) poison: Option<String>,
    pub(super) stats: BackendStats,
}

/// The change of a page by a commit once it is durable.
struct Change {
    page: PageNo,
    place: Place,
    /// The slots that the page releases.
    released: Vec<Slot>,
}

/// A commit under construction.
#[derive(Default)]
struct Commit {
    items: Vec<Item>,
    changes: Vec<Change>,
}

impl Writer {
    /// Fails with [`Error::Poisoned`] after a failure: nothing is written any more.
    pub(super) fn refuse_if_poisoned(&self) -> Result<()> {
        match &self.poison {
            Some(reason) => Err(Error::Poisoned { object: self.medium.name().into(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Records that the durable state is unknown.
    pub(super) fn poison(&mut self, error: &Error) {
        self.poison = Some(error.to_string());
    }

    /// Returns the counters and sizes.
    pub(super) fn stats(&self) -> BackendStats {
        BackendStats {
            slots: u64::from(self.regions) * u64::from(self.geometry.region_slots),
            free_slots: self.free.len() as u64,
            pairs: self.clock.len() as u64,
            ..self.stats
        }
    }

    /// Makes all of `batch` durable.
    pub(super) fn commit(&mut self, map: &RwLock<Map>, batch: &Batch) -> Result<()> {
        for write in batch.writes.iter().filter(|write| matches!(write.content, Content::Spilled)) {
            self.spilled(write.page)?;
        }
        let most_items = 3 * batch.writes.len() + batch.frees.len();
        let lists = if self.is_list(most_items) { list::slots_for(most_items) } else { 0 };
        let most_pages = 2 * batch.writes.len() + batch.frees.len();
        self.begin_epoch(map)?;
        let spared = self.spared(batch.room);
        loop {
            let needed =
                spared + lists + batch.writes.iter().filter(|write| self.may_need_slot(map, write.page)).count();
            let pairs = self.clock.len();
            self.make_room(map, needed, batch.writes.iter().map(|write| write.page).max())?;
            // If pairs were consolidated for the space, pages of the batch among them need a slot
            // now, too.
            if self.clock.len() == pairs {
                break;
            }
        }
        self.make_room_to_commit(map, most_items, most_pages)?;
        let mut commit = Commit::default();
        self.stage(map, batch, &mut commit)?;
        for page in &batch.frees {
            let place = read(map).place(*page);
            commit.items.push(Item::Free { page: *page });
            commit.changes.push(Change { page: *page, place: Place::Absent, released: slots_of(place) });
        }
        self.stats.commits += u64::from(!commit.items.is_empty());
        self.make_durable(map, commit)?;
        // A spilled page that is not in the batch was freed again by the same transaction.
        self.discard_spilled();
        Ok(())
    }

    /// Returns the number of free slots that a commit may not take.
    fn spared(&self, room: Room) -> usize {
        match room {
            Room::Ordinary => self.reserve_slots,
            Room::Reserve => 0,
        }
    }

    /// Returns true if a write of the page may take a free slot.
    fn may_need_slot(&self, map: &RwLock<Map>, page: PageNo) -> bool {
        let is_taken = self.spilled.get(&page).is_some_and(|staged| staged.taken.is_some());
        !is_taken && !matches!(read(map).place(page), Place::Pair { .. })
    }

    /// Writes the lines of a batch, and collects the items of its records.
    fn stage(&mut self, map: &RwLock<Map>, batch: &Batch, commit: &mut Commit) -> Result<()> {
        if skips("lines.commit.release-late") {
            let map = read(map);
            self.free.extend(batch.frees.iter().flat_map(|page| slots_of(map.place(*page))));
        }
        let mut pinned: HashSet<PageNo> = HashSet::new();
        if self.clock.len() + batch.writes.len() > self.shadow_slots && !skips("lines.consolidate.pinned") {
            pinned.extend(batch.writes.iter().map(|write| write.page));
            pinned.extend(&batch.frees);
            pinned.extend(self.spilled.keys());
        }
        let mut pairs = self.clock.len();
        for write in &batch.writes {
            let place = read(map).place(write.page);
            let staged = match (&write.content, self.spilled.remove(&write.page)) {
                (Content::Spilled, Some(staged)) => staged,
                (Content::Spilled, None) => {
                    return Err(Error::Invalid(format!("{} is written twice", write.page)));
                }
                (Content::Image(image), spilled) => {
                    let may_pair = !matches!(place, Place::Single { .. })
                        || spilled.is_some()
                        || pairs < self.shadow_slots
                        || self.shadow_slots > 0 && self.consolidate_victim(map, &mut pinned, &mut pairs, commit)?;
                    self.write_page(place, spilled, write.page, image, write.lines, may_pair)?
                }
            };
            pairs += usize::from(matches!(place, Place::Single { .. }) && staged.slots[0] != staged.slots[1]);
            settle(write.page, place, staged, commit);
        }
        Ok(())
    }

    /// Adds the consolidation of a pair that went out of use to `commit`. Returns false if all
    /// pairs are `pinned`.
    fn consolidate_victim(
        &mut self,
        map: &RwLock<Map>,
        pinned: &mut HashSet<PageNo>,
        pairs: &mut usize,
        commit: &mut Commit,
    ) -> Result<bool> {
        let Some(page) = self.clock.victim(|page| !pinned.contains(&page)) else { return Ok(false) };
        pinned.insert(page);
        self.consolidate_page(read(map).place(page), page, commit)?;
        *pairs -= 1;
        Ok(true)
    }

    /// Copies the lines of the slot that has fewer of them into the other.
    fn consolidate_page(&mut self, place: Place, page: PageNo, commit: &mut Commit) -> Result<()> {
        let Place::Pair { slots, committed, checksum } = place else { return Ok(()) };
        let second = committed & Lines::ALL.0;
        let keeps_second = 2 * second.count_ones() > Lines::ALL.count();
        let (moved, side) = if keeps_second { (Lines::ALL.0 & !second, 1) } else { (second, 0) };
        let mut image = Image::zeroed();
        shadow::read(&*self.medium, self.geometry, slots, committed, moved, &mut image)?;
        if !skips("lines.consolidate.copy") {
            let lines = shadow::write(&*self.medium, self.geometry, slots, committed ^ moved, moved, &image)?;
            self.stats.consolidation_units += lines;
            self.count_flushed(lines);
        }
        let (slot, other) = (slots[side], slots[1 - side]);
        commit.items.push(Item::Settle { page, slot, checksum });
        commit.changes.push(Change { page, place: Place::Single { slot, checksum }, released: vec![other] });
        Ok(())
    }

    /// Writes the lines in which `image` differs from the transaction's version of a page.
    fn write_page(
        &mut self,
        place: Place,
        spilled: Option<Staged>,
        page: PageNo,
        image: &Image,
        lines: Lines,
        may_pair: bool,
    ) -> Result<Staged> {
        let now = match (place, spilled) {
            (_, Some(staged)) => staged,
            (Place::Absent, None) => return self.write_whole(page, image),
            (Place::Single { slot, checksum }, None) => {
                Staged { slots: [slot; 2], which: 0, updated: 0, checksum, taken: None }
            }
            (Place::Pair { slots, committed, checksum }, None) => {
                Staged { slots, which: committed, updated: 0, checksum, taken: None }
            }
        };
        let candidates = (lines.0 | now.updated) & Lines::ALL.0;
        let mut old = Image::zeroed();
        shadow::read(&*self.medium, self.geometry, now.slots, now.which, candidates, &mut old)?;
        let mask = shadow::differing(&old, image, candidates);
        let mut staged = now;
        if mask == 0 {
            return Ok(staged);
        }
        if staged.slots[0] == staged.slots[1] && staged.taken.is_none() {
            if !may_pair || mask.count_ones() >= WHOLE_LINES {
                return self.write_whole(page, image);
            }
            let shadow = self.take()?;
            staged = Staged { slots: [staged.slots[0], shadow], taken: Some(shadow), ..staged };
        }
        staged.update(&old, image, mask);
        let written = shadow::write(&*self.medium, self.geometry, staged.slots, staged.which, mask, image)?;
        self.stats.data_units += written;
        self.count_flushed(written);
        Ok(staged)
    }

    fn write_whole(&mut self, page: PageNo, image: &Image) -> Result<Staged> {
        let staged = Staged::whole(page, image, self.take()?);
        let written = shadow::write(&*self.medium, self.geometry, staged.slots, 0, Lines::ALL.0, image)?;
        self.stats.data_units += written;
        self.count_flushed(written);
        Ok(staged)
    }

    fn take(&mut self) -> Result<Slot> {
        self.free.pop().ok_or_else(|| self.full())
    }

    fn full(&self) -> Error {
        Error::Full {
            object: self.medium.name().into(),
            reason: format!(
                "all of its {} slots are in use",
                u64::from(self.regions) * u64::from(self.geometry.region_slots)
            ),
        }
    }

    fn count_flushed(&mut self, lines: u64) {
        self.stats.flushes += lines;
        self.stats.written_bytes += lines * LINE_BYTES as u64;
        self.is_fence_due |= lines > 0;
    }

    fn fence(&mut self, mutant: &'static str) -> Result<()> {
        if self.is_fence_due && !skips(mutant) {
            self.medium.fence()?;
            self.stats.fences += 1;
            self.is_fence_due = false;
        }
        Ok(())
    }

    /// Does steps 2 to 5 of a commit whose lines were written.
    fn make_durable(&mut self, map: &RwLock<Map>, commit: Commit) -> Result<()> {
        if commit.items.is_empty() {
            return Ok(());
        }
        if self.journal.live() == 0 && self.is_by_super_page(self.super_page.used() + commit.changes.len()) {
            self.commit_by_super_page(&commit)?;
        } else {
            self.commit_by_journal(&commit)?;
        }
        let mut map = map.write().unwrap_or_else(PoisonError::into_inner);
        for Change { page, place, released } in commit.changes {
            map.set(page, place);
            self.dirty.insert(page);
            self.free.extend(released);
            match place {
                Place::Pair { .. } => self.clock.touch(page),
                Place::Absent | Place::Single { .. } => self.clock.remove(page),
            }
        }
        Ok(())
    }

    /// Does steps 2 to 4, by the journal.
    fn commit_by_journal(&mut self, commit: &Commit) -> Result<()> {
        let listed = if self.is_list(commit.items.len()) { Some(self.write_list(&commit.items)?) } else { None };
        self.fence("lines.commit.fence-data")?;
        let records = match listed {
            Some(slot) => self.journal.append_list(&*self.medium, slot).map(|()| 1)?,
            None => self.journal.append(&*self.medium, &commit.items)?,
        };
        self.stats.journal_units += records;
        self.count_flushed(records);
        self.fence("lines.commit.fence-journal")
    }

    /// Does steps 2 to 4, by the super page.
    fn commit_by_super_page(&mut self, commit: &Commit) -> Result<()> {
        let places: Vec<(PageNo, Place)> = commit.changes.iter().map(|change| (change.page, change.place)).collect();
        self.super_page.write(&*self.medium, &places)?;
        self.count_flushed(places.len() as u64);
        self.fence("lines.commit.fence-data")?;
        self.super_page.commit(&*self.medium)?;
        self.count_flushed(1);
        self.stats.journal_units += places.len() as u64 + 1;
        self.fence("lines.commit.fence-journal")
    }

    /// Writes items that are too many for the journal into free slots. Returns the first slot.
    fn write_list(&mut self, items: &[Item]) -> Result<Slot> {
        let slots = (0..list::slots_for(items.len())).map(|_| self.take()).collect::<Result<Vec<_>>>()?;
        self.journal.write_list(&*self.medium, &slots, items)?;
        let lines = (slots.len() * SLOT_LINES) as u64;
        self.stats.journal_units += lines;
        self.count_flushed(lines);
        self.lists.extend(&slots);
        Ok(slots[0])
    }

    /// Begins a new epoch at the first record of an opening: records that a crash left in the
    /// journal must never become valid again.
    fn begin_epoch(&mut self, map: &RwLock<Map>) -> Result<()> {
        if self.is_begun {
            return Ok(());
        }
        if self.geometry.commit_by == CommitBy::Journal {
            self.epoch += 1;
        }
        self.write_tables(map, false)?;
        self.journal.begin_epoch(&self.superblock.uuid, self.epoch);
        self.is_begun = true;
        Ok(())
    }

    /// Ensures that `needed` slots are free and `highest` has a table entry. Grows the store. If it
    /// cannot grow, consolidates pairs.
    fn make_room(&mut self, map: &RwLock<Map>, needed: usize, highest: Option<PageNo>) -> Result<()> {
        let of_region = self.geometry.region_slots;
        loop {
            let slots = (needed.saturating_sub(self.free.len())).div_ceil(of_region as usize) as u32;
            let entries = highest.map_or(0, |page| page.0 / of_region + 1).saturating_sub(self.regions);
            let missing = slots.max(entries);
            if missing == 0 {
                return Ok(());
            }
            let wanted = missing.max(self.regions / 8);
            let result = match self.grow(wanted) {
                Err(Error::Full { .. }) if wanted > missing => self.grow(missing),
                result => result,
            };
            match result {
                Err(Error::Full { .. }) if entries == 0 && self.consolidate(map, usize::MAX)? > 0 => {}
                result => result?,
            }
        }
    }

    fn grow(&mut self, more: u32) -> Result<()> {
        let regions = self.regions.saturating_add(more);
        if u64::from(regions) * u64::from(self.geometry.region_slots) > MOST_SLOTS {
            return Err(self.full());
        }
        self.medium.grow(self.geometry.len(regions))?;
        let (from, to) = (self.regions * self.geometry.region_slots, regions * self.geometry.region_slots);
        self.free.splice(0..0, (from..to).rev());
        self.regions = regions;
        Ok(())
    }

    /// Ensures that a commit of up to `items` items, of up to `pages` pages, fits in the journal or
    /// the super page.
    fn make_room_to_commit(&mut self, map: &RwLock<Map>, items: usize, pages: usize) -> Result<()> {
        // A commit of that many items becomes a list, which takes one record, but there may be
        // fewer.
        let records = Journal::records_for(items).min(self.journal.most_records());
        let is_room = if self.is_by_super_page(pages) {
            self.journal.live() == 0 && self.super_page.used() + pages <= superpage::LINES
        } else {
            self.super_page.used() == 0 && records <= self.journal.room()
        };
        if is_room { Ok(()) } else { self.write_tables(map, false) }
    }

    /// Returns true if a commit of `pages` pages goes into the super page.
    fn is_by_super_page(&self, pages: usize) -> bool {
        self.geometry.commit_by == CommitBy::SuperPage && pages <= superpage::LINES
    }

    /// Returns true if a commit of `items` items is too large for the journal.
    fn is_list(&self, items: usize) -> bool {
        Journal::records_for(items) > self.journal.most_records()
    }

    /// Consolidates up to `most` pairs that went out of use, in a commit of its own. Returns their
    /// number.
    fn consolidate(&mut self, map: &RwLock<Map>, most: usize) -> Result<usize> {
        // No more than fit in the journal: a list would need free slots, and there may be none.
        let most = most.min(3 * self.journal.most_records() as usize);
        self.begin_epoch(map)?;
        self.make_room_to_commit(map, most.min(self.clock.len()), most.min(self.clock.len()))?;
        let mut pinned: HashSet<PageNo> = self.spilled.keys().copied().collect();
        let (mut commit, mut pairs) = (Commit::default(), self.clock.len());
        while commit.items.len() < most && self.consolidate_victim(map, &mut pinned, &mut pairs, &mut commit)? {}
        let consolidated = commit.items.len();
        self.make_durable(map, commit)?;
        Ok(consolidated)
    }

    /// Writes changed lines of a page of the open transaction beside the committed ones.
    pub(super) fn spill(&mut self, map: &RwLock<Map>, page: PageNo, image: &Image, lines: Lines) -> Result<()> {
        let needed = usize::from(self.may_need_slot(map, page)) + self.spared(Room::Ordinary);
        self.make_room(map, needed, Some(page))?;
        let (place, spilled) = (read(map).place(page), self.spilled.remove(&page));
        let may_pair = self.clock.len() + self.spilled.len() < self.shadow_slots;
        let staged = self.write_page(place, spilled, page, image, lines, may_pair)?;
        self.spilled.insert(page, staged);
        Ok(())
    }

    /// Returns a spilled page. Fails if the page was not spilled.
    pub(super) fn spilled(&self, page: PageNo) -> Result<Staged> {
        self.spilled.get(&page).copied().ok_or_else(|| Error::Invalid(format!("{page} was never spilled")))
    }

    /// Discards the spilled pages.
    pub(super) fn discard_spilled(&mut self) {
        self.free.extend(self.spilled.drain().filter_map(|(_, staged)| staged.taken));
    }

    /// Brings the tables up to date, if they are not.
    pub(super) fn checkpoint(&mut self, map: &RwLock<Map>) -> Result<()> {
        if self.dirty.is_empty() && self.journal.live() == 0 && self.super_page.used() == 0 {
            Ok(())
        } else {
            self.write_tables(map, false)
        }
    }

    /// Brings the tables up to date, and marks the store as closed.
    pub(super) fn close(&mut self, map: &RwLock<Map>) -> Result<()> {
        self.discard_spilled();
        if self.is_clean && self.dirty.is_empty() {
            return Ok(());
        }
        self.write_tables(map, true)?;
        self.is_begun = false;
        Ok(())
    }

    /// Does a piece of the deferrable work. Returns true if it did any.
    pub(super) fn maintain(&mut self, map: &RwLock<Map>) -> Result<bool> {
        if self.clock.len() > self.shadow_slots - self.shadow_slots / 8
            && self.consolidate(map, CONSOLIDATED_AT_ONCE)? > 0
        {
            return Ok(true);
        }
        let is_due = self.is_begun
            && (2 * self.journal.live() > u64::from(self.geometry.ring_records)
                || 2 * self.super_page.used() > superpage::LINES);
        if is_due {
            self.write_tables(map, false)?;
        }
        Ok(is_due)
    }

    /// Makes a checkpoint. Writes the table entries of all pages that changed. When they are
    /// durable, writes the superblock, after which the journal is empty.
    fn write_tables(&mut self, map: &RwLock<Map>, is_clean: bool) -> Result<()> {
        if self.geometry.commit_by == CommitBy::SuperPage && !skips("lines.super.epoch") {
            // The super page must become invalid: it is not overwritten in order, like a ring.
            self.epoch += 1;
        }
        let mut written = 0;
        {
            let map = read(map);
            for page in &self.dirty {
                written += self.write_entries(*page, map.place(*page))?;
            }
        }
        self.stats.table_units += written;
        self.count_flushed(written);
        self.fence("lines.checkpoint.fence")?;
        self.superblock.body = Body {
            geometry: self.geometry,
            regions: self.regions,
            is_clean,
            epoch: self.epoch,
            checkpoint: self.journal.next(),
            stale_word: self.super_page.word(),
        }
        .encode();
        self.superblock.write(&*self.medium)?;
        self.stats.table_units += SUPERBLOCK_LINES;
        self.stats.flushes += SUPERBLOCK_LINES;
        self.stats.fences += 2;
        self.stats.written_bytes += SUPERBLOCK_LINES * LINE_BYTES as u64;
        self.stats.checkpoints += 1;
        self.is_clean = is_clean;
        self.dirty.clear();
        self.free.append(&mut self.lists);
        self.journal.checkpointed();
        if self.geometry.commit_by == CommitBy::SuperPage {
            self.journal.begin_epoch(&self.superblock.uuid, self.epoch);
            self.super_page = SuperPage::new(self.geometry, &self.superblock.uuid, self.epoch, self.super_page.word());
        }
        Ok(())
    }

    fn write_entries(&self, page: PageNo, place: Place) -> Result<u64> {
        let mut lines = 1;
        if let Place::Pair { slots, committed, checksum } = place {
            let at = self.geometry.line(slots[0], 0);
            self.medium.write(at, &PairEntry { second: slots[1], committed, checksum }.encode())?;
            if !skips("lines.checkpoint.flush-pair") {
                self.medium.flush(at, LINE_BYTES)?;
            }
            lines += 1;
        }
        let (at, entry) = (self.geometry.entry(page), Entry::of(place).encode(page));
        self.medium.write(at, &entry)?;
        if !skips("lines.checkpoint.flush-table") {
            self.medium.flush(at, entry.len())?;
        }
        Ok(lines)
    }
}

/// Adds the result of a staged page to `commit`.
fn settle(page: PageNo, place: Place, staged: Staged, commit: &mut Commit) {
    if staged.updated == 0 {
        return;
    }
    let Staged { slots, which, checksum, .. } = staged;
    let side = match which & Lines::ALL.0 {
        0 => Some(slots[0]),
        side if side == Lines::ALL.0 => Some(slots[1]),
        _ => None,
    };
    if let Some(slot) = side {
        let owned = slots_of(place).into_iter().chain(staged.taken);
        let released = owned.filter(|owned| *owned != slot).collect();
        commit.items.push(Item::Settle { page, slot, checksum });
        commit.changes.push(Change { page, place: Place::Single { slot, checksum }, released });
        return;
    }
    if !matches!(place, Place::Pair { .. }) {
        commit.items.push(Item::Pair { page, slots });
    }
    commit.items.push(Item::Flip { page, committed: which, checksum });
    commit.changes.push(Change {
        page,
        place: Place::Pair { slots, committed: which, checksum },
        released: Vec::new(),
    });
}

/// Returns the slots that a page owns.
pub(super) fn slots_of(place: Place) -> Vec<Slot> {
    match place {
        Place::Absent => Vec::new(),
        Place::Single { slot, .. } => vec![slot],
        Place::Pair { slots, .. } => slots.to_vec(),
    }
}

fn read(map: &RwLock<Map>) -> std::sync::RwLockReadGuard<'_, Map> {
    map.read().unwrap_or_else(PoisonError::into_inner)
}
