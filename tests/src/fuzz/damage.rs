//! Damage to images that are created when a target starts: segments, stores, records.
//!
//! Images with random identities differ from run to run, and are large. The corpus therefore keeps
//! the damage instead of the damaged image: the number of the image, its sealing, and a list of
//! edits.
//!
//! ```text
//! image u8, seal u8, then 10 bytes for each edit: region u8, operation u8, at u32, value u32
//! ```
//! An edit changes a place in one of the image's regions: `at` is taken modulo its length. Regions
//! that overlap or repeat make important places likelier.

use std::ops::Range;

use super::mutator::{EDGES, Mutator};

/// The encoded size of an edit, in bytes.
const EDIT_BYTES: usize = 10;
/// The maximum number of edits of an input.
const MOST_EDITS: usize = 64;

/// A change of some bytes of an image.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The region, modulo their number.
    pub region: u8,
    /// The operation.
    pub operation: u8,
    /// The place in the region, modulo its length.
    pub at: u32,
    /// The operand of the operation.
    pub value: u32,
}

/// The damage of an image.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The image, modulo their number.
    pub image: u8,
    /// The checksums that are recomputed after the damage. The target defines the bits.
    pub seal: u8,
    /// The edits, in order.
    pub edits: Vec<Edit>,
}

impl Damage {
    /// Decodes the damage of an input. Any bytes are valid.
    pub fn decode(input: &[u8]) -> Self {
        let (image, seal) = (input.first().copied().unwrap_or(0), input.get(1).copied().unwrap_or(0));
        let edits = input.get(2..).unwrap_or_default().chunks_exact(EDIT_BYTES).take(MOST_EDITS);
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let edits =
            edits.map(|edit| Edit { region: edit[0], operation: edit[1], at: word(edit, 2), value: word(edit, 6) });
        Self { image, seal, edits: edits.collect() }
    }

    /// Encodes the damage as an input.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.image, self.seal];
        for edit in &self.edits {
            bytes.extend([edit.region, edit.operation]);
            bytes.extend(edit.at.to_le_bytes());
            bytes.extend(edit.value.to_le_bytes());
        }
        bytes
    }

    /// Returns random damage.
    pub fn random(mutator: &mut Mutator) -> Self {
        let byte = |mutator: &mut Mutator| mutator.next(256) as u8;
        let (image, seal) = (byte(mutator), byte(mutator));
        let edits = (0..=mutator.next(4)).map(|_| Edit {
            region: byte(mutator),
            operation: byte(mutator),
            at: mutator.next(1 << 32) as u32,
            value: mutator.next(1 << 32) as u32,
        });
        Self { image, seal, edits: edits.collect() }
    }

    /// Returns a new input: random damage, or, rarely, a kept one with more.
    pub fn mutate(mutator: &mut Mutator, input: &[u8]) -> Vec<u8> {
        let mut damage = Self::random(mutator);
        if mutator.next(8) == 0 {
            let kept = Self::decode(input);
            (damage.image, damage.seal) = (kept.image, kept.seal);
            damage.edits.splice(0..0, kept.edits);
        }
        damage.encode()
    }

    /// Returns a number that differs between inputs.
    pub fn number(&self) -> usize {
        self.edits.iter().fold(usize::from(self.image), |sum, edit| sum.wrapping_add((edit.at ^ edit.value) as usize))
    }

    /// Selects one of the images.
    pub fn pick<'a, T>(&self, images: &'a [T]) -> &'a T {
        &images[usize::from(self.image) % images.len()]
    }

    /// Damages an image in its regions.
    pub fn apply(&self, bytes: &mut Vec<u8>, regions: &[Range<usize>]) {
        for edit in &self.edits {
            let region = regions.get(usize::from(edit.region) % regions.len().max(1)).cloned();
            let region = region.unwrap_or(0..bytes.len());
            edit.apply(bytes, region.start.min(bytes.len())..region.end.min(bytes.len()));
        }
    }
}

impl Edit {
    fn apply(self, bytes: &mut Vec<u8>, region: Range<usize>) {
        if region.is_empty() {
            return;
        }
        let (at, value) = (region.start + self.at as usize % region.len(), self.value);
        let edge = EDGES[value as usize % EDGES.len()];
        let delta = i64::from(value as u8 as i8) as u64;
        // Numbers are aligned to their width, and so are three of four edits.
        let aligned = |width: usize| if value >> 30 == 0 { at } else { at - at % width };
        match self.operation % 16 {
            0 | 1 => bytes[at] ^= 1 << (value % 8),
            2 | 3 => bytes[at] = value as u8,
            4 => put(bytes, aligned(2), &edge.to_le_bytes()[..2]),
            5 => put(bytes, aligned(4), &edge.to_le_bytes()[..4]),
            6 => put(bytes, aligned(8), &edge.to_le_bytes()),
            7 => add(bytes, aligned(2), 2, delta),
            8 | 9 => add(bytes, aligned(4), 4, delta),
            10 => add(bytes, aligned(8), 8, delta),
            11 => put(bytes, aligned(4), &(value % 4096).to_le_bytes()),
            12 | 13 => {
                let len = [4, 8, 16, 64][value as usize % 4];
                let from = region.start + (value as usize >> 2) % region.len();
                let from = from - from % len.min(8);
                let part = bytes[from..(from + len).min(bytes.len())].to_vec();
                put(bytes, aligned(len.min(16)), &part);
            }
            14 => put(bytes, aligned(4), &vec![0; 1 + value as usize % 64]),
            _ if value.is_multiple_of(8) => bytes.truncate(at),
            _ => put(bytes, at, &value.to_le_bytes()[..1 + value as usize % 4]),
        }
    }
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    let end = (at + part.len()).min(bytes.len());
    if let Some(there) = bytes.get_mut(at..end) {
        there.copy_from_slice(&part[..end - at]);
    }
}

fn add(bytes: &mut [u8], at: usize, width: usize, delta: u64) {
    let Some(there) = bytes.get_mut(at..at + width) else { return };
    let mut number = [0; 8];
    number[..width].copy_from_slice(there);
    let number = u64::from_le_bytes(number).wrapping_add(delta).to_le_bytes();
    there.copy_from_slice(&number[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_stands_for_one_damage() {
        for seed in 0..100 {
            let damage = Damage::random(&mut Mutator::new(seed)).encode();
            assert_eq!(Damage::decode(&damage).encode(), damage);
            let mut image = vec![7; 1000];
            Damage::decode(&damage).apply(&mut image, &[10..20, 900..2000]);
            assert!(image.len() <= 1000);
        }
        Damage::decode(b"").apply(&mut Vec::new(), &[]);
    }
}
