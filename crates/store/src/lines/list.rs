//! The items of a commit that is too large for the journal, in a chain of free slots.
//!
//! ```text
//! 0    check  u32: crc32c of the rest of the slot, seeded with the journal's salt and the record's
//!             number
//! 4    count  u32: items in this slot
//! 8    next   u32: the slot with those that follow; itself if there are none
//! 64   kinds  2 bits per item
//! 128  items  16 bytes each
//! ```
//! The lists are durable before the journal's record that names the first of them is written. They
//! are in use until the next checkpoint, like the record.

use super::journal::{Item, damaged};
use super::layout::{Geometry, Slot};
use crate::Result;
use crate::backend::SLOT_BYTES;
use crate::bytes::u32_at;
use crate::medium::Medium;
use crate::mutant::skips;

const KINDS: usize = 64;
const ITEMS: usize = 128;
const ITEM_BYTES: usize = 16;
/// The maximum number of items in one slot.
const MOST_ITEMS: usize = (SLOT_BYTES - ITEMS) / ITEM_BYTES;

/// Returns the number of slots of `items` items.
pub(super) fn slots_for(items: usize) -> usize {
    items.div_ceil(MOST_ITEMS)
}

/// Writes and flushes the items into `slots`, of which there are exactly enough. The caller fences.
pub(super) fn write(medium: &dyn Medium, geometry: Geometry, salt: u32, slots: &[Slot], items: &[Item]) -> Result<()> {
    for (i, (slot, items)) in slots.iter().zip(items.chunks(MOST_ITEMS)).enumerate() {
        let mut bytes = [0; SLOT_BYTES];
        let next = slots.get(i + 1).unwrap_or(slot);
        bytes[4..8].copy_from_slice(&(items.len() as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&next.to_le_bytes());
        for (i, item) in items.iter().enumerate() {
            let (kind, item) = item.encode();
            bytes[KINDS + i / 4] |= (kind << (2 * (i % 4))) as u8;
            bytes[ITEMS + i * ITEM_BYTES..][..ITEM_BYTES].copy_from_slice(&item);
        }
        let check = crc32c::crc32c_append(salt, &bytes[4..]);
        bytes[..4].copy_from_slice(&check.to_le_bytes());
        let at = geometry.line(*slot, 0);
        medium.write(at, &bytes)?;
        if !skips("lines.list.flush") {
            medium.flush(at, bytes.len())?;
        }
    }
    Ok(())
}

/// Reads the items of the list that begins in `first`, and its slots.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt) if a slot of it does not match its checksum: it was
/// durable before its record was written.
pub(super) fn read(medium: &dyn Medium, geometry: Geometry, salt: u32, first: Slot) -> Result<(Vec<Slot>, Vec<Item>)> {
    let most = geometry.regions(medium.len()) * geometry.region_slots;
    let (mut slots, mut items) = (Vec::new(), Vec::new());
    let mut slot = first;
    loop {
        let wrong =
            || damaged(medium, format!("slot {slot} has not the part of a commit that its journal says it has"));
        if slot >= most || slots.len() > most as usize {
            return Err(wrong());
        }
        let mut bytes = [0; SLOT_BYTES];
        medium.read(geometry.line(slot, 0), &mut bytes)?;
        if !skips("lines.list.check") && u32_at(&bytes, 0) != crc32c::crc32c_append(salt, &bytes[4..]) {
            return Err(wrong());
        }
        slots.push(slot);
        for i in 0..(u32_at(&bytes, 4) as usize).min(MOST_ITEMS) {
            let kind = u32::from(bytes[KINDS + i / 4] >> (2 * (i % 4))) & 3;
            items.push(Item::decode(kind, &bytes[ITEMS + i * ITEM_BYTES..][..ITEM_BYTES]).ok_or_else(wrong)?);
        }
        let next = u32_at(&bytes, 8);
        if next == slot {
            return Ok((slots, items));
        }
        slot = next;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backend::PageNo;
    use crate::medium::{Granularity, Memory};
    use crate::options::CommitBy;

    #[test]
    fn items_come_back_from_as_many_slots_as_they_take_and_damage_shows() {
        let (memory, geometry) = (Memory::new(Granularity::Line), Geometry::new(8, 8, CommitBy::Journal).unwrap());
        memory.grow(geometry.len(1)).unwrap();
        for (count, slots) in [(1, vec![5]), (248, vec![5]), (249, vec![5, 2]), (600, vec![7, 0, 3])] {
            let items: Vec<Item> = (0..count)
                .map(|i| match i % 2 {
                    0 => Item::Free { page: PageNo(i) },
                    _ => Item::Pair { page: PageNo(i), slots: [i, 4] },
                })
                .collect();
            assert_eq!(slots_for(items.len()), slots.len());
            write(&memory, geometry, 9, &slots, &items).unwrap();
            assert_eq!(read(&memory, geometry, 9, slots[0]).unwrap(), (slots.clone(), items));
            assert!(read(&memory, geometry, 8, slots[0]).is_err(), "of another record");
            memory.write(geometry.line(*slots.last().unwrap(), 30), &[0xFF; 64]).unwrap();
            assert!(read(&memory, geometry, 9, slots[0]).is_err());
        }
    }
}
