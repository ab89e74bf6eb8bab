//! Random numbers that depend only on the position of a row, so that any range of rows can be
//! generated independently.
//!
//! 1. A row's *stream* starts at `mix(table_seed ^ mix(row + GOLDEN))`; `mix` is the output
//!    permutation of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
//!    generators", OOPSLA 2014, with Stafford's mix 13 constants).
//! 2. Each draw advances the stream by the golden-ratio increment and mixes it: 64 bits.
//! 3. A draw is reduced to `0..n` by taking the high half of `draw * n` (Lemire, "Fast random
//!    integer generation in an interval", 2019). The low half is the rest of the draw, and
//!    [`Draw::below`] continues with it: one draw supplies several small fields. The bias is below
//!    `product of the ranges / 2^64`.
//!
//! The order in which a row's fields are drawn is therefore part of the data's definition: a change
//! of the order changes the data.

pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output permutation of SplitMix64.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The random stream of one row (or one order) of one table.
pub(super) struct Stream(u64);

impl Stream {
    /// Returns the stream of row `row` of the table with seed `table_seed`.
    pub(super) fn of_row(table_seed: u64, row: u64) -> Self {
        Self(mix(table_seed ^ mix(row.wrapping_add(GOLDEN))))
    }

    /// Returns the next 64 random bits.
    pub(super) fn draw(&mut self) -> Draw {
        self.0 = self.0.wrapping_add(GOLDEN);
        Draw(mix(self.0))
    }

    /// Returns a number in `0..n`, from a separate draw.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.draw().below(n)
    }
}

/// The rest of 64 random bits.
pub(super) struct Draw(u64);

impl Draw {
    /// Returns a number in `0..n`; consumes `log2(n)` bits. `n` must not be 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        let product = u128::from(self.0) * u128::from(n);
        self.0 = product as u64;
        (product >> 64) as u64
    }

    /// Returns a number in `0..n`, for ranges known to be small.
    pub(super) fn below_u8(&mut self, n: u8) -> u8 {
        self.below(u64::from(n)) as u8
    }

    /// Returns a number in `low..=high`.
    pub(super) fn between(&mut self, low: i32, high: i32) -> i32 {
        low + self.below((high - low + 1) as u64) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_do_not_depend_on_each_other() {
        let mut a = Stream::of_row(1, 7);
        let mut b = Stream::of_row(1, 7);
        let mut other_row = Stream::of_row(1, 8);
        let mut other_table = Stream::of_row(2, 7);
        for _ in 0..10 {
            let value = a.below(u64::MAX);
            assert_eq!(value, b.below(u64::MAX));
            assert_ne!(value, other_row.below(u64::MAX));
            assert_ne!(value, other_table.below(u64::MAX));
        }
    }

    #[test]
    fn one_draw_feeds_several_uniform_fields() {
        let mut counts = [[0u32; 11]; 7];
        for row in 0..770_000 {
            let mut draw = Stream::of_row(3, row).draw();
            let (day, discount) = (draw.below(7), draw.below(11));
            counts[day as usize][discount as usize] += 1;
        }
        for count in counts.iter().flatten() {
            assert!(count.abs_diff(10_000) < 500, "10,000 expected of each pair, {count} found");
        }
    }

    #[test]
    fn between_reaches_both_ends() {
        let mut seen = [false; 3];
        for row in 0..100 {
            let value = Stream::of_row(4, row).draw().between(-1, 1);
            seen[(value + 1) as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}
