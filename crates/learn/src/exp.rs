//! `exp` of numbers that are not positive, many at a time: plain arithmetic without branches or
//! tables, so that loops over it become vector instructions.
//!
//! 1. `x = k ln 2 + r` with an integer `k` and `|r| <= ln 2 / 2`. `k` is computed by adding a
//!    number so large that the sum has no fraction. `ln 2` is subtracted in two parts, the first of
//!    few bits, so that `k` times it is exact (Cody and Waite).
//! 2. `exp r` by its Taylor polynomial of degree 12, whose remainder is below 2e-16.
//! 3. Multiplied by `2^k`, which is assembled from bits.
//!
//! The relative error is within 1e-15, which `tests` check against the standard library.

/// A multiplication and an addition: fused, or separate if the processor has no fused instruction.
pub(crate) trait Arithmetic: Copy {
    /// Returns `a * b + c`.
    fn mul_add(a: f64, b: f64, c: f64) -> f64;
}

/// With one rounding. Only for functions that are compiled for processors with the instruction.
#[derive(Clone, Copy)]
pub(crate) struct Fused;

/// With two roundings.
#[derive(Clone, Copy)]
pub(crate) struct Separate;

impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
}

impl Arithmetic for Separate {
    #[inline(always)]
    fn mul_add(a: f64, b: f64, c: f64) -> f64 {
        a * b + c
    }
}

/// Below this, results would be subnormal; they are 3e-308 instead.
const LEAST: f64 = -708.0;
/// `1.5 * 2^52`: doubles of this size have no fraction.
const WHOLE: f64 = 6_755_399_441_055_744.0;
/// `ln 2`, its upper 32 bits, and the rest.
const LN_2_HIGH: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
const EXPONENT_BIAS: u64 = 1023;
const MANTISSA_BITS: u32 = 52;

/// `1 / n!`, from 12 down to 2.
const TAYLOR: [f64; 11] = [
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
];

/// Returns `exp x`, for `x <= 0`.
#[inline(always)]
pub(crate) fn exp_of_negative<A: Arithmetic>(x: f64) -> f64 {
    let x = if x < LEAST { LEAST } else { x };
    let shifted = A::mul_add(x, std::f64::consts::LOG2_E, WHOLE);
    let k = shifted - WHOLE;
    let r = A::mul_add(k, -LN_2_LOW, A::mul_add(k, -LN_2_HIGH, x));
    let mut sum = TAYLOR[0];
    for coefficient in &TAYLOR[1..] {
        sum = A::mul_add(sum, r, *coefficient);
    }
    // 1 + (r + r^2 (1/2 + ...)): the large part is added last.
    let e = A::mul_add(r * r, sum, r) + 1.0;
    // The lowest bits of `shifted` are those of `k`.
    let power = shifted.to_bits().wrapping_add(EXPONENT_BIAS) << MANTISSA_BITS;
    e * f64::from_bits(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst<A: Arithmetic>() -> f64 {
        let mut worst: f64 = 0.0;
        let steps = 2_000_003;
        for step in 0..=steps {
            let x = -700.0 * (f64::from(step) / f64::from(steps)).powi(3);
            let (ours, theirs) = (exp_of_negative::<A>(x), x.exp());
            worst = worst.max(((ours - theirs) / theirs).abs());
        }
        worst
    }

    #[test]
    fn it_is_the_standard_librarys_to_within_some_ulp() {
        assert!(worst::<Separate>() < 1e-15, "{}", worst::<Separate>());
        assert!(worst::<Fused>() < 1e-15, "{}", worst::<Fused>());
    }

    #[test]
    fn ends_are_exact_or_nothing() {
        for (x, expected) in [(0.0, 1.0), (-0.0, 1.0)] {
            assert_eq!(exp_of_negative::<Separate>(x).to_bits(), f64::to_bits(expected));
        }
        for x in [-709.0, -1e6, -1e300, f64::NEG_INFINITY] {
            let value = exp_of_negative::<Separate>(x);
            assert!((0.0..1e-307).contains(&value), "{x}: {value}");
        }
    }
}
