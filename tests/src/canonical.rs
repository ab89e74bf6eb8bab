//! The canonical rendering of answers in the golden files, from Arrow. `tests/golden/canonical.py`
//! documents it and implements it a second time. `fill.py` writes with that one, and the harness
//! compares with this one.

use onehop_engine::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use onehop_engine::arrow::compute::cast;
use onehop_engine::arrow::datatypes::{DataType, Float64Type, Schema};
use onehop_engine::arrow::error::ArrowError;
use onehop_engine::arrow::util::display::{ArrayFormatter, FormatOptions};
use sqllogictest::ColumnType;

/// A column's type, as far as the golden files distinguish types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `B`
    Boolean,
    /// `I`: integers of any width, signed or not, and decimals without a fraction.
    Integer,
    /// `N`
    Decimal,
    /// `R`: floats of either width.
    Float,
    /// `D`
    Date,
    /// `P`: timestamps in any unit.
    Timestamp,
    /// `T`
    Text,
    /// `?`: a type without a canonical form, rendered as Arrow does.
    Other,
}

impl ColumnType for Kind {
    fn from_char(letter: char) -> Option<Self> {
        Some(match letter {
            'B' => Self::Boolean,
            'I' => Self::Integer,
            'N' => Self::Decimal,
            'R' => Self::Float,
            'D' => Self::Date,
            'P' => Self::Timestamp,
            'T' => Self::Text,
            '?' => Self::Other,
            _ => return None,
        })
    }

    fn to_char(&self) -> char {
        match self {
            Self::Boolean => 'B',
            Self::Integer => 'I',
            Self::Decimal => 'N',
            Self::Float => 'R',
            Self::Date => 'D',
            Self::Timestamp => 'P',
            Self::Text => 'T',
            Self::Other => '?',
        }
    }
}

impl From<&DataType> for Kind {
    fn from(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Boolean,
            integer if integer.is_integer() => Self::Integer,
            DataType::Decimal32(_, 0)
            | DataType::Decimal64(_, 0)
            | DataType::Decimal128(_, 0)
            | DataType::Decimal256(_, 0) => Self::Integer,
            decimal if decimal.is_decimal() => Self::Decimal,
            float if float.is_floating() => Self::Float,
            DataType::Date32 | DataType::Date64 => Self::Date,
            DataType::Timestamp(_, None) => Self::Timestamp,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Dictionary(_, values) => values.as_ref().into(),
            _ => Self::Other,
        }
    }
}

/// Returns the kinds of a schema's columns.
pub fn kinds(schema: &Schema) -> Vec<Kind> {
    schema.fields().iter().map(|field| field.data_type().into()).collect()
}

/// Returns a batch's rows, each a line of values with tabs between them. No value contains a
/// character below the tab, so lines sort as their values do.
pub fn lines(batch: &RecordBatch) -> Result<Vec<String>, ArrowError> {
    let columns: Vec<Vec<String>> = batch.columns().iter().map(values).collect::<Result<_, _>>()?;
    Ok((0..batch.num_rows())
        .map(|row| columns.iter().map(|column| column[row].as_str()).collect::<Vec<_>>().join("\t"))
        .collect())
}

fn values(array: &ArrayRef) -> Result<Vec<String>, ArrowError> {
    let kind = Kind::from(array.data_type());
    let nulls = array.logical_nulls();
    let floats = (kind == Kind::Float).then(|| cast(array, &DataType::Float64)).transpose()?;
    let options = FormatOptions::new()
        .with_display_error(false)
        .with_null("NULL")
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.6f"));
    let formatter = ArrayFormatter::try_new(array, &options)?;
    (0..array.len())
        .map(|row| {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                return Ok("NULL".into());
            }
            if let Some(floats) = &floats {
                return Ok(float(floats.as_primitive::<Float64Type>().value(row)));
            }
            let plain = formatter.value(row).try_to_string()?;
            Ok(match kind {
                Kind::Text => text(&plain),
                Kind::Timestamp => plain.strip_suffix(".000000").unwrap_or(&plain).into(),
                _ => plain,
            })
        })
        .collect()
}

fn text(plain: &str) -> String {
    match plain {
        "" => return "(empty)".into(),
        "NULL" | "(empty)" => return format!("\\{plain}"),
        _ => {}
    }
    let escaped = plain.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r");
    let body = escaped.strip_prefix(' ').map_or(escaped.clone(), |rest| format!("\\s{rest}"));
    body.strip_suffix(' ').map_or(body.clone(), |rest| format!("{rest}\\s"))
}

/// Formats a float as C's `%.12g`.
fn float(value: f64) -> String {
    const DIGITS: i32 = 12;
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:.*e}", (DIGITS - 1) as usize);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..DIGITS).contains(&exponent) => {
            without_zeros(&format!("{value:.*}", (DIGITS - 1 - exponent) as usize)).into()
        }
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.unsigned_abs())
        }
        Err(_) => scientific,
    }
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::{float, text};

    #[test]
    fn floats_are_as_c_prints_them() {
        // Expected values are from Python's f"{x:.12g}".
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.1 + 0.2, "0.3"),
            (1.0 / 3.0, "0.333333333333"),
            (123_456_789_012.4, "123456789012"),
            (1_234_567_890_123.0, "1.23456789012e+12"),
            (999_999_999_999.9, "1e+12"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (f64::MAX, "1.79769313486e+308"),
            (5e-324, "4.94065645841e-324"),
            (100.0, "100"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(value), expected, "{value:e}");
        }
    }

    #[test]
    fn texts_cannot_be_mistaken() {
        for (plain, expected) in [
            ("", "(empty)"),
            ("NULL", "\\NULL"),
            ("(empty)", "\\(empty)"),
            (" ", "\\s"),
            ("  a  ", "\\s a \\s"),
            ("a\tb\\c\n", "a\\tb\\\\c\\n"),
            ("日本", "日本"),
        ] {
            assert_eq!(text(plain), expected, "{plain:?}");
        }
    }
}
