//! A kernel that decodes a column to an array of plain values.

use std::sync::Arc;

use onehop_pipeline::arrays::Element;
use onehop_segment::packed::VECTOR_ROWS;

use super::Argument;
use crate::fused::{ColumnImage, bytes_of};
use crate::{Context, DeviceBuf, Grid, Kernel, Nvrtc, Result, Stream};

/// Its text.
pub const TEXT: &str = include_str!("decode.cu");

/// Rows of a morsel, and which of all rows is its first: as decode.cu has it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Morsel {
    first: u64,
    rows: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Morsel>() == 16);

/// What came of decoding a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Decoded {
    /// Rows that are NULL.
    pub nulls: u64,
    /// Values that no element is equal to: others are there.
    pub inexact: u64,
    /// Rows in a form that the kernel does not know.
    pub unknown: u64,
}

const _: () = assert!(size_of::<Decoded>() == 24);

#[derive(Clone, Copy)]
#[repr(C)]
struct DecodeArgs {
    parts: u64,
    morsels: u64,
    count: u64,
    vectors: u64,
    to: u64,
    status: u64,
    element: u64,
}

const _: () = assert!(size_of::<DecodeArgs>() == 56);

/// What values are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Integers with a sign, or doubles.
    Signed,
    /// Integers without one.
    Unsigned,
}

/// The number that the kernel knows an element by; `None` if it does not make such.
fn number(element: Element, stored: Sign) -> Option<u64> {
    Some(match element {
        Element::Bool | Element::Int8 | Element::UInt8 => 1,
        Element::Int16 | Element::UInt16 => 2,
        Element::Int32 | Element::UInt32 => 4,
        Element::Int64 | Element::UInt64 => 8,
        Element::Float32 => 14,
        Element::Float64 if stored == Sign::Unsigned => 19,
        Element::Float64 => 18,
        Element::Float16 => return None,
    })
}

/// The kernel, loaded.
#[derive(Debug)]
pub struct Decoder {
    kernel: Kernel,
    stream: Stream,
}

/// Rows of a column, in morsels.
#[derive(Debug)]
pub struct Rows {
    morsels: DeviceBuf,
    count: u64,
    vectors: u64,
    /// All of them.
    pub rows: u64,
}

impl Rows {
    /// Of morsels with so many each.
    ///
    /// # Errors
    /// Those of the device.
    pub fn new(context: &Arc<Context>, rows: impl Iterator<Item = usize>) -> Result<Self> {
        let (mut first, mut most) = (0, 0);
        let morsels = rows.map(|rows| {
            let morsel = Morsel { first, rows: rows as u32, reserved: 0 };
            first += rows as u64;
            most = most.max(rows);
            morsel
        });
        let morsels: Vec<Morsel> = morsels.collect();
        let mut buffer = DeviceBuf::new(context, size_of_val(morsels.as_slice()))?;
        buffer.copy_from(0, bytes_of(&morsels))?;
        let vectors = most.div_ceil(VECTOR_ROWS) as u64;
        Ok(Self { morsels: buffer, count: morsels.len() as u64, vectors, rows: first })
    }
}

impl Decoder {
    /// For a device.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    pub fn load(context: &Arc<Context>, nvrtc: &Nvrtc) -> Result<Self> {
        let image = nvrtc.compile("decode.cu", TEXT, context.device().compute, &[])?;
        Ok(Self { kernel: Kernel::load(context, &image, c"decode_column")?, stream: Stream::new(context)? })
    }

    /// Decodes a column to the bytes of `to` from `at` on, and waits.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there is no room for all rows, or the column has other ones.
    pub fn run(
        &self,
        column: &ColumnImage,
        rows: &Rows,
        (element, stored): (Element, Sign),
        to: &mut DeviceBuf,
        at: usize,
    ) -> Result<Decoded> {
        let bytes = rows.rows as usize * element.bytes();
        assert!(column.parts() as u64 == rows.count, "rows of another column");
        let address = to.address_of(&(at..at + bytes));
        let Some(element) = number(element, stored) else {
            return Ok(Decoded { unknown: rows.rows, ..Decoded::default() });
        };
        let mut status = DeviceBuf::new(to.context(), size_of::<Decoded>())?;
        status.fill(0)?;
        let arguments = Argument::new(DecodeArgs {
            parts: column.address(),
            morsels: rows.morsels.address(),
            count: rows.count,
            vectors: rows.vectors,
            to: address,
            status: status.address(),
            element,
        });
        let threads = rows.count * rows.vectors * 32;
        if threads > 0 {
            // SAFETY: the argument is laid out as decode.cu has it; there is a part for each morsel, with planes of as many rows,
            // and room for all rows where they are written; all of it lives until the stream is through, which is waited for.
            unsafe { self.kernel.launch(&self.stream, Grid::of(threads), &arguments)? };
        }
        self.stream.synchronize()?;
        let mut bytes = [0; size_of::<Decoded>()];
        status.copy_to(0, &mut bytes)?;
        let word = |n: usize| bytes[n * 8..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        Ok(Decoded { nulls: word(0), inexact: word(1), unknown: word(2) })
    }
}
