//! Spilled groups in files, partitioned by five bits of their keys' hashes, from the highest bit
//! on. For keys with late strings, only the exact words are hashed, so groups that may be equal are
//! in one partition.
//!
//! ```text
//! table ─► a page of each partition in memory ─► file:  page of 7 │ page of 0 │ page of 7 │ ...
//!                                                memory: extents of each partition's pages
//! ```
//! The file is written sequentially, one page whenever a partition has filled one. The memory
//! needed beside the table does not depend on the number of groups. A partition that still does not
//! fit is written to a file of the next *level*, by the next five bits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use onehop_io::{Ledger, WriteAt};

use super::aggregate::{Groups, Plan};
use super::page::{self, PageKind, Reader, directory_of};
use crate::budget::Budget;
use crate::{Error, Result, VECTOR_ROWS};

/// Number of partitions of a level.
pub(crate) const PARTITIONS: usize = 1 << PARTITION_BITS;
const PARTITION_BITS: u32 = 5;

/// Number of levels. The lower bits of a hash remain to pick the slots of as many groups as a table
/// can number.
pub(crate) const LEVELS: u32 = 4;

/// A file of groups.
#[derive(Debug)]
pub(crate) struct Spill {
    file: Arc<dyn WriteAt>,
    bytes: u64,
    level: u32,
    partitions: Vec<Partition>,
}

/// Contents of one partition in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partition {
    pub pages: Vec<Extent>,
    /// Number of entries of groups, and of values of all functions.
    pub groups: u64,
    pub values: u64,
}

/// Location of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    offset: u64,
    bytes: u32,
}

/// Counter of spilled bytes, over all levels.
#[derive(Debug, Default)]
pub struct SpillCounts(AtomicU64);

impl SpillCounts {
    /// Returns the bytes spilled so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Context of a write.
pub(crate) struct Means<'a> {
    pub budget: &'a Budget,
    pub counts: &'a SpillCounts,
    pub cancelled: &'a AtomicBool,
}

impl Means<'_> {
    fn ledger(&self) -> &Ledger {
        self.budget.0.ledger()
    }
}

/// Returns the partition of a hash.
fn partition_of(hash: u32, level: u32) -> usize {
    (hash >> (u32::BITS - PARTITION_BITS * (level + 1))) as usize % PARTITIONS
}

impl Spill {
    /// Creates a file without groups; `None` if there is no directory for one.
    pub fn new(budget: &Budget, level: u32) -> Result<Option<Self>> {
        let file = budget.0.file()?;
        Ok(file.map(|file| Self { file, bytes: 0, level, partitions: vec![Partition::default(); PARTITIONS] }))
    }

    /// Returns the bytes that a write needs beside the table, with or without sets of values.
    pub fn scratch_bytes(has_sets: bool) -> usize {
        PARTITIONS * VECTOR_ROWS * if has_sets { size_of::<(u32, i64)>() } else { size_of::<u32>() }
    }

    /// Returns the contents of a partition.
    pub fn partition(&self, partition: usize) -> &Partition {
        &self.partitions[partition]
    }

    /// Writes all groups.
    pub fn write(&mut self, groups: &Groups, plan: &Plan, means: &Means<'_>) -> Result<()> {
        let mut buffer = Vec::new();
        let mut pending: Vec<Vec<u32>> = vec![Vec::new(); PARTITIONS];
        for place in groups.places(plan) {
            let partition = partition_of(groups.hash(plan, place), self.level);
            let places = &mut pending[partition];
            places.push(place as u32);
            if places.len() == VECTOR_ROWS {
                self.groups_page(partition, groups, plan, places, &mut buffer, means)?;
                places.clear();
            }
        }
        for (partition, places) in pending.iter().enumerate().filter(|(_, places)| !places.is_empty()) {
            self.groups_page(partition, groups, plan, places, &mut buffer, means)?;
        }
        drop(pending);
        let mut pending: Vec<Vec<(u32, i64)>> = vec![Vec::new(); PARTITIONS];
        for (function, state) in groups.states().iter().enumerate() {
            let Some(seen) = state.seen() else { continue };
            seen.try_for_each(|place, value| {
                let partition = partition_of(groups.hash(plan, place as usize), self.level);
                let values = &mut pending[partition];
                values.push((place, value));
                if values.len() == VECTOR_ROWS {
                    self.values_page(partition, groups, function, values, &mut buffer, means)?;
                    values.clear();
                }
                Ok::<(), Error>(())
            })?;
            for (partition, values) in pending.iter_mut().enumerate().filter(|(_, values)| !values.is_empty()) {
                self.values_page(partition, groups, function, values, &mut buffer, means)?;
                values.clear();
            }
        }
        Ok(())
    }

    fn groups_page(
        &mut self,
        partition: usize,
        groups: &Groups,
        plan: &Plan,
        places: &[u32],
        buffer: &mut Vec<u8>,
        means: &Means<'_>,
    ) -> Result<()> {
        page::begin(buffer);
        groups.write(plan, places, buffer);
        page::end(buffer, PageKind::Groups, places.len());
        self.partitions[partition].groups += places.len() as u64;
        self.append(partition, buffer, means)
    }

    fn values_page(
        &mut self,
        partition: usize,
        groups: &Groups,
        function: usize,
        values: &[(u32, i64)],
        buffer: &mut Vec<u8>,
        means: &Means<'_>,
    ) -> Result<()> {
        page::begin(buffer);
        groups.write_keys(buffer, values.len(), |row| values[row].0 as usize);
        page::put(buffer, values.len(), |row| page::unsigned(values[row].1));
        page::end(buffer, PageKind::Values(function), values.len());
        self.partitions[partition].values += values.len() as u64;
        self.append(partition, buffer, means)
    }

    fn append(&mut self, partition: usize, page: &[u8], means: &Means<'_>) -> Result<()> {
        if means.cancelled.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        self.file.write_at(self.bytes, page, means.ledger()).map_err(|e| self.failed(e))?;
        means.ledger().spilled(page.len());
        means.counts.0.fetch_add(page.len() as u64, Relaxed);
        self.partitions[partition].pages.push(Extent { offset: self.bytes, bytes: page.len() as u32 });
        self.bytes += page.len() as u64;
        Ok(())
    }

    /// Reads a page into a buffer, and opens it.
    pub fn read<'a>(
        &'a self,
        page: Extent,
        buffer: &'a mut Vec<u8>,
        ledger: &Ledger,
    ) -> Result<(Reader<'a>, PageKind, usize)> {
        buffer.resize(page.bytes as usize, 0);
        self.file.read_at(page.offset, buffer, ledger).map_err(|e| self.failed(e))?;
        Reader::open(buffer, self.file.name(), page.offset)
    }

    fn failed(&self, source: onehop_io::Error) -> Error {
        Error::Spill { directory: directory_of(self.file.name()), source }
    }
}
