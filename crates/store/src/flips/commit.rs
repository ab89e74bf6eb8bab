//! Commits, in four steps:
//!
//! 1. Take slots for all parts, the first of which was reserved, and one to reserve. Space for the
//!    next checkpoint is kept besides, so that a checkpoint never fails for lack of space, and so
//!    is a reserve, for commits that free space.
//! 2. Write the parts. Adjacent parts take one write.
//! 3. Fence: the commit is durable, if the file still has its name.
//! 4. Update the table in memory, and free the slots of versions that no reader needs.
//!
//! Until step 2 nothing has changed, and the commit may fail with [`Error::Full`].

use std::sync::PoisonError;

use super::checkpoint::{Then, When};
use super::slot::{
    Entry, HEADER_FREES, Header, Kind, LIST_FREES, LIST_SPILLS, Spill, encode_frees, encode_page, encode_spills,
};
use super::table::Tables;
use super::{FlipBackend, RUN_SLOTS, Writer, pages_limit};
use crate::backend::{Batch, Content, Image, PageNo, Room, SLOT_BYTES};
use crate::mutant::skips;
use crate::options::Syncs;
use crate::{Error, Result};

/// The reserve is this fraction of all slots, if that is more than its minimum.
const SLOTS_PER_RESERVE: u32 = 64;

/// The reserve is this fraction of all slots if its minimum would be more than half of them: a file
/// that cannot grow keeps most of its slots for rows.
const SLOTS_PER_SMALL_RESERVE: u32 = 8;

/// The contents of one link of a commit.
enum Part<'a> {
    Page(PageNo, &'a Image),
    Spills(&'a [Spill]),
    Frees(&'a [PageNo]),
}

impl Writer {
    /// Holds `slot`, which recovery would read, unchanged until a checkpoint.
    pub(super) fn hold(&mut self, slot: u32, page: Option<PageNo>) {
        self.chain.push((slot, page));
        self.chained.insert(slot);
    }
}

impl FlipBackend {
    pub(super) fn write_commit(&self, writer: &mut Writer, batch: &Batch) -> Result<()> {
        if batch.writes.is_empty() && batch.frees.is_empty() {
            self.forget_spilled(writer);
            return Ok(());
        }
        self.verify_contents(writer)?;
        if self.checkpoint_is_due(writer, When::InTheWay) {
            self.write_checkpoint(writer, Then::GoOn)?;
        }
        let spills = spills_of(self, writer, batch)?;
        let (parts, header_frees) = self.parts_of(batch, &spills);
        let pages = batch.writes.iter().map(|write| write.page.0 as usize + 1).max().unwrap_or(0);
        let pages = pages.max(self.page_numbers());
        let tables = writer.tables.to_write(batch.writes.len() + batch.frees.len(), pages);
        // One slot for each part, of which the first is reserved already; one to reserve; and those
        // of the next checkpoint.
        self.make_room(writer, parts.len() + tables + 2, batch.room)?;
        // The maximum page number depends on the number of slots, which is final now.
        self.verify_numbers(writer, batch)?;
        let released_early = skips("flips.commit.keep-replaced");
        if released_early {
            self.release_replaced(writer, batch);
        }
        let slots = self.slots_for(writer, parts.len())?;
        let written = self.write_parts(writer, &parts, &slots, header_frees)?;
        if !skips("flips.commit.fence") {
            self.fence(writer)?;
        }
        self.verify_name()?;
        if !released_early {
            self.release_replaced(writer, batch);
        }
        for part in &parts {
            match part {
                Part::Page(..) => writer.stats.data_units += 1,
                Part::Spills(_) | Part::Frees(_) => writer.stats.journal_units += 1,
            }
        }
        self.apply(writer, batch, &spills, &written);
        (writer.next, writer.after) = (writer.after, slots.reserve);
        writer.last = written.last().map(|link| link.at);
        writer.commit += 1;
        writer.stats.commits += 1;
        Ok(())
    }

    /// Writes the bytes of a page to a slot that is not a link.
    pub(super) fn write_spilled(&self, writer: &mut Writer, page: PageNo, image: &Image) -> Result<()> {
        let slot = match writer.spilled.get(&page) {
            // Spilled bytes are not part of a commit, and may be overwritten.
            Some(entry) => entry.slot,
            None => {
                let tables = writer.tables.to_write(0, self.page_numbers());
                self.make_room(writer, 1 + tables + 2, Room::Ordinary)?;
                self.take(writer, 1)?[0]
            }
        };
        let mut header = Header::new(Kind::Spilled, writer.epoch, writer.commit + 1);
        header.page = page.0;
        let mut run = RunWriter::new();
        let checksum = encode_page(run.slot(self, writer, slot)?, &header, image, self.seed);
        run.finish(self, writer)?;
        writer.stats.data_units += 1;
        writer.spilled.insert(page, Entry { slot, checksum });
        Ok(())
    }

    pub(super) fn forget_spilled(&self, writer: &mut Writer) {
        for entry in std::mem::take(&mut writer.spilled).into_values() {
            writer.space.release(entry.slot);
        }
    }

    /// Takes `count` slots: all of them, or none.
    pub(super) fn take(&self, writer: &mut Writer, count: usize) -> Result<Vec<u32>> {
        let slots: Vec<u32> = std::iter::from_fn(|| writer.space.take()).take(count).collect();
        if slots.len() < count {
            slots.iter().for_each(|&slot| writer.space.release(slot));
            return Err(self.full(format!("{} slots are free, and {count} are needed", slots.len())));
        }
        Ok(slots)
    }

    /// Ensures that `count` slots are free, and the reserve unless `room` may use it. Grows the
    /// medium. If it cannot grow, frees the slots that the chain holds.
    fn make_room(&self, writer: &mut Writer, count: usize, room: Room) -> Result<()> {
        let count = count
            + match room {
                Room::Ordinary => self.reserve_of(writer.space.slots()) as usize,
                Room::Reserve => 0,
            };
        match self.grow_for(writer, count) {
            Err(Error::Full { .. }) if !writer.chain.is_empty() => {
                self.write_checkpoint(writer, Then::GoOn)?;
                self.grow_for(writer, count)
            }
            done => done,
        }
    }

    /// Returns the reserve of a store of `slots` slots.
    fn reserve_of(&self, slots: u32) -> u32 {
        let least = self.options.reserve_min_slots;
        if slots / 2 < least { slots / SLOTS_PER_SMALL_RESERVE } else { least.max(slots / SLOTS_PER_RESERVE) }
    }

    /// Grows the medium if fewer than `count` slots are free.
    pub(super) fn grow_for(&self, writer: &mut Writer, count: usize) -> Result<()> {
        let lacking = u32::try_from(count)
            .map_err(|_| self.full(format!("{count} slots are more than a store can have")))?
            .saturating_sub(writer.space.free_count());
        if lacking == 0 {
            return Ok(());
        }
        let step = (writer.space.slots() / 4).clamp(self.options.growth_min_slots, self.options.growth_max_slots);
        self.grow_by(writer, step.max(lacking)).or_else(|error| match error {
            Error::Full { .. } if step > lacking => self.grow_by(writer, lacking),
            error => Err(error),
        })
    }

    fn grow_by(&self, writer: &mut Writer, more: u32) -> Result<()> {
        let slots = writer
            .space
            .slots()
            .checked_add(more)
            .ok_or_else(|| self.full(format!("a store has at most {} slots", u32::MAX)))?;
        self.medium.grow(super::position(slots))?;
        writer.space.extend(slots);
        Ok(())
    }

    fn full(&self, reason: String) -> Error {
        Error::Full { object: self.medium.name().into(), reason }
    }

    fn verify_numbers(&self, writer: &Writer, batch: &Batch) -> Result<()> {
        let limit = pages_limit(writer.space.slots());
        match batch.writes.iter().find(|write| u64::from(write.page.0) >= limit) {
            Some(write) => Err(Error::Invalid(format!(
                "{} of {}: pages are numbered from 0 without gaps, and this is beyond {limit}",
                write.page,
                self.medium.name()
            ))),
            None => Ok(()),
        }
    }

    /// Returns the contents of the commit's links, and the freed pages that are listed in their
    /// headers.
    fn parts_of<'a>(&self, batch: &'a Batch, spills: &'a [Spill]) -> (Vec<Part<'a>>, &'a [PageNo]) {
        let mut parts: Vec<Part<'a>> = batch
            .writes
            .iter()
            .filter_map(|write| match &write.content {
                Content::Image(image) => Some(Part::Page(write.page, image)),
                Content::Spilled => None,
            })
            .chain(spills.chunks(LIST_SPILLS).map(Part::Spills))
            .collect();
        let fit_in_headers = batch.frees.len() <= parts.len() * HEADER_FREES;
        if !fit_in_headers {
            parts.extend(batch.frees.chunks(LIST_FREES).map(Part::Frees));
        }
        // With two fences, the last part only marks the commit as valid.
        if self.options.syncs == Syncs::Two {
            parts.push(Part::Frees(&[]));
        }
        (parts, if fit_in_headers { &batch.frees } else { &[] })
    }

    /// Frees the slots of versions that the commit replaces, unless recovery needs them.
    fn release_replaced(&self, writer: &mut Writer, batch: &Batch) {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        for page in batch.writes.iter().map(|write| write.page).chain(batch.frees.iter().copied()) {
            let old = pages.get(page.0 as usize).copied().unwrap_or(Entry::NONE);
            let is_held = writer.chained.contains(old.slot) && !skips("flips.commit.hold-chain");
            if !old.is_none() && !is_held {
                writer.space.release(old.slot);
            }
        }
    }

    /// Updates the table in memory after a commit.
    fn apply(&self, writer: &mut Writer, batch: &Batch, spills: &[Spill], links: &[Link]) {
        for spill in spills {
            writer.spilled.remove(&spill.page);
        }
        // Pages that were spilled, and written or freed afterwards.
        self.forget_spilled(writer);
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        let writes = links.iter().filter_map(|link| Some((link.page?, link.at)));
        let spilled = spills.iter().map(|spill| (spill.page, spill.at));
        let freed = batch.frees.iter().map(|&page| (page, Entry::NONE));
        for (page, entry) in writes.chain(spilled).chain(freed) {
            set(&mut pages, &mut writer.tables, page, entry);
        }
        let listed = spills.iter().map(|spill| (spill.at.slot, Some(spill.page)));
        for (slot, page) in links.iter().map(|link| (link.at.slot, link.page)).chain(listed) {
            writer.hold(slot, page);
        }
    }

    fn slots_for(&self, writer: &mut Writer, parts: usize) -> Result<Slots> {
        let taken = self.take(writer, parts)?;
        let (&reserve, others) = taken.split_last().ok_or_else(|| self.full("a commit has no parts".into()))?;
        let mut links = vec![writer.next];
        links.extend(others);
        Ok(Slots { links, reserve })
    }

    /// Writes all parts. With two fences, fences all but the last part before it writes the last.
    /// Returns the entries of its pages.
    fn write_parts(
        &self,
        writer: &mut Writer,
        parts: &[Part<'_>],
        slots: &Slots,
        frees: &[PageNo],
    ) -> Result<Vec<Link>> {
        let mut run = RunWriter::new();
        let mut written = Vec::with_capacity(parts.len());
        let mut frees = frees.chunks(HEADER_FREES);
        for (i, (part, &slot)) in parts.iter().zip(&slots.links).enumerate() {
            let is_last = i + 1 == parts.len();
            if is_last && self.options.syncs == Syncs::Two {
                run.finish(self, writer)?;
                run = RunWriter::new();
                if !skips("flips.commit.fence-parts") {
                    self.fence(writer)?;
                }
            }
            let kind = match part {
                Part::Page(..) => Kind::Page,
                Part::Spills(_) => Kind::Spills,
                Part::Frees(_) => Kind::Frees,
            };
            let mut header = Header::new(kind, writer.epoch, writer.commit + 1);
            header.part = i as u32;
            header.is_last = is_last;
            (header.next, header.after) = if is_last { (writer.after, slots.reserve) } else { (slots.links[i + 1], 0) };
            for (free, page) in header.frees.iter_mut().zip(frees.next().unwrap_or_default()) {
                *free = page.0;
            }
            let bytes = run.slot(self, writer, slot)?;
            let (page, checksum) = match *part {
                Part::Page(page, image) => {
                    header.page = page.0;
                    (Some(page), encode_page(bytes, &header, image, self.seed))
                }
                Part::Spills(spills) => (None, encode_spills(bytes, &header, spills, self.seed)),
                Part::Frees(frees) => (None, encode_frees(bytes, &header, frees, self.seed)),
            };
            written.push(Link { page, at: Entry { slot, checksum } });
        }
        run.finish(self, writer)?;
        Ok(written)
    }
}

/// Sets the entry of `page`.
pub(super) fn set(pages: &mut Vec<Entry>, tables: &mut Tables, page: PageNo, entry: Entry) {
    let at = page.0 as usize;
    if at >= pages.len() {
        pages.resize(at + 1, Entry::NONE);
        tables.extend(at + 1);
    }
    tables.changed(page.0, pages[at], entry);
    pages[at] = entry;
}

/// Returns the batch's spilled pages and their slots.
fn spills_of(backend: &FlipBackend, writer: &Writer, batch: &Batch) -> Result<Vec<Spill>> {
    batch
        .writes
        .iter()
        .filter(|write| matches!(write.content, Content::Spilled))
        .map(|write| match writer.spilled.get(&write.page) {
            Some(&at) => Ok(Spill { page: write.page, at }),
            None => Err(Error::Invalid(format!("{} of {} was not spilled", write.page, backend.medium.name()))),
        })
        .collect()
}

/// A part that was written.
struct Link {
    /// The page whose bytes it holds, if any.
    page: Option<PageNo>,
    at: Entry,
}

/// The slots of a commit.
struct Slots {
    /// One slot for each part.
    links: Vec<u32>,
    /// The slot where the commit after the next begins.
    reserve: u32,
}

/// Writes slots. Adjacent slots take one write.
pub(super) struct RunWriter {
    first: u32,
    bytes: Vec<u8>,
}

impl RunWriter {
    pub(super) fn new() -> Self {
        Self { first: 0, bytes: Vec::new() }
    }

    /// Returns the bytes of `slot`, to be filled before the next call.
    pub(super) fn slot(&mut self, backend: &FlipBackend, writer: &mut Writer, slot: u32) -> Result<&mut [u8]> {
        let held = self.bytes.len() / SLOT_BYTES;
        if held > 0 && (held == RUN_SLOTS || slot != self.first + held as u32) {
            backend.write_slots(writer, self.first, &self.bytes)?;
            self.bytes.clear();
        }
        let at = self.bytes.len();
        if at == 0 {
            self.first = slot;
        }
        self.bytes.resize(at + SLOT_BYTES, 0);
        Ok(&mut self.bytes[at..])
    }

    /// Writes the remaining slots.
    pub(super) fn finish(self, backend: &FlipBackend, writer: &mut Writer) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { backend.write_slots(writer, self.first, &self.bytes) }
    }
}
