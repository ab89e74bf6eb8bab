//! The layout of a medium of lines.
//!
//! ```text
//! 0       superblock, two copies
//! 8,192   journal: a ring of records of 64 bytes
//!         two slots of the super page, if commits are by one
//!         region 0: table of pages, 8 bytes each; as many slots of 4,096 bytes
//!         region 1: ...
//! ```
//! A store grows by whole regions, without a limit on their number. The length of the medium
//! determines the number of regions, and the superblock has the minimum. There are as many table
//! entries as slots, and every page has a slot of its own, so that the table never runs out first.

use super::journal::LSN_BITS;
use super::superpage::{self, Word};
use crate::backend::{LINE_BYTES, PageNo, SLOT_BYTES};
use crate::bytes::{u32_at, u64_at};
use crate::medium::Medium;
use crate::options::CommitBy;
use crate::superblock::{BODY_BYTES, MOST_COUNTED, SUPERBLOCKS_END};
use crate::{Error, Result};

/// The number of a slot: dense, from 0.
pub(super) type Slot = u32;

/// The maximum number of slots of a store: two bits of a table entry are its kind.
pub(super) const MOST_SLOTS: u64 = 1 << 30;
/// The bytes of a table entry.
pub(super) const ENTRY_BYTES: usize = 8;

/// Parameters fixed when the store is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) commit_by: CommitBy,
    /// The number of records of the journal.
    pub(super) ring_records: u32,
    /// The number of slots of a region: a multiple of 8, so that tables consist of lines.
    pub(super) region_slots: u32,
}

impl Geometry {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they are out of range.
    pub(super) fn new(ring_records: u32, region_slots: u32, commit_by: CommitBy) -> Result<Self> {
        if ring_records < 4
            || region_slots < 8
            || !region_slots.is_multiple_of(8)
            || u64::from(region_slots) > MOST_SLOTS
        {
            return Err(Error::Invalid(format!(
                "a journal of {ring_records} records and regions of {region_slots} slots: at least 4 records are needed, \
                 and a multiple of 8 slots"
            )));
        }
        Ok(Self { commit_by, ring_records, region_slots })
    }

    /// Returns the position of record number `lsn`.
    pub(super) fn record(self, lsn: u64) -> u64 {
        SUPERBLOCKS_END + lsn % u64::from(self.ring_records) * LINE_BYTES as u64
    }

    /// Returns the position of line number `line` of one of the super page's slots.
    pub(super) fn super_page(self, side: u32, line: usize) -> u64 {
        self.ring_end() + u64::from(side) * SLOT_BYTES as u64 + (line * LINE_BYTES) as u64
    }

    fn ring_end(self) -> u64 {
        SUPERBLOCKS_END + u64::from(self.ring_records) * LINE_BYTES as u64
    }

    fn regions_start(self) -> u64 {
        match self.commit_by {
            CommitBy::Journal => self.ring_end(),
            CommitBy::SuperPage => self.super_page(superpage::SLOTS as u32, 0),
        }
    }

    fn region_bytes(self) -> u64 {
        u64::from(self.region_slots) * (ENTRY_BYTES + SLOT_BYTES) as u64
    }

    /// Returns the length of a store of `regions` regions.
    pub(super) fn len(self, regions: u32) -> u64 {
        self.regions_start() + u64::from(regions) * self.region_bytes()
    }

    /// Returns the number of whole regions on a medium of `len` bytes.
    pub(super) fn regions(self, len: u64) -> u32 {
        let most = MOST_SLOTS / u64::from(self.region_slots);
        (len.saturating_sub(self.regions_start()) / self.region_bytes()).min(most) as u32
    }

    /// Returns the position of the table entry of a page.
    pub(super) fn entry(self, page: PageNo) -> u64 {
        self.table(page.0 / self.region_slots) + u64::from(page.0 % self.region_slots) * ENTRY_BYTES as u64
    }

    /// Returns the position of the table of a region.
    pub(super) fn table(self, region: u32) -> u64 {
        self.regions_start() + u64::from(region) * self.region_bytes()
    }

    /// Returns the position of line number `line` of a slot.
    pub(super) fn line(self, slot: Slot, line: usize) -> u64 {
        let slots = self.table(slot / self.region_slots) + u64::from(self.region_slots) * ENTRY_BYTES as u64;
        slots + u64::from(slot % self.region_slots) * SLOT_BYTES as u64 + (line * LINE_BYTES) as u64
    }
}

/// The layout's own part of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) geometry: Geometry,
    /// The minimum number of regions.
    pub(super) regions: u32,
    /// True if the store was closed, and the journal is empty.
    pub(super) is_clean: bool,
    /// The epoch. Records of other epochs are invalid.
    pub(super) epoch: u64,
    /// The first record that is not in the tables.
    pub(super) checkpoint: u64,
    /// The super page's word when it was empty, or zeros without a super page.
    pub(super) stale_word: Word,
}

impl Body {
    pub(super) fn encode(&self) -> [u8; BODY_BYTES] {
        let mut body = [0; BODY_BYTES];
        let by_super_page = self.geometry.commit_by == CommitBy::SuperPage;
        let flags = u32::from(self.is_clean) | u32::from(by_super_page) << 1;
        let words = [self.geometry.ring_records, self.geometry.region_slots, self.regions, flags];
        for (at, word) in words.iter().enumerate() {
            body[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        body[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        body[24..32].copy_from_slice(&self.checkpoint.to_le_bytes());
        body[32..40].copy_from_slice(&self.stale_word);
        body
    }

    /// Decodes the part.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if its values are out of range, or the medium is shorter than it
    /// requires.
    pub(super) fn decode(medium: &dyn Medium, body: &[u8; BODY_BYTES]) -> Result<Self> {
        let flags = u32_at(body, 12);
        let commit_by = if flags & 2 == 0 { CommitBy::Journal } else { CommitBy::SuperPage };
        let geometry = Geometry::new(u32_at(body, 0), u32_at(body, 4), commit_by)
            .map_err(|error| Error::corrupt(medium.name(), format!("its superblock names {error}")))?;
        let found = Self {
            geometry,
            regions: u32_at(body, 8),
            is_clean: flags & 1 == 1,
            epoch: u64_at(body, 16),
            checkpoint: u64_at(body, 24),
            stale_word: u64_at(body, 32).to_le_bytes(),
        };
        let slots = u64::from(found.regions) * u64::from(geometry.region_slots);
        let is_counted = found.checkpoint >> LSN_BITS == 0 && found.epoch < MOST_COUNTED;
        // The first region is created with the store.
        if !is_counted || slots == 0 || slots > MOST_SLOTS {
            let (record, epoch) = (found.checkpoint, found.epoch);
            let reason = format!("its superblock names record {record} of epoch {epoch}, and {slots} slots");
            return Err(Error::corrupt(medium.name(), reason));
        }
        if medium.len() < geometry.len(found.regions) {
            return Err(Error::corrupt(
                medium.name(),
                format!(
                    "it was cut off: it has {} bytes, and had at least {}",
                    medium.len(),
                    geometry.len(found.regions)
                ),
            ));
        }
        Ok(found)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::{Granularity, Memory};

    #[test]
    fn nothing_overlaps_and_lines_are_aligned() {
        let geometry = Geometry::new(16, 8, CommitBy::SuperPage).unwrap();
        let mut taken: Vec<(u64, u64)> = (0..16).map(|lsn| (geometry.record(lsn), 64)).collect();
        taken.extend([(geometry.super_page(0, 0), 4096), (geometry.super_page(1, 0), 4096)]);
        taken.push((0, SUPERBLOCKS_END));
        for number in 0..24 {
            taken.push((geometry.entry(PageNo(number)), 8));
            taken.push((geometry.line(number, 0), 4096));
            assert_eq!(geometry.line(number, 63) % 64, 0);
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "no gap and no overlap: {taken:?}");
        let last = taken.last().unwrap();
        assert_eq!(last.0 + last.1, geometry.len(3));
        assert_eq!((geometry.regions(geometry.len(3)), geometry.regions(geometry.len(3) - 1)), (3, 2));
    }

    #[test]
    fn what_is_longer_than_the_medium_is_damage_before_it_takes_memory() {
        let memory = Memory::new(Granularity::Line);
        memory.grow(1 << 20).unwrap();
        let decode = |change: &dyn Fn(&mut Body)| {
            let geometry = Geometry::new(16, 8, CommitBy::Journal).unwrap();
            let mut body = Body { geometry, regions: 3, is_clean: false, epoch: 1, checkpoint: 1, stale_word: [0; 8] };
            change(&mut body);
            Body::decode(&memory, &body.encode())
        };
        assert!(decode(&|_| {}).is_ok());
        let changes: [&dyn Fn(&mut Body); 6] = [
            &|body| (body.geometry.region_slots, body.regions) = (1 << 24, 0),
            &|body| (body.geometry.ring_records, body.regions) = (u32::MAX, 0),
            &|body| body.regions = u32::MAX,
            &|body| (body.geometry.region_slots, body.regions) = (1 << 30, 1),
            &|body| body.checkpoint = u64::MAX,
            &|body| body.epoch = u64::MAX,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert!(matches!(decode(change), Err(Error::Corrupt { .. })), "change {number}");
        }
    }
}
