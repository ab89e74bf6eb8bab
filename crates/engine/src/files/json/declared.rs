//! Conversion of strings to the declared types of columns.

use arrow::array::{Array, ArrayRef, StringArray, new_null_array};
use arrow::datatypes::DataType;

use crate::convert::ColumnParser;
use crate::pg_types::zone::Zone;

/// Returns the integer that a JSON number equals, in any notation, if it has no more digits than a
/// DECIMAL.
pub(super) fn whole_number(text: &str) -> Option<i128> {
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

/// Converts strings to a type in a session of this zone. Fails with the row of the first invalid
/// string.
pub(super) fn converted(texts: &StringArray, data_type: &DataType, zone: Zone) -> Result<ArrayRef, usize> {
    let Some(mut parser) = ColumnParser::new(data_type, zone, texts.len()) else {
        // No string is a value of such a type.
        return match (0..texts.len()).find(|row| texts.is_valid(*row)) {
            Some(row) => Err(row),
            None => Ok(new_null_array(data_type, texts.len())),
        };
    };
    for (row, text) in texts.iter().enumerate() {
        match text {
            Some(text) => parser.push(text.as_bytes()).map_err(|_| row)?,
            None => parser.push_null(),
        }
    }
    Ok(parser.finish())
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
            assert_eq!(whole_number(text), expected, "{text}");
        }
    }
}
