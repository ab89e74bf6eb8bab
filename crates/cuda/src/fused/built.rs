//! A join table in device memory, once its kernel is through.

use std::collections::BTreeMap;

use onehop_pipeline::Interval;
use onehop_pipeline::cpu::TableKind;

use super::codegen::{End, Generated, TableWord};
use super::memory::Piece;
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
    /// Bytes.
    pub bytes: u64,
}

/// A table that was built.
#[derive(Debug)]
pub(super) struct Built {
    pub shape: TableShape,
    pub places: u64,
    pub memory: BTreeMap<TableKey, Piece>,
    pub rows: u64,
    pub has_keyless: bool,
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
    pub fn word(&self, word: TableWord) -> u64 {
        let address = |key: TableKey| self.memory.get(&key).map_or(0, |piece| piece.address);
        match word {
            TableWord::Bits => address(TableKey::Bits),
            TableWord::Keys => address(TableKey::Keys),
            TableWord::Mask => self.places - 1,
            TableWord::Head => address(TableKey::Head),
            TableWord::Next => address(TableKey::Next),
            TableWord::Payload(column) => address(TableKey::Payload(column)),
            TableWord::PayloadValid(column) => address(TableKey::PayloadValid(column)),
            TableWord::Capacity => self.rows,
            TableWord::IsEmpty => u64::from(self.rows == 0 && !self.has_keyless),
            TableWord::HasKeyless => u64::from(self.has_keyless),
        }
    }

    pub fn facts(&self) -> TableFacts {
        let bytes = self.memory.values().map(|piece| piece.len as u64).sum();
        let is_unique = self.shape.rows != Rows::Chains;
        TableFacts { kind: self.shape.kind, is_unique, rows: self.rows, bytes }
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

/// Words of a table's bitmap.
pub(super) fn bitmap_words(shape: &TableShape) -> u64 {
    shape.layout.count.max(1).div_ceil(64)
}
