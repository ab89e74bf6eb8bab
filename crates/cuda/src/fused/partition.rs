//! Partitions of keys: how a table, or groups, that do not fit in device memory are there one after the other.
//!
//! A partition is some of the keys that there could be, settled by the key alone:
//!
//! ```text
//! dense     a range of keys, as many in each: of a bit for each key, and payload at its place, 1/n is there
//! hashed    an n-th of what the hash's high half can be; the low half says which slot
//! ```
//! How many there are is settled by [`Partitions`]: nothing is split at first. When something finds no room, the largest
//! thing that is in memory, or wants to be, is split more often, and the pipeline begins again. What does not become
//! smaller by that, as the rows of one key, is given up on.

use super::codegen::PartitionWord;

/// Partitions of one thing, at most.
const MOST: u64 = 1 << 12;
/// How often in a row splitting may leave the largest partition as large as it was: two keys that come often may have one
/// hash's remainder, but not for long.
const MOST_IN_VAIN: u32 = 3;
/// By how much, at most, something is split at once.
const MOST_AT_ONCE: u64 = 64;
/// By how much, at least, if splitting it did not help.
const IN_VAIN: u64 = 4;
/// The part of something that ranges may have more than their share.
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

    /// The first of its keys if they are a range of `count`, and how many it has.
    pub fn range(self, count: u64) -> (u64, u64) {
        let span = self.span(count);
        let first = span.saturating_mul(self.number).min(count);
        (first, span.min(count - first))
    }

    /// How many ranges of `count` keys there are that have any: all that are there are as long as the first, but the last.
    pub fn ranges(self, count: u64) -> u64 {
        count.div_ceil(self.span(count)).max(1)
    }

    fn span(self, count: u64) -> u64 {
        count.div_ceil(self.of).max(1)
    }

    /// What a kernel knows it by, of `count` keys, the last partition being `last`.
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

/// What a pipeline ends in, as far as it wants to be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thing {
    pub pipeline: usize,
    /// Of one partition.
    pub bytes: u64,
    pub how: How,
}

/// What becomes of something in more partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It has as much less: places are those of a range of keys, or rows.
    Range,
    /// It has half as many places sooner or later.
    Hashed,
    /// So it has, but it is only as large as it was when it found no room to grow, and nobody knows how large it will be:
    /// groups. All of them are different, so that fewer of them come to each of more partitions.
    Grows,
}

/// Into how many partitions what each pipeline ends in is split.
#[derive(Clone, Debug)]
pub(super) struct Partitions(Vec<Of>);

/// Of one pipeline.
#[derive(Clone, Copy, Debug)]
struct Of {
    partitions: u64,
    /// What its largest partition wanted when it was split last.
    bytes: u64,
    /// How often in a row that had not helped.
    in_vain: u32,
}

impl Partitions {
    /// Of so many pipelines, nothing being split.
    pub fn none(pipelines: usize) -> Self {
        Self(vec![Of { partitions: 1, bytes: u64::MAX, in_vain: 0 }; pipelines])
    }

    /// Into how many partitions something is split.
    pub fn of(&self, pipeline: usize) -> u64 {
        self.0[pipeline].partitions
    }

    /// Splits what a pipeline ends in from the start.
    pub fn set(&mut self, pipeline: usize, partitions: u64) {
        self.0[pipeline].partitions = partitions.clamp(1, MOST);
    }

    /// Splits more often the largest of some things, which do not fit in `pool` bytes together: which one, and the part of
    /// its rows and places that each partition will have of what it had. `None` if splitting does not help any more.
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
        // What is left for it beside the others; if they leave nothing, it is their turn after this one's.
        let others = all - bytes;
        let left = pool.saturating_sub(others).max(pool / 4).max(1);
        let least = if helped { 1 } else { IN_VAIN };
        let before = of.partitions;
        of.partitions = match how {
            // What is small and beside it takes a bit as well, and no range is as good as any other.
            How::Range => (bytes + bytes / SPARE).saturating_mul(before).div_ceil(left).max(before + 1),
            How::Hashed | How::Grows => bytes.div_ceil(left).next_power_of_two().max(2) * before,
        };
        of.partitions = of.partitions.max(least * before).min(MOST_AT_ONCE * before).min(MOST);
        Some((pipeline, before as f64 / of.partitions as f64))
    }
}

/// The partitions of several tables that are there in one pass after the other: every combination once, the last table's
/// changing most often.
#[derive(Debug)]
pub(super) struct Passes {
    /// A table, its partition, how many of them have keys, and how many there are.
    tables: Vec<(usize, u64, u64, u64)>,
}

impl Passes {
    /// Of tables, each with its number, how many partitions have keys, and how many there are.
    pub fn new(tables: impl IntoIterator<Item = (usize, u64, u64)>) -> Self {
        Self { tables: tables.into_iter().map(|(table, count, of)| (table, 0, count, of)).collect() }
    }

    /// What has to be there.
    pub fn tables(&self) -> impl DoubleEndedIterator<Item = (usize, Partition)> + '_ {
        self.tables.iter().map(|(table, number, _, of)| (*table, Partition { number: *number, of: *of }))
    }

    /// Whether there is no pass after this one.
    pub fn is_last(&self) -> bool {
        self.tables.iter().all(|(_, number, count, _)| number + 1 >= *count)
    }

    /// To the next one.
    pub fn advance(&mut self) {
        for (_, number, count, _) in self.tables.iter_mut().rev() {
            *number += 1;
            if *number < *count {
                return;
            }
            *number = 0;
        }
    }

    /// How many there are.
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
        // Of a range no more than it takes.
        let range = Thing { how: How::Range, ..thing(2, 2000) };
        assert_eq!(partitions.split_largest(&[range], 1000), Some((2, 1.0 / 3.0)));
        let mut times = 0;
        while partitions.split_largest(&[thing(0, 5000)], 1000).is_some() {
            times += 1;
        }
        assert!(times <= 4, "{times}");
        // What can be split after it is, and groups that always want as much as there is, until there are very many.
        let things = [thing(0, 5000), Thing { how: How::Grows, ..thing(1, 900) }];
        while let Some((which, _)) = partitions.split_largest(&things, 1000) {
            assert_eq!(which, 1);
        }
        assert_eq!(partitions.of(1), MOST);
    }
}
