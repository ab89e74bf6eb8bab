//! Encodes Arrow arrays as chunks: one builder per kind of column.
//!
//! A builder gets a column's values block by block and keeps each block as small as possible on its
//! own. It chooses the encoding of the whole column when the segment ends, because only then the
//! one width per column is known:
//!
//! 1. `append` stages values; `end_block` computes the block's statistics and packs it at the width
//!    it needs itself;
//! 2. `finish` chooses encoding and width from all blocks;
//! 3. the writer requests the chunks, stream by stream. A block whose own width is the column's is
//!    copied unchanged, the others are repacked.
//!
//! So a segment under construction takes approximately as much memory as it will take on storage.

mod distinct;
mod fixed;
mod text;
mod validity;
mod wide;

use arrow_array::Array;

pub(crate) use fixed::FixedBuilder;
pub(crate) use text::TextBuilder;
pub(crate) use wide::DecimalBuilder;

use crate::layout::EncodingCode;
use crate::packed::{LANES, VECTOR_ROWS, Values, pack, unpack, vector_words};
use crate::types::ColumnType;
use crate::zone::Zone;
use crate::{Error, Result};

/// Collects one column of a segment.
pub(crate) trait ColumnBuilder: Send {
    /// Adds the values of an array of the column's type to the open block.
    fn append(&mut self, array: &dyn Array) -> Result<()>;

    /// Ends the open block: it is full, or the segment ends.
    fn end_block(&mut self) -> Result<()>;

    /// Chooses the encoding after all blocks.
    fn finish(self: Box<Self>) -> Result<Box<dyn EncodedColumn>>;

    /// Returns the bytes held, approximately.
    fn memory_bytes(&self) -> usize;
}

/// A column that is ready to be written.
pub(crate) trait EncodedColumn: Send + Sync {
    fn encoding(&self) -> EncodingCode;
    /// Returns the bits of a packed value, or the bytes of a plain one.
    fn width(&self) -> u8;
    fn dictionary(&self) -> Option<DictionaryBytes<'_>>;
    fn zone(&self, block: usize) -> Zone;
    /// Returns the number added to the packed values of a block, or its only value if it has no
    /// chunk.
    fn base(&self, block: usize) -> i64;
    /// Replaces `out` by the bytes of a chunk, or clears it if there is none.
    fn chunk(&self, block: usize, chunk: usize, out: &mut Vec<u8>);
}

/// A dictionary as stored.
pub(crate) struct DictionaryBytes<'a> {
    /// The number of entries.
    pub entries: u32,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Returns the builder for a type.
pub(crate) fn builder(name: &str, column_type: &ColumnType) -> Box<dyn ColumnBuilder> {
    match column_type {
        ColumnType::Varchar => Box::new(TextBuilder::new(name)),
        ColumnType::Decimal { .. } => Box::new(DecimalBuilder::new(name, column_type.clone())),
        _ => Box::new(FixedBuilder::new(name, column_type.clone())),
    }
}

/// A run of unsigned values, packed vector by vector in low and high planes. The last vector is
/// padded with zeroes.
#[derive(Debug, Default)]
pub(crate) struct PackedRun {
    width: u32,
    rows: usize,
    low: Vec<u32>,
    high: Vec<u32>,
}

impl PackedRun {
    /// Packs values of at most `width` bits.
    pub fn pack(width: u32, values: impl ExactSizeIterator<Item = u64>) -> Self {
        let rows = values.len();
        let mut run = Self { width, rows, low: Vec::new(), high: Vec::new() };
        if width == 0 {
            return run;
        }
        let vectors = rows.div_ceil(VECTOR_ROWS);
        run.low.reserve_exact(vectors * vector_words(width.min(32)));
        run.high.reserve_exact(vectors * vector_words(width.saturating_sub(32)));
        let mut values = values;
        let (mut low, mut high) = ([0; VECTOR_ROWS], [0; VECTOR_ROWS]);
        for vector in 0..vectors {
            let n = (rows - vector * VECTOR_ROWS).min(VECTOR_ROWS);
            for (row, value) in values.by_ref().take(n).enumerate() {
                low[row] = value as u32;
                high[row] = (value >> 32) as u32;
            }
            low[n..].fill(0);
            high[n..].fill(0);
            run.push_vector(&low, &high);
        }
        run
    }

    fn push_vector(&mut self, low: &Values, high: &Values) {
        push_packed(&mut self.low, self.width.min(32), low);
        push_packed(&mut self.high, self.width.saturating_sub(32), high);
    }

    /// Calls `f` with the values, a vector at a time. The last may hold padding beyond the rows.
    pub fn for_each_vector(&self, mut f: impl FnMut(&Values, &Values)) {
        let (low_width, high_width) = (self.width.min(32), self.width.saturating_sub(32));
        let (mut low, mut high) = ([0; VECTOR_ROWS], [0; VECTOR_ROWS]);
        for vector in 0..self.rows.div_ceil(VECTOR_ROWS) {
            unpack(low_width, plane(&self.low, low_width, vector), &mut low);
            if high_width > 0 {
                unpack(high_width, plane(&self.high, high_width, vector), &mut high);
            }
            f(&low, &high);
        }
    }

    /// Calls `f` with each value.
    pub fn for_each(&self, mut f: impl FnMut(u64)) {
        let mut left = self.rows;
        self.for_each_vector(|low, high| {
            let n = left.min(VECTOR_ROWS);
            for row in 0..n {
                f(u64::from(high[row]) << 32 | u64::from(low[row]));
            }
            left -= n;
        });
    }

    /// Returns the same values at a greater width.
    pub fn widened(&self, width: u32) -> Self {
        let mut run = Self { width, rows: self.rows, low: Vec::new(), high: Vec::new() };
        self.for_each_vector(|low, high| run.push_vector(low, high));
        run
    }

    /// Returns the bits of a value.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the bytes held.
    pub fn memory_bytes(&self) -> usize {
        (self.low.capacity() + self.high.capacity()) * 4
    }

    /// Appends the bytes of the low (0) or high (1) plane at `width` to `out`.
    pub fn write_plane(&self, width: u32, plane: usize, out: &mut Vec<u8>) {
        let widened;
        let run = if width == self.width {
            self
        } else {
            widened = self.widened(width);
            &widened
        };
        let words = if plane == 0 { &run.low } else { &run.high };
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
}

fn push_packed(out: &mut Vec<u32>, width: u32, values: &Values) {
    let start = out.len();
    out.resize(start + vector_words(width), 0);
    pack(width, values, &mut out[start..]);
}

fn plane(words: &[u32], width: u32, vector: usize) -> &[u32] {
    &words[vector * vector_words(width)..][..vector_words(width)]
}

/// Converts bits from row order to lane geometry.
pub(crate) fn pack_bits(rows_in_order: &[u32]) -> Vec<u32> {
    let mut lanes = Vec::with_capacity(rows_in_order.len().next_multiple_of(LANES));
    for vector in rows_in_order.chunks(LANES) {
        let mut bits = [0; LANES];
        bits[..vector.len()].copy_from_slice(vector);
        crate::packed::transpose(&mut bits);
        lanes.extend_from_slice(&bits);
    }
    lanes
}

pub(crate) fn type_mismatch(column: &str, expected: &ColumnType, got: &arrow_schema::DataType) -> Error {
    Error::Usage(format!("column \"{column}\" takes {}, and was given {got}", expected.arrow()))
}
