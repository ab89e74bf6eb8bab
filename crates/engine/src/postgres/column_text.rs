//! Columns of values as strings, as PostgreSQL writes them: what `CAST(x AS VARCHAR)` is, and what a shell shows. Lists, structs and
//! maps are written by [`nested_text`].

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, RecordBatch, StringArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Field, Fields, Float32Type, Float64Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, Schema, SchemaRef, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType,
};
use arrow::error::ArrowError;
use arrow::util::display::FormatOptions;

use super::{interval_text, nested_text, text};
use crate::Result;
use crate::convert::Zone;

/// A value without a string is an error, not NULL.
const CHECKED: CastOptions<'static> = CastOptions { safe: false, format_options: FormatOptions::new() };

/// Whether values of a type are written here, and not by Arrow.
pub fn is_written(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(..) | DataType::Duration(_) | DataType::Interval(_) => true,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => true,
        data_type => matches!(data_type, DataType::Float32 | DataType::Float64),
    }
}

/// Days and seconds from 1970 that Arrow's calendar, of 262,142 years, has on either side.
const CALENDAR_DAYS: i64 = 95_000_000;
const CALENDAR_SECONDS: i64 = CALENDAR_DAYS * 86_400;

/// Whether a column has dates or timestamps that Arrow's calendar has not, infinite ones among them: those that Arrow shows as an error.
pub fn is_beyond_calendar(values: &ArrayRef) -> bool {
    let units = match values.data_type() {
        DataType::Date32 => CALENDAR_DAYS,
        DataType::Timestamp(TimeUnit::Second, _) => CALENDAR_SECONDS,
        DataType::Timestamp(TimeUnit::Millisecond, _) => CALENDAR_SECONDS * 1000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => CALENDAR_SECONDS * 1_000_000,
        _ => return false,
    };
    let integers = match values.data_type() {
        DataType::Date32 => cast(values, &DataType::Int32).and_then(|days| cast(&days, &DataType::Int64)),
        _ => cast(values, &DataType::Int64),
    };
    let is_beyond = |value: i64| value.unsigned_abs() > units.unsigned_abs();
    integers.is_ok_and(|integers| integers.as_primitive::<Int64Type>().iter().flatten().any(is_beyond))
}

/// The strings of a column whose type [`is_written`] here, in a session of this zone; `None` for another type.
///
/// # Errors
/// A duration, or a timestamp in seconds, that no number of microseconds is.
pub fn texts(values: &ArrayRef, zone: Zone) -> Result<Option<ArrayRef>> {
    let texts: StringArray = match values.data_type() {
        DataType::Float32 => all(values.as_primitive::<Float32Type>(), text::float32),
        DataType::Float64 => all(values.as_primitive::<Float64Type>(), text::float64),
        DataType::Duration(_) => return self::texts(&interval_text::of_duration(values)?, zone),
        DataType::Interval(_) => {
            let values = cast(values, &DataType::Interval(IntervalUnit::MonthDayNano))?;
            all(values.as_primitive::<IntervalMonthDayNanoType>(), text::interval)
        }
        DataType::Date32 | DataType::Date64 => {
            all(cast(values, &DataType::Date32)?.as_primitive::<Date32Type>(), text::date)
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            let values = cast(values, &DataType::Time64(TimeUnit::Nanosecond))?;
            all(values.as_primitive::<Time64NanosecondType>(), text::time_nanos)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, of) => {
            let (values, has_zone) = (cast(values, &DataType::Int64)?, of.is_some());
            all(values.as_primitive::<Int64Type>(), |nanos, out| text::timestamp_nanos(nanos, has_zone, &zone, out))
        }
        DataType::Timestamp(_, of) => {
            let micros = cast_with_options(values, &DataType::Timestamp(TimeUnit::Microsecond, of.clone()), &CHECKED)?;
            all(micros.as_primitive::<TimestampMicrosecondType>(), |micros, out| match of {
                Some(_) => text::timestamp_tz(micros, &zone, out),
                None => text::timestamp(micros, out),
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(texts)))
}

/// Whether a type is one of bytes.
pub(crate) fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

/// The strings of a column of any type, in a session of this zone; without one, moments are shown in the zones of their types.
///
/// # Errors
/// A value has no string.
pub(crate) fn texts_of_any(values: &ArrayRef, zone: Option<Zone>) -> Result<ArrayRef> {
    let own_zone = match values.data_type() {
        DataType::Timestamp(_, Some(zone)) => Zone::of_arrow(zone).unwrap_or_default(),
        _ => Zone::Utc,
    };
    if let Some(texts) = texts(values, zone.unwrap_or(own_zone))? {
        return Ok(texts);
    }
    Ok(match values.data_type() {
        data_type if nested_text::is_nested(data_type) => {
            Arc::new(nested_text::texts(values, &|values: &ArrayRef| texts_of_any(values, zone))?)
        }
        data_type if is_binary(data_type) => Arc::new(texts_of_bytes(values)?),
        DataType::Dictionary(_, plain) => texts_of_any(&cast(values, plain)?, zone)?,
        DataType::RunEndEncoded(_, plain) => texts_of_any(&cast(values, plain.data_type())?, zone)?,
        DataType::Float16 => texts_of_any(&cast(values, &DataType::Float32)?, zone)?,
        _ => cast_with_options(values, &DataType::Utf8, &CHECKED)?,
    })
}

fn texts_of_bytes(values: &ArrayRef) -> Result<StringArray> {
    let written = |bytes: &[u8]| {
        let mut out = String::new();
        text::bytes(bytes, &mut out);
        out
    };
    let values = cast(values, &DataType::BinaryView)?;
    Ok(values.as_binary_view().iter().map(|value| value.map(written)).collect())
}

fn all<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>, write: impl Fn(T::Native, &mut String)) -> StringArray {
    let written = |value| {
        let mut out = String::new();
        write(value, &mut out);
        out
    };
    values.iter().map(|value| value.map(written)).collect()
}

/// A type whose timestamps with a time zone are shown in this one, by Arrow's name.
fn type_in_zone(data_type: &DataType, zone: &Arc<str>) -> DataType {
    let within =
        |item: &Arc<Field>| Arc::new(item.as_ref().clone().with_data_type(type_in_zone(item.data_type(), zone)));
    match data_type {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some(Arc::clone(zone))),
        DataType::List(item) => DataType::List(within(item)),
        DataType::LargeList(item) => DataType::LargeList(within(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(within).collect()),
        other => other.clone(),
    }
}

/// A schema whose timestamps with a time zone are shown in this one, or in UTC.
pub fn schema_in_zone(schema: &SchemaRef, zone: Option<&str>) -> SchemaRef {
    let zone: Arc<str> = zone.unwrap_or("UTC").into();
    let fields = schema.fields().iter().map(|field| {
        let data_type = type_in_zone(field.data_type(), &zone);
        if data_type == *field.data_type() {
            Arc::clone(field)
        } else {
            Arc::new(field.as_ref().clone().with_data_type(data_type))
        }
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone()))
}

/// Rows of a schema that [`schema_in_zone`] has made of theirs.
///
/// # Errors
/// They are of another schema.
pub fn rows_in_zone(batch: &RecordBatch, schema: &SchemaRef) -> std::result::Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() { Ok(Arc::clone(column)) } else { cast(column, field.data_type()) }
    });
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}
