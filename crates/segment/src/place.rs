//! Where packed values lie in the file, for those who read, verify and unpack them by themselves: a device, a benchmark.
//!
//! Nothing is read here, and what is found at the place has not been verified by anybody.

use crate::layout::{EncodingCode, chunk};
use crate::reader::Segment;
use crate::types::ColumnType;

/// The codes of a block of a column, packed in lane geometry in up to 32 bits: `base` plus the code is the key, or, in
/// columns with a dictionary, its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedPlace {
    /// Where they start, on a page; `None` if every code is 0, and none is stored.
    pub offset: Option<u64>,
    /// Bytes of them: whole vectors.
    pub bytes: usize,
    /// Bits of a code.
    pub bits: u32,
    /// Added to each.
    pub base: i64,
}

impl Segment {
    /// Where a block's codes lie; `None` if it is not stored in such, or has NULLs.
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

/// Where a chunk lies, and what its bytes must add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// On a page.
    pub offset: u64,
    /// Whole vectors: padding is not among them.
    pub bytes: usize,
    /// Their CRC-32C.
    pub crc: u32,
}

/// A block that is stored as integers, as the footer has it: all that it takes to read it, and to verify it as
/// [`crate::BlockCache`] verifies what it reads, somewhere else than in the host's memory.
///
/// Whoever uses its bytes has to have found, of all chunks, their CRC; that as many bits of the validity are set as rows are
/// not NULL; and that no value lies outside of `bounds`: of rows that are not NULL, or, of codes, of all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Rows.
    pub rows: usize,
    /// Those that are NULL. If all are, nothing has to be read.
    pub null_count: usize,
    /// Added to every value, wrapped around.
    pub base: i64,
    /// Bits of a value in the low plane, and in the high one.
    pub bits: [u32; 2],
    /// Whether these are codes of the column's dictionary rather than keys.
    pub is_code: bool,
    /// A bit per row, if some rows are NULL and others are not.
    pub validity: Option<ChunkPlace>,
    /// The low 32 bits; `None` if every value is the base.
    pub low: Option<ChunkPlace>,
    /// Those above, if there are any.
    pub high: Option<ChunkPlace>,
    /// The least and the greatest value that there may be: if the least is greater, there may be none.
    pub bounds: (i64, i64),
}

impl BlockPlace {
    /// Its chunks.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkPlace> + use<> {
        [self.validity, self.low, self.high].into_iter().flatten()
    }

    /// Bytes of them.
    pub fn bytes(&self) -> usize {
        self.chunks().map(|chunk| chunk.bytes).sum()
    }
}

/// Those integers within 64 bits that lie between two others.
fn within_64_bits((min, max): (i128, i128)) -> (i64, i64) {
    let (least, most) = (min.max(i64::MIN.into()), max.min(i64::MAX.into()));
    // What lies outside altogether leaves nothing.
    match (i64::try_from(least), i64::try_from(most)) {
        (Ok(least), Ok(most)) => (least, most),
        _ => (1, 0),
    }
}

impl Segment {
    /// Where a block lies, and what it has to be; `None` if it is not stored as integers, or if the footer alone shows that
    /// something is wrong with it: whoever loads it is told what.
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
        // As in `BlockColumn::low`: booleans that are all true whatever their chunk has.
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
