//! Kernel that decodes a column to an array of plain values.

use std::sync::Arc;

use onehop_pipeline::arrays::Element;
use onehop_segment::packed::VECTOR_ROWS;

use super::Argument;
use crate::fused::{ColumnImage, bytes_of};
use crate::{Context, DeviceBuf, Grid, Kernel, Nvrtc, Result, Stream};

/// CUDA source of the kernel.
pub const TEXT: &str = include_str!("decode.cu");

/// Row count of a morsel and the number of its first row. The layout is that of decode.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct Morsel {
    first: u64,
    rows: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Morsel>() == 16);

/// Counts that the kernel reports for one column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Decoded {
    /// Rows that are NULL.
    pub nulls: u64,
    /// Values that the element type cannot represent exactly.
    pub inexact: u64,
    /// Rows in an encoding that the kernel does not support.
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

/// Signedness of the stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Signed integers, or doubles.
    Signed,
    /// Unsigned integers.
    Unsigned,
}

/// Returns the kernel's number of an element type; `None` if the kernel does not produce that type.
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

/// Loaded decode kernel.
#[derive(Debug)]
pub struct Decoder {
    kernel: Kernel,
    stream: Stream,
}

/// Row counts of a column's morsels, on the device.
#[derive(Debug)]
pub struct Rows {
    morsels: DeviceBuf,
    count: u64,
    vectors: u64,
    /// Sum over all morsels.
    pub rows: u64,
}

impl Rows {
    /// Uploads the row counts of the morsels.
    ///
    /// # Errors
    /// Returns the error of the device.
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
    /// Compiles and loads the kernel for a device.
    ///
    /// # Errors
    /// Returns the error of the compiler or of the driver.
    pub fn load(context: &Arc<Context>, nvrtc: &Nvrtc) -> Result<Self> {
        let image = nvrtc.compile("decode.cu", TEXT, context.device().compute, &[])?;
        Ok(Self { kernel: Kernel::load(context, &image, c"decode_column")?, stream: Stream::new(context)? })
    }

    /// Decodes a column to the bytes of `to` from `at` on, and waits.
    ///
    /// # Errors
    /// Returns the error of the driver.
    ///
    /// # Panics
    /// Panics if `to` has no room for all rows, or if `rows` belongs to another column.
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
            // SAFETY: the argument is laid out as in decode.cu. There is a part for each morsel,
            // with planes of as many rows, and room for all decoded rows. All memory lives until
            // the stream has finished, which is waited for.
            unsafe { self.kernel.launch(&self.stream, Grid::of(threads), &arguments)? };
        }
        self.stream.synchronize()?;
        let mut bytes = [0; size_of::<Decoded>()];
        status.copy_to(0, &mut bytes)?;
        let word = |n: usize| bytes[n * 8..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        Ok(Decoded { nulls: word(0), inexact: word(1), unknown: word(2) })
    }
}
