//! A join table in device memory after its kernel has finished: the whole table, or one partition.

use std::collections::BTreeMap;

use onehop_pipeline::Interval;
use onehop_pipeline::cpu::TableKind;

use super::codegen::{End, Generated, TableWord};
use super::memory::Piece;
use super::partition::Partition;
use super::table::{Filled, Rows, TableShape};

/// Statistics of a table in device memory.
#[derive(Clone, Copy, Debug)]
pub struct TableFacts {
    /// Lookup method of the table.
    pub kind: TableKind,
    /// `true` if every key has one row, or if no probe reads the rows of a key.
    pub is_unique: bool,
    /// Number of rows.
    pub rows: u64,
    /// Size in bytes; of the largest partition, if the table is split.
    pub bytes: u64,
}

/// A table that is built, or is going to be built.
#[derive(Debug)]
pub(super) struct Built {
    pub shape: TableShape,
    /// The resident partition, if any.
    pub partition: Option<Partition>,
    pub places: u64,
    pub memory: BTreeMap<TableKey, Piece>,
    /// Rows of the resident partition.
    pub rows: u64,
    /// `true` if a row of any partition had no key.
    pub has_keyless: bool,
    /// Interval of the resident keys, if keys have one part.
    pub keys: Option<Interval>,
    /// Number of partitions that have been built so far, in order, and their total rows.
    pub seen: (u64, u64),
}

/// A [`TableWord`] that is an address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TableKey {
    Bits,
    Keys,
    Head,
    Next,
    Payload(usize),
    PayloadValid(usize),
}

impl Built {
    /// Returns a table that is not built yet.
    pub fn expected(shape: TableShape) -> Self {
        let memory = BTreeMap::new();
        Self { shape, partition: None, places: 1, memory, rows: 0, has_keyless: false, keys: None, seen: (0, 0) }
    }

    /// Returns a partition that replaces the resident one and has no rows yet.
    pub fn of_partition(&self, shape: TableShape, partition: Partition) -> Self {
        let seen = if partition.number == 0 { (0, 0) } else { self.seen };
        Self { partition: Some(partition), seen, ..Self::expected(shape) }
    }

    /// Records the number of rows of the resident partition.
    pub fn has_rows(&mut self, rows: u64) {
        self.rows = rows;
        // A partition that is built again has been counted already.
        if self.partition.is_some_and(|partition| partition.number == self.seen.0) {
            self.seen = (self.seen.0 + 1, self.seen.1 + rows);
        }
    }

    /// Releases the resident partition. Facts about the rows of all partitions remain.
    pub fn leave(&mut self) {
        self.memory.clear();
        self.partition = None;
    }

    pub fn bytes(&self) -> u64 {
        self.memory.values().map(|piece| piece.len as u64).sum()
    }

    /// Returns true if no partition follows the resident one.
    pub fn is_last(&self) -> bool {
        self.partition.is_none_or(|partition| partition.number + 1 == self.shape.partitions(partition.of))
    }

    /// Returns the interval of keys that the resident partition can have, if keys are a range of
    /// one part.
    pub fn values(&self) -> Option<Interval> {
        self.partition.and_then(|partition| self.shape.values_of(partition))
    }

    /// Returns the number of words of its bitmap.
    pub fn bitmap_words(&self) -> u64 {
        self.places.div_ceil(64)
    }

    pub fn word(&self, word: TableWord) -> u64 {
        let address = |key: TableKey| self.memory.get(&key).map_or(0, |piece| piece.address);
        let values = || self.values().unwrap_or(Interval::EMPTY);
        match word {
            TableWord::Bits => address(TableKey::Bits),
            TableWord::Keys => address(TableKey::Keys),
            TableWord::Mask => self.places - 1,
            TableWord::Head => address(TableKey::Head),
            TableWord::Next => address(TableKey::Next),
            TableWord::Payload(column) => address(TableKey::Payload(column)),
            TableWord::PayloadValid(column) => address(TableKey::PayloadValid(column)),
            TableWord::Capacity => self.rows,
            // All partitions have been resident by the time the last one is.
            TableWord::IsEmpty => u64::from(self.rows == 0 && self.seen.1 == 0 && !self.has_keyless),
            TableWord::HasKeyless => u64::from(self.has_keyless),
            TableWord::Partition(word) => {
                let partition = self.partition.unwrap_or(Partition::ALL);
                let last = self.shape.partitions(partition.of) - 1;
                partition.word(word, self.shape.layout.count, last)
            }
            TableWord::Low => values().min as i64 as u64,
            TableWord::High => values().max as i64 as u64,
        }
    }

    pub fn facts(&self) -> TableFacts {
        let is_unique = self.shape.rows != Rows::Chains;
        TableFacts { kind: self.shape.kind, is_unique, rows: self.seen.1, bytes: self.bytes() }
    }
}

/// Returns the facts about a table's rows, from the minima and maxima that its kernel has
/// collected.
pub(super) fn filled(generated: &Generated, shape: &TableShape, rows: u64, of_rows: u64, ends: &[u64]) -> Filled {
    let interval = |end: End| {
        let at = generated.ends.iter().position(|other| *other == end)?;
        // Encoded by `least` and `greatest` of device.cuh; zeros if there was no value.
        let (low, high) = (!ends[2 * at], ends[2 * at + 1]);
        let value = |word: u64| i128::from((word ^ 1 << 63) as i64);
        let has_values = ends[2 * at] != 0 || high != 0;
        Some(if has_values { Interval::new(value(low), value(high)) } else { Interval::EMPTY })
    };
    let payload = (0..shape.payload.len()).map(|column| interval(End::Payload(column))).collect();
    Filled { rows, of_rows, key: interval(End::Key), payload }
}
