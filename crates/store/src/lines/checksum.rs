//! The checksum of a page, which a commit updates from the lines that it changes.
//!
//! The checksum is a sum over the page's lines, so that one line is replaced without reading the
//! rest. Each term is the line's CRC-32C together with its position, passed through a nonlinear
//! bijection. A plain CRC is not sufficient. It is linear: the same damage to two lines would
//! cancel, and two swapped lines would not be detected. Damage to one line changes its CRC, hence
//! its term, hence the sum. A burst of up to 32 bits is always detected, other damage is missed
//! once in 2^32.
//!
//! The sum starts with the number of the page: bytes of another page do not match.

use crate::backend::{Image, LINE_BYTES, PageNo};

/// The modulus of the sums. 0 is stored as the modulus: a stored checksum is never 0, and a table
/// entry of zeros is not an entry.
const MODULUS: u32 = u32::MAX;

/// A checksum, from 1 to [`MODULUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum(u32);

impl Checksum {
    /// Returns the checksum of a page without lines.
    fn empty(page: PageNo) -> Self {
        Self::reduced(u64::from(scatter(page.0.wrapping_add(1), 0)))
    }

    /// Returns the checksum of a page.
    pub(super) fn of(page: PageNo, image: &Image) -> Self {
        let lines = image.0.as_chunks::<LINE_BYTES>().0.iter();
        lines.zip(1..).fold(Self::empty(page), |sum, (bytes, line)| sum.with(line, bytes))
    }

    fn reduced(sum: u64) -> Self {
        let rest = (sum % u64::from(MODULUS)) as u32;
        Self(if rest == 0 { MODULUS } else { rest })
    }

    /// Returns the checksum with `bytes` added as line number `line` of the slot.
    #[must_use]
    pub(super) fn with(self, line: usize, bytes: &[u8]) -> Self {
        Self::reduced(u64::from(self.0) + u64::from(term(line, bytes)))
    }

    /// Returns the checksum without line number `line` of the slot, whose contents are `bytes`.
    #[must_use]
    pub(super) fn without(self, line: usize, bytes: &[u8]) -> Self {
        Self::reduced(u64::from(self.0) + u64::from(MODULUS - term(line, bytes)))
    }

    /// Returns the stored form, which is not 0.
    pub(super) fn stored(self) -> u32 {
        self.0
    }

    /// Returns the checksum of a stored form, or `None` for 0, which is never stored.
    pub(super) fn from_stored(stored: u32) -> Option<Self> {
        (stored != 0).then_some(Self(stored))
    }
}

fn term(line: usize, bytes: &[u8]) -> u32 {
    scatter(crc32c::crc32c(bytes), line as u32)
}

/// Applies a bijection of `x` that depends on `place` (the finaliser of `MurmurHash3`).
fn scatter(x: u32, place: u32) -> u32 {
    let x = x ^ place.wrapping_mul(0x9E37_79B9);
    let x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
    let x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sample() -> Image {
        let mut image = Image::zeroed();
        for (i, byte) in image.0.iter_mut().enumerate() {
            *byte = (i * 131 + i / 256) as u8;
        }
        image
    }

    #[test]
    fn exchanging_a_line_is_the_same_as_summing_anew() {
        let (page, before) = (PageNo(7), sample());
        let mut after = before.clone();
        after.0[64 * 9..64 * 10].fill(3);
        let sum = Checksum::of(page, &before).without(10, &before.0[64 * 9..64 * 10]).with(10, &[3; 64]);
        assert_eq!(sum, Checksum::of(page, &after));
    }

    #[test]
    fn swapped_lines_equal_damage_to_two_lines_and_other_pages_show() {
        let (page, image) = (PageNo(7), sample());
        let sum = Checksum::of(page, &image);
        assert!(sum != Checksum::of(PageNo(8), &image));
        let mut swapped = image.clone();
        swapped.0.copy_within(0..64, 640);
        swapped.0[..64].copy_from_slice(&image.0[640..704]);
        assert!(sum != Checksum::of(page, &swapped));
        let mut damaged = image.clone();
        damaged.0[5] ^= 1;
        damaged.0[64 * 20 + 5] ^= 1;
        assert!(sum != Checksum::of(page, &damaged));
    }

    #[test]
    fn every_flipped_bit_shows() {
        let (page, mut image) = (PageNo(0), sample());
        let sum = Checksum::of(page, &image);
        for bit in 0..image.0.len() * 8 {
            image.0[bit / 8] ^= 1 << (bit % 8);
            assert!(sum != Checksum::of(page, &image), "bit {bit}");
            image.0[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
