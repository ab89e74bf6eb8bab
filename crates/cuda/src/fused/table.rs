//! Join tables on the device: how a key finds its rows, and how payload lies.
//!
//! ```text
//! dense    a bit per possible key; payload at the key's own place
//! hashed   open addressing, at most half full: a key per slot; payload at the slot
//! chains   several rows of a key: `head` of its place leads to the last of them, `next` of a row to the one before;
//!          payload by row
//! ```
//! Tables are built in the hope that no key comes twice, without chains. If one does, the kernel says so, and the table
//! is built once more with them. Payload is as narrow as its domain: how far a value is from the least one.
//!
//! A table that is split ([`super::partition`]) has the keys of one partition: a dense one those of a range, at their
//! distance from its first, a hashed one those whose hash says so.

use onehop_pipeline::cpu::{KeyLayout, Kind, TableKind};
use onehop_pipeline::{Domain, Interval};

use super::partition::{How, Partition};

/// A dense table may have this many times more places than the source has rows, and this many whatever its rows.
const SPARSE: u64 = 16;
const SMALL: u64 = 1 << 22;
/// Bytes of a dense table, at most.
const MOST_DENSE_BYTES: u64 = 1 << 31;

/// Bytes of a bitmap that is worth being copied into shared memory, at most.
pub(super) const SHARED_BITMAP_BYTES: u64 = 40 << 10;

/// A table with less than this part of the possible keys has few of those that there are.
const SURELY_FEW: f64 = 0.001;

/// Values of payload as they lie in memory.
#[derive(Clone, Debug)]
pub(super) struct Element {
    /// Of the register that it becomes.
    pub kind: Kind,
    /// Its C++ type in memory.
    pub stored: &'static str,
    /// Bytes of that.
    pub bytes: usize,
    /// What is added to what is stored, if that is an offset.
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

/// Whether keys may come more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// Nobody asks for the rows of a key.
    Keys,
    /// It is hoped that each has one.
    Unique,
    /// Some have several.
    Chains,
}

/// A table, as code is made for it.
#[derive(Clone, Debug)]
pub(super) struct TableShape {
    pub layout: KeyLayout,
    pub kind: TableKind,
    pub rows: Rows,
    /// By number of the payload's column; `None` if no probe asks for it.
    pub payload: Vec<Option<Element>>,
    /// Whether it is there one partition of its keys at a time: nothing is known of all of its rows then.
    pub is_split: bool,
    /// What is known of its rows, once it is built.
    pub filled: Option<Filled>,
}

/// What is known of a table's rows.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    pub rows: u64,
    /// Rows of the source that they are of.
    pub of_rows: u64,
    /// What the key lies within, if it has one part.
    pub key: Option<Interval>,
    /// What each column of the payload lies within, where that is known.
    pub payload: Vec<Option<Interval>>,
}

impl TableShape {
    /// Of a pipeline that can put in so many rows.
    pub fn new(layout: KeyLayout, payload: Vec<Option<Element>>, rows: u64, wants_rows: bool) -> Self {
        let row_bytes: u64 = payload.iter().flatten().map(|element| (element.bytes + 1) as u64).sum();
        let is_near = layout.count <= SMALL.max(rows.saturating_mul(SPARSE));
        let is_dense = is_near && layout.count.saturating_mul(row_bytes + 4) <= MOST_DENSE_BYTES;
        let kind = if is_dense { TableKind::Direct } else { TableKind::Hashed };
        let rows = if wants_rows { Rows::Unique } else { Rows::Keys };
        Self { layout, kind, rows, payload, is_split: false, filled: None }
    }

    /// Whether it is a bit for each of its keys, in bits that 32 bits can number.
    pub fn is_bitmap(&self) -> bool {
        self.kind == TableKind::Direct && self.layout.count < 1 << 32
    }

    /// Places of a partition's keys, if so many rows can come to all of them.
    pub fn places(&self, rows: u64, partition: Partition) -> u64 {
        match self.kind {
            TableKind::Direct => partition.range(self.layout.count).1.max(1),
            TableKind::Hashed => {
                let rows = rows.min(self.layout.count).div_ceil(partition.of.max(1));
                (rows.max(1) * 2).next_power_of_two().max(64)
            }
        }
    }

    /// What becomes of it in more partitions.
    pub fn how(&self) -> How {
        match self.kind {
            TableKind::Direct => How::Range,
            TableKind::Hashed => How::Hashed,
        }
    }

    /// Partitions of its keys, if it is split so many times: ranges of them may be fewer.
    pub fn partitions(&self, of: u64) -> u64 {
        match self.kind {
            TableKind::Direct => Partition { number: 0, of }.ranges(self.layout.count),
            TableKind::Hashed => of,
        }
    }

    /// Bytes of all of it, if so many rows come and no key comes twice.
    pub fn bytes(&self, rows: u64) -> u64 {
        let places = self.places(rows, Partition::ALL);
        let values: u64 = self.payload.iter().flatten().map(|e| e.bytes as u64 + u64::from(e.nullable)).sum();
        let keys = match self.kind {
            TableKind::Direct => places / 8,
            TableKind::Hashed => places.saturating_mul(if self.rows == Rows::Keys { 8 } else { 12 }),
        };
        keys.saturating_add(places.saturating_mul(values))
    }

    /// Values of the keys of a partition, if they are a range of one part.
    pub fn values_of(&self, partition: Partition) -> Option<Interval> {
        let values = self.layout.single_interval().filter(|_| self.is_split && self.kind == TableKind::Direct)?;
        if values.is_empty() {
            return None;
        }
        let (first, span) = partition.range(self.layout.count);
        let low = values.min + i128::from(first);
        Some(Interval::new(low, low + i128::from(span) - 1))
    }

    /// Bytes of a bit for each key.
    pub fn bitmap_bytes(&self) -> u64 {
        self.layout.count.max(1).div_ceil(64) * 8
    }

    /// The part of the rows with keys of `domain` that find something, as a guess. Keys may lie far apart though every
    /// row finds one, as days do that are written as numbers of eight digits: then it is the part of its source's rows
    /// that is in it.
    pub fn fullness(&self, domain: Interval) -> f64 {
        let Some(filled) = &self.filled else { return 0.5 };
        let of_keys = filled.rows as f64 / domain.count().unwrap_or(u128::MAX).max(1) as f64;
        let of_rows = filled.rows as f64 / filled.of_rows.max(1) as f64;
        if of_keys < SURELY_FEW { of_keys } else { of_keys.max(of_rows).min(1.0) }
    }
}
