//! Sums of doubles that do not depend on the order of their terms.
//!
//! A double is an integer times a power of two. A sum is also kept as integers: *bins* of 64 bits
//! each, at fixed positions of the number line. A sum keeps the three highest bins that any term
//! has reached, and drops the lower bits of a term. The positions of the bins do not depend on the
//! terms. Therefore the same bits are dropped for any order of terms and any distribution over
//! workers. The dropped bits are at least 129 bits below the highest bit of the largest term, so
//! the sum is nearly exact, and exact for most inputs.
//!
//! Variances are computed from the sum of the values and the sum of their squares, also in
//! integers, so the subtraction of the two loses nothing.

/// Bits of a bin's position. A bin has room for 2^63 terms.
const BIN: u32 = 64;

/// Exponent of the lowest bit of all doubles.
const LOWEST: i32 = -1074;

/// Number of words of a serialized sum.
pub(crate) const SUM_WORDS: usize = 8;

/// The highest bin that a double reaches, and that its square reaches. A double's lowest bit is at
/// position 2,045 at most, and it has 53 bits.
pub(crate) const HIGHEST: u32 = (2045 + 52) / BIN;
pub(crate) const HIGHEST_OF_SQUARES: u32 = (2 * 2045 + 105) / BIN;

/// A sum of integers, each times a power of two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExactSum {
    /// Bins from the lowest. The last one has number `top`, counted from the least power of two.
    bins: [i128; 3],
    top: u32,
    /// The sum of infinities and NaNs; 0 if there are none.
    special: f64,
}

/// Sums from which a variance is computed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    sum: ExactSum,
    squares: ExactSum,
}

/// A finite double: its sign, and an integer times 2^(LOWEST + place).
struct Parts {
    is_negative: bool,
    integer: u64,
    place: u32,
}

impl Parts {
    fn of(value: f64) -> Option<Self> {
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as u32;
        let integer = bits & ((1 << 52) - 1) | u64::from(exponent != 0) << 52;
        let parts = Self { is_negative: value.is_sign_negative(), integer, place: exponent.saturating_sub(1) };
        (exponent != 0x7ff).then_some(parts)
    }
}

impl ExactSum {
    /// Adds a double.
    #[inline]
    pub fn add(&mut self, value: f64) {
        match Parts::of(value) {
            Some(Parts { is_negative, integer, place }) => self.add_integer(integer.into(), place, is_negative),
            None => self.special += value,
        }
    }

    /// Adds an integer of up to 106 bits, times a power of two.
    #[inline]
    fn add_integer(&mut self, integer: u128, place: u32, is_negative: bool) {
        let (first, shift) = (place / BIN, place % BIN);
        let low = integer << shift;
        let high = (integer >> 1) >> (127 - shift);
        let pieces = [low as u64, (low >> 64) as u64, high as u64];
        let Some(last) = pieces.iter().rposition(|piece| *piece != 0) else { return };
        self.raise(first + last as u32);
        for (number, piece) in (first..).zip(pieces) {
            // The bin is missing if it is above the top; the piece is zero then.
            if let Some(bin) = self.bin(number) {
                *bin += if is_negative { -i128::from(piece) } else { piece.into() };
            }
        }
    }

    #[inline]
    fn bin(&mut self, number: u32) -> Option<&mut i128> {
        self.bins.get_mut((number + 2).checked_sub(self.top)? as usize)
    }

    /// Raises the top bin to `top`, unless it is already that high.
    #[inline]
    fn raise(&mut self, top: u32) {
        if top > self.top {
            let by = top - self.top;
            let at = |number: u32| self.bins.get(number as usize).copied().unwrap_or(0);
            self.bins = [at(by), at(by + 1), at(by + 2)];
            self.top = top;
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        self.special += other.special;
        self.raise(other.top);
        for (number, piece) in (other.top..).zip(other.bins) {
            // Index of the bin: its first bin has the number of its top less 2.
            let at = (number).checked_sub(self.top);
            if let Some(bin) = at.and_then(|at| self.bins.get_mut(at as usize)) {
                *bin += piece;
            }
        }
    }

    /// Returns all words of the sum.
    pub fn words(&self) -> [u64; SUM_WORDS] {
        let [a, b, c] = self.bins;
        let (high, low) = (|bin: i128| (bin >> 64) as u64, |bin: i128| bin as u64);
        [self.top.into(), self.special.to_bits(), high(a), low(a), high(b), low(b), high(c), low(c)]
    }

    /// Creates the sum with these [`ExactSum::words`]; `None` if `top` exceeds `highest`.
    pub fn of_words(words: [u64; SUM_WORDS], highest: u32) -> Option<Self> {
        let [top, special, a, b, c, d, e, f] = words;
        let bin = |high: u64, low: u64| i128::from(high as i64) << 64 | i128::from(low);
        let top = u32::try_from(top).ok().filter(|top| *top <= highest)?;
        Some(Self { bins: [bin(a, b), bin(c, d), bin(e, f)], top, special: f64::from_bits(special) })
    }

    /// Returns the sum, rounded once.
    pub fn value(&self) -> f64 {
        if self.special != 0.0 {
            return if self.special.is_nan() { f64::NAN } else { self.special };
        }
        let mut sum = Limbs::<48>::new();
        let is_negative = sum.set(self);
        let value = sum.times(LOWEST, 1.0);
        if is_negative { -value } else { value }
    }
}

impl Moments {
    /// Adds a value.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.sum.add(value);
        if let Some(Parts { integer, place, .. }) = Parts::of(value) {
            self.squares.add_integer(u128::from(integer) * u128::from(integer), 2 * place, false);
        }
    }

    /// Adds the moments of other values.
    pub fn merge(&mut self, other: &Self) {
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
    }

    /// Returns the sum of the values, and that of their squares.
    pub fn sums(&self) -> [&ExactSum; 2] {
        [&self.sum, &self.squares]
    }

    /// Creates the moments with these [`Moments::sums`].
    pub fn of_sums([sum, squares]: [ExactSum; 2]) -> Self {
        Self { sum, squares }
    }

    /// Returns the variance of `count` values, of a sample or a population; `None` if there are too
    /// few.
    pub fn variance(&self, count: i64, is_sample: bool) -> Option<f64> {
        if count <= i64::from(is_sample) {
            return None;
        }
        if self.sum.special != 0.0 {
            return Some(f64::NAN);
        }
        // (n * sum of squares - square of the sum) / n / (n - 1)
        let (mut sum, mut squares, mut spread) = (Limbs::<96>::new(), Limbs::<96>::new(), Limbs::<96>::new());
        sum.set(&self.sum);
        squares.set(&self.squares);
        squares.for_each(|at, limb| spread.add_product(at, limb, count as u64));
        // An index of limbs is a bin's number plus 2, and this adds two of them.
        sum.for_each(|a, x| sum.for_each(|b, y| spread.subtract_product(a + b - 2, x, y)));
        // Dropped bits may make it negative by a tiny amount.
        let spread = if spread.is_negative() { Limbs::new() } else { spread };
        let divisor = count as f64 * (count - i64::from(is_sample)) as f64;
        Some(spread.times(2 * LOWEST, divisor))
    }
}

/// A large integer in two's complement, least limb first. Index 2 is bin 0.
struct Limbs<const N: usize>([u64; N]);

impl<const N: usize> Limbs<N> {
    fn new() -> Self {
        Self([0; N])
    }

    /// Sets it to the magnitude of a sum. Returns true if the sum is negative.
    fn set(&mut self, sum: &ExactSum) -> bool {
        for (index, bin) in (sum.top as usize..).zip(sum.bins) {
            let magnitude = bin.unsigned_abs();
            for (index, half) in [(index, magnitude as u64), (index + 1, (magnitude >> 64) as u64)] {
                match bin < 0 {
                    true => self.subtract_product(index, half, 1),
                    false => self.add_product(index, half, 1),
                }
            }
        }
        let is_negative = self.is_negative();
        if is_negative {
            let mut negated = Self::new();
            for (index, limb) in self.0.iter().enumerate() {
                negated.subtract_product(index, *limb, 1);
            }
            *self = negated;
        }
        is_negative
    }

    fn is_negative(&self) -> bool {
        self.0[N - 1] >> 63 == 1
    }

    fn for_each(&self, mut f: impl FnMut(usize, u64)) {
        self.0.iter().enumerate().filter(|(_, limb)| **limb != 0).for_each(|(index, limb)| f(index, *limb));
    }

    fn add_product(&mut self, index: usize, a: u64, b: u64) {
        let mut carry = u128::from(a) * u128::from(b);
        for limb in &mut self.0[index..] {
            if carry == 0 {
                break;
            }
            carry += u128::from(*limb);
            *limb = carry as u64;
            carry >>= 64;
        }
    }

    fn subtract_product(&mut self, index: usize, a: u64, b: u64) {
        let mut borrow = u128::from(a) * u128::from(b);
        for limb in &mut self.0[index..] {
            if borrow == 0 {
                break;
            }
            let (difference, is_less) = limb.overflowing_sub(borrow as u64);
            *limb = difference;
            borrow = (borrow >> 64) + u128::from(is_less);
        }
    }

    /// Returns it times `2^exponent`, over `divisor`, where bin 0 has the weight `2^exponent`. It
    /// must not be negative.
    fn times(&self, exponent: i32, divisor: f64) -> f64 {
        let Some(top) = self.0.iter().rposition(|limb| *limb != 0) else { return 0.0 };
        // The highest 64 bits, whose last bit is set if any lower bit is: that rounds as the whole
        // number would.
        let zeros = self.0[top].leading_zeros();
        let below = if top == 0 { 0 } else { self.0[top - 1] };
        let mut leading = self.0[top] << zeros | (below >> 1) >> (63 - zeros);
        let is_rest = below << zeros != 0 || self.0[..top.saturating_sub(1)].iter().any(|limb| *limb != 0);
        leading |= u64::from(is_rest);
        scaled(leading as f64 / divisor, (top as i32 - 2) * BIN as i32 - zeros as i32 + exponent)
    }
}

/// Returns `value * 2^exponent`, in steps, because the power alone could be out of range.
fn scaled(mut value: f64, mut exponent: i32) -> f64 {
    while exponent != 0 {
        let step = exponent.clamp(-900, 900);
        value *= 2f64.powi(step);
        exponent -= step;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum
    }

    fn moments(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|value| moments.add(*value));
        moments
    }

    #[test]
    fn nothing_is_lost() {
        for (values, expected) in [
            (vec![], 0.0),
            (vec![0.1], 0.1),
            (vec![-0.0], 0.0),
            (vec![1e100, 1.0, -1e100], 0.0),
            (vec![1e30, 1.0, -1e30], 1.0),
            (vec![0.1; 10], 1.0),
            (vec![5e-324; 3], 1.5e-323),
            (vec![-5e-324, 5e-324, -5e-324], -5e-324),
            (vec![f64::MAX, f64::MAX, -f64::MAX], f64::MAX),
            (vec![f64::MAX, f64::MAX], f64::INFINITY),
            (vec![-f64::MAX, -f64::MAX], f64::NEG_INFINITY),
            (vec![f64::INFINITY, 1.0], f64::INFINITY),
            (vec![f64::MIN_POSITIVE, -5e-324], f64::MIN_POSITIVE - 5e-324),
            (vec![-1.5, 0.25], -1.25),
        ] {
            assert_eq!(sum(&values).value().to_bits(), (expected + 0.0f64).to_bits(), "{values:?}");
        }
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).value().is_nan());
        assert!(sum(&[f64::NAN, 1.0]).value().is_nan());
    }

    #[test]
    fn variances_of_few_and_of_extreme_values() {
        assert_eq!(moments(&[]).variance(0, false), None);
        assert_eq!(moments(&[3.0]).variance(1, true), None);
        assert_eq!(moments(&[3.0]).variance(1, false), Some(0.0));
        assert_eq!(moments(&[0.1; 7]).variance(7, true), Some(0.0));
        assert_eq!(moments(&[1e200; 3]).variance(3, true), Some(0.0));
        assert_eq!(moments(&[1.0, 2.0, 3.0, 4.0]).variance(4, false), Some(1.25));
        assert_eq!(moments(&[1e15, 1e15 + 1.0]).variance(2, true), Some(0.5));
        assert_eq!(moments(&[-1e200, 1e200]).variance(2, true), Some(f64::INFINITY));
        assert_eq!(moments(&[-1e-200, 1e-200]).variance(2, true), Some(0.0));
        assert!(moments(&[1.0, f64::INFINITY]).variance(2, true).is_some_and(f64::is_nan));
    }

    fn double() -> impl Strategy<Value = f64> {
        prop_oneof![4 => -1e6f64..1e6, 1 => any::<f64>().prop_filter("finite", |v| v.is_finite()), 1 => -1e-9f64..1e-9]
    }

    proptest! {
        #[test]
        fn the_order_does_not_matter(values in prop::collection::vec(double(), 0..40), cut in 0usize..40) {
            let expected = moments(&values);
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let (a, b) = sorted.split_at(cut.min(sorted.len()));
            let mut merged = moments(b);
            merged.merge(&moments(a));
            prop_assert_eq!(merged.sum.value().to_bits(), expected.sum.value().to_bits());
            let n = values.len() as i64;
            prop_assert_eq!(merged.variance(n, true).map(f64::to_bits), expected.variance(n, true).map(f64::to_bits));
        }

        #[test]
        fn sums_of_integers_are_theirs(values in prop::collection::vec(-(1i64 << 53)..1 << 53, 0..40)) {
            let doubles: Vec<f64> = values.iter().map(|value| *value as f64).collect();
            let expected: i128 = values.iter().map(|value| i128::from(*value)).sum();
            prop_assert_eq!(sum(&doubles).value(), expected as f64);
        }

        #[test]
        fn variances_are_those_of_two_passes(values in prop::collection::vec(-1e3f64..1e3, 2..40)) {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let expected = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let variance = moments(&values).variance(values.len() as i64, true).unwrap_or(f64::NAN);
            prop_assert!((variance - expected).abs() <= 1e-12 * expected.max(1.0), "{} {}", variance, expected);
        }
    }
}
