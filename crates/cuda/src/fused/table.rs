//! Join tables on the device: key lookup and payload layout.
//!
//! ```text
//! dense    a bit per possible key; payload at the key's own place
//! hashed   open addressing, at most half full: a key per slot; payload at the slot
//! chains   several rows of a key: `head` of its place leads to the last of them, `next` of a row
//!          to the one before; payload by row
//! ```
//! A table is first built without chains, on the assumption that keys are unique. If a key repeats,
//! the kernel reports it, and the table is built again with chains. Payload is as narrow as its
//! domain: the stored number is the distance from the least value.
//!
//! A split table ([`super::partition`]) has the keys of one partition. A dense one has the keys of
//! a range, at their distance from its first key. A hashed one has the keys whose hash belongs to
//! the partition.

use onehop_pipeline::cpu::{KeyLayout, Kind, TableKind};
use onehop_pipeline::{Domain, Interval};

use super::partition::{How, Partition};

/// A dense table may have `SPARSE` times more places than the source has rows, and `SMALL` places
/// whatever the number of rows.
const SPARSE: u64 = 16;
const SMALL: u64 = 1 << 22;
/// Maximum bytes of a dense table.
const MOST_DENSE_BYTES: u64 = 1 << 31;

/// Maximum bytes of a bitmap that is copied into shared memory.
pub(super) const SHARED_BITMAP_BYTES: u64 = 40 << 10;

/// A table with less than this fraction of the possible keys matches few of the keys that occur.
const SURELY_FEW: f64 = 0.001;

/// Representation of payload values in memory.
#[derive(Clone, Debug)]
pub(super) struct Element {
    /// Kind of the register that it becomes.
    pub kind: Kind,
    /// Its C++ type in memory.
    pub stored: &'static str,
    /// Bytes of that type.
    pub bytes: usize,
    /// Value that is added to the stored number, if that is an offset.
    pub least: Option<i64>,
    pub nullable: bool,
}

impl Element {
    pub fn of(domain: &Domain) -> Self {
        let kind = Kind::of(domain);
        let (stored, bytes, least) = match kind {
            Kind::F64 => ("double", 8, None),
            Kind::I128 => ("i128", 16, None),
            Kind::Bool | Kind::I32 | Kind::I64 => {
                let least = if domain.interval.is_empty() { 0 } else { domain.interval.min as i64 };
                let (stored, bytes) = match domain.interval.count().unwrap_or(u128::MAX) {
                    0..=0x100 => ("u8", 1),
                    0x101..=0x1_0000 => ("u16", 2),
                    0x1_0001..=0x1_0000_0000 => ("u32", 4),
                    _ => ("u64", 8),
                };
                (stored, bytes, Some(least))
            }
        };
        Self { kind, stored, bytes, least, nullable: domain.nullable }
    }
}

/// Multiplicity of the rows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// No probe reads the rows of a key.
    Keys,
    /// Keys are assumed to be unique.
    Unique,
    /// Keys may have several rows.
    Chains,
}

/// Description of a table for code generation.
#[derive(Clone, Debug)]
pub(super) struct TableShape {
    pub layout: KeyLayout,
    pub kind: TableKind,
    pub rows: Rows,
    /// By number of the payload's column; `None` if no probe reads it.
    pub payload: Vec<Option<Element>>,
    /// `true` if the table is resident one partition of its keys at a time. In this case, no facts
    /// about all of its rows are known.
    pub is_split: bool,
    /// Facts about its rows, once it is built.
    pub filled: Option<Filled>,
}

/// Facts about a table's rows.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    pub rows: u64,
    /// Rows of the source that the table was built from.
    pub of_rows: u64,
    /// Interval of the keys, if they have one part.
    pub key: Option<Interval>,
    /// Interval of each column of the payload, if known.
    pub payload: Vec<Option<Interval>>,
}

impl TableShape {
    /// Creates the shape of a table with at most `rows` rows.
    pub fn new(layout: KeyLayout, payload: Vec<Option<Element>>, rows: u64, wants_rows: bool) -> Self {
        let row_bytes: u64 = payload.iter().flatten().map(|element| (element.bytes + 1) as u64).sum();
        let is_near = layout.count <= SMALL.max(rows.saturating_mul(SPARSE));
        let is_dense = is_near && layout.count.saturating_mul(row_bytes + 4) <= MOST_DENSE_BYTES;
        let kind = if is_dense { TableKind::Direct } else { TableKind::Hashed };
        let rows = if wants_rows { Rows::Unique } else { Rows::Keys };
        Self { layout, kind, rows, payload, is_split: false, filled: None }
    }

    /// Returns true if the table has a bit for each possible key, and 32 bits can number the bits.
    pub fn is_bitmap(&self) -> bool {
        self.kind == TableKind::Direct && self.layout.count < 1 << 32
    }

    /// Returns the number of places of a partition, if at most `rows` rows come to all partitions
    /// together.
    pub fn places(&self, rows: u64, partition: Partition) -> u64 {
        match self.kind {
            TableKind::Direct => partition.range(self.layout.count).1.max(1),
            TableKind::Hashed => {
                let rows = rows.min(self.layout.count).div_ceil(partition.of.max(1));
                (rows.max(1) * 2).next_power_of_two().max(64)
            }
        }
    }

    /// Returns the effect of more partitions on the table.
    pub fn how(&self) -> How {
        match self.kind {
            TableKind::Direct => How::Range,
            TableKind::Hashed => How::Hashed,
        }
    }

    /// Returns the number of partitions of its keys if it is split into `of`. Ranges may be fewer.
    pub fn partitions(&self, of: u64) -> u64 {
        match self.kind {
            TableKind::Direct => Partition { number: 0, of }.ranges(self.layout.count),
            TableKind::Hashed => of,
        }
    }

    /// Returns the bytes of the whole table if it gets `rows` rows and no key repeats.
    pub fn bytes(&self, rows: u64) -> u64 {
        let places = self.places(rows, Partition::ALL);
        let values: u64 = self.payload.iter().flatten().map(|e| e.bytes as u64 + u64::from(e.nullable)).sum();
        let keys = match self.kind {
            TableKind::Direct => places / 8,
            TableKind::Hashed => places.saturating_mul(if self.rows == Rows::Keys { 8 } else { 12 }),
        };
        keys.saturating_add(places.saturating_mul(values))
    }

    /// Returns the interval of the keys of a partition, if they are a range of one part.
    pub fn values_of(&self, partition: Partition) -> Option<Interval> {
        let values = self.layout.single_interval().filter(|_| self.is_split && self.kind == TableKind::Direct)?;
        if values.is_empty() {
            return None;
        }
        let (first, span) = partition.range(self.layout.count);
        let low = values.min + i128::from(first);
        Some(Interval::new(low, low + i128::from(span) - 1))
    }

    /// Returns the bytes of a bitmap with one bit for each key.
    pub fn bitmap_bytes(&self) -> u64 {
        self.layout.count.max(1).div_ceil(64) * 8
    }

    /// Estimates the fraction of the rows with keys of `domain` that have a match. Keys may be
    /// sparse although every row has a match, such as days written as numbers of eight digits. The
    /// estimate is then the fraction of its source's rows that are in the table.
    pub fn fullness(&self, domain: Interval) -> f64 {
        let Some(filled) = &self.filled else { return 0.5 };
        let of_keys = filled.rows as f64 / domain.count().unwrap_or(u128::MAX).max(1) as f64;
        let of_rows = filled.rows as f64 / filled.of_rows.max(1) as f64;
        if of_keys < SURELY_FEW { of_keys } else { of_keys.max(of_rows).min(1.0) }
    }
}
