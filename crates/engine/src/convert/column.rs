//! Columns of values, appended string by string.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, LargeBinaryBuilder, LargeStringBuilder, NullBuilder,
    PrimitiveBuilder, StringBuilder, StringViewBuilder,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNanoType, IntervalUnit,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::scalar::ScalarValue;

use super::Misfit::{self, Form, Range};
use super::moment::{self, DAY_MICROS};
use super::{ConversionError, number};
use crate::pg_types::zone::Zone;
use crate::pg_types::{bytea, interval_text};
use crate::{Error, ErrorKind};

/// The treatment of a string that is not a value of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnError {
    /// The conversion fails.
    Fail,
    /// The value is NULL.
    Null,
}

/// Converts a column of strings to typed values.
///
/// # Errors
/// A string is not a value of the type, and `on_error` is [`OnError::Fail`]; or strings cannot be
/// converted to the type.
pub fn parse_column(strings: &ArrayRef, target: &DataType, zone: Zone, on_error: OnError) -> Result<ArrayRef, Error> {
    if let DataType::Dictionary(..) = strings.data_type() {
        let dictionary = strings.as_any_dictionary();
        // Dictionary values that no row refers to may be invalid.
        let values = parse_column(dictionary.values(), target, zone, OnError::Null)?;
        let parsed = take(&values, dictionary.keys(), None)?;
        return match on_error == OnError::Fail && parsed.null_count() > strings.logical_null_count() {
            true => parse_column(&cast(strings, &DataType::Utf8)?, target, zone, on_error),
            false => Ok(parsed),
        };
    }
    let mut parser = ColumnParser::new(target, zone, strings.len()).ok_or_else(|| unread(target))?;
    match strings.data_type() {
        DataType::Utf8 => parser.extend(strings.as_string::<i32>().iter(), on_error)?,
        DataType::LargeUtf8 => parser.extend(strings.as_string::<i64>().iter(), on_error)?,
        DataType::Utf8View => parser.extend(strings.as_string_view().iter(), on_error)?,
        _ => parser.extend(cast(strings, &DataType::Utf8)?.as_string::<i32>().iter(), on_error)?,
    }
    Ok(parser.finish())
}

/// Converts a string to a value of a type.
///
/// # Errors
/// The string is not a value of the type, or strings cannot be converted to the type.
pub fn parse_value(text: &str, target: &DataType, zone: Zone) -> Result<ScalarValue, Error> {
    let mut parser = ColumnParser::new(target, zone, 1).ok_or_else(|| unread(target))?;
    parser.extend(std::iter::once(Some(text)), OnError::Fail)?;
    Ok(ScalarValue::try_from_array(&parser.finish(), 0)?)
}

fn unread(target: &DataType) -> Error {
    Error::new(ErrorKind::Invalid, format!("a string cannot be read as {target}"))
}

/// Appends typed values to a column, from the bytes of their strings.
#[derive(Debug)]
pub struct ColumnParser {
    target: DataType,
    zone: Zone,
    values: Values,
}

type Primitive<T> = PrimitiveBuilder<T>;

/// A builder for each type that strings can be converted to.
#[derive(Debug)]
enum Values {
    Null(NullBuilder),
    Boolean(BooleanBuilder),
    Int8(Primitive<Int8Type>),
    Int16(Primitive<Int16Type>),
    Int32(Primitive<Int32Type>),
    Int64(Primitive<Int64Type>),
    UInt8(Primitive<UInt8Type>),
    UInt16(Primitive<UInt16Type>),
    UInt32(Primitive<UInt32Type>),
    UInt64(Primitive<UInt64Type>),
    Float32(Primitive<Float32Type>),
    Float64(Primitive<Float64Type>),
    Decimal32(Primitive<Decimal32Type>, u8, i8),
    Decimal64(Primitive<Decimal64Type>, u8, i8),
    Decimal128(Primitive<Decimal128Type>, u8, i8),
    Decimal256(Primitive<Decimal256Type>, u8, i8),
    Date32(Primitive<Date32Type>),
    Date64(Primitive<Date64Type>),
    TimeSecond(Primitive<Time32SecondType>),
    TimeMilli(Primitive<Time32MillisecondType>),
    TimeMicro(Primitive<Time64MicrosecondType>),
    TimeNano(Primitive<Time64NanosecondType>),
    Second(Primitive<TimestampSecondType>, HasZone),
    Milli(Primitive<TimestampMillisecondType>, HasZone),
    Micro(Primitive<TimestampMicrosecondType>, HasZone),
    Nano(Primitive<TimestampNanosecondType>, HasZone),
    Interval(Primitive<IntervalMonthDayNanoType>),
    Binary(BinaryBuilder),
    LargeBinary(LargeBinaryBuilder),
    Utf8(StringBuilder),
    LargeUtf8(LargeStringBuilder),
    Utf8View(StringViewBuilder),
}

/// True if a timestamp has a time zone.
type HasZone = bool;

/// Runs an expression on the builder of any variant.
macro_rules! each {
    ($values:expr, $builder:ident => $run:expr) => {
        match $values {
            Values::Null($builder) => $run,
            Values::Boolean($builder) => $run,
            Values::Int8($builder) => $run,
            Values::Int16($builder) => $run,
            Values::Int32($builder) => $run,
            Values::Int64($builder) => $run,
            Values::UInt8($builder) => $run,
            Values::UInt16($builder) => $run,
            Values::UInt32($builder) => $run,
            Values::UInt64($builder) => $run,
            Values::Float32($builder) => $run,
            Values::Float64($builder) => $run,
            Values::Decimal32($builder, ..) => $run,
            Values::Decimal64($builder, ..) => $run,
            Values::Decimal128($builder, ..) => $run,
            Values::Decimal256($builder, ..) => $run,
            Values::Date32($builder) => $run,
            Values::Date64($builder) => $run,
            Values::TimeSecond($builder) => $run,
            Values::TimeMilli($builder) => $run,
            Values::TimeMicro($builder) => $run,
            Values::TimeNano($builder) => $run,
            Values::Second($builder, _) => $run,
            Values::Milli($builder, _) => $run,
            Values::Micro($builder, _) => $run,
            Values::Nano($builder, _) => $run,
            Values::Interval($builder) => $run,
            Values::Binary($builder) => $run,
            Values::LargeBinary($builder) => $run,
            Values::Utf8($builder) => $run,
            Values::LargeUtf8($builder) => $run,
            Values::Utf8View($builder) => $run,
        }
    };
}

/// Returns a builder for values of exactly this type.
fn of<T: ArrowPrimitiveType>(target: &DataType, capacity: usize) -> Primitive<T> {
    PrimitiveBuilder::with_capacity(capacity).with_data_type(target.clone())
}

impl ColumnParser {
    /// Creates a parser. Strings without a zone are in the zone of the session. `None` if strings
    /// cannot be converted to the type.
    pub fn new(target: &DataType, zone: Zone, capacity: usize) -> Option<Self> {
        let values = match target {
            DataType::Null => Values::Null(NullBuilder::new()),
            DataType::Boolean => Values::Boolean(BooleanBuilder::with_capacity(capacity)),
            DataType::Int8 => Values::Int8(of(target, capacity)),
            DataType::Int16 => Values::Int16(of(target, capacity)),
            DataType::Int32 => Values::Int32(of(target, capacity)),
            DataType::Int64 => Values::Int64(of(target, capacity)),
            DataType::UInt8 => Values::UInt8(of(target, capacity)),
            DataType::UInt16 => Values::UInt16(of(target, capacity)),
            DataType::UInt32 => Values::UInt32(of(target, capacity)),
            DataType::UInt64 => Values::UInt64(of(target, capacity)),
            DataType::Float32 => Values::Float32(of(target, capacity)),
            DataType::Float64 => Values::Float64(of(target, capacity)),
            DataType::Decimal32(precision, scale) => Values::Decimal32(of(target, capacity), *precision, *scale),
            DataType::Decimal64(precision, scale) => Values::Decimal64(of(target, capacity), *precision, *scale),
            DataType::Decimal128(precision, scale) => Values::Decimal128(of(target, capacity), *precision, *scale),
            DataType::Decimal256(precision, scale) => Values::Decimal256(of(target, capacity), *precision, *scale),
            DataType::Date32 => Values::Date32(of(target, capacity)),
            DataType::Date64 => Values::Date64(of(target, capacity)),
            DataType::Time32(TimeUnit::Second) => Values::TimeSecond(of(target, capacity)),
            DataType::Time32(TimeUnit::Millisecond) => Values::TimeMilli(of(target, capacity)),
            DataType::Time64(TimeUnit::Microsecond) => Values::TimeMicro(of(target, capacity)),
            DataType::Time64(TimeUnit::Nanosecond) => Values::TimeNano(of(target, capacity)),
            DataType::Timestamp(TimeUnit::Second, zone) => Values::Second(of(target, capacity), zone.is_some()),
            DataType::Timestamp(TimeUnit::Millisecond, zone) => Values::Milli(of(target, capacity), zone.is_some()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => Values::Micro(of(target, capacity), zone.is_some()),
            DataType::Timestamp(TimeUnit::Nanosecond, zone) => Values::Nano(of(target, capacity), zone.is_some()),
            DataType::Interval(IntervalUnit::MonthDayNano) => Values::Interval(of(target, capacity)),
            DataType::Binary => Values::Binary(BinaryBuilder::new()),
            DataType::LargeBinary => Values::LargeBinary(LargeBinaryBuilder::new()),
            DataType::Utf8 => Values::Utf8(StringBuilder::new()),
            DataType::LargeUtf8 => Values::LargeUtf8(LargeStringBuilder::new()),
            DataType::Utf8View => Values::Utf8View(StringViewBuilder::new()),
            _ => return None,
        };
        Some(Self { target: target.clone(), zone, values })
    }

    /// Appends the value of a string.
    ///
    /// # Errors
    /// The string is not a value of the type. Nothing is appended.
    pub fn push(&mut self, text: &[u8]) -> Result<(), Misfit> {
        let zone = self.zone;
        let micros = |has_zone: HasZone| match has_zone {
            true => moment::timestamp_in_zone(text, zone),
            false => moment::timestamp(text),
        };
        let in_units = |has_zone: HasZone, each: i64| micros(has_zone).map(|micros| moment::rounded(micros, each));
        match &mut self.values {
            Values::Null(_) => return Err(Form),
            Values::Boolean(values) => values.append_value(number::boolean(text)?),
            Values::Int8(values) => values.append_value(number::integer(text)?),
            Values::Int16(values) => values.append_value(number::integer(text)?),
            Values::Int32(values) => values.append_value(number::integer(text)?),
            Values::Int64(values) => values.append_value(number::integer(text)?),
            Values::UInt8(values) => values.append_value(number::integer(text)?),
            Values::UInt16(values) => values.append_value(number::integer(text)?),
            Values::UInt32(values) => values.append_value(number::integer(text)?),
            Values::UInt64(values) => values.append_value(number::integer(text)?),
            Values::Float32(values) => values.append_value(number::float(text)?),
            Values::Float64(values) => values.append_value(number::float(text)?),
            Values::Decimal32(values, precision, scale) => {
                values.append_value(narrowed(number::decimal(text, *precision, *scale)?)?);
            }
            Values::Decimal64(values, precision, scale) => {
                values.append_value(narrowed(number::decimal(text, *precision, *scale)?)?);
            }
            Values::Decimal128(values, precision, scale) => {
                values.append_value(number::decimal(text, *precision, *scale)?);
            }
            Values::Decimal256(values, precision, scale) => {
                values.append_value(number::decimal(text, *precision, *scale)?);
            }
            Values::Date32(values) => values.append_value(moment::date(text)?),
            Values::Date64(values) => values.append_value(i64::from(moment::date(text)?) * (DAY_MICROS / 1000)),
            Values::TimeSecond(values) => values.append_value(narrowed(rounded_time(text, 1_000_000)?.into())?),
            Values::TimeMilli(values) => values.append_value(narrowed(rounded_time(text, 1000)?.into())?),
            Values::TimeMicro(values) => values.append_value(moment::time(text)?),
            Values::TimeNano(values) => values.append_value(moment::time(text)? * 1000),
            Values::Second(values, has_zone) => values.append_value(in_units(*has_zone, 1_000_000)?),
            Values::Milli(values, has_zone) => values.append_value(in_units(*has_zone, 1000)?),
            Values::Micro(values, has_zone) => values.append_value(micros(*has_zone)?),
            Values::Nano(values, has_zone) => values.append_value(match has_zone {
                true => moment::timestamp_nanos_in_zone(text, zone)?,
                false => moment::timestamp_nanos(text)?,
            }),
            Values::Interval(values) => values.append_value(interval_text::parse(utf8(text)?).ok_or(Form)?),
            Values::Binary(values) => values.append_value(bytea::bytes(utf8(text)?).ok_or(Form)?),
            Values::LargeBinary(values) => values.append_value(bytea::bytes(utf8(text)?).ok_or(Form)?),
            Values::Utf8(values) => values.append_value(utf8(text)?),
            Values::LargeUtf8(values) => values.append_value(utf8(text)?),
            Values::Utf8View(values) => values.append_value(utf8(text)?),
        }
        Ok(())
    }

    /// Appends NULL.
    pub fn push_null(&mut self) {
        each!(&mut self.values, values => values.append_null());
    }

    /// Returns the column, and starts a new one.
    pub fn finish(&mut self) -> ArrayRef {
        each!(&mut self.values, values => Arc::new(values.finish()))
    }

    /// Appends the values of all strings.
    fn extend<'a>(
        &mut self,
        texts: impl Iterator<Item = Option<&'a str>>,
        on_error: OnError,
    ) -> Result<(), ConversionError> {
        for (row, text) in texts.enumerate() {
            let Some(text) = text else {
                self.push_null();
                continue;
            };
            match (self.push(text.as_bytes()), on_error) {
                (Ok(()), _) => {}
                (Err(_), OnError::Null) => self.push_null(),
                (Err(misfit), OnError::Fail) => {
                    return Err(ConversionError { row, text: text.into(), target: self.target.clone(), misfit });
                }
            }
        }
        Ok(())
    }
}

/// Returns a time of day in units of `each` microseconds.
fn rounded_time(text: &[u8], each: i64) -> Result<i64, Misfit> {
    Ok((moment::time(text)? + each / 2) / each)
}

fn narrowed<T: TryFrom<i128>>(value: i128) -> Result<T, Misfit> {
    T::try_from(value).map_err(|_| Range)
}

fn utf8(text: &[u8]) -> Result<&str, Misfit> {
    std::str::from_utf8(text).map_err(|_| Form)
}
