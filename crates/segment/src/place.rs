//! The locations of packed values in the file, for callers that read, verify and unpack them by
//! themselves: a device, a benchmark.
//!
//! This module reads nothing, and does not verify the bytes at a location.

use crate::layout::{EncodingCode, chunk};
use crate::reader::Segment;
use crate::types::ColumnType;

/// The codes of a block of a column, packed in lane geometry in up to 32 bits. `base` plus the code
/// is the key, or, in columns with a dictionary, its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedPlace {
    /// The offset of the codes, on a page, or `None` if every code is 0, and none is stored.
    pub offset: Option<u64>,
    /// The bytes of the codes: whole vectors.
    pub bytes: usize,
    /// The bits of a code.
    pub bits: u32,
    /// Added to each code.
    pub base: i64,
}

impl Segment {
    /// Returns the location of a block's codes, or `None` if the block is not stored as codes, or
    /// has NULLs.
    pub fn packed_place(&self, column: usize, block: usize) -> Option<PackedPlace> {
        let (info, record) = (self.column(column), self.record(column, block));
        let is_packed = matches!(info.encoding, EncodingCode::Packed | EncodingCode::Dictionary);
        if !is_packed || info.width > 32 || info.column_type.is_text() || record.null_count > 0 {
            return None;
        }
        let values = record.chunks[chunk::VALUES];
        let offset = (values.bytes > 0).then_some(values.offset);
        // As in `BlockColumn::stored`: only a block of a single code keeps it in its base.
        let base = if info.encoding == EncodingCode::Dictionary && offset.is_some() { 0 } else { record.base };
        Some(PackedPlace { offset, bytes: values.bytes as usize, bits: info.width.into(), base })
    }
}

/// The location of a chunk, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The offset, on a page.
    pub offset: u64,
    /// The number of bytes: whole vectors, without padding.
    pub bytes: usize,
    /// The CRC-32C of the bytes.
    pub crc: u32,
}

/// A block that is stored as integers, as the footer describes it. It has all that is needed to
/// read the block outside of the host's memory, and to verify it as [`crate::BlockCache`] verifies
/// its reads.
///
/// A user of its bytes must have verified the CRC of all chunks. The number of set validity bits
/// must equal the number of rows that are not NULL. No value may lie outside of `bounds`: for keys,
/// in rows that are not NULL; for codes, in all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The number of rows.
    pub rows: usize,
    /// The number of NULL rows. If all are, nothing has to be read.
    pub null_count: usize,
    /// Added to every value, with wrap-around.
    pub base: i64,
    /// The bits of a value in the low plane, and in the high one.
    pub bits: [u32; 2],
    /// True if these are codes of the column's dictionary rather than keys.
    pub is_code: bool,
    /// A bit per row, if some rows are NULL and others are not.
    pub validity: Option<ChunkPlace>,
    /// The low 32 bits, or `None` if every value is the base.
    pub low: Option<ChunkPlace>,
    /// The bits above, if there are any.
    pub high: Option<ChunkPlace>,
    /// The least and the greatest allowed value. If the least is greater, there may be none.
    pub bounds: (i64, i64),
}

impl BlockPlace {
    /// Returns the chunks.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkPlace> + use<> {
        [self.validity, self.low, self.high].into_iter().flatten()
    }

    /// Returns the bytes of the chunks.
    pub fn bytes(&self) -> usize {
        self.chunks().map(|chunk| chunk.bytes).sum()
    }
}

/// Returns the 64-bit integers that lie between two others.
fn within_64_bits((min, max): (i128, i128)) -> (i64, i64) {
    let (least, most) = (min.max(i64::MIN.into()), max.min(i64::MAX.into()));
    // A range that lies outside completely is empty.
    match (i64::try_from(least), i64::try_from(most)) {
        (Ok(least), Ok(most)) => (least, most),
        _ => (1, 0),
    }
}

impl Segment {
    /// Returns the location of a block and the conditions on its bytes. Returns `None` if it is not
    /// stored as integers, or if the footer alone shows that it is damaged: loading it reports the
    /// damage.
    pub fn block_place(&self, column: usize, block: usize) -> Option<BlockPlace> {
        let (info, record) = (self.column(column), self.record(column, block));
        let is_code = match info.encoding {
            EncodingCode::Packed => false,
            EncodingCode::Dictionary => true,
            EncodingCode::Plain | EncodingCode::Text => return None,
        };
        let (rows, null_count) = (self.block_rows(block), record.null_count as usize);
        let place = |slot: usize| {
            let chunk = record.chunks[slot];
            let is_there = chunk.bytes > 0 && null_count < rows;
            is_there.then_some(ChunkPlace { offset: chunk.offset, bytes: chunk.bytes as usize, crc: chunk.crc })
        };
        let (validity, low, high) = (place(chunk::VALIDITY), place(chunk::VALUES), place(chunk::HIGH));
        // As in `BlockColumn::low`: booleans that are all true regardless of their chunk.
        if info.column_type == ColumnType::Boolean && record.base != 0 && low.is_some() {
            return None;
        }
        // As in `BlockColumn::stored`: only a block of a single code keeps it in its base.
        let base = if is_code && low.is_some() { 0 } else { record.base };
        let bounds = match (is_code, self.zone(column, block).keys()) {
            (true, _) => within_64_bits((0, i128::from(info.dictionary_entries) - 1)),
            (false, Some(ends)) => within_64_bits(ends),
            (false, None) => (i64::MIN, i64::MAX),
        };
        let is_outside = base < bounds.0 || base > bounds.1;
        if low.is_none() && null_count < rows && is_outside {
            return None;
        }
        let width = u32::from(info.width);
        let bits = [width.min(32), width.saturating_sub(32)];
        Some(BlockPlace { rows, null_count, base, bits, is_code, validity, low, high, bounds })
    }
}
