//! Which block is next.

use super::Rw;
use crate::generate::{GOLDEN, mix};

/// The blocks of one job, without end.
#[derive(Debug)]
pub struct Blocks {
    is_random: bool,
    /// The job's first block and how many it has.
    first: u64,
    count: u64,
    block_bytes: u64,
    state: u64,
}

impl Blocks {
    /// Of job `job` of `jobs`, in a file of `bytes`. In order, each job has a part of the file of its own; at random, all
    /// have all of it.
    pub fn new(rw: Rw, bytes: u64, block_bytes: usize, job: usize, jobs: usize, seed: u64) -> Self {
        let block_bytes = block_bytes as u64;
        let all = (bytes / block_bytes).max(1);
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
            state: if rw.is_random() { seed ^ (job << 48) } else { 0 },
        }
    }

    /// The offset of the next one.
    pub fn next_offset(&mut self) -> u64 {
        let number = match self.is_random {
            true => {
                // SplitMix64; the high half of a product is a number below the count, evenly enough.
                self.state = self.state.wrapping_add(GOLDEN);
                ((u128::from(mix(self.state)) * u128::from(self.count)) >> 64) as u64
            }
            false => {
                let number = self.state % self.count;
                self.state += 1;
                number
            }
        };
        (self.first + number) * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_every_block_is_met_once() {
        let mut met: Vec<u64> = Vec::new();
        for job in 0..3 {
            let mut blocks = Blocks::new(Rw::Read, 10 * 4096 + 100, 4096, job, 3, 0);
            let part: Vec<u64> = (0..blocks.count).map(|_| blocks.next_offset()).collect();
            assert_eq!(blocks.next_offset(), part[0], "and again from its start");
            met.extend(part);
        }
        assert_eq!(met, (0..10).map(|n| n * 4096).collect::<Vec<_>>());
    }

    #[test]
    fn at_random_blocks_are_whole_and_everywhere() {
        let mut blocks = Blocks::new(Rw::RandRead, 64 * 8192, 8192, 1, 4, 42);
        let mut met = [0; 64];
        for _ in 0..6400 {
            let offset = blocks.next_offset();
            assert!(offset.is_multiple_of(8192) && offset < 64 * 8192);
            met[(offset / 8192) as usize] += 1;
        }
        assert!(met.iter().all(|n| (50..200).contains(n)), "{met:?}");
    }

    #[test]
    fn more_jobs_than_blocks_share() {
        for job in 0..9 {
            let offset = Blocks::new(Rw::Write, 4096, 4096, job, 9, 0).next_offset();
            assert_eq!(offset, 0, "job {job}");
        }
    }
}
