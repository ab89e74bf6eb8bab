//! Recomputes the checksums of a store's file after damage. A second implementation of the rules on
//! the store's format page.
//!
//! A shallow seal recomputes the checksums of superblocks, slots and records themselves. A deep one
//! also recomputes the checksums that tables, lists, records and the super page keep of the slots
//! that they name. Damage to a page then passes all checks below the tree.

use std::collections::HashMap;
use std::ops::Range;

pub(super) const SECTOR: usize = 512;
pub(super) const SLOT: usize = 4096;
pub(super) const LINE: usize = 64;
/// The offsets of the superblocks, and their end.
pub(super) const COPIES: [usize; 2] = [0, SLOT];
pub(super) const BEGIN: usize = 2 * SLOT;
/// The bits of a table's entry that hold a slot.
const SLOT_BITS: u32 = (1 << 30) - 1;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(there) = bytes.get_mut(at..at + 4) {
        there.copy_from_slice(&word.to_le_bytes());
    }
}

fn seal_superblocks(bytes: &mut [u8]) {
    for at in COPIES {
        if let Some(sector) = bytes.get(at..at + SECTOR - 4) {
            put(bytes, at + SECTOR - 4, crc32c::crc32c(sector));
        }
    }
}

/// Recomputes the checksums of slots and superblocks, and, if `deep`, those that tables and lists
/// keep of slots.
pub(super) fn seal_flips(bytes: &mut [u8], deep: bool) {
    const KINDS: Range<u8> = 1..6;
    let seed = crc32c::crc32c(bytes.get(32..48).unwrap_or_default());
    let slots: Vec<usize> = (BEGIN..bytes.len().saturating_sub(SLOT - 1)).step_by(SLOT).collect();
    let own = |bytes: &mut [u8], at: usize| {
        if KINDS.contains(&bytes[at + 4]) {
            let checksum = crc32c::crc32c_append(seed, &bytes[at + 4..at + SLOT]);
            put(bytes, at, checksum);
        }
    };
    slots.iter().for_each(|at| own(bytes, *at));
    if deep {
        // Lists name spilled pages by 12 bytes, tables name pages and other tables by 8. Processed
        // from the leaves up.
        let refer = |bytes: &mut [u8], at: usize| {
            let slot = word(bytes, at) as usize;
            if slot != 0
                && let Some(checksum) = slot.checked_mul(SLOT).filter(|at| at + SLOT <= bytes.len())
            {
                put(bytes, at + 4, word(bytes, checksum));
            }
        };
        for at in slots.iter().filter(|at| bytes[**at + 4] == 3).copied().collect::<Vec<_>>() {
            let count = usize::from(u16::from_le_bytes([bytes[at + 6], bytes[at + 7]])).min((SLOT - LINE) / 12);
            (0..count).for_each(|i| refer(bytes, at + LINE + 12 * i + 4));
            own(bytes, at);
        }
        for level in 0..4 {
            let of_level = |bytes: &[u8], at: usize| bytes[at + 4] == 5 && word(bytes, at + 24) == level;
            for at in slots.iter().filter(|at| of_level(bytes, **at)).copied().collect::<Vec<_>>() {
                (LINE..SLOT).step_by(8).for_each(|i| refer(bytes, at + i));
                own(bytes, at);
            }
        }
        COPIES.iter().for_each(|at| refer(bytes, at + 56 + 32));
    }
    seal_superblocks(bytes);
}

/// The layout of a store on memory, as its superblock describes it.
pub(super) struct Lines {
    ring: usize,
    pub region_slots: usize,
    /// The offset of the super page, if there is one.
    pub super_page: Option<usize>,
    begin: usize,
}

impl Lines {
    /// Reads the layout from a superblock.
    pub fn of(bytes: &[u8]) -> Self {
        let ring = word(bytes, 56) as usize;
        let region_slots = (word(bytes, 60) as usize).clamp(8, 1 << 30);
        let end = BEGIN + ring * LINE;
        let super_page = (word(bytes, 68) & 2 != 0).then_some(end);
        Self { ring, region_slots, super_page, begin: super_page.map_or(end, |at| at + 2 * SLOT) }
    }

    /// Returns the number of complete regions in a file of this length.
    pub fn regions(&self, len: usize) -> usize {
        len.saturating_sub(self.begin) / (self.region_slots * (8 + SLOT))
    }

    /// Returns the offset of a region's table.
    pub fn table(&self, region: usize) -> usize {
        self.begin + region * self.region_slots * (8 + SLOT)
    }

    /// Returns the offset of a slot, if the file has it.
    fn slot(&self, slot: usize, len: usize) -> Option<usize> {
        let at = self.table(slot / self.region_slots) + self.region_slots * 8 + slot % self.region_slots * SLOT;
        (at + SLOT <= len).then_some(at)
    }

    /// Returns the checksum of a page whose lines are in one slot or the other.
    fn sum_of_pair(&self, bytes: &[u8], page: u32, slots: [u32; 2], committed: u64) -> Option<u32> {
        let [first, second] = slots.map(|slot| self.slot(slot as usize, bytes.len()));
        let (first, second) = (first?, second?);
        let place = |line: usize| if committed >> line & 1 == 1 { second } else { first };
        Some(sum_of(page, |line| &bytes[place(line) + line * LINE..][..LINE]))
    }
}

/// Recomputes the checksums of records, of the super page and of superblocks, and, if `deep`, those
/// that these and tables keep of pages.
pub(super) fn seal_lines(bytes: &mut [u8], deep: bool) {
    let lines = Lines::of(bytes);
    let epoch = bytes.get(56 + 16..56 + 24).unwrap_or_default();
    let salt = crc32c::crc32c_append(crc32c::crc32c(bytes.get(32..48).unwrap_or_default()), epoch);
    // Pairs of slots by their pages. A record of a page that flips does not name them.
    let mut pairs = HashMap::new();
    if deep {
        for region in 0..lines.regions(bytes.len()) {
            for entry in 0..lines.region_slots {
                let (page, at) = (region * lines.region_slots + entry, lines.table(region) + 8 * entry);
                seal_entry(bytes, &lines, page as u32, at, &mut pairs);
            }
        }
    }
    let is_used = |bytes: &[u8], at: usize| bytes.get(at..at + LINE).is_some_and(|line| line.iter().any(|b| *b != 0));
    let own = |bytes: &mut [u8], at: usize| {
        let checksum = crc32c::crc32c_append(salt, &bytes[at + 4..at + LINE]);
        put(bytes, at, checksum);
    };
    let len = bytes.len();
    for at in (0..lines.ring).map(|record| BEGIN + record * LINE).take_while(|at| at + LINE <= len) {
        if is_used(bytes, at) {
            if deep {
                seal_items(bytes, &lines, at, &mut pairs);
            }
            own(bytes, at);
        }
    }
    if let Some(super_page) = lines.super_page.filter(|at| at + 2 * SLOT <= bytes.len()) {
        for at in (1..=32).flat_map(|line| [0, SLOT].map(|side| super_page + side + line * LINE)) {
            if is_used(bytes, at) {
                if deep {
                    seal_super_line(bytes, &lines, at);
                }
                own(bytes, at);
            }
        }
        let check = crc32c::crc32c_append(salt, &bytes[super_page..super_page + 5]).to_le_bytes();
        bytes[super_page + 5..super_page + 8].copy_from_slice(&check[..3]);
    }
    seal_superblocks(bytes);
}

/// Pairs of slots by their pages.
type Pairs = HashMap<u32, [u32; 2]>;

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Recomputes the checksums that the items of a record keep of pages.
fn seal_items(bytes: &mut [u8], lines: &Lines, at: usize, pairs: &mut Pairs) {
    let tag = word(bytes, at + 4);
    for (number, item) in (0..(tag & 3).min(3)).map(|number| (number, at + 16 + 16 * number as usize)) {
        let (page, second) = (word(bytes, item), word(bytes, item + 8));
        match tag >> (2 + 2 * number) & 3 {
            0 => {
                let slots = pairs.get(&page).copied().unwrap_or_default();
                if let Some(sum) = lines.sum_of_pair(bytes, page, slots, long(bytes, item + 8)) {
                    put(bytes, item + 4, sum);
                }
            }
            1 => _ = pairs.insert(page, [word(bytes, item + 4), second]),
            2 => {
                if let Some(sum) = lines.sum_of_pair(bytes, page, [second; 2], 0) {
                    put(bytes, item + 4, sum);
                }
            }
            _ => {}
        }
    }
}

/// Recomputes the checksum that a line of the super page keeps of a page.
fn seal_super_line(bytes: &mut [u8], lines: &Lines, at: usize) {
    let (page, slots) = (word(bytes, at + 4), [word(bytes, at + 8), word(bytes, at + 12)]);
    let (slots, committed) = match word(bytes, at + 28) {
        1 => ([slots[0]; 2], 0),
        2 => (slots, long(bytes, at + 16)),
        _ => return,
    };
    if let Some(sum) = lines.sum_of_pair(bytes, page, slots, committed) {
        put(bytes, at + 24, sum);
    }
}

/// Recomputes the checksum that a table's entry, or the line of the pair that it names, keeps of a
/// page.
fn seal_entry(bytes: &mut [u8], lines: &Lines, page: u32, at: usize, pairs: &mut Pairs) {
    let low = word(bytes, at);
    let first = low & SLOT_BITS;
    let Some(slot) = lines.slot(first as usize, bytes.len()) else { return };
    match low >> 30 {
        2 => {
            if let Some(sum) = lines.sum_of_pair(bytes, page, [first; 2], 0) {
                put(bytes, at + 4, sum);
            }
        }
        3 => {
            let check = crc32c::crc32c_append(crc32c::crc32c(&page.to_le_bytes()), &first.to_le_bytes()).max(1);
            put(bytes, at + 4, check);
            let slots = [first, word(bytes, slot)];
            pairs.insert(page, slots);
            if let Some(sum) = lines.sum_of_pair(bytes, page, slots, long(bytes, slot + 8)) {
                put(bytes, slot + 4, sum);
            }
        }
        _ => {}
    }
}

/// Returns the checksum of a page of 63 lines: see the store's `lines/checksum.rs`.
fn sum_of<'a>(page: u32, line: impl Fn(usize) -> &'a [u8]) -> u32 {
    let scatter = |x: u32, place: u32| {
        let x = x ^ place.wrapping_mul(0x9E37_79B9);
        let x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
        let x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
        x ^ (x >> 16)
    };
    let reduced = |sum: u64| match sum % u64::from(u32::MAX) {
        0 => u64::from(u32::MAX),
        rest => rest,
    };
    let empty = reduced(u64::from(scatter(page.wrapping_add(1), 0)));
    let sum = (1..SLOT / LINE)
        .fold(empty, |sum, place| reduced(sum + u64::from(scatter(crc32c::crc32c(line(place)), place as u32))));
    sum as u32
}
