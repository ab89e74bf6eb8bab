//! Encodes Arrow columns as values of PostgreSQL's protocol, text or binary.
//!
//! A batch is converted to the [`wire_type`](crate::types::wire_type)s that its client was told,
//! one column at a time. Values are then written one by one, each with a length prefix, directly
//! into the output buffer.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use onehop_engine::arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array,
    Float32Array, Float64Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, ListArray, RecordBatch,
    StringArray, StringViewArray, Time64MicrosecondArray, TimestampMicrosecondArray, make_array,
};
use onehop_engine::arrow::compute::{CastOptions, cast_with_options};
use onehop_engine::arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, SchemaRef, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use onehop_engine::{Error, ErrorKind, Result, interval_of_duration, postgres_text as text, value_texts};

use crate::binary;
use crate::types::{pg_type, wire_type};
use onehop_engine::postgres_text::Zone;

/// The format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The SQL text.
    Text,
    /// PostgreSQL's binary format.
    Binary,
}

impl Format {
    /// Returns the protocol's code of the format.
    pub fn code(self) -> i16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }

    /// Returns the format of a code.
    pub fn of_code(code: i16) -> Option<Self> {
        match code {
            0 => Some(Self::Text),
            1 => Some(Self::Binary),
            _ => None,
        }
    }
}

/// Converts a batch to the wire types of the schema that the client knows.
pub fn to_wire(batch: &RecordBatch, told: &SchemaRef) -> Result<Vec<ArrayRef>> {
    if batch.num_columns() != told.fields().len() {
        let (has, was) = (batch.num_columns(), told.fields().len());
        let message = format!("the rows have {has} columns, and {was} were announced");
        return Err(
            Error::new(ErrorKind::Invalid, message).with_hint("a table of the statement has changed: prepare it again")
        );
    }
    let columns = batch.columns().iter().zip(told.fields());
    columns.map(|(column, field)| as_type(column, &wire_type(field.data_type()))).collect()
}

/// Converts a column. A value that does not fit is an error, never NULL or another value.
fn as_type(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let from = wire_type(column.data_type());
    match to {
        _ if column.data_type() == to => return Ok(Arc::clone(column)),
        // A numeric keeps the scale of its own value, independent of the announced type.
        DataType::Decimal128(..) | DataType::Decimal256(..) if from.is_decimal() => return cast_to(column, &from),
        DataType::Decimal128(..) | DataType::Decimal256(..) if from.is_integer() => {
            return cast_to(column, &DataType::Decimal128(20, 0));
        }
        DataType::Interval(_) if matches!(column.data_type(), DataType::Duration(_)) => {
            return interval_of_duration(column);
        }
        _ => {}
    }
    let cast = cast_to(column, to)?;
    if to.is_integer()
        && (from.is_decimal() || from.is_floating())
        && cast_to(&cast, &from)?.as_ref() != column.as_ref()
    {
        let (from, to) = (pg_type(&from), pg_type(to));
        let message = format!("a column that was announced as {to} has values of type {from} that are none");
        let hint = "the parameter that it is computed of was announced without its type: write $1::numeric";
        return Err(Error::new(ErrorKind::Invalid, message).with_hint(hint));
    }
    Ok(cast)
}

fn cast_to(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(column, to, &options)?)
}

/// A column whose values can be written.
#[derive(Debug)]
pub struct Cells<'a> {
    nulls: Option<&'a onehop_engine::arrow::buffer::NullBuffer>,
    values: Values<'a>,
}

enum Values<'a> {
    Boolean(&'a BooleanArray),
    Int16(&'a Int16Array),
    Int32(&'a Int32Array),
    Int64(&'a Int64Array),
    Float32(&'a Float32Array),
    Float64(&'a Float64Array),
    Decimal(&'a Decimal128Array, i8),
    LargeDecimal(&'a Decimal256Array, i8),
    Text(&'a StringViewArray),
    Bytes(&'a BinaryViewArray),
    Date(&'a Date32Array),
    Time(&'a Time64MicrosecondArray),
    Timestamp(&'a TimestampMicrosecondArray, bool),
    Interval(&'a IntervalMonthDayNanoArray),
    List(&'a ListArray),
    Null,
    /// A type that PostgreSQL lacks, in the form of a cast to VARCHAR.
    Other(StringArray),
}

impl std::fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Values")
    }
}

/// The style of values as text.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// The zone in which timestamps with a time zone are shown.
    pub zone: Zone,
}

impl<'a> Cells<'a> {
    /// Prepares a column of a wire type.
    pub fn new(column: &'a dyn Array) -> Result<Self> {
        let values = match column.data_type() {
            DataType::Boolean => Values::Boolean(column.as_boolean()),
            DataType::Int16 => Values::Int16(column.as_primitive::<Int16Type>()),
            DataType::Int32 => Values::Int32(column.as_primitive::<Int32Type>()),
            DataType::Int64 => Values::Int64(column.as_primitive::<Int64Type>()),
            DataType::Float32 => Values::Float32(column.as_primitive::<Float32Type>()),
            DataType::Float64 => Values::Float64(column.as_primitive::<Float64Type>()),
            DataType::Decimal128(_, scale) => Values::Decimal(column.as_primitive::<Decimal128Type>(), *scale),
            DataType::Decimal256(_, scale) => Values::LargeDecimal(column.as_primitive::<Decimal256Type>(), *scale),
            DataType::Utf8View => Values::Text(column.as_string_view()),
            DataType::BinaryView => Values::Bytes(column.as_binary_view()),
            DataType::Date32 => Values::Date(column.as_primitive::<Date32Type>()),
            DataType::Time64(TimeUnit::Microsecond) => Values::Time(column.as_primitive::<Time64MicrosecondType>()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                Values::Timestamp(column.as_primitive::<TimestampMicrosecondType>(), zone.is_some())
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                Values::Interval(column.as_primitive::<IntervalMonthDayNanoType>())
            }
            DataType::List(_) => Values::List(column.as_list()),
            DataType::Null => Values::Null,
            _ => Values::Other(value_texts(&make_array(column.to_data()))?),
        };
        Ok(Self { nulls: column.nulls(), values })
    }

    /// Returns true if a row's value is NULL.
    pub fn is_null(&self, row: usize) -> bool {
        matches!(self.values, Values::Null) || self.nulls.is_some_and(|nulls| nulls.is_null(row))
    }

    /// Writes a value with its length prefix.
    pub fn write(&self, row: usize, format: Format, style: &Style, out: &mut BytesMut) -> Result<()> {
        if self.is_null(row) {
            out.put_i32(-1);
            return Ok(());
        }
        let start = out.len();
        out.put_i32(0);
        match format {
            Format::Text => self.write_text(row, style, out)?,
            Format::Binary => self.write_binary(row, style, out)?,
        }
        let length = out.len() - start - 4;
        let length = i32::try_from(length).map_err(|_| too_long())?;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Writes a non-NULL value as text.
    pub fn write_text(&self, row: usize, style: &Style, out: &mut BytesMut) -> Result<()> {
        match &self.values {
            Values::Boolean(values) => out.put_u8(if values.value(row) { b't' } else { b'f' }),
            Values::Int16(values) => text::integer(values.value(row).into(), out),
            Values::Int32(values) => text::integer(values.value(row).into(), out),
            Values::Int64(values) => text::integer(values.value(row), out),
            Values::Float32(values) => text::float32(values.value(row), out),
            Values::Float64(values) => text::float64(values.value(row), out),
            Values::Decimal(values, scale) => text::decimal(&values.value(row).to_string(), *scale, out),
            Values::LargeDecimal(values, scale) => text::decimal(&values.value(row).to_string(), *scale, out),
            Values::Text(values) => out.put_slice(values.value(row).as_bytes()),
            Values::Bytes(values) => text::bytes(values.value(row), out),
            Values::Date(values) => text::date(values.value(row), out),
            Values::Time(values) => text::time(values.value(row), out),
            Values::Timestamp(values, false) => text::timestamp(values.value(row), out),
            Values::Timestamp(values, true) => text::timestamp_tz(values.value(row), &style.zone, out),
            Values::Interval(values) => text::interval(values.value(row), out),
            Values::List(values) => self.write_list_text(&values.value(row), style, out)?,
            Values::Null => {}
            Values::Other(values) => out.put_slice(values.value(row).as_bytes()),
        }
        Ok(())
    }

    fn write_list_text(&self, items: &ArrayRef, style: &Style, out: &mut BytesMut) -> Result<()> {
        let cells = Cells::new(items)?;
        out.put_u8(b'{');
        let mut item = BytesMut::new();
        for row in 0..items.len() {
            if row > 0 {
                out.put_u8(b',');
            }
            if cells.is_null(row) {
                out.put_slice(b"NULL");
                continue;
            }
            item.clear();
            cells.write_text(row, style, &mut item)?;
            match cells.values {
                Values::List(_) => out.put_slice(&item),
                _ => put_item(&item, out),
            }
        }
        out.put_u8(b'}');
        Ok(())
    }

    fn write_binary(&self, row: usize, style: &Style, out: &mut BytesMut) -> Result<()> {
        match &self.values {
            Values::Boolean(values) => out.put_u8(values.value(row).into()),
            Values::Int16(values) => out.put_i16(values.value(row)),
            Values::Int32(values) => out.put_i32(values.value(row)),
            Values::Int64(values) => out.put_i64(values.value(row)),
            Values::Float32(values) => out.put_f32(values.value(row)),
            Values::Float64(values) => out.put_f64(values.value(row)),
            Values::Decimal(values, scale) => binary::numeric(&values.value(row).to_string(), *scale, out),
            Values::LargeDecimal(values, scale) => binary::numeric(&values.value(row).to_string(), *scale, out),
            Values::Bytes(values) => out.put_slice(values.value(row)),
            Values::Date(values) => out.put_i32(binary::date(values.value(row)).ok_or_else(out_of_range)?),
            Values::Time(values) => out.put_i64(values.value(row)),
            Values::Timestamp(values, _) => out.put_i64(binary::timestamp(values.value(row)).ok_or_else(out_of_range)?),
            Values::Interval(values) => binary::interval(values.value(row), out),
            Values::List(values) => binary::list(&values.value(row), style, out)?,
            Values::Text(_) | Values::Null | Values::Other(_) => self.write_text(row, style, out)?,
        }
        Ok(())
    }
}

/// Writes a message of a kind, with the body that `write` appends. On an error nothing is appended.
pub fn put_message(kind: u8, out: &mut BytesMut, write: impl FnOnce(&mut BytesMut) -> Result<()>) -> Result<()> {
    let start = out.len();
    out.put_u8(kind);
    out.put_i32(0);
    let length = write(out).and_then(|()| i32::try_from(out.len() - start - 1).map_err(|_| too_long()));
    match length {
        Ok(length) => out[start + 1..start + 5].copy_from_slice(&length.to_be_bytes()),
        Err(_) => out.truncate(start),
    }
    length.map(drop)
}

/// Writes a row's values as one message.
pub fn put_row(cells: &[Cells<'_>], formats: &[Format], row: usize, style: &Style, out: &mut BytesMut) -> Result<()> {
    put_message(b'D', out, |out| {
        out.put_i16(i16::try_from(formats.len()).map_err(|_| too_many_columns())?);
        cells.iter().zip(formats).try_for_each(|(cells, format)| cells.write(row, *format, style, out))
    })
}

/// Writes a row's values in one format, without a message around them.
pub fn put_fields(cells: &[Cells<'_>], format: Format, row: usize, style: &Style, out: &mut BytesMut) -> Result<()> {
    out.put_i16(i16::try_from(cells.len()).map_err(|_| too_many_columns())?);
    cells.iter().try_for_each(|cells| cells.write(row, format, style, out))
}

/// Writes a range of the rows of a batch.
pub fn put_rows(
    columns: &[ArrayRef],
    formats: &[Format],
    rows: Range<usize>,
    style: &Style,
    out: &mut BytesMut,
) -> Result<()> {
    let cells = columns.iter().map(|column| Cells::new(column)).collect::<Result<Vec<_>>>()?;
    rows.into_iter().try_for_each(|row| put_row(&cells, formats, row, style, out))
}

/// Returns the OID of a list's item type.
pub fn item_oid(items: &dyn Array) -> u32 {
    pg_type(items.data_type()).oid()
}

fn too_long() -> Error {
    Error::new(ErrorKind::Resources, "a row is longer than the 2 GiB that PostgreSQL's protocol has room for")
}

fn too_many_columns() -> Error {
    Error::new(ErrorKind::Invalid, "a row has more columns than the 32,767 that PostgreSQL's protocol has numbers for")
}

fn out_of_range() -> Error {
    Error::new(ErrorKind::Data, "a date or time is out of the range that PostgreSQL has")
        .with_hint("ask for it as text: CAST(x AS VARCHAR)")
}
/// Writes a value within an array's braces, quoted if it would be misread otherwise.
fn put_item(item: &[u8], out: &mut BytesMut) {
    let is_special = |byte: &u8| matches!(byte, b'{' | b'}' | b',' | b'"' | b'\\') || byte.is_ascii_whitespace();
    if !item.is_empty() && !item.iter().any(is_special) && !item.eq_ignore_ascii_case(b"null") {
        out.put_slice(item);
        return;
    }
    out.put_u8(b'"');
    for byte in item {
        if matches!(byte, b'"' | b'\\') {
            out.put_u8(b'\\');
        }
        out.put_u8(*byte);
    }
    out.put_u8(b'"');
}
