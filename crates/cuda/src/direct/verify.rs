//! The kernel that verifies what was read straight to the device, and what the host makes of what it finds: verify.cu says
//! how.

use onehop_segment::BlockPlace;
use onehop_segment::packed::VECTOR_ROWS;

use crate::fused::{Compiler, Result};
use crate::kernels::ARGUMENT_WORDS;
use crate::{Grid, Kernel, Stream};

/// Its text, behind what all generated kernels begin with.
pub const TEXT: &str = include_str!("verify.cu");

/// As in verify.cu.
const THREADS: u32 = 128;
const WARPS: u64 = THREADS as u64 / 32;
const TABLE_BYTES: u32 = 4096;
/// Vectors that a warp takes at once, at most: more have it wait less, and fewer have more of them at work.
const UNIT_VECTORS: usize = 8;
/// Blocks of threads for each multiprocessor, at most.
const BLOCKS: u64 = 16;

/// CRC-32C's polynomial, reflected: bit 31 is x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A block to be verified. Addresses are the device's; 0 is none.
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

/// What was found of it.
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

/// Where the planes of a block are on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    pub low: u64,
    pub high: u64,
    pub valid: u64,
}

impl Record {
    /// Of a block whose units begin with this one.
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
            // Codes are looked up before anybody asks whether they are NULL.
            has_all: place.is_code.into(),
            first_unit,
            nothing: 0,
        }
    }
}

impl Found {
    /// What is wrong with the block, if anything is.
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

/// Blocks as the kernel wants them, and how many units they have.
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

/// The kernel, compiled if nobody has.
///
/// # Errors
/// Those of the compiler and of the driver.
pub fn kernel(compiler: &Compiler) -> Result<Kernel> {
    Ok(compiler.kernel(TEXT)?.0)
}

/// Launches it over records, for what is found of each.
///
/// # Errors
/// Those of the driver.
///
/// # Safety
/// So many records lie at `records`, with units that follow each other, and places for what is found, all zeros, at `found`; what
/// the records speak of lies where they say, of the lengths that they say, and all of it lives, and is not written to by
/// anybody else, until the stream is through.
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
    // SAFETY: the words are laid out as verify.cu has them; the rest is the caller's promise.
    unsafe { kernel.launch_words(stream, grid, TABLE_BYTES, &words) }
}

/// Products of polynomials modulo CRC-32C's.
fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= if a >> bit & 1 == 1 { b } else { 0 };
        b = b >> 1 ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

/// x to so many times 1, 2, 4, ...
fn powers(of: u32, count: usize) -> impl Iterator<Item = u64> {
    let (one, x) = (1 << 31, 1 << 30);
    let first = (0..of).fold(one, |power, _| times(power, x));
    std::iter::successors(Some(first), |power| Some(times(*power, *power))).take(count).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel relies on, against the library that writes checksums.
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
