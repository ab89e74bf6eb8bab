//! Counts the distinct values of a column, to decide if codes are smaller than the values.
//!
//! Counting distinct values must cost almost nothing if it cannot pay, so the first block decides
//! the method:
//! - none, if its values are narrow already or nearly all different;
//! - a bitmap over the range of the values, if that range is small: one bit set per value;
//! - a hash set, if the range is large but the first block has few distinct values.
//!
//! Later blocks may stop the counting. It never restarts.

use std::collections::HashSet;

use hashbrown::DefaultHashBuilder;

/// A range up to this is counted in a bitmap (512 KiB).
const BITMAP_RANGE: u64 = 1 << 22;
/// More distinct values than this are not worth a dictionary.
const MAX_ENTRIES: usize = 1 << 16;
/// A first block with more distinct values than this does not start a hash set.
const MAX_FIRST_ENTRIES: usize = 1 << 12;
/// Values of this width gain nothing significant.
const MIN_WIDTH: u32 = 5;

#[derive(Debug, Default)]
pub(crate) enum Distinct {
    #[default]
    Undecided,
    /// The last block spread too far or was too varied.
    Off,
    Bitmap {
        low: i64,
        bits: Vec<u64>,
    },
    Hashed(HashSet<i64, DefaultHashBuilder>),
}

impl Distinct {
    /// Counts a block's keys, all of them between `min` and `max`, which takes `width` bits.
    pub fn observe(&mut self, keys: &[i64], min: i64, max: i64, width: u32) {
        if matches!(self, Self::Undecided) {
            *self = Self::start(keys, min, max, width);
            return;
        }
        let is_on = match self {
            Self::Bitmap { low, bits } => {
                extend_range(low, bits, min, max) && {
                    mark(*low, bits, keys);
                    true
                }
            }
            Self::Hashed(set) => insert_all(set, keys, MAX_ENTRIES),
            Self::Undecided | Self::Off => false,
        };
        if !is_on {
            *self = Self::Off;
        }
    }

    fn start(keys: &[i64], min: i64, max: i64, width: u32) -> Self {
        if width < MIN_WIDTH {
            // A narrow first block does not predict the next ones, and costs little to count.
            return Self::small_range(keys, min, max);
        }
        if max.wrapping_sub(min) as u64 <= BITMAP_RANGE {
            let candidate = Self::small_range(keys, min, max);
            return if candidate.count() * 4 > keys.len() { Self::Off } else { candidate };
        }
        let mut set = HashSet::default();
        if insert_all(&mut set, keys, MAX_FIRST_ENTRIES.min(keys.len() / 4)) { Self::Hashed(set) } else { Self::Off }
    }

    fn small_range(keys: &[i64], min: i64, max: i64) -> Self {
        let mut bits = Vec::new();
        let mut low = min;
        extend_range(&mut low, &mut bits, min, max);
        mark(low, &mut bits, keys);
        Self::Bitmap { low, bits }
    }

    fn count(&self) -> usize {
        match self {
            Self::Undecided | Self::Off => 0,
            Self::Bitmap { bits, .. } => bits.iter().map(|word| word.count_ones() as usize).sum(),
            Self::Hashed(set) => set.len(),
        }
    }

    /// Returns the distinct keys in ascending order, if they were counted and are few.
    pub fn sorted(&self) -> Option<Vec<i64>> {
        let count = self.count();
        if count == 0 || count > MAX_ENTRIES {
            return None;
        }
        let mut keys = Vec::with_capacity(count);
        match self {
            Self::Undecided | Self::Off => {}
            Self::Bitmap { low, bits } => {
                for (at, word) in bits.iter().enumerate() {
                    let mut word = *word;
                    while word != 0 {
                        keys.push(low.wrapping_add((at * 64) as i64 + i64::from(word.trailing_zeros())));
                        word &= word - 1;
                    }
                }
            }
            Self::Hashed(set) => {
                keys.extend(set);
                keys.sort_unstable();
            }
        }
        Some(keys)
    }
}

/// Extends the bitmap to reach from `min` to `max`. Returns false if that is too far.
fn extend_range(low: &mut i64, bits: &mut Vec<u64>, min: i64, max: i64) -> bool {
    // Whole words below, so that marked bits keep their positions.
    let below = if min < *low { (low.wrapping_sub(min) as u64).div_ceil(64) } else { 0 };
    if below > BITMAP_RANGE / 64 {
        return false;
    }
    let Some(new_low) = low.checked_sub_unsigned(below * 64) else { return false };
    let range = max.wrapping_sub(new_low) as u64;
    if range > BITMAP_RANGE + 64 {
        return false;
    }
    bits.splice(0..0, std::iter::repeat_n(0, below as usize));
    *low = new_low;
    bits.resize(bits.len().max(range as usize / 64 + 1), 0);
    true
}

fn mark(low: i64, bits: &mut [u64], keys: &[i64]) {
    for key in keys {
        let at = key.wrapping_sub(low) as usize;
        bits[at / 64] |= 1 << (at % 64);
    }
}

fn insert_all(set: &mut HashSet<i64, DefaultHashBuilder>, keys: &[i64], limit: usize) -> bool {
    let mut last = None;
    for key in keys {
        if last != Some(*key) {
            set.insert(*key);
            last = Some(*key);
            if set.len() > limit {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_grows_both_ways() {
        let mut distinct = Distinct::default();
        let block = |from: i64| -> Vec<i64> { (0..400).map(|i| from + (i % 40) * 7).collect() };
        for from in [1000, 5000, -3000, 1000] {
            let keys = block(from);
            distinct.observe(&keys, from, from + 39 * 7, 9);
        }
        let mut expected: Vec<i64> = [block(-3000), block(1000), block(5000)].concat();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(distinct.sorted(), Some(expected));
    }

    #[test]
    fn a_wide_range_of_few_values_is_hashed_and_many_are_given_up() {
        let mut distinct = Distinct::default();
        let keys: Vec<i64> = (0..1000).map(|i| [i64::MIN, 0, i64::MAX][i % 3]).collect();
        distinct.observe(&keys, i64::MIN, i64::MAX, 64);
        assert_eq!(distinct.sorted(), Some(vec![i64::MIN, 0, i64::MAX]));
        let all: Vec<i64> = (0..70_000).map(|i| i * 1_000_003).collect();
        distinct.observe(&all, 0, all[all.len() - 1], 37);
        assert_eq!(distinct.sorted(), None);
    }

    #[test]
    fn far_apart_blocks_end_a_bitmap() {
        let mut distinct = Distinct::default();
        let keys: Vec<i64> = (0..1000).map(|i| i % 50).collect();
        distinct.observe(&keys, 0, 49, 6);
        distinct.observe(&[i64::MAX, i64::MAX - 1], i64::MAX - 1, i64::MAX, 1);
        assert_eq!(distinct.sorted(), None);
        let mut distinct = Distinct::default();
        distinct.observe(&keys, 0, 49, 6);
        distinct.observe(&[i64::MIN, i64::MIN + 1], i64::MIN, i64::MIN + 1, 1);
        assert_eq!(distinct.sorted(), None);
    }
}
