//! The order of blocks. Several files count as one concatenated file, without the remainder after
//! the last whole block of each.

use super::Rw;
use crate::generate::{GOLDEN, mix};

/// The blocks of one job, without end.
#[derive(Debug)]
pub struct Blocks {
    is_random: bool,
    /// The job's first block and its number of blocks.
    first: u64,
    count: u64,
    block_bytes: u64,
    /// The number of the block after the last one of each file.
    ends: Vec<u64>,
    state: u64,
}

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The index of the file, from 0.
    pub file: usize,
    /// The offset in the file, in bytes.
    pub offset: u64,
}

impl Blocks {
    /// Creates the blocks of job `job` of `jobs`, in files of these sizes. Sequential jobs have a
    /// part of the blocks each; random ones all have all of them.
    pub fn new(rw: Rw, lengths: &[u64], block_bytes: usize, job: usize, jobs: usize, seed: u64) -> Self {
        let block_bytes = block_bytes as u64;
        let ends = lengths.iter().scan(0, |end, bytes| {
            *end += bytes / block_bytes;
            Some(*end)
        });
        let mut ends: Vec<u64> = ends.collect();
        if let Some(0) = ends.last() {
            // Too short for any block: the read will report that.
            ends[0] = 1;
        }
        let all = ends.last().copied().unwrap_or(1);
        let (job, jobs) = (job as u64, jobs as u64);
        let (first, count) = match rw.is_random() {
            true => (0, all),
            // With more jobs than blocks some share one.
            false => {
                let first = all * job / jobs;
                (first, (all * (job + 1) / jobs - first).max(1))
            }
        };
        Self {
            is_random: rw.is_random(),
            first,
            count,
            block_bytes,
            ends,
            state: if rw.is_random() { seed ^ (job << 48) } else { 0 },
        }
    }

    /// Returns the place of the next block.
    pub fn next_place(&mut self) -> Place {
        let number = match self.is_random {
            true => {
                // SplitMix64. The high half of the product is a number below the count, with
                // sufficient uniformity.
                self.state = self.state.wrapping_add(GOLDEN);
                ((u128::from(mix(self.state)) * u128::from(self.count)) >> 64) as u64
            }
            false => {
                let number = self.state % self.count;
                self.state += 1;
                number
            }
        };
        let number = self.first + number;
        let file = self.ends.partition_point(|end| *end <= number);
        let before = if file == 0 { 0 } else { self.ends[file - 1] };
        Place { file, offset: (number - before) * self.block_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_every_block_is_met_once() {
        let mut met: Vec<u64> = Vec::new();
        for job in 0..3 {
            let mut blocks = Blocks::new(Rw::Read, &[10 * 4096 + 100], 4096, job, 3, 0);
            let part: Vec<u64> = (0..blocks.count).map(|_| blocks.next_place().offset).collect();
            assert_eq!(blocks.next_place().offset, part[0], "and again from its start");
            met.extend(part);
        }
        assert_eq!(met, (0..10).map(|n| n * 4096).collect::<Vec<_>>());
    }

    #[test]
    fn of_several_files_every_whole_block_is_met_once() {
        // One of them is too short for a block.
        let lengths = [3 * 4096 + 1, 4095, 2 * 4096];
        let mut met = Vec::new();
        for job in 0..2 {
            let mut blocks = Blocks::new(Rw::Read, &lengths, 4096, job, 2, 0);
            met.extend((0..blocks.count).map(|_| blocks.next_place()));
        }
        let expected = [(0, 0), (0, 4096), (0, 8192), (2, 0), (2, 4096)];
        assert_eq!(met, expected.map(|(file, offset)| Place { file, offset }));
        let mut random = Blocks::new(Rw::RandRead, &lengths, 4096, 0, 1, 7);
        assert!((0..100).all(|_| met.contains(&random.next_place())));
    }

    #[test]
    fn at_random_blocks_are_whole_and_everywhere() {
        let mut blocks = Blocks::new(Rw::RandRead, &[64 * 8192], 8192, 1, 4, 42);
        let mut met = [0; 64];
        for _ in 0..6400 {
            let offset = blocks.next_place().offset;
            assert!(offset.is_multiple_of(8192) && offset < 64 * 8192);
            met[(offset / 8192) as usize] += 1;
        }
        assert!(met.iter().all(|n| (50..200).contains(n)), "{met:?}");
    }

    #[test]
    fn more_jobs_than_blocks_share() {
        for job in 0..9 {
            let place = Blocks::new(Rw::Write, &[4096], 4096, job, 9, 0).next_place();
            assert_eq!(place, Place { file: 0, offset: 0 }, "job {job}");
        }
    }
}
