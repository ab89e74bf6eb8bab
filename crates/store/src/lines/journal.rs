//! The journal: the changes of the tables by commits since the last checkpoint. It is a ring of
//! records of one line each, so that a commit of up to three pages takes one line.
//!
//! ```text
//! 0  check  u32: crc32c of bytes 4 .. 64, seeded with the store's uuid and epoch
//! 4  tag    u32: bits 0-1 number of items, 2-7 their kinds (2 bits each),
//!             8-23 number of records of this commit that follow,
//!             24 set if the commit is a list, in the slot that the first word of items names
//! 8  lsn    u64: bits 0-47 number of the record, 48-63 records of this commit that went before
//! 16 items  3 x 16 bytes: page u32, a u32, b u64
//! ```
//! Items are absolute: they hold the new state of a page, not its change. Replaying them twice, or
//! over tables that a checkpoint has half written, gives the same state.
//!
//! A commit that would take more than half of the ring is a [list](super::list) in free slots, and
//! one record that names it.
//!
//! A record is valid if its check and its number match its position. A commit is valid if all of
//! its records are. The journal ends at the first invalid commit. If a record of a *later* commit
//! follows there, an acknowledged commit is damaged, because each commit is durable before the next
//! is written. That is an error, not an end. Records of an earlier lap of the ring have other
//! numbers. Records that a crash left beyond the end have another epoch, because recovery begins a
//! new one.

use super::checksum::Checksum;
use super::layout::{Geometry, Slot};
use super::list;
use crate::backend::{LINE_BYTES, PageNo};
use crate::bytes::{u32_at, u64_at};
use crate::medium::Medium;
use crate::mutant::skips;
use crate::{Error, Result};

const ITEMS: usize = 3;
/// The numbers of records are below this power of 2, which no store reaches.
pub(super) const LSN_BITS: u32 = 48;
const LIST: u32 = 1 << 24;
/// The maximum number of records of one commit: their count is stored in 16 bits.
const MOST_RECORDS: u64 = 1 << 16;

/// The new state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A page of a pair has these lines now.
    Flip { page: PageNo, committed: u64, checksum: Checksum },
    /// A page lies in a pair of slots now. A `Flip` of it follows in the same commit.
    Pair { page: PageNo, slots: [Slot; 2] },
    /// A page lies in one slot now.
    Settle { page: PageNo, slot: Slot, checksum: Checksum },
    /// The page does not exist any more.
    Free { page: PageNo },
}

impl Item {
    /// Returns the item's kind, of 2 bits, and its bytes.
    pub(super) fn encode(self) -> (u32, [u8; 16]) {
        let (kind, page, a, b) = match self {
            Self::Flip { page, committed, checksum } => (0, page, checksum.stored(), committed),
            Self::Pair { page, slots } => (1, page, slots[0], u64::from(slots[1])),
            Self::Settle { page, slot, checksum } => (2, page, checksum.stored(), u64::from(slot)),
            Self::Free { page } => (3, page, 0, 0),
        };
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&page.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&a.to_le_bytes());
        bytes[8..].copy_from_slice(&b.to_le_bytes());
        (kind, bytes)
    }

    /// Decodes an item. Returns `None` if the bytes are not a valid one.
    pub(super) fn decode(kind: u32, bytes: &[u8]) -> Option<Self> {
        let page = PageNo(u32_at(bytes, 0));
        let (a, b) = (u32_at(bytes, 4), u64_at(bytes, 8));
        Some(match kind {
            0 => Self::Flip { page, committed: b, checksum: Checksum::from_stored(a)? },
            1 => Self::Pair { page, slots: [a, b as Slot] },
            2 => Self::Settle { page, slot: b as Slot, checksum: Checksum::from_stored(a)? },
            _ => Self::Free { page },
        })
    }
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    lsn: u64,
    /// The number of records of the same commit before and after this one.
    before: u64,
    after: u64,
    items: Vec<Item>,
    /// The slot of the list with the items, if they are not in the record.
    list: Option<Slot>,
}

impl Record {
    fn encode(&self, salt: u32) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        let mut tag = self.items.len() as u32 | (self.after as u32) << 8;
        for (i, item) in self.items.iter().enumerate() {
            let (kind, bytes) = item.encode();
            tag |= kind << (2 + 2 * i);
            line[16 + 16 * i..32 + 16 * i].copy_from_slice(&bytes);
        }
        if let Some(slot) = self.list {
            tag |= LIST;
            line[16..20].copy_from_slice(&slot.to_le_bytes());
        }
        line[4..8].copy_from_slice(&tag.to_le_bytes());
        line[8..16].copy_from_slice(&(self.lsn | self.before << LSN_BITS).to_le_bytes());
        let check = crc32c::crc32c_append(salt, &line[4..]);
        line[..4].copy_from_slice(&check.to_le_bytes());
        line
    }

    /// Decodes the line if it holds record number `lsn`.
    fn decode(line: &[u8], lsn: u64, salt: u32) -> Option<Self> {
        if !skips("lines.journal.checksum") && u32_at(line, 0) != crc32c::crc32c_append(salt, &line[4..LINE_BYTES]) {
            return None;
        }
        let (tag, numbers) = (u32_at(line, 4), u64_at(line, 8));
        if !skips("lines.journal.number") && numbers & ((1 << LSN_BITS) - 1) != lsn {
            return None;
        }
        let kinds = (0..(tag & 3) as usize).map(|i| ((tag >> (2 + 2 * i)) & 3, &line[16 + 16 * i..32 + 16 * i]));
        let items = kinds.map(|(kind, bytes)| Item::decode(kind, bytes)).collect::<Option<Vec<_>>>()?;
        let list = (tag & LIST != 0).then(|| u32_at(line, 16));
        Some(Self { lsn, before: numbers >> LSN_BITS, after: u64::from(tag >> 8 & 0xFFFF), items, list })
    }
}

/// The contents of a journal.
#[derive(Debug)]
pub(super) struct Scanned {
    /// The journal, ready for the next record.
    pub(super) journal: Journal,
    /// The items of each commit.
    pub(super) commits: Vec<Vec<Item>>,
    /// The slots of lists.
    pub(super) lists: Vec<Slot>,
}

/// The ring, as the writer sees it.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    geometry: Geometry,
    salt: u32,
    /// The number of the next record.
    next: u64,
    /// The first record that recovery needs.
    first: u64,
}

impl Journal {
    /// Creates an empty journal that begins with record `next`.
    pub(super) fn new(geometry: Geometry, uuid: &[u8; 16], epoch: u64, next: u64) -> Self {
        Self { geometry, salt: epoch_salt(uuid, epoch), next, first: next }
    }

    /// Reads the journal from record `first` on: the items of each commit.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a valid record follows a commit that is not whole.
    pub(super) fn scan(
        medium: &dyn Medium,
        geometry: Geometry,
        uuid: &[u8; 16],
        epoch: u64,
        first: u64,
    ) -> Result<Scanned> {
        let mut ring = vec![0; geometry.ring_records as usize * LINE_BYTES];
        medium.read(geometry.record(0), &mut ring)?;
        let salt = epoch_salt(uuid, epoch);
        let record = |lsn: u64| {
            let at = (lsn % u64::from(geometry.ring_records)) as usize * LINE_BYTES;
            Record::decode(&ring[at..at + LINE_BYTES], lsn, salt)
        };
        let end = first + u64::from(geometry.ring_records);
        let (mut next, mut commits, mut lists) = (first, Vec::new(), Vec::new());
        while next < end {
            let Some((mut items, list, records)) = commit_at(next, end, &record) else { break };
            if let Some(slot) = list {
                let (slots, listed) = list::read(medium, geometry, list_salt(salt, next), slot)?;
                lists.extend(slots);
                items = listed;
            }
            next += records;
            commits.push(items);
        }
        let later = (next..end).find(|lsn| record(*lsn).is_some_and(|found| lsn - found.before.min(*lsn) != next));
        if let Some(later) = later.filter(|_| !skips("lines.journal.damage")) {
            return Err(Error::corrupt(
                medium.name(),
                format!(
                    "record {next} of its journal is damaged, and record {later}, which was written after it, is whole"
                ),
            ));
        }
        Ok(Scanned { journal: Self { geometry, salt, next, first }, commits, lists })
    }

    /// Returns the number of records of `items` items.
    pub(super) fn records_for(items: usize) -> u64 {
        items.div_ceil(ITEMS) as u64
    }

    /// Returns the maximum number of records of a commit. A larger commit becomes a list, which
    /// takes one record.
    pub(super) fn most_records(&self) -> u64 {
        MOST_RECORDS.min(u64::from(self.geometry.ring_records) / 2)
    }

    /// Returns the number of records that fit before the next checkpoint.
    pub(super) fn room(&self) -> u64 {
        if skips("lines.journal.room") {
            return u64::MAX;
        }
        u64::from(self.geometry.ring_records) - (self.next - self.first)
    }

    /// Returns the number of records that recovery needs.
    pub(super) fn live(&self) -> u64 {
        self.next - self.first
    }

    /// Returns the number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Marks all records up to now as durable in the tables.
    pub(super) fn checkpointed(&mut self) {
        self.first = self.next;
    }

    /// Flushes the records that recovery needs. The caller fences.
    pub(super) fn flush(&self, medium: &dyn Medium) -> Result<()> {
        for lsn in self.first..self.next {
            medium.flush(self.geometry.record(lsn), LINE_BYTES)?;
        }
        Ok(())
    }

    /// Begins an epoch for the records that follow.
    pub(super) fn begin_epoch(&mut self, uuid: &[u8; 16], epoch: u64) {
        self.salt = epoch_salt(uuid, epoch);
    }

    /// Writes and flushes the records of one commit. Returns their number. The caller fences.
    pub(super) fn append(&mut self, medium: &dyn Medium, items: &[Item]) -> Result<u64> {
        let records = Self::records_for(items.len());
        for (before, items) in (0..).zip(items.chunks(ITEMS)) {
            let after = records - 1 - before;
            self.append_record(medium, Record { lsn: self.next, before, after, items: items.to_vec(), list: None })?;
        }
        Ok(records)
    }

    /// Writes and flushes a list into `slots`. The caller fences, and appends the record that names
    /// it.
    pub(super) fn write_list(&self, medium: &dyn Medium, slots: &[Slot], items: &[Item]) -> Result<()> {
        list::write(medium, self.geometry, list_salt(self.salt, self.next), slots, items)
    }

    /// Writes and flushes the record of a commit that is a list. The caller fences.
    pub(super) fn append_list(&mut self, medium: &dyn Medium, slot: Slot) -> Result<()> {
        self.append_record(medium, Record { lsn: self.next, before: 0, after: 0, items: Vec::new(), list: Some(slot) })
    }

    fn append_record(&mut self, medium: &dyn Medium, record: Record) -> Result<()> {
        let at = self.geometry.record(self.next);
        medium.write(at, &record.encode(self.salt))?;
        if !skips("lines.commit.flush-journal") {
            medium.flush(at, LINE_BYTES)?;
        }
        self.next += 1;
        Ok(())
    }
}

/// Returns the items of the commit that begins with record `first`, the slot of its list if it has
/// one, and the number of its records. Returns `None` if a record of it is not whole.
fn commit_at(first: u64, end: u64, record: &dyn Fn(u64) -> Option<Record>) -> Option<(Vec<Item>, Option<Slot>, u64)> {
    let head = record(first).filter(|head| head.before == 0)?;
    let records = head.after + 1;
    if first + records > end {
        return None;
    }
    let mut items = head.items;
    for before in 1..records {
        match record(first + before) {
            Some(part) if part.before == before && part.after == records - 1 - before => items.extend(part.items),
            _ if skips("lines.journal.whole") => {}
            _ => return None,
        }
    }
    Some((items, head.list, records))
}

/// Returns the seed of the checks of an epoch.
pub(super) fn epoch_salt(uuid: &[u8; 16], epoch: u64) -> u32 {
    let epoch = if skips("lines.journal.epoch") { 0 } else { epoch };
    crc32c::crc32c_append(crc32c::crc32c(uuid), &epoch.to_le_bytes())
}

/// Returns the seed of a list that record `lsn` names: lists of other records are invalid.
fn list_salt(salt: u32, lsn: u64) -> u32 {
    crc32c::crc32c_append(salt, &lsn.to_le_bytes())
}

pub(super) fn damaged(medium: &dyn Medium, reason: String) -> Error {
    Error::corrupt(medium.name(), reason)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::{Granularity, Memory};
    use crate::options::CommitBy;

    const UUID: [u8; 16] = [4; 16];

    fn items(count: u32) -> Vec<Item> {
        let checksum = Checksum::from_stored(9).unwrap();
        let kinds = |page| {
            [
                Item::Flip { page, committed: 0b110, checksum },
                Item::Pair { page, slots: [1, 2] },
                Item::Settle { page, slot: 3, checksum },
                Item::Free { page },
            ]
        };
        (0..count).map(|i| kinds(PageNo(i))[i as usize % 4]).collect()
    }

    fn ring() -> (Memory, Geometry) {
        let (memory, geometry) = (Memory::new(Granularity::Line), Geometry::new(8, 8, CommitBy::Journal).unwrap());
        memory.grow(geometry.len(1)).unwrap();
        (memory, geometry)
    }

    #[test]
    fn commits_of_every_length_come_back_in_order_over_several_laps() {
        let (memory, geometry) = ring();
        let mut journal = Journal::new(geometry, &UUID, 1, 1);
        for count in [1, 3, 4, 7, 24, 2, 12, 12] {
            if journal.room() < Journal::records_for(count) {
                journal.checkpointed();
            }
            journal.append(&memory, &items(count as u32)).unwrap();
            let found = Journal::scan(&memory, geometry, &UUID, 1, journal.first).unwrap();
            assert_eq!(found.commits.last(), Some(&items(count as u32)));
            assert_eq!(found.journal.next, journal.next);
        }
    }

    #[test]
    fn half_a_commit_is_the_end_and_damage_before_a_later_commit_is_an_error() {
        let (memory, geometry) = ring();
        let mut journal = Journal::new(geometry, &UUID, 1, 1);
        for count in [3, 6, 3] {
            journal.append(&memory, &items(count)).unwrap();
        }
        let scan = |memory: &Memory| Journal::scan(memory, geometry, &UUID, 1, 1).map(|found| found.commits.len());
        assert_eq!(scan(&memory).unwrap(), 3);
        for lsn in 1..=4 {
            let damaged = Memory::with_bytes(Granularity::Line, memory.to_vec());
            damaged.write(geometry.record(lsn) + 20, &[0xAA]).unwrap();
            if lsn == 4 {
                assert_eq!(scan(&damaged).unwrap(), 2);
            } else {
                assert!(matches!(scan(&damaged), Err(Error::Corrupt { .. })), "record {lsn}");
            }
        }
        let other_epoch = Journal::scan(&memory, geometry, &UUID, 2, 1).unwrap();
        assert!(other_epoch.commits.is_empty());
    }
}
