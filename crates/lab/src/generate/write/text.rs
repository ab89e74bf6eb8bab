//! CSV and tbl: encodes batches into text. Column types are resolved once per batch, without an
//! allocation per value.

use arrow::array::cast::AsArray;
use arrow::array::{Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, Field, Int32Type, Int64Type, SchemaRef};

use crate::generate::calendar::Day;
use crate::generate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A header; commas between values; strings quoted where necessary.
    Csv,
    /// No header; a pipe after every value; nothing quoted.
    Tbl,
}

/// dbgen writes quantities as integers, although the specification defines the column as a decimal.
const TBL_INTEGER_DECIMALS: [&str; 1] = ["l_quantity"];

/// Encodes batches of one schema into lines.
pub(super) struct TextEncoder {
    dialect: Dialect,
    schema: SchemaRef,
}

impl TextEncoder {
    pub(super) fn new(dialect: Dialect, schema: &SchemaRef) -> Result<Self> {
        for field in schema.fields() {
            let known = matches!(
                field.data_type(),
                DataType::Int32
                    | DataType::Int64
                    | DataType::Date32
                    | DataType::Utf8View
                    | DataType::Decimal128(_, 0..)
            );
            if !known || field.is_nullable() {
                return Err(unsupported(dialect, field));
            }
        }
        Ok(Self { dialect, schema: SchemaRef::clone(schema) })
    }

    /// Returns the text before the first line.
    pub(super) fn header(&self) -> Vec<u8> {
        match self.dialect {
            Dialect::Tbl => Vec::new(),
            Dialect::Csv => {
                let names: Vec<_> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
                format!("{}\n", names.join(",")).into_bytes()
            }
        }
    }

    /// Appends the lines of a batch.
    pub(super) fn encode(&self, batch: &RecordBatch, text: &mut Vec<u8>) -> Result<()> {
        let fields = self.schema.fields().iter().zip(batch.columns());
        let columns: Vec<_> =
            fields.map(|(field, column)| self.values(field, column.as_ref())).collect::<Result<_>>()?;
        for row in 0..batch.num_rows() {
            for (index, column) in columns.iter().enumerate() {
                if self.dialect == Dialect::Csv && index > 0 {
                    text.push(b',');
                }
                column.push(row, text);
                if self.dialect == Dialect::Tbl {
                    text.push(b'|');
                }
            }
            text.push(b'\n');
        }
        Ok(())
    }

    fn values<'a>(&self, field: &Field, column: &'a dyn Array) -> Result<Values<'a>> {
        let integer = self.dialect == Dialect::Tbl && TBL_INTEGER_DECIMALS.contains(&field.name().as_str());
        let values = match field.data_type() {
            DataType::Int32 => column.as_primitive_opt::<Int32Type>().map(|array| Values::Int32(array.values())),
            DataType::Int64 => column.as_primitive_opt::<Int64Type>().map(|array| Values::Int64(array.values())),
            DataType::Date32 => column.as_primitive_opt::<Date32Type>().map(|array| Values::Date(array.values())),
            DataType::Decimal128(_, scale) => column.as_primitive_opt::<Decimal128Type>().map(|array| {
                let scale = u32::from(scale.unsigned_abs());
                let fraction = if integer { Fraction::Drop } else { Fraction::Keep };
                Values::Decimal { values: array.values(), scale, fraction }
            }),
            _ => column.as_string_view_opt().map(|array| match self.dialect {
                Dialect::Csv => Values::Quoted(array),
                Dialect::Tbl => Values::Plain(array),
            }),
        };
        values.ok_or_else(|| unsupported(self.dialect, field))
    }
}

fn unsupported(dialect: Dialect, field: &Field) -> Error {
    let format = match dialect {
        Dialect::Csv => "csv",
        Dialect::Tbl => "tbl",
    };
    Error::Unsupported { column: field.name().clone(), format, data_type: field.data_type().clone() }
}

#[derive(Clone, Copy)]
enum Fraction {
    Keep,
    Drop,
}

/// A column's values and their format.
enum Values<'a> {
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    Date(&'a [i32]),
    Decimal { values: &'a [i128], scale: u32, fraction: Fraction },
    Plain(&'a StringViewArray),
    Quoted(&'a StringViewArray),
}

impl Values<'_> {
    fn push(&self, row: usize, text: &mut Vec<u8>) {
        match self {
            Self::Int32(values) => push_integer(i128::from(values[row]), 1, text),
            Self::Int64(values) => push_integer(i128::from(values[row]), 1, text),
            Self::Date(values) => push_date(values[row], text),
            Self::Decimal { values, scale, fraction } => push_decimal(values[row], *scale, *fraction, text),
            Self::Plain(values) => text.extend_from_slice(values.value(row).as_bytes()),
            Self::Quoted(values) => push_quoted(values.value(row), text),
        }
    }
}

/// Appends decimal digits, at least `digits_min` of them.
fn push_integer(value: i128, digits_min: usize, text: &mut Vec<u8>) {
    const DIGITS_MAX: usize = 39;
    if value < 0 {
        text.push(b'-');
    }
    let mut digits = [b'0'; DIGITS_MAX];
    let mut start = DIGITS_MAX;
    let mut wide = value.unsigned_abs();
    // Division of 128 bits is slow; hardly any value needs it.
    while wide > u128::from(u64::MAX) {
        start -= 1;
        digits[start] = b'0' + (wide % 10) as u8;
        wide /= 10;
    }
    let mut rest = wide as u64;
    while rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.extend_from_slice(&digits[start.min(DIGITS_MAX - digits_min)..]);
}

fn push_date(epoch_days: i32, text: &mut Vec<u8>) {
    let Day { year, month, day } = Day::from_epoch(epoch_days);
    push_integer(i128::from(year), 4, text);
    text.push(b'-');
    push_integer(i128::from(month), 2, text);
    text.push(b'-');
    push_integer(i128::from(day), 2, text);
}

fn push_decimal(value: i128, scale: u32, fraction: Fraction, text: &mut Vec<u8>) {
    let one = 10i128.pow(scale);
    if value < 0 && value > -one {
        text.push(b'-');
    }
    push_integer(value / one, 1, text);
    if let (Fraction::Keep, 1..) = (fraction, scale) {
        text.push(b'.');
        push_integer((value % one).abs(), scale as usize, text);
    }
}

fn push_quoted(value: &str, text: &mut Vec<u8>) {
    let bytes = value.as_bytes();
    // Some readers would read an unquoted empty field as NULL.
    let plain = !bytes.is_empty() && !bytes.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'));
    if plain {
        return text.extend_from_slice(bytes);
    }
    text.push(b'"');
    for &byte in bytes {
        if byte == b'"' {
            text.push(b'"');
        }
        text.push(byte);
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = Vec::new();
        write(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn integers() {
        for value in [0, 7, -7, 10, i128::from(i64::MIN), i128::from(u64::MAX) + 1, i128::MAX, i128::MIN] {
            assert_eq!(written(|text| push_integer(value, 1, text)), value.to_string());
        }
        assert_eq!(written(|text| push_integer(7, 3, text)), "007");
    }

    #[test]
    fn decimals() {
        let decimal = |value, scale, fraction| written(|text| push_decimal(value, scale, fraction, text));
        assert_eq!(decimal(2_116_823, 2, Fraction::Keep), "21168.23");
        assert_eq!(decimal(4, 2, Fraction::Keep), "0.04");
        assert_eq!(decimal(-4, 2, Fraction::Keep), "-0.04");
        assert_eq!(decimal(-150, 2, Fraction::Keep), "-1.50");
        assert_eq!(decimal(1_700, 2, Fraction::Drop), "17");
        assert_eq!(decimal(17, 0, Fraction::Keep), "17");
    }

    #[test]
    fn dates_and_quotes() {
        assert_eq!(written(|text| push_date(9_568, text)), "1996-03-13");
        assert_eq!(written(|text| push_quoted("plain text", text)), "plain text");
        assert_eq!(written(|text| push_quoted("January 1, 1992", text)), "\"January 1, 1992\"");
        assert_eq!(written(|text| push_quoted("say \"so\"", text)), "\"say \"\"so\"\"\"");
        assert_eq!(written(|text| push_quoted("", text)), "\"\"");
    }
}
