//! The tables of a store, which checkpoints write.
//!
//! The **page table** has one entry of 8 bytes per page, written in one store, so that it is never
//! torn:
//!
//! ```text
//! 0                       there is no such page
//! slot | 2 << 30, sum     the page lies in one slot; `sum` is its checksum
//! slot | 3 << 30, check   the page lies in a pair of slots, of which this is the first;
//!                         `check` is of page and slot
//! ```
//! The **consistent-state table** has one line per pair, which is the first line of the pair's
//! first slot:
//!
//! ```text
//! 0  second  u32    8   committed  u64: bit i says which slot has line i
//! 4  sum     u32    16  zeros
//! ```
//! A crash during a checkpoint can tear the line between words of 8 bytes. Then the journal has the
//! lost contents. `second` does not change while the pair exists. The line has no checksum of its
//! own: a torn line does not match the page's checksum.

use super::checksum::Checksum;
use super::layout::Slot;
use crate::backend::{LINE_BYTES, PageNo};
use crate::bytes::{u32_at, u64_at};
use crate::mutant::skips;

const KIND_SHIFT: u32 = 30;
const ONE: u32 = 2;
const TWO: u32 = 3;
const SLOT_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// The location of the bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// There is no such page.
    Absent,
    /// In one slot.
    Single {
        /// The slot.
        slot: Slot,
        /// The page's checksum.
        checksum: Checksum,
    },
    /// Line by line in one of two slots.
    Pair {
        /// The two slots.
        slots: [Slot; 2],
        /// Bit `i` selects the slot of line `i`. Bit 0 is 0.
        committed: u64,
        /// The page's checksum.
        checksum: Checksum,
    },
}

/// A page table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Absent,
    Single {
        slot: Slot,
        checksum: Checksum,
    },
    /// The first slot has the rest.
    Pair {
        first: Slot,
    },
}

impl Entry {
    pub(super) fn of(place: Place) -> Self {
        match place {
            Place::Absent => Self::Absent,
            Place::Single { slot, checksum } => Self::Single { slot, checksum },
            Place::Pair { slots, .. } => Self::Pair { first: slots[0] },
        }
    }

    pub(super) fn encode(self, page: PageNo) -> [u8; 8] {
        let (low, high) = match self {
            Self::Absent => (0, 0),
            Self::Single { slot, checksum } => (slot | ONE << KIND_SHIFT, checksum.stored()),
            Self::Pair { first } => (first | TWO << KIND_SHIFT, pair_check(page, first)),
        };
        (u64::from(low) | u64::from(high) << 32).to_le_bytes()
    }

    /// Decodes an entry. Returns `None` if it is not a valid one.
    pub(super) fn decode(page: PageNo, bytes: [u8; 8]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        let (low, high) = (word as u32, (word >> 32) as u32);
        let slot = low & SLOT_MASK;
        match low >> KIND_SHIFT {
            0 if word == 0 => Some(Self::Absent),
            ONE => Checksum::from_stored(high).map(|checksum| Self::Single { slot, checksum }),
            TWO if skips("lines.table.check") || high == pair_check(page, slot) => Some(Self::Pair { first: slot }),
            _ => None,
        }
    }
}

fn pair_check(page: PageNo, first: Slot) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page.0.to_le_bytes()), &first.to_le_bytes()).max(1)
}

/// A pair's line of the consistent-state table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairEntry {
    pub(super) second: Slot,
    pub(super) committed: u64,
    pub(super) checksum: Checksum,
}

impl PairEntry {
    pub(super) fn encode(self) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        line[..4].copy_from_slice(&self.second.to_le_bytes());
        line[4..8].copy_from_slice(&self.checksum.stored().to_le_bytes());
        line[8..16].copy_from_slice(&self.committed.to_le_bytes());
        line
    }

    /// Decodes the line. Returns `None` if it is not a valid one.
    pub(super) fn decode(line: &[u8; LINE_BYTES]) -> Option<Self> {
        let committed = u64_at(line, 8);
        Some(Self { second: u32_at(line, 0), committed, checksum: Checksum::from_stored(u32_at(line, 4))? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn checksum(stored: u32) -> Checksum {
        Checksum::from_stored(stored).unwrap()
    }

    #[test]
    fn entries_come_back_and_no_flipped_byte_makes_a_page_vanish() {
        let page = PageNo(5);
        for entry in [Entry::Single { slot: 0, checksum: checksum(1) }, Entry::Pair { first: 3 }, Entry::Absent] {
            let bytes = entry.encode(page);
            assert_eq!(Entry::decode(page, bytes), Some(entry));
            for (byte, flip) in (0..8).flat_map(|byte| (1..=255).map(move |flip| (byte, flip))) {
                let mut damaged = bytes;
                damaged[byte] ^= flip;
                let found = Entry::decode(page, damaged);
                assert_ne!(found, Some(entry));
                assert!(entry == Entry::Absent || found != Some(Entry::Absent));
                assert!(entry != Entry::Absent || found.is_none(), "no page comes of one flipped byte");
            }
        }
    }

    #[test]
    fn a_pair_comes_back() {
        let pair = PairEntry { second: 4, committed: 0b10, checksum: checksum(9) };
        assert_eq!(PairEntry::decode(&pair.encode()), Some(pair));
        assert_eq!(PairEntry::decode(&[0; LINE_BYTES]), None);
    }
}
