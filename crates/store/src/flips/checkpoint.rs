//! Checkpoints, in four steps:
//!
//! 1. Write the changed tables to free slots, from the lowest level up, since a table has the
//!    checksums of those below.
//! 2. Fence.
//! 3. Write a superblock with the new root, the next epoch, and the slots where the chain begins.
//! 4. When both of its copies are durable, free the old tables and all slots that only the old
//!    chain needed.
//!
//! A checkpoint neither loses nor creates a commit: the state of the chain is durable already.

use std::sync::PoisonError;

use super::commit::RunWriter;
use super::slot::{Entry, FANOUT, Header, Kind, encode_table};
use super::table::Tables;
use super::{Body, FlipBackend, OPEN_END, PageNo, Writer};
use crate::mutant::skips;
use crate::superblock::SECTOR_BYTES;
use crate::{Error, Result};

/// The use of a store after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// More is written after it.
    GoOn,
    /// Nothing is written after it: the next open need not follow a chain.
    Close,
}

/// The caller of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// A commit, which waits for it.
    InTheWay,
    /// An idle thread, for which waits cost nothing.
    Idle,
}

/// A checkpoint writes at most one byte for this many that the chain has written.
const CHAIN_PER_TABLE: usize = 20;
/// The cost of a superblock in slots: two copies.
const SUPERBLOCK_SLOTS: usize = 2;
/// A checkpoint waits for the device three times, and at most once for this many commits, each of
/// which waits once.
const COMMITS_PER_WAIT: u64 = 20;
/// The number of its waits: for the tables, and for two superblocks.
const WAITS: u64 = 3;
/// The chain may be this fraction of all slots, if that is more than its maximum length.
const SLOTS_PER_CHAIN: u32 = 16;

impl FlipBackend {
    /// Returns true if a checkpoint costs little compared with the chain so far, in bytes and in
    /// waits. With large commits, the waits alone would let the chain become much longer than the
    /// store. Therefore waits also count as cheap if the chain is at least as long as the number of
    /// used pages.
    pub(super) fn checkpoint_is_due(&self, writer: &Writer, when: When) -> bool {
        let (options, chain) = (&self.options, writer.chain.len());
        let greatest = options.chain_max_slots.max(writer.space.slots() / SLOTS_PER_CHAIN) as usize;
        let in_bytes = CHAIN_PER_TABLE * (writer.tables.to_write(0, self.page_numbers()) + SUPERBLOCK_SLOTS);
        let commits = writer.commit - Body::decode(&writer.superblock.body).commit;
        let waits_are_cheap = chain >= options.chain_min_slots as usize
            && (commits >= COMMITS_PER_WAIT * WAITS || chain as u64 >= writer.tables.used_pages());
        chain >= in_bytes && (when == When::Idle || waits_are_cheap) || chain >= greatest
    }

    /// Returns the number of page numbers that have entries.
    pub(super) fn page_numbers(&self) -> usize {
        self.pages.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn write_checkpoint(&self, writer: &mut Writer, then: Then) -> Result<()> {
        let tables = writer.tables.to_write(0, self.page_numbers());
        // Two more, where the chain will begin.
        self.grow_for(writer, tables + 2)?;
        let old_tables = writer.tables.replaced();
        if skips("flips.checkpoint.keep-tables") {
            old_tables.iter().for_each(|&slot| writer.space.release(slot));
        }
        if skips("flips.checkpoint.keep-chain") {
            self.forget_chain(writer);
        }
        let slots = self.take(writer, tables + 2)?;
        let (tables, begins) = slots.split_at(tables);
        let left = self.write_tables(writer, tables)?;
        if !skips("flips.checkpoint.fence") {
            self.fence(writer)?;
        }
        let body = Body {
            epoch: if skips("flips.checkpoint.new-epoch") { writer.epoch } else { writer.epoch + 1 },
            commit: writer.commit,
            next: begins[0],
            after: begins[1],
            root: writer.tables.root(),
            pages: self.page_numbers() as u32,
            end: if then == Then::Close || skips("flips.checkpoint.open-end") { writer.commit } else { OPEN_END },
        };
        self.write_superblock(writer, body)?;
        writer.stats.checkpoints += 1;
        let released = [writer.next, writer.after].into_iter().chain(old_tables).chain(left);
        for slot in released.filter(|&slot| slot != 0) {
            writer.space.release(slot);
        }
        (writer.next, writer.after, writer.epoch) = (body.next, body.after, body.epoch);
        writer.last = None;
        self.forget_chain(writer);
        Ok(())
    }

    pub(super) fn write_superblock(&self, writer: &mut Writer, body: Body) -> Result<()> {
        writer.superblock.body = body.encode();
        writer.superblock.write(&*self.medium)?;
        writer.stats.written_bytes += (SUPERBLOCK_SLOTS * SECTOR_BYTES) as u64;
        writer.stats.table_units += SUPERBLOCK_SLOTS as u64;
        writer.stats.fences += SUPERBLOCK_SLOTS as u64;
        Ok(())
    }

    /// Writes the changed tables to `slots`, and returns the slots left over: changed tables may
    /// share a table above them.
    fn write_tables(&self, writer: &mut Writer, slots: &[u32]) -> Result<Vec<u32>> {
        let mut slots = slots.iter().copied();
        let mut run = RunWriter::new();
        for level in 0..writer.tables.levels().len() {
            let changed = std::mem::take(&mut writer.tables.level_mut(level).changed);
            for index in changed {
                let Some(slot) = slots.next() else {
                    return Err(Error::Invalid("a checkpoint writes more tables than were counted".into()));
                };
                let mut header = Header::new(Kind::Table, writer.epoch, writer.commit);
                (header.part, header.page) = (level as u32, index);
                let bytes = run.slot(self, writer, slot)?;
                let checksum = self.encode_table_of(bytes, &header, &writer.tables);
                writer.stats.table_units += 1;
                writer.tables.level_mut(level).at[index as usize] = Entry { slot, checksum };
                if level + 1 < writer.tables.levels().len() {
                    writer.tables.level_mut(level + 1).changed.insert(index / FANOUT as u32);
                }
            }
        }
        run.finish(self, writer)?;
        Ok(slots.collect())
    }

    /// Encodes the table of `header`'s level and index into `bytes`. Returns its checksum.
    fn encode_table_of(&self, bytes: &mut [u8], header: &Header, tables: &Tables) -> u32 {
        let from = header.page as usize * FANOUT;
        let mut part = |entries: &[Entry]| {
            let to = entries.len().min(from + FANOUT);
            encode_table(bytes, header, &entries[from..to], self.seed)
        };
        match header.part.checked_sub(1) {
            None => part(&self.pages.read().unwrap_or_else(PoisonError::into_inner)),
            Some(below) => part(&tables.levels()[below as usize].at),
        }
    }

    /// Discards the chain. Its slots are free, except those that hold the last version of a page.
    fn forget_chain(&self, writer: &mut Writer) {
        for (slot, page) in std::mem::take(&mut writer.chain) {
            writer.chained.remove(slot);
            if page.is_none_or(|page: PageNo| self.entry(page).slot != slot) {
                writer.space.release(slot);
            }
        }
    }
}
