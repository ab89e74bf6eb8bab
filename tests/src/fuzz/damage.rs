//! Damage to images that are made when a target starts: segments, stores, records.
//!
//! An image of random identity differs from run to run, and is large. What is kept and repeated is
//! therefore not the damaged image but the damage: which image, how it is sealed, and a list of edits.
//!
//! ```text
//! image u8, seal u8, then 10 bytes for each edit: region u8, operation u8, at u32, value u32
//! ```
//! An edit is anywhere in one of the image's regions: `at` is taken modulo its length. Regions that
//! overlap or repeat make places that matter likelier.

use std::ops::Range;

use super::mutator::{EDGES, Mutator};

/// Bytes of an edit.
const EDIT_BYTES: usize = 10;
/// Edits at once, at most.
const MOST_EDITS: usize = 64;

/// A change of some bytes of an image.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The region it is in, modulo their number.
    pub region: u8,
    /// What is done.
    pub operation: u8,
    /// The place in the region, modulo its length.
    pub at: u32,
    /// What the operation goes by.
    pub value: u32,
}

/// A damaged image.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The image, modulo their number.
    pub image: u8,
    /// How much of the damage checksums hide; what the bits mean is the target's.
    pub seal: u8,
    /// The edits, in order.
    pub edits: Vec<Edit>,
}

impl Damage {
    /// The damage that an input stands for. All bytes stand for one.
    pub fn decode(input: &[u8]) -> Self {
        let (image, seal) = (input.first().copied().unwrap_or(0), input.get(1).copied().unwrap_or(0));
        let edits = input.get(2..).unwrap_or_default().chunks_exact(EDIT_BYTES).take(MOST_EDITS);
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let edits =
            edits.map(|edit| Edit { region: edit[0], operation: edit[1], at: word(edit, 2), value: word(edit, 6) });
        Self { image, seal, edits: edits.collect() }
    }

    /// The input that stands for it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.image, self.seal];
        for edit in &self.edits {
            bytes.extend([edit.region, edit.operation]);
            bytes.extend(edit.at.to_le_bytes());
            bytes.extend(edit.value.to_le_bytes());
        }
        bytes
    }

    /// The damage of a number.
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

    /// An input of a number: damage of its own, or, rarely, a kept one with more.
    pub fn mutate(mutator: &mut Mutator, input: &[u8]) -> Vec<u8> {
        let mut damage = Self::random(mutator);
        if mutator.next(8) == 0 {
            let kept = Self::decode(input);
            (damage.image, damage.seal) = (kept.image, kept.seal);
            damage.edits.splice(0..0, kept.edits);
        }
        damage.encode()
    }

    /// A number that differs between inputs.
    pub fn number(&self) -> usize {
        self.edits.iter().fold(usize::from(self.image), |sum, edit| sum.wrapping_add((edit.at ^ edit.value) as usize))
    }

    /// One of some images.
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
        // Numbers lie on multiples of their width; three of four edits as well.
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
