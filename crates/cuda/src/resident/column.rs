//! One column of one segment in device memory: the planes of all of its blocks, as they are stored,
//! one after the other.
//!
//! The meaning of the planes depends on the reader: codes of a segment refer to another dictionary
//! in each set of segments. Only state of the segment itself is therefore kept here. The source
//! provides the rest ([`Block`]s that are [`Meaning::Asked`], tables of codes).

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
    /// Memory of the blocks' planes.
    _data: DeviceBuf,
    blocks: Vec<Block>,
    bytes: usize,
}

/// A block of a column. Addresses are on the device; 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Packed words, or doubles.
    pub low: u64,
    /// Words of the bits above 32.
    pub high: u64,
    /// One validity bit for each row.
    pub valid: u64,
    /// Bit widths of the planes.
    pub widths: (u32, u32),
    /// Meaning of the planes.
    pub meaning: Meaning,
}

/// Meaning of a block's planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// No value.
    Null,
    /// Offsets from a base, and a bias that is added to the sum.
    Packed(i64, u64),
    /// Codes of the segment's dictionary.
    Codes,
    /// Doubles.
    Doubles,
    /// One value for all rows, which the source provides.
    Asked,
}

/// Owner of bytes that are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The block: the bytes live as long as it does.
    Block,
    /// None: the bytes were made only to be copied.
    Nobody,
}

impl Column {
    /// Creates a column of blocks in order, whose planes lie in `data` and take `bytes` bytes.
    pub fn new(data: DeviceBuf, blocks: Vec<Block>, bytes: usize) -> Self {
        Self { _data: data, blocks, bytes }
    }

    /// Returns a block.
    pub fn block(&self, block: usize) -> Option<&Block> {
        self.blocks.get(block)
    }

    /// Returns the bytes of the blocks on the device.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Block {
    /// Describes a loaded block. `put` stores each plane and returns its address, or 0 if it has no
    /// room. It also gets the owner of the bytes. Returns `None` if the block depends on more than
    /// its segment.
    ///
    /// # Errors
    /// Returns the error of the stored data.
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
                    // A reader with a table of codes would ignore a base.
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
    /// Describes a block whose planes are on the device as they are stored.
    pub fn of_place(place: &BlockPlace, bias: u64, planes: Planes) -> Self {
        let [low, high] = place.bits;
        let meaning = match place.low {
            _ if place.null_count == place.rows => Meaning::Null,
            // Without codes, the source provides the value.
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

/// Returns true if a column can be kept in its stored form.
pub fn can_be_kept(segment: &Segment, column: usize) -> bool {
    let info = segment.column(column);
    match info.encoding {
        EncodingCode::Packed => true,
        EncodingCode::Dictionary => info.width > 0,
        EncodingCode::Plain => matches!(info.column_type, ColumnType::Float32 | ColumnType::Float64),
        EncodingCode::Text => false,
    }
}

/// Returns the maximum bytes of a column's block on a device, in whole lines.
pub fn bytes_of_block(segment: &Segment, column: usize, block: usize) -> usize {
    let is_double = matches!(segment.column(column).column_type, ColumnType::Float32 | ColumnType::Float64);
    let values = if is_double { 8 * segment.block_rows(block) } else { 0 };
    // Three planes, each on a boundary of its own. Doubles have one, and their validity.
    (values + segment.stored_bytes(column, block) as usize).next_multiple_of(ALIGNMENT) + 3 * ALIGNMENT
}

/// Returns the maximum bytes of a segment's column on a device.
pub fn bytes_of_segment(segment: &Segment, column: usize) -> u64 {
    (0..segment.blocks()).map(|block| bytes_of_block(segment, column, block) as u64).sum()
}
