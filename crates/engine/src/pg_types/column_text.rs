//! Columns of values as strings in PostgreSQL's format, for `CAST(x AS VARCHAR)` and for shells.
//! [`nested_text`] formats lists, structs and maps.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, PrimitiveArray, RecordBatch,
    RecordBatchOptions, StringArray, StructArray,
};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Field, Fields, Float32Type, Float64Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, Schema, SchemaRef, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::zone::Zone;
use super::{interval_text, nested_text, text};
use crate::{Error, ErrorKind, Result};

/// A value without a string is an error, not NULL.
const CHECKED: CastOptions<'static> = CastOptions { safe: false, format_options: FormatOptions::new() };

/// Returns whether this module formats values of a type instead of Arrow.
pub fn is_written(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(..) | DataType::Duration(_) | DataType::Interval(_) => true,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => true,
        data_type => matches!(data_type, DataType::Float32 | DataType::Float64),
    }
}

/// The days from 1970 of the years 1 to 9999, whose dates Arrow writes as SQL does. It writes
/// others as `-0043-03-15` and `+12000-01-01`, which no cast reads. It fails for dates beyond its
/// calendar of 262,142 years.
const PLAIN_DAYS: RangeInclusive<i64> = -719_162..=2_932_896;

/// Returns the number of units in a day of a type of dates or timestamps.
fn units_of_day(data_type: &DataType) -> Option<i64> {
    Some(match data_type {
        DataType::Date32 => 1,
        DataType::Date64 => 86_400_000,
        DataType::Timestamp(TimeUnit::Second, _) => 86_400,
        DataType::Timestamp(TimeUnit::Millisecond, _) => 86_400_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 86_400_000_000,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 86_400_000_000_000,
        _ => return None,
    })
}

/// Returns for each date or timestamp of a column whether Arrow's format differs from SQL's.
/// Returns `None` if all agree.
fn far(values: &ArrayRef) -> Result<Option<Vec<bool>>> {
    let Some(units) = units_of_day(values.data_type()) else { return Ok(None) };
    let integers = match values.data_type() {
        DataType::Date32 => cast(&cast(values, &DataType::Int32)?, &DataType::Int64)?,
        _ => cast(values, &DataType::Int64)?,
    };
    // The offset of a zone from UTC is less than a day.
    let zone_days = i64::from(matches!(values.data_type(), DataType::Timestamp(_, Some(_))));
    let plain = PLAIN_DAYS.start() + zone_days..=PLAIN_DAYS.end() - zone_days;
    let is_far = |value: Option<i64>| value.is_some_and(|value| !plain.contains(&value.div_euclid(units)));
    let far: Vec<bool> = integers.as_primitive::<Int64Type>().iter().map(is_far).collect();
    Ok(far.contains(&true).then_some(far))
}

/// The day from 1970 since which no zone's offset from UTC has seconds.
const WHOLE_MINUTES_DAY: i64 = 1096;
const MICROS_OF_DAY: i128 = 86_400_000_000;

/// Returns whether a moment's offset from UTC has seconds in a zone, which Arrow does not write.
/// Berlin was 53 minutes and 28 seconds ahead until 1893.
fn has_seconds(values: &ArrayRef, zone: &str) -> Result<bool> {
    let (Some(units), Some(zone)) = (units_of_day(values.data_type()), Zone::of_arrow(zone)) else { return Ok(false) };
    let integers = cast(values, &DataType::Int64)?;
    let mut moments = integers.as_primitive::<Int64Type>().iter().flatten();
    let micros = |moment: i64| (i128::from(moment) * MICROS_OF_DAY).div_euclid(i128::from(units));
    let is_odd = |moment| i64::try_from(micros(moment)).is_ok_and(|micros| zone.offset_seconds(micros) % 60 != 0);
    Ok(moments.any(|moment| moment.div_euclid(units) < WHOLE_MINUTES_DAY && is_odd(moment)))
}

/// Prepares a column for Arrow to write. Dates and timestamps before the year 1 and after 9999
/// become the strings of a cast to VARCHAR, also within lists, structs and maps. Moments become UTC
/// if an offset of their zone has seconds.
///
/// # Errors
/// Fails if a value has no string.
pub fn with_far_texts(values: &ArrayRef) -> Result<ArrayRef> {
    let typed =
        |item: &Arc<Field>, items: &ArrayRef| Arc::new(item.as_ref().clone().with_data_type(items.data_type().clone()));
    Ok(match values.data_type() {
        DataType::List(item) => {
            let lists = values.as_list::<i32>();
            let items = with_far_texts(lists.values())?;
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            Arc::new(ListArray::try_new(typed(item, &items), offsets, items, nulls)?)
        }
        DataType::LargeList(item) => {
            let lists = values.as_list::<i64>();
            let items = with_far_texts(lists.values())?;
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            Arc::new(LargeListArray::try_new(typed(item, &items), offsets, items, nulls)?)
        }
        DataType::FixedSizeList(item, length) => {
            let lists = values.as_fixed_size_list();
            let items = with_far_texts(lists.values())?;
            let made = FixedSizeListArray::try_new_with_length(
                typed(item, &items),
                *length,
                items,
                lists.nulls().cloned(),
                lists.len(),
            );
            Arc::new(made?)
        }
        DataType::Struct(_) => Arc::new(struct_with_far_texts(values.as_struct())?),
        DataType::Map(entries, is_sorted) => {
            let maps = values.as_map();
            let pairs = struct_with_far_texts(maps.entries())?;
            let field = Arc::new(entries.as_ref().clone().with_data_type(pairs.data_type().clone()));
            Arc::new(MapArray::try_new(field, maps.offsets().clone(), pairs, maps.nulls().cloned(), *is_sorted)?)
        }
        DataType::Dictionary(_, plain) if units_of_day(plain).is_some() => with_far_texts(&cast(values, plain)?)?,
        DataType::Timestamp(unit, Some(zone)) if has_seconds(values, zone)? => {
            with_far_texts(&cast(values, &DataType::Timestamp(*unit, Some("UTC".into())))?)?
        }
        _ => match far(values)? {
            Some(far) => Arc::new(far_texts(values, &far)?),
            None => Arc::clone(values),
        },
    })
}

fn struct_with_far_texts(values: &StructArray) -> Result<StructArray> {
    let members = values.columns().iter().map(with_far_texts).collect::<Result<Vec<_>>>()?;
    let fields = values.fields().iter().zip(&members);
    let fields = fields.map(|(field, member)| field.as_ref().clone().with_data_type(member.data_type().clone()));
    let fields: Fields = fields.collect();
    Ok(StructArray::try_new_with_length(fields, members, values.nulls().cloned(), values.len())?)
}

/// Returns the strings of a cast for the values that are far, and Arrow's for the others.
fn far_texts(values: &ArrayRef, far: &[bool]) -> Result<StringArray> {
    let cast_texts = texts_of_any(values, None)?;
    let cast_texts = cast_texts.as_string::<i32>();
    let options = FormatOptions::new().with_display_error(false);
    let arrow = ArrayFormatter::try_new(values, &options)?;
    let text = |(row, is_far): (usize, &bool)| match (cast_texts.is_null(row), is_far) {
        (true, _) => Ok(None),
        (_, true) => Ok(Some(cast_texts.value(row).to_string())),
        (_, false) => arrow.value(row).try_to_string().map(Some),
    };
    Ok(far.iter().enumerate().map(text).collect::<std::result::Result<StringArray, ArrowError>>()?)
}

/// Returns rows [with far texts](with_far_texts). They keep the names of the schema.
///
/// # Errors
/// Fails if a value has no string.
pub fn rows_with_far_texts(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(with_far_texts).collect::<Result<Vec<_>>>()?;
    let fields = schema.fields().iter().zip(&columns);
    let fields = fields.map(|(field, column)| match field.data_type() == column.data_type() {
        true => Arc::clone(field),
        false => Arc::new(field.as_ref().clone().with_data_type(column.data_type().clone())),
    });
    let schema = Arc::new(Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// Returns the strings of a column whose type [`is_written`] here, in a session of this zone.
/// Returns `None` for another type.
///
/// # Errors
/// Fails if a duration, or a timestamp in seconds, overflows microseconds.
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
        DataType::Time32(_) | DataType::Time64(_) => all(&nanoseconds_of_times(values)?, text::time_nanos),
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

/// Returns whether a type contains bytes.
pub(crate) fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

/// Returns the strings of a column of any type, in a session of this zone. Without a zone, moments
/// are in the zones of their types.
///
/// # Errors
/// Fails if a value has no string.
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

/// Casts times to nanoseconds. Arrow's cast multiplies without a check, and files may contain times
/// of any length.
fn nanoseconds_of_times(values: &ArrayRef) -> Result<PrimitiveArray<Time64NanosecondType>> {
    if let DataType::Time64(TimeUnit::Microsecond) = values.data_type() {
        let too_long =
            |micros| Error::new(ErrorKind::Data, format!("a time of {micros} microseconds is longer than a day"));
        let nanoseconds = |micros: i64| micros.checked_mul(1000).ok_or_else(|| too_long(micros));
        return values.as_primitive::<Time64MicrosecondType>().try_unary(nanoseconds);
    }
    let values = cast(values, &DataType::Time64(TimeUnit::Nanosecond))?;
    Ok(values.as_primitive::<Time64NanosecondType>().clone())
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

/// Returns a type with the zone of its timestamps with a time zone replaced, by Arrow's name.
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

/// Returns a schema with the zone of its timestamps with a time zone replaced by this one, or UTC.
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

/// Casts rows to a schema that [`schema_in_zone`] has made of theirs.
///
/// # Errors
/// Fails if the rows have another schema.
pub fn rows_in_zone(batch: &RecordBatch, schema: &SchemaRef) -> std::result::Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() { Ok(Arc::clone(column)) } else { cast(column, field.data_type()) }
    });
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{Date32Array, TimestampMicrosecondArray};
    use arrow::buffer::OffsetBuffer;

    use super::*;

    fn strings(values: &ArrayRef) -> Vec<Option<&str>> {
        values.as_string::<i32>().iter().collect()
    }

    #[test]
    fn dates_that_arrow_writes_otherwise_are_strings() {
        let near: ArrayRef = Arc::new(Date32Array::from(vec![Some(-719_162), None, Some(2_932_896)]));
        assert!(Arc::ptr_eq(&with_far_texts(&near).unwrap(), &near));
        let far: ArrayRef = Arc::new(Date32Array::from(vec![-735_160, 0, 3_663_546, 95_026_602, i32::MAX]));
        let expected = ["0044-03-15 BC", "1970-01-01", "12000-06-13", "262144-01-01", "infinity"].map(Some);
        let texts = with_far_texts(&far).unwrap();
        assert_eq!(strings(&texts), expected);
        let moments = vec![Some(0), None, Some(300_000_000_000_000_000)];
        let moments: ArrayRef = Arc::new(TimestampMicrosecondArray::from(moments).with_timezone("UTC"));
        let texts = with_far_texts(&moments).unwrap();
        assert_eq!(strings(&texts), [Some("1970-01-01T00:00:00Z"), None, Some("11476-08-15 05:20:00+00")]);
    }

    #[test]
    fn dates_within_others_are_strings_as_well() {
        let far: ArrayRef = Arc::new(Date32Array::from(vec![0, 95_026_602]));
        let item = Arc::new(Field::new_list_field(DataType::Date32, true));
        let list: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1, 1]), far, None));
        let pair: ArrayRef = Arc::new(StructArray::from(vec![(
            Arc::new(Field::new("l", list.data_type().clone(), true)),
            Arc::clone(&list),
        )]));
        let shown = with_far_texts(&pair).unwrap();
        let list = shown.as_struct().column(0).as_list::<i32>();
        assert_eq!(strings(list.values()), [Some("1970-01-01"), Some("262144-01-01")]);
        let schema = Arc::new(Schema::new(vec![Field::new("p", pair.data_type().clone(), true)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![pair]).unwrap();
        assert_eq!(rows_with_far_texts(&batch, &schema).unwrap().column(0).data_type(), shown.data_type());
    }
}
