//! A join table in device memory, once its kernel is through: all of it, or one partition.

use std::collections::BTreeMap;

use onehop_pipeline::Interval;
use onehop_pipeline::cpu::TableKind;

use super::codegen::{End, Generated, TableWord};
use super::memory::Piece;
use super::partition::Partition;
use super::table::{Filled, Rows, TableShape};

/// A table in device memory.
#[derive(Clone, Copy, Debug)]
pub struct TableFacts {
    /// How it finds rows.
    pub kind: TableKind,
    /// Whether every key has one row, as far as anybody asks.
    pub is_unique: bool,
    /// Rows in it.
    pub rows: u64,
    /// Bytes; of the largest partition, if it is split.
    pub bytes: u64,
}

/// A table that was built, or is going to be.
#[derive(Debug)]
pub(super) struct Built {
    pub shape: TableShape,
    /// What is there of it.
    pub partition: Option<Partition>,
    pub places: u64,
    pub memory: BTreeMap<TableKey, Piece>,
    /// Of the partition that is there.
    pub rows: u64,
    /// Whether a row of any partition had no key.
    pub has_keyless: bool,
    /// What the keys that are there lie within, if they have one part.
    pub keys: Option<Interval>,
    /// Partitions that have been there, in their order, and their rows.
    pub seen: (u64, u64),
}

/// A [`TableWord`] that is memory.
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
    /// One that is not there yet.
    pub fn expected(shape: TableShape) -> Self {
        let memory = BTreeMap::new();
        Self { shape, partition: None, places: 1, memory, rows: 0, has_keyless: false, keys: None, seen: (0, 0) }
    }

    /// A partition that takes the place of what was there, without rows so far.
    pub fn of_partition(&self, shape: TableShape, partition: Partition) -> Self {
        let seen = if partition.number == 0 { (0, 0) } else { self.seen };
        Self { partition: Some(partition), seen, ..Self::expected(shape) }
    }

    /// The partition has so many rows.
    pub fn has_rows(&mut self, rows: u64) {
        self.rows = rows;
        // One that comes once more is known.
        if self.partition.is_some_and(|partition| partition.number == self.seen.0) {
            self.seen = (self.seen.0 + 1, self.seen.1 + rows);
        }
    }

    /// Lets go of what is there. What is known of all of its rows stays.
    pub fn leave(&mut self) {
        self.memory.clear();
        self.partition = None;
    }

    pub fn bytes(&self) -> u64 {
        self.memory.values().map(|piece| piece.len as u64).sum()
    }

    /// Whether no partition comes after the one that is there.
    pub fn is_last(&self) -> bool {
        self.partition.is_none_or(|partition| partition.number + 1 == self.shape.partitions(partition.of))
    }

    /// Values of the keys that can be there, if those are a range of one part.
    pub fn values(&self) -> Option<Interval> {
        self.partition.and_then(|partition| self.shape.values_of(partition))
    }

    /// Words of its bitmap.
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
            // All partitions have been there when the last one is.
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

/// What is known of a table, by the ends that its kernel has found.
pub(super) fn filled(generated: &Generated, shape: &TableShape, rows: u64, of_rows: u64, ends: &[u64]) -> Filled {
    let interval = |end: End| {
        let at = generated.ends.iter().position(|other| *other == end)?;
        // As device.cuh's `least` and `greatest` made them; zeros, if there was no value.
        let (low, high) = (!ends[2 * at], ends[2 * at + 1]);
        let value = |word: u64| i128::from((word ^ 1 << 63) as i64);
        let has_values = ends[2 * at] != 0 || high != 0;
        Some(if has_values { Interval::new(value(low), value(high)) } else { Interval::EMPTY })
    };
    let payload = (0..shape.payload.len()).map(|column| interval(End::Payload(column))).collect();
    Filled { rows, of_rows, key: interval(End::Key), payload }
}
