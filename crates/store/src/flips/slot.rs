//! The layout of a slot: a header line, then 4,032 bytes of the contents that the header names.
//!
//! ```text
//!  0  checksum  u32   crc32c of bytes 4 .. 4096, begun with the store's own seed
//!  4  kind      u8    what the other 4,032 bytes are; 0 is none
//!  5  last      u8    1: this part is the last of its commit
//!  6  count     u16   entries of a list
//!  8  epoch     u64   the checkpoint since which it was written
//! 16  commit    u64   the commit that it is part of; of a table: whose state the table has
//! 24  part      u32   of a link: which part of its commit; of a table: its level
//! 28  page      u32   of a page: its number; of a table: its place in its level
//! 32  next      u32   of a link: the slot of the next part, or of the next commit's first
//! 36  after     u32   of a link that is the last of its commit: the slot of the first part of the
//!                     commit after the next
//! 40  frees     6 × u32   of a link: pages that the commit frees; `u32::MAX` is none
//! ```
//! Integers are little endian. Bytes behind the entries of a list, and fields that a kind does not
//! use, are zero.

use crate::backend::{Image, LINE_BYTES, PAGE_BYTES, PageNo, SLOT_BYTES};
use crate::bytes::{u32_at, u64_at};
use crate::mutant::skips;

/// The number of freed pages that fit in a link's header.
pub(super) const HEADER_FREES: usize = 6;
/// The number of freed pages that fit in a list.
pub(super) const LIST_FREES: usize = PAGE_BYTES / 4;
/// The number of spilled pages that fit in a list.
pub(super) const LIST_SPILLS: usize = PAGE_BYTES / SPILL_BYTES;
/// The number of entries of a table.
pub(super) const FANOUT: usize = PAGE_BYTES / 8;

const SPILL_BYTES: usize = 12;
const NO_PAGE: u32 = u32::MAX;

/// The kind of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A link of the chain: a page's new bytes.
    Page = 1,
    /// A link of the chain: freed pages.
    Frees = 2,
    /// A link of the chain: spilled pages, their slots and their checksums.
    Spills = 3,
    /// A page's bytes, written ahead of the commit. They are valid if a commit lists them.
    Spilled = 4,
    /// The locations of pages or of other tables.
    Table = 5,
}

/// A slot, and the checksum that its referrer expects. Slot 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slot: u32,
    pub(super) checksum: u32,
}

impl Entry {
    pub(super) const NONE: Self = Self { slot: 0, checksum: 0 };

    pub(super) fn is_none(self) -> bool {
        self.slot == 0
    }
}

/// A page whose bytes are in a slot that is not a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spill {
    pub(super) page: PageNo,
    pub(super) at: Entry,
}

/// The contents of a header, except the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) is_last: bool,
    pub(super) count: u16,
    pub(super) epoch: u64,
    pub(super) commit: u64,
    pub(super) part: u32,
    pub(super) page: u32,
    pub(super) next: u32,
    pub(super) after: u32,
    pub(super) frees: [u32; HEADER_FREES],
}

impl Header {
    /// Creates a header with these fields only.
    pub(super) fn new(kind: Kind, epoch: u64, commit: u64) -> Self {
        Self {
            kind,
            is_last: false,
            count: 0,
            epoch,
            commit,
            part: 0,
            page: 0,
            next: 0,
            after: 0,
            frees: [NO_PAGE; HEADER_FREES],
        }
    }

    /// Returns true if the slot is a link of the chain.
    pub(super) fn is_link(&self) -> bool {
        matches!(self.kind, Kind::Page | Kind::Frees | Kind::Spills)
    }

    /// Returns the freed pages that the header lists.
    pub(super) fn frees(&self) -> impl Iterator<Item = PageNo> {
        self.frees.into_iter().filter(|&page| page != NO_PAGE).map(PageNo)
    }
}

/// The bytes of a slot, in memory.
#[repr(align(64))]
pub(super) struct Slot(pub(super) [u8; SLOT_BYTES]);

impl Slot {
    pub(super) fn zeroed() -> Self {
        Self([0; SLOT_BYTES])
    }

    /// Returns the bytes behind the header.
    pub(super) fn content(&self) -> &[u8] {
        &self.0[LINE_BYTES..]
    }

    /// Returns the checksum in the header, which is not verified.
    pub(super) fn checksum(&self) -> u32 {
        u32_at(&self.0, 0)
    }

    /// Returns the header and the checksum, if the checksum matches and the kind is known. `seed`
    /// is the store's own. `precaution` is the name of this check among the mutants.
    pub(super) fn header(&self, seed: u32, precaution: &'static str) -> Option<(Header, u32)> {
        let checksum = u32_at(&self.0, 0);
        // An empty slot is all zeros, and so are most ends of a chain: the checksum need not be
        // computed.
        let kind = match self.0[4] {
            1 => Kind::Page,
            2 => Kind::Frees,
            3 => Kind::Spills,
            4 => Kind::Spilled,
            5 => Kind::Table,
            _ => return None,
        };
        if !skips(precaution) && checksum != checksum_of(&self.0, seed) {
            return None;
        }
        let mut header = Header::new(kind, u64_at(&self.0, 8), u64_at(&self.0, 16));
        header.is_last = self.0[5] == 1;
        header.count = u16::from_le_bytes([self.0[6], self.0[7]]);
        header.part = u32_at(&self.0, 24);
        header.page = u32_at(&self.0, 28);
        header.next = u32_at(&self.0, 32);
        header.after = u32_at(&self.0, 36);
        for (i, free) in header.frees.iter_mut().enumerate() {
            *free = u32_at(&self.0, 40 + 4 * i);
        }
        Some((header, checksum))
    }

    /// Returns the pages that a list frees, or `None` if its count exceeds its space.
    pub(super) fn listed_frees(&self, count: u16) -> Option<impl Iterator<Item = PageNo>> {
        let bytes = self.content().get(..usize::from(count) * 4)?;
        Some(bytes.chunks_exact(4).map(|free| PageNo(u32_at(free, 0))))
    }

    /// Returns the spilled pages of a list, or `None` if its count exceeds its space.
    pub(super) fn listed_spills(&self, count: u16) -> Option<impl Iterator<Item = Spill>> {
        let bytes = self.content().get(..usize::from(count) * SPILL_BYTES)?;
        Some(bytes.chunks_exact(SPILL_BYTES).map(|spill| Spill {
            page: PageNo(u32_at(spill, 0)),
            at: Entry { slot: u32_at(spill, 4), checksum: u32_at(spill, 8) },
        }))
    }

    /// Returns the entries of a table.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.content().chunks_exact(8).map(|entry| Entry { slot: u32_at(entry, 0), checksum: u32_at(entry, 4) })
    }
}

/// Encodes a page into `slot`. Returns its checksum.
pub(super) fn encode_page(slot: &mut [u8], header: &Header, image: &Image, seed: u32) -> u32 {
    slot[LINE_BYTES..].copy_from_slice(&image.0);
    encode_header(slot, header, seed)
}

/// Encodes a list of freed pages into `slot`. Returns its checksum.
pub(super) fn encode_frees(slot: &mut [u8], header: &Header, frees: &[PageNo], seed: u32) -> u32 {
    slot.fill(0);
    for (bytes, free) in slot[LINE_BYTES..].chunks_exact_mut(4).zip(frees) {
        bytes.copy_from_slice(&free.0.to_le_bytes());
    }
    encode_header(slot, &Header { count: frees.len() as u16, ..*header }, seed)
}

/// Encodes a list of spilled pages into `slot`. Returns its checksum.
pub(super) fn encode_spills(slot: &mut [u8], header: &Header, spills: &[Spill], seed: u32) -> u32 {
    slot.fill(0);
    for (bytes, spill) in slot[LINE_BYTES..].chunks_exact_mut(SPILL_BYTES).zip(spills) {
        bytes[..4].copy_from_slice(&spill.page.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&spill.at.slot.to_le_bytes());
        bytes[8..].copy_from_slice(&spill.at.checksum.to_le_bytes());
    }
    encode_header(slot, &Header { count: spills.len() as u16, ..*header }, seed)
}

/// Encodes a table into `slot`. Returns its checksum.
pub(super) fn encode_table(slot: &mut [u8], header: &Header, entries: &[Entry], seed: u32) -> u32 {
    slot.fill(0);
    for (bytes, entry) in slot[LINE_BYTES..].chunks_exact_mut(8).zip(entries) {
        bytes[..4].copy_from_slice(&entry.slot.to_le_bytes());
        bytes[4..].copy_from_slice(&entry.checksum.to_le_bytes());
    }
    encode_header(slot, header, seed)
}

fn encode_header(slot: &mut [u8], header: &Header, seed: u32) -> u32 {
    slot[4] = header.kind as u8;
    slot[5] = u8::from(header.is_last);
    slot[6..8].copy_from_slice(&header.count.to_le_bytes());
    slot[8..16].copy_from_slice(&header.epoch.to_le_bytes());
    slot[16..24].copy_from_slice(&header.commit.to_le_bytes());
    slot[24..28].copy_from_slice(&header.part.to_le_bytes());
    slot[28..32].copy_from_slice(&header.page.to_le_bytes());
    slot[32..36].copy_from_slice(&header.next.to_le_bytes());
    slot[36..40].copy_from_slice(&header.after.to_le_bytes());
    for (bytes, free) in slot[40..LINE_BYTES].chunks_exact_mut(4).zip(header.frees) {
        bytes.copy_from_slice(&free.to_le_bytes());
    }
    let checksum = checksum_of(slot, seed);
    slot[..4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

fn checksum_of(slot: &[u8], seed: u32) -> u32 {
    crc32c::crc32c_append(seed, &slot[4..])
}

const _: () = assert!(40 + 4 * HEADER_FREES == LINE_BYTES);
const _: () = assert!(LIST_FREES <= u16::MAX as usize && FANOUT * 8 == PAGE_BYTES);
