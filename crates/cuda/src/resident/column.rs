//! One column of one segment in device memory: the planes of all of its blocks, as they are stored, one after the other.
//!
//! What the planes mean depends on who reads them: codes of a segment are those of another dictionary in each set of
//! segments. So only what is the segment's own is kept here, and the rest ([`Block`]s that are to be [`Meaning::Asked`], tables
//! of codes) is the source's to say.

use std::ops::Range;
use std::sync::Arc;

use onehop_pipeline::{Source, ViewValid, ViewValues};
use onehop_segment::packed::VECTOR_ROWS;
use onehop_segment::{ColumnType, EncodingCode, Plane, Segment};

use crate::fused::Result;
use crate::{Context, DeviceBuf};

/// Planes begin where a warp reads whole lines.
const ALIGNMENT: usize = 256;

/// A column of a segment.
#[derive(Debug)]
pub struct Column {
    data: DeviceBuf,
    blocks: Vec<Block>,
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

impl Column {
    /// Where a block is.
    pub fn block(&self, block: usize) -> Option<&Block> {
        self.blocks.get(block)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Loads a column of a segment. `morsels` are those of the source that are its blocks, all of them in their order, and
    /// `column` the column's place in the source. `None` if it has something that is not the segment's own.
    ///
    /// # Errors
    /// Those of the source and of the device.
    pub fn load(
        context: &Arc<Context>,
        source: &dyn Source,
        morsels: Range<usize>,
        column: usize,
        is_coded: bool,
    ) -> Result<Option<Self>> {
        let mut builder = Builder::default();
        for morsel in morsels {
            let block = source.load(morsel, column)?;
            let rows = source.rows(morsel);
            let view = block.view();
            let mut built = Block { low: 0, high: 0, valid: 0, widths: (0, 0), meaning: Meaning::Null };
            match view.values {
                _ if matches!(view.valid, ViewValid::None) => {}
                ViewValues::Packed { low: None, .. } if is_coded => built.meaning = Meaning::Asked,
                ViewValues::Packed { base, bias, low, high } => {
                    (built.low, built.high) = (builder.planes(low, rows), builder.planes(high, rows));
                    built.widths = (low.map_or(0, Plane::width), high.map_or(0, Plane::width));
                    built.meaning = match is_coded {
                        // A base would be lost on who has a table.
                        true if base != 0 || high.is_some() => return Ok(None),
                        true => Meaning::Codes,
                        false => Meaning::Packed(base, bias),
                    };
                }
                ViewValues::Codes32(_, plane) | ViewValues::Codes64(_, plane) => {
                    (built.low, built.widths.0) = (builder.planes(Some(plane), rows), plane.width());
                    built.meaning = Meaning::Codes;
                }
                ViewValues::Other if source.columns()[column].ty == onehop_pipeline::Type::Double => {
                    built.low = builder.put(bytes_of(&block.decoded_doubles(rows)?));
                    built.meaning = Meaning::Doubles;
                }
                _ => return Ok(None),
            }
            built.valid = match view.valid {
                ViewValid::All | ViewValid::None => 0,
                ViewValid::Bits(plane) => builder.planes(Some(plane), rows),
                ViewValid::Bytes(_) => return Ok(None),
            };
            builder.blocks.push(built);
        }
        builder.finish(context).map(Some)
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

/// Bytes that a column of a segment takes on a device, at most.
pub fn bytes_of_segment(segment: &Segment, column: usize) -> u64 {
    let info = segment.column(column);
    let blocks = 0..segment.blocks();
    let is_double = matches!(info.column_type, ColumnType::Float32 | ColumnType::Float64);
    let values = |block| if is_double { 8 * segment.block_rows(block) as u64 } else { 0 };
    // Three planes, each on a boundary of its own.
    blocks.map(|block| (segment.stored_bytes(column, block)).max(values(block)) + 3 * ALIGNMENT as u64).sum()
}

/// Puts planes together on the host. Until they are on the device, addresses are offsets, of which 0 is none.
#[derive(Debug, Default)]
struct Builder {
    data: Vec<u8>,
    blocks: Vec<Block>,
}

impl Builder {
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = (self.data.len() + 1).next_multiple_of(ALIGNMENT);
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        at as u64
    }

    fn planes(&mut self, plane: Option<Plane<'_>>, rows: usize) -> u64 {
        let Some(plane) = plane.filter(|plane| plane.width() > 0) else { return 0 };
        let at = self.put(&[]);
        for vector in 0..rows.div_ceil(VECTOR_ROWS) {
            self.data.extend_from_slice(bytes_of(plane.vector(vector)));
        }
        at
    }

    fn finish(mut self, context: &Arc<Context>) -> Result<Column> {
        let mut data = DeviceBuf::new(context, self.data.len())?;
        data.copy_from(0, &self.data)?;
        for block in &mut self.blocks {
            for address in [&mut block.low, &mut block.high, &mut block.valid] {
                *address += if *address == 0 { 0 } else { data.address() };
            }
        }
        Ok(Column { data, blocks: self.blocks })
    }
}

/// The memory of plain numbers.
pub(super) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers, which have nothing between them.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}
