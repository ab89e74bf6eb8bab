//! Sets of the values that groups have had already, for `count(DISTINCT x)`.
//!
//! If groups and values are few, each pair has a bit. Otherwise pairs of a group's place and a
//! value are in one hash table.

use super::index::hash;
use crate::Interval;
use crate::budget::Growth;

/// Most bits for one function of one worker, so that they fit the CPU caches.
const MOST_BITS: u128 = 1 << 24;

/// Sets of values, one per place.
#[derive(Debug)]
pub(crate) enum Distinct {
    /// A bit per place and value, with `words` words per place, from value `min` on.
    Bits { min: i64, words: usize, bits: Vec<u64> },
    /// Pairs of a value and a place plus one; 0 if the slot is free.
    Hashed { slots: Vec<(i64, u32)>, len: usize },
}

impl Distinct {
    /// Creates sets of values from an interval, for `places` places, if that number is known.
    pub fn new(interval: Interval, places: Option<usize>) -> Self {
        let bits = |places: usize| interval.count()?.checked_mul(places as u128).filter(|bits| *bits <= MOST_BITS);
        match places.and_then(bits) {
            Some(_) if !interval.is_empty() => {
                let words = interval.count().unwrap_or(0).div_ceil(64) as usize;
                Self::Bits { min: interval.min as i64, words, bits: vec![0; words * places.unwrap_or(0)] }
            }
            _ => Self::Hashed { slots: vec![(0, 0); 1024], len: 0 },
        }
    }

    /// Returns the bytes that they take.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Bits { bits, .. } => bits.len() * 8,
            Self::Hashed { slots, .. } => slots.len() * size_of::<(i64, u32)>(),
        }
    }

    /// Returns the bytes that they take with `more` additional values.
    pub fn growth(&self, more: usize) -> Growth {
        const ENTRY: usize = size_of::<(i64, u32)>();
        match self {
            Self::Bits { .. } => Growth::none(self.bytes()),
            Self::Hashed { slots, len } => {
                let mut size = slots.len();
                while (len + more) * 2 > size {
                    size *= 2;
                }
                Growth::new(size * ENTRY, if size > slots.len() { size / 2 * ENTRY } else { 0 })
            }
        }
    }

    /// Returns the number of values over all places.
    pub fn len(&self) -> usize {
        match self {
            Self::Bits { bits, .. } => bits.iter().map(|word| word.count_ones() as usize).sum(),
            Self::Hashed { len, .. } => *len,
        }
    }

    /// Removes all values, and keeps the memory.
    pub fn clear(&mut self) {
        match self {
            Self::Bits { bits, .. } => bits.fill(0),
            Self::Hashed { slots, len } => {
                slots.fill((0, 0));
                *len = 0;
            }
        }
    }

    /// Adds a value to a place's set. Returns true if it is new there.
    #[inline]
    pub fn insert(&mut self, place: u32, value: i64) -> bool {
        match self {
            Self::Bits { min, words, bits } => {
                let offset = value.wrapping_sub(*min) as usize;
                let (word, bit) = (&mut bits[place as usize * *words + offset / 64], 1 << (offset % 64));
                let is_new = *word & bit == 0;
                *word |= bit;
                is_new
            }
            Self::Hashed { slots, len } => {
                let is_new = take(slots, (value, place + 1));
                *len += usize::from(is_new);
                if *len * 2 > slots.len() {
                    let smaller = std::mem::take(slots);
                    *slots = vec![(0, 0); smaller.len() * 2];
                    smaller.into_iter().filter(|(_, place)| *place != 0).for_each(|entry| {
                        take(slots, entry);
                    });
                }
                is_new
            }
        }
    }

    /// Calls `f` with every place and value.
    pub fn for_each(&self, mut f: impl FnMut(u32, i64)) {
        let _ = self.try_for_each(|place, value| {
            f(place, value);
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// Calls `f` with every place and value, up to the first error.
    pub fn try_for_each<E>(&self, mut f: impl FnMut(u32, i64) -> Result<(), E>) -> Result<(), E> {
        match self {
            Self::Bits { min, words, bits } => {
                for (place, set) in bits.chunks_exact(*words).enumerate() {
                    for (at, word) in set.iter().enumerate() {
                        let mut word = *word;
                        while word != 0 {
                            let offset = at * 64 + word.trailing_zeros() as usize;
                            f(place as u32, min.wrapping_add(offset as i64))?;
                            word &= word - 1;
                        }
                    }
                }
            }
            Self::Hashed { slots, .. } => {
                slots.iter().filter(|(_, place)| *place != 0).try_for_each(|(value, place)| f(place - 1, *value))?;
            }
        }
        Ok(())
    }
}

/// Inserts an entry. At least one slot must be free. Returns true if the entry is new.
#[inline]
fn take(slots: &mut [(i64, u32)], entry: (i64, u32)) -> bool {
    let mask = slots.len() - 1;
    let mut slot = hash(entry.0 as u64 ^ u64::from(entry.1).rotate_left(40)) as usize & mask;
    while slots[slot].1 != 0 {
        if slots[slot] == entry {
            return false;
        }
        slot = (slot + 1) & mask;
    }
    slots[slot] = entry;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn both_kinds_hold_what_they_were_given() {
        for places in [Some(5), None] {
            let mut sets = Distinct::new(Interval::new(-70, 2000), places);
            assert_eq!(matches!(sets, Distinct::Bits { .. }), places.is_some());
            let mut expected = BTreeSet::new();
            for i in 0..5000i64 {
                let (place, value) = ((i % 5) as u32, i * i % 2071 - 70);
                assert_eq!(sets.insert(place, value), expected.insert((place, value)), "{place} {value}");
            }
            let mut found = BTreeSet::new();
            sets.for_each(|place, value| assert!(found.insert((place, value))));
            assert_eq!(found, expected);
        }
    }
}
