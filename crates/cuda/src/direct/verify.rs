//! The kernel that verifies blocks read directly to the device, and the host's check of its
//! findings. verify.cu has the algorithm.

use onehop_segment::BlockPlace;
use onehop_segment::packed::VECTOR_ROWS;

use crate::fused::{Compiler, Result};
use crate::kernels::ARGUMENT_WORDS;
use crate::{Grid, Kernel, Stream};

/// CUDA source of the kernel, without the common prelude of generated kernels.
pub const TEXT: &str = include_str!("verify.cu");

/// Threads of a block, as in verify.cu.
const THREADS: u32 = 128;
const WARPS: u64 = THREADS as u64 / 32;
const TABLE_BYTES: u32 = 4096;
/// Maximum number of vectors in a warp's unit of work: larger units reduce waiting, smaller units
/// occupy more warps.
const UNIT_VECTORS: usize = 8;
/// Maximum number of thread blocks for each multiprocessor.
const BLOCKS: u64 = 16;

/// Polynomial of CRC-32C, reflected: bit 31 is x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A block to verify. Addresses are on the device; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Record {
    low: u64,
    high: u64,
    valid: u64,
    base: i64,
    least: i64,
    most: i64,
    low_bits: u32,
    high_bits: u32,
    rows: u32,
    has_all: u32,
    first_unit: u32,
    nothing: u32,
}

const _: () = assert!(size_of::<Record>() == 72);

/// The kernel's findings for one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Found {
    low: u32,
    high: u32,
    valid: u32,
    valid_rows: u32,
    outside: u32,
    nothing: u32,
}

const _: () = assert!(size_of::<Found>() == 24);

/// Device addresses of the planes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    pub low: u64,
    pub high: u64,
    pub valid: u64,
}

impl Record {
    /// Describes a block whose first unit of work is `first_unit`.
    fn new(place: &BlockPlace, planes: Planes, first_unit: u32) -> Self {
        Self {
            low: planes.low,
            high: planes.high,
            valid: planes.valid,
            base: place.base,
            least: place.bounds.0,
            most: place.bounds.1,
            low_bits: place.bits[0],
            high_bits: place.bits[1],
            rows: place.rows as u32,
            // Codes are looked up before the NULL check, so that the codes of NULL rows are checked
            // too.
            has_all: place.is_code.into(),
            first_unit,
            nothing: 0,
        }
    }
}

impl Found {
    /// Returns the reason if the block is wrong.
    pub fn is_wrong(&self, place: &BlockPlace) -> Option<&'static str> {
        let is_other = |found: u32, chunk: Option<onehop_segment::ChunkPlace>| {
            chunk.is_some_and(|chunk| found ^ u32::MAX != chunk.crc)
        };
        let valid_rows = place.rows - place.null_count;
        if is_other(self.valid, place.validity) {
            Some("its validity does not match its checksum")
        } else if is_other(self.low, place.low) || is_other(self.high, place.high) {
            Some("its values do not match their checksum")
        } else if place.validity.is_some() && self.valid_rows as usize != valid_rows {
            Some("other rows are NULL than it says")
        } else if self.outside != 0 {
            Some("a value lies outside of its zone map or dictionary")
        } else {
            None
        }
    }
}

/// Returns the records for the kernel, and their number of units.
pub fn records<'a>(blocks: impl Iterator<Item = (&'a BlockPlace, Planes)>) -> (Vec<Record>, u32) {
    let mut units = 0;
    let record = |(place, planes): (&BlockPlace, Planes)| {
        let first = units;
        units += place.rows.div_ceil(VECTOR_ROWS).div_ceil(UNIT_VECTORS).max(1) as u32;
        Record::new(place, planes, first)
    };
    let records = blocks.map(record).collect();
    (records, units)
}

/// Returns the kernel, and compiles it on first use.
///
/// # Errors
/// Returns the error of the compiler or of the driver.
pub fn kernel(compiler: &Compiler) -> Result<Kernel> {
    Ok(compiler.kernel(TEXT)?.0)
}

/// Launches the kernel over records. It writes its findings for each.
///
/// # Errors
/// Returns the error of the driver.
///
/// # Safety
/// `count` records lie at `records`, with consecutive units, and room for as many findings, all
/// zeros, at `found`. The planes of the records lie at their addresses, with their lengths. All of
/// it lives, and has no other writer, until the stream has finished.
pub unsafe fn launch(
    kernel: &Kernel,
    stream: &Stream,
    (records, found): (u64, u64),
    (count, units): (usize, u32),
    multiprocessors: u32,
) -> crate::Result<()> {
    let mut words = vec![records, found, count as u64, u64::from(units), UNIT_VECTORS as u64];
    words.extend(powers(32, 5));
    words.extend(powers(1024, 12));
    words.resize(ARGUMENT_WORDS, 0);
    let blocks = u64::from(units).div_ceil(WARPS).clamp(1, BLOCKS * u64::from(multiprocessors.max(1)));
    let grid = Grid { blocks: blocks as u32, threads: THREADS };
    // SAFETY: the words are laid out as in verify.cu; the caller guarantees the rest.
    unsafe { kernel.launch_words(stream, grid, TABLE_BYTES, &words) }
}

/// Multiplies two polynomials modulo that of CRC-32C.
fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= if a >> bit & 1 == 1 { b } else { 0 };
        b = b >> 1 ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

/// Returns x to the power of `of` times 1, 2, 4, ...
fn powers(of: u32, count: usize) -> impl Iterator<Item = u64> {
    let (one, x) = (1 << 31, 1 << 30);
    let first = (0..of).fold(one, |power, _| times(power, x));
    std::iter::successors(Some(first), |power| Some(times(*power, *power))).take(count).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the identity that the kernel relies on with the library that writes checksums.
    #[test]
    fn a_checksum_is_a_sum_of_its_words_times_powers() {
        let words: Vec<u32> = (0..96u32).map(|n| n.wrapping_mul(0x9e37_79b9) ^ 0x1234).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let x32 = powers(32, 1).next().unwrap_or_default() as u32;
        let sum = words.iter().enumerate().fold(0, |sum, (at, word)| {
            let word = if at == 0 { !word } else { *word };
            sum ^ (at..words.len()).fold(word, |word, _| times(word, x32))
        });
        assert_eq!(!sum, crc32c::crc32c(&bytes));
        let of_row: Vec<u64> = powers(1024, 2).collect();
        assert_eq!(Some(of_row[0]), powers(32, 6).last());
        assert_eq!(of_row[1], u64::from(times(of_row[0] as u32, of_row[0] as u32)));
    }
}
