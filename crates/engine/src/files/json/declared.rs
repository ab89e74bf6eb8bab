//! Values of columns whose types a statement says: from their text to the type.

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Float32Type, Float64Type};

/// Of numbers that are written without it.
const MOST_EXPONENT: i32 = 100;

/// The whole number that a JSON number is, however it is written, if it has no more digits than a DECIMAL.
pub(super) fn whole_number(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let zeros = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    if digits == 0 {
        return Some(0);
    }
    let value = match u32::try_from(zeros) {
        Ok(zeros) => digits.checked_mul(10_i128.checked_pow(zeros)?)?,
        Err(_) => {
            let unit = 10_i128.checked_pow(zeros.unsigned_abs())?;
            (digits % unit == 0).then(|| digits / unit)?
        }
    };
    (value.unsigned_abs() < 10_u128.pow(38)).then_some(value)
}

/// The same number without an exponent; `None` if there is none, or it is so large that no column holds the number.
pub(super) fn without_exponent(text: &[u8]) -> Option<String> {
    let (number, exponent) = std::str::from_utf8(text).ok()?.split_once(['e', 'E'])?;
    let exponent = exponent.parse::<i32>().ok().filter(|exponent| exponent.abs() <= MOST_EXPONENT)?;
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |number| ("-", number));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let zeros = "0".repeat(exponent.unsigned_abs() as usize);
    let digits = if exponent < 0 { format!("{zeros}{whole}{fraction}") } else { format!("{whole}{fraction}{zeros}") };
    let point = if exponent < 0 { whole.len() } else { whole.len() + zeros.len() };
    let (whole, fraction) = digits.split_at_checked(point)?;
    Some(format!("{sign}{whole}.{fraction}"))
}

/// The texts as values of a type, or the row of the first one that is none.
pub(super) fn converted(texts: &StringArray, data_type: &DataType) -> Result<ArrayRef, usize> {
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let values = cast_with_options(texts, data_type, &options).map_err(|_| 0_usize)?;
    let is_lost = |row: &usize| values.is_null(*row) || is_overflown(&values, *row, texts.value(*row));
    match (0..texts.len()).filter(|row| texts.is_valid(*row)).find(is_lost) {
        Some(row) => Err(row),
        None => Ok(values),
    }
}

/// Whether a number became an infinity that is none.
fn is_overflown(values: &ArrayRef, row: usize, text: &str) -> bool {
    let is_infinite = match values.data_type() {
        DataType::Float32 => values.as_primitive::<Float32Type>().value(row).is_infinite(),
        DataType::Float64 => values.as_primitive::<Float64Type>().value(row).is_infinite(),
        _ => false,
    };
    is_infinite && text.contains(|letter: char| letter.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_what_they_are_however_written() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0.0", Some(0)),
            ("1.0", Some(1)),
            ("-12e3", Some(-12_000)),
            ("1.5e1", Some(15)),
            ("1500e-2", Some(15)),
            ("1.5", None),
            ("15e-2", None),
            ("1e400", None),
            ("0e999999999", Some(0)),
            ("18446744073709551615", Some(18_446_744_073_709_551_615)),
            ("99999999999999999999999999999999999999", Some(10_i128.pow(38) - 1)),
            ("100000000000000000000000000000000000000", None),
            ("NaN", None),
            ("-Infinity", None),
        ] {
            assert_eq!(whole_number(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn exponents_move_the_point() {
        for text in ["1e2", "-1.25e1", "1.25E-2", "125e-3", "0e0", "-12.5e+1"] {
            let plain = without_exponent(text.as_bytes());
            let plain = plain.as_deref().filter(|plain| !plain.contains(['e', 'E']));
            assert_eq!(
                plain.and_then(|plain| plain.parse::<f64>().ok()),
                text.parse::<f64>().ok(),
                "{text}: {plain:?}"
            );
        }
        assert_eq!((without_exponent(b"1.5"), without_exponent(b"1e1000")), (None, None));
    }
}
