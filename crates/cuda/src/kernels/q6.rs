//! TPC-H Query 6 on the device: over blocks of packed columns, and over pages of rows. `q6.cu` has
//! the kernels.
//!
//! The bit widths of packed values are constants of the code. A segment has one width for each of
//! its columns, and each encountered combination of four widths gets a kernel of its own. All other
//! facts about the data are in [`Piece`]s, which the device reads in place. Host and device share
//! one layout, and both check it at compile time.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use super::Argument;
use crate::{Context, DeviceBuf, Grid, Kernel, Nvrtc, Result, Stream};

/// CUDA source of the kernels.
pub const TEXT: &str = include_str!("q6.cu");

const NAME: &str = "q6.cu";
const SEGMENTS: &CStr = c"q6_segments";
const ROWS: &CStr = c"q6_rows";

/// Maximum number of vectors in a piece: those of a full block.
pub const PIECE_VECTORS: usize = 64;

/// Number of partial sums, over which the threads are spread.
const SUMS: usize = 64;
/// Words of a partial sum.
const LIMBS: usize = 4;

/// The four columns, in their order in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Place {
    /// Column `l_shipdate`.
    Shipdate,
    /// Column `l_quantity`.
    Quantity,
    /// Column `l_discount`.
    Discount,
    /// Column `l_extendedprice`.
    Price,
}

/// Column of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PieceColumn {
    /// Offset in words from the start of the column's bytes to the first vector.
    pub at: u64,
    /// Value added to every code.
    pub base: i64,
    /// Least code that passes.
    pub min: u32,
    /// Distance from the least to the greatest code that passes.
    pub span: u32,
    /// 1, or 0 if every code is 0 and none is stored.
    pub stored: u32,
    /// Always zero.
    pub reserved: u32,
}

/// Consecutive vectors of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Number of rows, in up to [`PIECE_VECTORS`] vectors.
    pub rows: u32,
    /// Always zero.
    pub reserved: u32,
    /// Columns, indexed by [`Place`].
    pub columns: [PieceColumn; 4],
}

impl Piece {
    /// Copies pieces to the device.
    ///
    /// # Errors
    /// Returns an error if the device has no memory left.
    pub fn upload(context: &Arc<Context>, pieces: &[Piece]) -> Result<DeviceBuf> {
        let mut buffer = DeviceBuf::new(context, size_of_val(pieces))?;
        // SAFETY: a piece consists of numbers without padding.
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

/// Predicates on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFilter {
    /// Least ship date, in days since 1970.
    pub shipdate_from: i32,
    /// Exclusive upper bound of the ship date.
    pub shipdate_before: i32,
    /// Least discount, in hundredths.
    pub discount_min: i64,
    /// Greatest discount, in hundredths.
    pub discount_max: i64,
    /// Exclusive upper bound of the quantity, in hundredths.
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

/// Encodings of a segment's columns.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Bit widths of the codes, indexed by [`Place`].
    pub bits: [u32; 4],
    /// Dictionaries of discount and price, if they have any: the value of each code.
    pub dictionaries: [Option<Arc<DeviceBuf>>; 2],
}

/// Device memory that a kernel reads: a buffer and an offset.
pub type At<'a> = (&'a DeviceBuf, usize);

/// Kernels of Query 6, compiled on first use.
#[derive(Debug)]
pub struct Q6 {
    context: Arc<Context>,
    nvrtc: Arc<Nvrtc>,
    rows: Kernel,
    segments: Mutex<HashMap<[u32; 4], Kernel>>,
}

impl Q6 {
    /// Compiles the kernel for rows.
    ///
    /// # Errors
    /// Returns the error of the compiler or of the driver.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>) -> Result<Self> {
        let image = nvrtc.compile(NAME, TEXT, context.device().compute, &rows_macros())?;
        let rows = Kernel::load(context, &image, ROWS)?;
        Ok(Self { context: Arc::clone(context), nvrtc: Arc::clone(nvrtc), rows, segments: Mutex::default() })
    }

    /// Returns the kernel for columns of these widths, and compiles it on first use.
    ///
    /// # Errors
    /// Returns the error of the compiler or of the driver.
    ///
    /// # Panics
    /// Panics if a width is above 32.
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

    /// Enqueues the aggregation of `pieces`. `columns` are the words of each column, if it has any.
    ///
    /// # Errors
    /// Returns the error of the driver, or of the compiler for new widths.
    ///
    /// # Safety
    /// `columns` contain all words that `pieces` refer to, for the widths of `shape`. All memory
    /// lives, and has no other user, until the stream has finished.
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
        // SAFETY: the arguments are laid out as the kernel's; the caller guarantees the rest.
        unsafe { kernel.launch(stream, grid, &Argument::new(arguments)) }
    }

    /// Enqueues the aggregation of pages of rows.
    ///
    /// # Errors
    /// Returns the error of the driver.
    ///
    /// # Safety
    /// The memory of the pages lives, and has no other user, until the stream has finished.
    ///
    /// # Panics
    /// Panics if the pages are not in the buffer.
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
        // SAFETY: as in `add_segments`; the pages lie in the buffer, and the kernel reads nothing
        // outside of them.
        unsafe { self.rows.launch(stream, grid, &Argument::new(arguments)) }
    }
}

/// Degree of parallelism on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread.
    One,
    /// As many threads as there is work for.
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

/// Device memory that kernels accumulate into.
#[derive(Debug)]
pub struct Sums {
    buffer: DeviceBuf,
}

/// Result of the aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// Sum of price times discount.
    pub sum: i128,
    /// Number of rows and pages that are malformed.
    pub damaged: u64,
}

impl Sums {
    /// Allocates sums of zero.
    ///
    /// # Errors
    /// Returns an error if the device has no memory left.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let mut sums = Self { buffer: DeviceBuf::new(context, (SUMS * LIMBS + 1) * size_of::<u64>())? };
        sums.clear()?;
        Ok(sums)
    }

    /// Resets the sums to zero. No kernel may use them meanwhile.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn clear(&mut self) -> Result<()> {
        self.buffer.fill(0)
    }

    /// Returns the sums of the kernels that have finished.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn read(&self) -> Result<Added> {
        let mut bytes = [0; (SUMS * LIMBS + 1) * size_of::<u64>()];
        self.buffer.copy_to(0, &mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let sum = words[..SUMS * LIMBS].chunks(LIMBS).fold(0i128, |sum, limbs| sum.wrapping_add(whole(limbs)));
        Ok(Added { sum, damaged: words[SUMS * LIMBS] })
    }
}

/// Combines the limbs of a sum. The last limb has the sign.
fn whole(limbs: &[u64]) -> i128 {
    limbs.iter().enumerate().fold(0i128, |sum, (n, limb)| {
        let limb = if n + 1 == LIMBS { i128::from(*limb as i64) } else { i128::from(*limb) };
        sum.wrapping_add(limb.wrapping_shl(32 * n as u32))
    })
}

/// Returns the macros that compile [`TEXT`] for columns of these widths.
pub fn segment_macros(bits: [u32; 4]) -> [(&'static str, String); 4] {
    let names = ["SHIPDATE_BITS", "QUANTITY_BITS", "DISCOUNT_BITS", "PRICE_BITS"];
    std::array::from_fn(|n| (names[n], bits[n].to_string()))
}

/// Returns the macros that compile [`TEXT`] for rows.
pub fn rows_macros() -> [(&'static str, String); 1] {
    [("ROWS", "1".into())]
}
