//! Where packed values lie in the file, for those who read and unpack them by themselves: a device, a benchmark.
//!
//! Nothing is read here, and what is found at the place has not been verified by anybody.

use crate::layout::{EncodingCode, chunk};
use crate::reader::Segment;

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
