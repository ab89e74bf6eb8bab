//! TPC-H Query 6 on the device: over blocks of packed columns, and over pages of rows. `q6.cu` has the kernels.
//!
//! The bits of packed values are constants of the code: a segment has one width for each of its columns, and there is one
//! kernel for each four widths that have been met. Everything else about the data is in [`Piece`]s, whose memory the
//! device reads as it is: one definition for both sides, and checked at compile time on both.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use super::Argument;
use crate::{Context, DeviceBuf, Grid, Kernel, Nvrtc, Result, Stream};

/// The text.
pub const TEXT: &str = include_str!("q6.cu");

const NAME: &str = "q6.cu";
const SEGMENTS: &CStr = c"q6_segments";
const ROWS: &CStr = c"q6_rows";

/// Vectors in a piece, at most: those of a full block.
pub const PIECE_VECTORS: usize = 64;

/// Sums that threads are spread over.
const SUMS: usize = 64;
/// Words of a sum.
const LIMBS: usize = 4;

/// The four columns, in the order in which pieces have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Place {
    /// `l_shipdate`
    Shipdate,
    /// `l_quantity`
    Quantity,
    /// `l_discount`
    Discount,
    /// `l_extendedprice`
    Price,
}

/// A column of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PieceColumn {
    /// Words from the start of the column's bytes to the first vector.
    pub at: u64,
    /// Added to every code.
    pub base: i64,
    /// The least code that passes.
    pub min: u32,
    /// How much above it the greatest is.
    pub span: u32,
    /// 1, or 0 where every code is 0 and none is stored.
    pub stored: u32,
    /// Zero.
    pub reserved: u32,
}

/// A run of vectors of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Rows, of up to [`PIECE_VECTORS`] vectors.
    pub rows: u32,
    /// Zero.
    pub reserved: u32,
    /// By [`Place`].
    pub columns: [PieceColumn; 4],
}

impl Piece {
    /// Copies pieces to the device.
    ///
    /// # Errors
    /// No memory on the device.
    pub fn upload(context: &Arc<Context>, pieces: &[Piece]) -> Result<DeviceBuf> {
        let mut buffer = DeviceBuf::new(context, size_of_val(pieces))?;
        // SAFETY: a piece is numbers without anything between them.
        let bytes = unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast::<u8>(), size_of_val(pieces)) };
        buffer.copy_from(0, bytes)?;
        Ok(buffer)
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SegmentArguments {
    pieces: u64,
    count: u64,
    words: [u64; 4],
    values: [u64; 2],
    entries: [u32; 2],
    sums: u64,
}

/// What a row must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFilter {
    /// Days from 1970 on that ship dates begin with.
    pub shipdate_from: i32,
    /// And end before.
    pub shipdate_before: i32,
    /// Least discount, in hundredths.
    pub discount_min: i64,
    /// Greatest discount.
    pub discount_max: i64,
    /// Quantities are below it, in hundredths.
    pub quantity_below: i64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RowArguments {
    pages: u64,
    count: u64,
    page_bytes: u32,
    shipdate_from: i32,
    shipdate_before: i32,
    reserved: u32,
    discount_min: i64,
    discount_max: i64,
    quantity_below: i64,
    sums: u64,
}

const _: () = {
    assert!(size_of::<PieceColumn>() == 32);
    assert!(size_of::<Piece>() == 136);
    assert!(size_of::<SegmentArguments>() == 80);
    assert!(size_of::<RowArguments>() == 64);
};

/// What a segment's columns look like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Bits of the codes, by [`Place`].
    pub bits: [u32; 4],
    /// Values by code of discount and price, where they have dictionaries.
    pub dictionaries: [Option<Arc<DeviceBuf>>; 2],
}

/// Memory of the device that a kernel reads: a buffer, and where in it to begin.
pub type At<'a> = (&'a DeviceBuf, usize);

/// The kernels, compiled as they are asked for.
#[derive(Debug)]
pub struct Q6 {
    context: Arc<Context>,
    nvrtc: Arc<Nvrtc>,
    rows: Kernel,
    segments: Mutex<HashMap<[u32; 4], Kernel>>,
}

impl Q6 {
    /// Compiles the one for rows.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>) -> Result<Self> {
        let image = nvrtc.compile(NAME, TEXT, context.device().compute, &rows_macros())?;
        let rows = Kernel::load(context, &image, ROWS)?;
        Ok(Self { context: Arc::clone(context), nvrtc: Arc::clone(nvrtc), rows, segments: Mutex::default() })
    }

    /// The kernel for columns of these widths. Takes a while at first.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    ///
    /// # Panics
    /// If a width is above 32.
    pub fn for_bits(&self, bits: [u32; 4]) -> Result<Kernel> {
        assert!(bits.iter().all(|bits| *bits <= 32), "codes of {bits:?} bits");
        let mut known = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known.get(&bits) {
            return Ok(kernel.clone());
        }
        let image = self.nvrtc.compile(NAME, TEXT, self.context.device().compute, &segment_macros(bits))?;
        let kernel = Kernel::load(&self.context, &image, SEGMENTS)?;
        known.insert(bits, kernel.clone());
        Ok(kernel)
    }

    /// Adds the rows of `pieces` up, in a stream. `columns` are where the words of each column are, if it has any.
    ///
    /// # Errors
    /// Those of the driver, and those of the compiler for widths that have not been met.
    ///
    /// # Safety
    /// What `pieces` says lies in `columns`, for the widths of `shape`. All memory lives, and is used by nobody else,
    /// until the stream is through.
    pub unsafe fn add_segments(
        &self,
        stream: &Stream,
        threads: Threads,
        shape: &Shape,
        pieces: (At<'_>, usize),
        columns: [Option<At<'_>>; 4],
        sums: &Sums,
    ) -> Result<()> {
        let kernel = self.for_bits(shape.bits)?;
        let ((pieces, from), count) = pieces;
        let values = |n: usize| shape.dictionaries[n].as_ref();
        let entries = |n: usize| values(n).map_or(0, |values| values.len() / size_of::<i64>()) as u32;
        let arguments = SegmentArguments {
            pieces: pieces.address_of(&(from..from + count * size_of::<Piece>())),
            count: count as u64,
            words: columns.map(|column| column.map_or(0, |(buffer, at)| buffer.address() + at as u64)),
            values: [0, 1].map(|n| values(n).map_or(0, |values| values.address())),
            entries: [0, 1].map(entries),
            sums: sums.buffer.address(),
        };
        let grid = threads.grid(count as u64 * (PIECE_VECTORS * 32) as u64);
        // SAFETY: the arguments are laid out as the kernel's; the rest is the caller's promise.
        unsafe { kernel.launch(stream, grid, &Argument::new(arguments)) }
    }

    /// Adds the rows of pages up, in a stream.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Safety
    /// The pages' memory lives, and is used by nobody else, until the stream is through.
    ///
    /// # Panics
    /// If the pages do not lie in the buffer.
    pub unsafe fn add_rows(
        &self,
        stream: &Stream,
        threads: Threads,
        filter: &RowFilter,
        (pages, at, count, page_bytes): (&DeviceBuf, usize, usize, usize),
        sums: &Sums,
    ) -> Result<()> {
        let arguments = RowArguments {
            pages: pages.address_of(&(at..at + count * page_bytes)),
            count: count as u64,
            page_bytes: page_bytes as u32,
            shipdate_from: filter.shipdate_from,
            shipdate_before: filter.shipdate_before,
            reserved: 0,
            discount_min: filter.discount_min,
            discount_max: filter.discount_max,
            quantity_below: filter.quantity_below,
            sums: sums.buffer.address(),
        };
        let grid = threads.grid(count as u64 * 32);
        // SAFETY: as in `add_segments`; the pages lie in the buffer, and the kernel reads nothing outside of them.
        unsafe { self.rows.launch(stream, grid, &Argument::new(arguments)) }
    }
}

/// How many threads of the device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One.
    One,
    /// As many as there is work for.
    Many,
}

impl Threads {
    fn grid(self, items: u64) -> Grid {
        match self {
            Threads::One => Grid::ONE,
            Threads::Many => Grid::of(items),
        }
    }
}

/// Where kernels put what they have added up.
#[derive(Debug)]
pub struct Sums {
    buffer: DeviceBuf,
}

/// What they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// The sum of price times discount.
    pub sum: i128,
    /// Rows and pages that did not make sense.
    pub damaged: u64,
}

impl Sums {
    /// Nothing added up yet.
    ///
    /// # Errors
    /// No memory on the device.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let mut sums = Self { buffer: DeviceBuf::new(context, (SUMS * LIMBS + 1) * size_of::<u64>())? };
        sums.clear()?;
        Ok(sums)
    }

    /// Forgets what was added up. No kernel is to be using it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clear(&mut self) -> Result<()> {
        self.buffer.fill(0)
    }

    /// What was added up, by kernels that are through.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn read(&self) -> Result<Added> {
        let mut bytes = [0; (SUMS * LIMBS + 1) * size_of::<u64>()];
        self.buffer.copy_to(0, &mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let sum = words[..SUMS * LIMBS].chunks(LIMBS).fold(0i128, |sum, limbs| sum.wrapping_add(whole(limbs)));
        Ok(Added { sum, damaged: words[SUMS * LIMBS] })
    }
}

/// A sum of its limbs, of which the last has the sign.
fn whole(limbs: &[u64]) -> i128 {
    limbs.iter().enumerate().fold(0i128, |sum, (n, limb)| {
        let limb = if n + 1 == LIMBS { i128::from(*limb as i64) } else { i128::from(*limb) };
        sum.wrapping_add(limb.wrapping_shl(32 * n as u32))
    })
}

/// What has [`TEXT`] compile for columns of these widths.
pub fn segment_macros(bits: [u32; 4]) -> [(&'static str, String); 4] {
    let names = ["SHIPDATE_BITS", "QUANTITY_BITS", "DISCOUNT_BITS", "PRICE_BITS"];
    std::array::from_fn(|n| (names[n], bits[n].to_string()))
}

/// What has it compile for rows.
pub fn rows_macros() -> [(&'static str, String); 1] {
    [("ROWS", "1".into())]
}
