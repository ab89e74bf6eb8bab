//! Conversion of decimals to the nearest double or real.
//!
//! `value as f64 / 10^scale` rounds up to three times. If both operands are exact doubles, only the
//! quotient is rounded, and the result is correct. That holds for values up to 2^53 and powers up
//! to 10^22. All other decimals are formatted and parsed, which rounds once.

/// Powers of ten that are exact doubles.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// The largest integer up to which all integers are doubles.
pub const EXACT_DOUBLES: u128 = 1 << 53;

/// The largest scale whose power of ten is a double.
pub const EXACT_SCALE: u8 = 22;

/// Returns `value / 10^scale`, rounded once.
pub fn to_double(value: i128, scale: u8) -> f64 {
    match POWERS.get(usize::from(scale)) {
        Some(power) if scale == 0 || value.unsigned_abs() <= EXACT_DOUBLES => value as f64 / power,
        _ => written(value, scale),
    }
}

/// Returns `value / 10^scale`, rounded once.
pub fn to_real(value: i128, scale: u8) -> f32 {
    /// The largest integer up to which all integers are reals, and the powers of ten that are
    /// reals.
    const EXACT: u128 = 1 << 24;
    const SCALES: u8 = 10;
    match POWERS.get(usize::from(scale)) {
        Some(_) if scale == 0 => value as f32,
        Some(power) if scale <= SCALES && value.unsigned_abs() <= EXACT => value as f32 / *power as f32,
        _ => format!("{value}e-{scale}").parse().unwrap_or(f32::NAN),
    }
}

#[cold]
fn written(value: i128, scale: u8) -> f64 {
    format!("{value}e-{scale}").parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_nearest() {
        assert_eq!(to_double(271_828_182_845_904_523_536, 20), "2.71828182845904523536".parse::<f64>().unwrap());
        assert_eq!(to_double(123_456_789_012_345_678, 3), "123456789012345.678".parse::<f64>().unwrap());
        assert_eq!(to_double(-1, 38), -1e-38);
        assert_eq!(to_double(i128::MAX, 0), 1.7014118346046923e38);
        assert_eq!(to_real(16_777_217, 1), 1_677_721.7);
        assert_eq!(to_real(33, 2), 0.33);
    }

    proptest! {
        #[test]
        fn as_parsed(value: i128, small: i64, scale in 0u8..39) {
            for value in [value, small.into(), i128::from(small) >> 10, i128::from(small) >> 40] {
                let text = format!("{value}e-{scale}");
                prop_assert_eq!(Ok(to_double(value, scale)), text.parse());
                prop_assert_eq!(Ok(to_real(value, scale)), text.parse());
            }
        }
    }
}
