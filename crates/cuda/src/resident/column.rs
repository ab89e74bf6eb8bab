//! One column of one segment in device memory: the planes of all of its blocks, as they are stored, one after the other.
//!
//! What the planes mean depends on who reads them: codes of a segment are those of another dictionary in each set of
//! segments. So only what is the segment's own is kept here, and the rest ([`Block`]s that are to be [`Meaning::Asked`], tables
//! of codes) is the source's to say.

use onehop_pipeline::{Type, ViewValid, ViewValues};
use onehop_segment::packed::VECTOR_ROWS;
use onehop_segment::{BlockPlace, ColumnType, EncodingCode, Plane, Segment};

use crate::DeviceBuf;
use crate::direct::Planes;
use crate::fused::{Result, bytes_of};
use crate::staging::ALIGNMENT;

/// A column of a segment.
#[derive(Debug)]
pub struct Column {
    /// Where the blocks' addresses lie.
    _data: DeviceBuf,
    blocks: Vec<Block>,
    bytes: usize,
}

/// A block of it. Addresses are the device's; 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Packed words, or doubles.
    pub low: u64,
    /// Words of what lies above 32 bits.
    pub high: u64,
    /// A bit per row.
    pub valid: u64,
    /// Bits of the planes.
    pub widths: (u32, u32),
    /// What is in them.
    pub meaning: Meaning,
}

/// What the planes of a block hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// No value.
    Null,
    /// Offsets from a base; what is added to the sum.
    Packed(i64, u64),
    /// Codes of the segment's dictionary.
    Codes,
    /// Doubles.
    Doubles,
    /// One value for all rows, which the source knows.
    Asked,
}

/// Whose bytes are put somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The block's, and there as long as it is.
    Block,
    /// They were made to be copied.
    Nobody,
}

impl Column {
    /// Of blocks in their order, whose addresses lie in `data`; `bytes` of it are theirs.
    pub fn new(data: DeviceBuf, blocks: Vec<Block>, bytes: usize) -> Self {
        Self { _data: data, blocks, bytes }
    }

    /// Where a block is.
    pub fn block(&self, block: usize) -> Option<&Block> {
        self.blocks.get(block)
    }

    /// Bytes of its blocks on the device.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Block {
    /// Of a block that is loaded, whose planes go where `put` says, which has room for them or says 0, and is told whether
    /// they are the block's own bytes. `None` if it has something that is not the segment's own.
    ///
    /// # Errors
    /// Those of what is stored.
    pub fn of(
        loaded: &onehop_pipeline::Block,
        rows: usize,
        ty: Type,
        is_coded: bool,
        mut put: impl FnMut(&[u8], Whose) -> u64,
    ) -> Result<Option<Self>> {
        let view = loaded.view();
        let mut built = Self { low: 0, high: 0, valid: 0, widths: (0, 0), meaning: Meaning::Null };
        let plane = |plane: Option<Plane<'_>>, put: &mut dyn FnMut(&[u8], Whose) -> u64| match plane {
            Some(plane) if plane.width() > 0 => put(bytes_of(plane.vectors(rows.div_ceil(VECTOR_ROWS))), Whose::Block),
            _ => 0,
        };
        match view.values {
            _ if matches!(view.valid, ViewValid::None) => {}
            ViewValues::Packed { low: None, .. } if is_coded => built.meaning = Meaning::Asked,
            ViewValues::Packed { base, bias, low, high } => {
                (built.low, built.high) = (plane(low, &mut put), plane(high, &mut put));
                built.widths = (low.map_or(0, Plane::width), high.map_or(0, Plane::width));
                built.meaning = match is_coded {
                    // A base would be lost on who has a table.
                    true if base != 0 || high.is_some() => return Ok(None),
                    true => Meaning::Codes,
                    false => Meaning::Packed(base, bias),
                };
            }
            ViewValues::Codes32(_, codes) | ViewValues::Codes64(_, codes) => {
                (built.low, built.widths.0) = (plane(Some(codes), &mut put), codes.width());
                built.meaning = Meaning::Codes;
            }
            ViewValues::Other if ty == Type::Double => {
                built.low = put(bytes_of(&loaded.decoded_doubles(rows)?), Whose::Nobody);
                built.meaning = Meaning::Doubles;
            }
            _ => return Ok(None),
        }
        built.valid = match view.valid {
            ViewValid::All | ViewValid::None => 0,
            ViewValid::Bits(bits) => plane(Some(bits), &mut put),
            ViewValid::Bytes(_) => return Ok(None),
        };
        Ok(Some(built))
    }
}

impl Block {
    /// Of a block whose planes are on the device as they are stored.
    pub fn of_place(place: &BlockPlace, bias: u64, planes: Planes) -> Self {
        let [low, high] = place.bits;
        let meaning = match place.low {
            _ if place.null_count == place.rows => Meaning::Null,
            // Without codes it is the source that says which one it is.
            None if place.is_code => Meaning::Asked,
            _ if place.is_code => Meaning::Codes,
            _ => Meaning::Packed(place.base, bias),
        };
        let widths = match (place.low, place.high) {
            (Some(_), Some(_)) => (low, high),
            (Some(_), None) => (low, 0),
            (None, _) => (0, 0),
        };
        Self { low: planes.low, high: planes.high, valid: planes.valid, widths, meaning }
    }
}

/// Whether what is stored of a column can be kept as it is.
pub fn can_be_kept(segment: &Segment, column: usize) -> bool {
    let info = segment.column(column);
    match info.encoding {
        EncodingCode::Packed => true,
        EncodingCode::Dictionary => info.width > 0,
        EncodingCode::Plain => matches!(info.column_type, ColumnType::Float32 | ColumnType::Float64),
        EncodingCode::Text => false,
    }
}

/// Bytes that a block of a column takes on a device, at most; whole lines.
pub fn bytes_of_block(segment: &Segment, column: usize, block: usize) -> usize {
    let is_double = matches!(segment.column(column).column_type, ColumnType::Float32 | ColumnType::Float64);
    let values = if is_double { 8 * segment.block_rows(block) } else { 0 };
    // Three planes, each on a boundary of its own; doubles have one, and their validity.
    (values + segment.stored_bytes(column, block) as usize).next_multiple_of(ALIGNMENT) + 3 * ALIGNMENT
}

/// Bytes that a column of a segment takes on a device, at most.
pub fn bytes_of_segment(segment: &Segment, column: usize) -> u64 {
    (0..segment.blocks()).map(|block| bytes_of_block(segment, column, block) as u64).sum()
}
