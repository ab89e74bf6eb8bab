//! Partitions of keys, for a table, or groups, that do not fit in device memory. Partitions are
//! resident one after the other.
//!
//! A partition is a subset of the possible keys, determined by the key alone:
//!
//! ```text
//! dense     a range of keys, equally many in each: the bit of each key, and payload at its place,
//!           are there for 1/n of the keys
//! hashed    1/n of the possible values of the hash's high half; the low half determines the slot
//! ```
//! [`Partitions`] holds their numbers. Nothing is split at first. If an allocation fails, the
//! largest object that is in memory, or needs memory, is split into more partitions, and the
//! pipeline restarts. Splitting stops for an object that does not become smaller, such as the rows
//! of one key.

use super::codegen::PartitionWord;

/// Maximum number of partitions of one object.
const MOST: u64 = 1 << 12;
/// Maximum number of consecutive splits that may leave the largest partition as large as it was.
/// Two frequent keys may have hashes with the same remainder, but not for long.
const MOST_IN_VAIN: u32 = 3;
/// Maximum factor of one split.
const MOST_AT_ONCE: u64 = 64;
/// Minimum factor of a split after one that did not help.
const IN_VAIN: u64 = 4;
/// Reciprocal of the reserve that a range gets, as a fraction of its size.
const SPARE: u64 = 16;

/// One partition of `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub number: u64,
    pub of: u64,
}

impl Partition {
    /// All keys.
    pub const ALL: Self = Self { number: 0, of: 1 };

    /// Returns the first of its keys, if the keys are a range of `count`, and their number.
    pub fn range(self, count: u64) -> (u64, u64) {
        let span = self.span(count);
        let first = span.saturating_mul(self.number).min(count);
        (first, span.min(count - first))
    }

    /// Returns the number of non-empty ranges of `count` keys. All of them are as long as the
    /// first, except the last.
    pub fn ranges(self, count: u64) -> u64 {
        count.div_ceil(self.span(count)).max(1)
    }

    fn span(self, count: u64) -> u64 {
        count.div_ceil(self.of).max(1)
    }

    /// Returns a word of the kernel's argument, for `count` keys. `last` is the number of the last
    /// partition.
    pub fn word(self, word: PartitionWord, count: u64, last: u64) -> u64 {
        match word {
            PartitionWord::First => self.range(count).0,
            PartitionWord::Span => self.range(count).1,
            PartitionWord::Number => self.number,
            PartitionWord::Count => self.of,
            PartitionWord::IsLast => u64::from(self.number == last),
        }
    }
}

/// The output of a pipeline, as far as it needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thing {
    pub pipeline: usize,
    /// Bytes of one partition.
    pub bytes: u64,
    pub how: How,
}

/// Effect of more partitions on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Its size is inversely proportional to their number: places are those of a range of keys, or
    /// rows.
    Range,
    /// The number of its places halves sooner or later.
    Hashed,
    /// As `Hashed`, but for groups: their size is that at which they could not grow further, and
    /// their final size is unknown. All groups are distinct, so each of more partitions has fewer
    /// of them.
    Grows,
}

/// Number of partitions of each pipeline's output.
#[derive(Clone, Debug)]
pub(super) struct Partitions(Vec<Of>);

/// Partitions of one pipeline's output.
#[derive(Clone, Copy, Debug)]
struct Of {
    partitions: u64,
    /// Bytes that its largest partition needed at the last split.
    bytes: u64,
    /// Number of consecutive splits that had not helped.
    in_vain: u32,
}

impl Partitions {
    /// Returns partitions for a number of pipelines, with nothing split.
    pub fn none(pipelines: usize) -> Self {
        Self(vec![Of { partitions: 1, bytes: u64::MAX, in_vain: 0 }; pipelines])
    }

    /// Returns the number of partitions of a pipeline's output.
    pub fn of(&self, pipeline: usize) -> u64 {
        self.0[pipeline].partitions
    }

    /// Splits the output of a pipeline from the start.
    pub fn set(&mut self, pipeline: usize, partitions: u64) {
        self.0[pipeline].partitions = partitions.clamp(1, MOST);
    }

    /// Splits the largest of the objects, which do not fit in `pool` bytes together. Returns its
    /// pipeline, and the fraction of its former rows and places that each partition will have.
    /// Returns `None` if splitting does not help any more.
    pub fn split_largest(&mut self, things: &[Thing], pool: u64) -> Option<(usize, f64)> {
        let all: u64 = things.iter().map(|thing| thing.bytes).sum();
        let may_help = |thing: &&Thing| {
            let of = self.0[thing.pipeline];
            (of.in_vain < MOST_IN_VAIN || thing.how == How::Grows) && of.partitions < MOST
        };
        let Thing { pipeline, bytes, how } = *things.iter().filter(may_help).max_by_key(|thing| thing.bytes)?;
        let of = &mut self.0[pipeline];
        let helped = bytes < of.bytes / 8 * 7;
        of.in_vain = if helped { 0 } else { of.in_vain + 1 };
        of.bytes = bytes;
        // Memory left beside the other objects. If they leave none, they are split after this one.
        let others = all - bytes;
        let left = pool.saturating_sub(others).max(pool / 4).max(1);
        let least = if helped { 1 } else { IN_VAIN };
        let before = of.partitions;
        of.partitions = match how {
            // Small allocations beside it need some memory as well, and ranges differ in their
            // rows.
            How::Range => (bytes + bytes / SPARE).saturating_mul(before).div_ceil(left).max(before + 1),
            How::Hashed | How::Grows => bytes.div_ceil(left).next_power_of_two().max(2) * before,
        };
        of.partitions = of.partitions.max(least * before).min(MOST_AT_ONCE * before).min(MOST);
        Some((pipeline, before as f64 / of.partitions as f64))
    }
}

/// Sequence of the partitions of several tables that are resident in one pass after the other.
/// Every combination occurs once, and the last table's partition changes most often.
#[derive(Debug)]
pub(super) struct Passes {
    /// Each table with its partition, the number of its non-empty partitions, and the number of
    /// all.
    tables: Vec<(usize, u64, u64, u64)>,
}

impl Passes {
    /// Creates the sequence for tables, each with its number, its number of non-empty partitions,
    /// and the number of all.
    pub fn new(tables: impl IntoIterator<Item = (usize, u64, u64)>) -> Self {
        Self { tables: tables.into_iter().map(|(table, count, of)| (table, 0, count, of)).collect() }
    }

    /// Returns the partition of each table that must be resident in the current pass.
    pub fn tables(&self) -> impl DoubleEndedIterator<Item = (usize, Partition)> + '_ {
        self.tables.iter().map(|(table, number, _, of)| (*table, Partition { number: *number, of: *of }))
    }

    /// Returns true if the current pass is the last one.
    pub fn is_last(&self) -> bool {
        self.tables.iter().all(|(_, number, count, _)| number + 1 >= *count)
    }

    /// Advances to the next pass.
    pub fn advance(&mut self) {
        for (_, number, count, _) in self.tables.iter_mut().rev() {
            *number += 1;
            if *number < *count {
                return;
            }
            *number = 0;
        }
    }

    /// Returns the number of passes.
    pub fn count(&self) -> u64 {
        self.tables.iter().map(|(_, _, count, _)| *count).product()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn thing(pipeline: usize, bytes: u64) -> Thing {
        Thing { pipeline, bytes, how: How::Hashed }
    }

    #[test]
    fn ranges_have_every_key_once() {
        for count in [0, 1, 2, 5, 63, 64, 65, 1000, u64::MAX - 1] {
            for of in [1, 2, 4, 64, 4096] {
                let ranges = Partition { number: 0, of }.ranges(count);
                assert!((1..=of).contains(&ranges));
                let mut next = 0;
                for number in 0..ranges {
                    let partition = Partition { number, of };
                    assert_eq!(partition.ranges(count), ranges);
                    let (first, span) = partition.range(count);
                    assert_eq!(first, next, "{number} of {of} of {count}");
                    assert!(span > 0 || count == 0);
                    next += span;
                }
                assert_eq!(next, count, "{of} of {count}");
            }
        }
    }

    #[test]
    fn every_combination_comes_once() {
        let mut passes = Passes::new([(0, 3, 4), (2, 1, 1), (5, 2, 2)]);
        let mut seen = Vec::new();
        loop {
            seen.push(passes.tables().map(|(_, partition)| partition.number).collect::<Vec<_>>());
            if passes.is_last() {
                break;
            }
            passes.advance();
        }
        assert_eq!(seen.len() as u64, passes.count());
        assert!(seen.is_sorted() && seen[0] == [0, 0, 0] && seen[5] == [2, 0, 1]);
        seen.dedup();
        assert_eq!(seen.len(), 6);
        assert!(Passes::new([]).is_last());
    }

    #[test]
    fn the_largest_is_split_until_all_fit() {
        let mut partitions = Partitions::none(3);
        let sizes = [1000u64, 50, 7000];
        let things = |partitions: &Partitions| {
            let thing = |(number, bytes): (usize, &u64)| thing(number, bytes / partitions.of(number));
            sizes.iter().enumerate().map(thing).collect::<Vec<_>>()
        };
        while things(&partitions).iter().map(|thing| thing.bytes).sum::<u64>() > 800 {
            partitions.split_largest(&things(&partitions), 800).unwrap();
        }
        assert_eq!(partitions.of(1), 1);
        assert!(partitions.of(2) > partitions.of(0) && partitions.of(2) <= 64, "{partitions:?}");
    }

    #[test]
    fn what_does_not_become_smaller_is_given_up() {
        let mut partitions = Partitions::none(3);
        // A range is split no further than necessary.
        let range = Thing { how: How::Range, ..thing(2, 2000) };
        assert_eq!(partitions.split_largest(&[range], 1000), Some((2, 1.0 / 3.0)));
        let mut times = 0;
        while partitions.split_largest(&[thing(0, 5000)], 1000).is_some() {
            times += 1;
        }
        assert!(times <= 4, "{times}");
        // The other object is split as long as it can be. Groups that always need all memory are
        // split up to the maximum.
        let things = [thing(0, 5000), Thing { how: How::Grows, ..thing(1, 900) }];
        while let Some((which, _)) = partitions.split_largest(&things, 1000) {
            assert_eq!(which, 1);
        }
        assert_eq!(partitions.of(1), MOST);
    }
}
