//! Arrow's values as Python's. What Python has no room for is an error, and nothing is rounded.

use std::sync::Arc;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use onehop_engine::arrow::array::{Array, ArrayRef, AsArray, ListLikeArray, MapArray, StructArray};
use onehop_engine::arrow::compute::cast;
use onehop_engine::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DecimalType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTimeType,
    IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyList, PyString, PyTime};

use crate::error;

/// A value, or NULL as `None`.
type Object<'py> = Bound<'py, PyAny>;

const SECOND_NS: i64 = 1_000_000_000;

/// All values of a column.
pub fn column<'py>(py: Python<'py>, array: &ArrayRef, name: &str) -> PyResult<Vec<Object<'py>>> {
    Column { py, name }.values(array)
}

/// A column on its way to Python, by its name in errors.
#[derive(Clone, Copy)]
struct Column<'py, 'a> {
    py: Python<'py>,
    name: &'a str,
}

impl<'py> Column<'py, '_> {
    fn values(self, array: &ArrayRef) -> PyResult<Vec<Object<'py>>> {
        use DataType as T;
        let py = self.py;
        match array.data_type() {
            T::Null => Ok(vec![py.None().into_bound(py); array.len()]),
            T::Boolean => self.each(array, |row| object(py, array.as_boolean().value(row))),
            T::Int8 => self.numbers::<Int8Type>(array),
            T::Int16 => self.numbers::<Int16Type>(array),
            T::Int32 => self.numbers::<Int32Type>(array),
            T::Int64 => self.numbers::<Int64Type>(array),
            T::UInt8 => self.numbers::<UInt8Type>(array),
            T::UInt16 => self.numbers::<UInt16Type>(array),
            T::UInt32 => self.numbers::<UInt32Type>(array),
            T::UInt64 => self.numbers::<UInt64Type>(array),
            T::Float16 => self.primitives::<Float16Type>(array, |number| object(py, number.to_f64())),
            T::Float32 => self.numbers::<Float32Type>(array),
            T::Float64 => self.numbers::<Float64Type>(array),
            T::Decimal32(..) => self.decimals::<Decimal32Type>(array),
            T::Decimal64(..) => self.decimals::<Decimal64Type>(array),
            T::Decimal128(..) => self.decimals::<Decimal128Type>(array),
            T::Decimal256(..) => self.decimals::<Decimal256Type>(array),
            T::Utf8 => self.each(array, |row| text(py, array.as_string::<i32>().value(row))),
            T::LargeUtf8 => self.each(array, |row| text(py, array.as_string::<i64>().value(row))),
            T::Utf8View => self.each(array, |row| text(py, array.as_string_view().value(row))),
            T::Binary => self.each(array, |row| bytes(py, array.as_binary::<i32>().value(row))),
            T::LargeBinary => self.each(array, |row| bytes(py, array.as_binary::<i64>().value(row))),
            T::BinaryView => self.each(array, |row| bytes(py, array.as_binary_view().value(row))),
            T::FixedSizeBinary(_) => self.each(array, |row| bytes(py, array.as_fixed_size_binary().value(row))),
            T::Date32 => self.primitives::<Date32Type>(array, |days| self.date(i64::from(days))),
            T::Date64 => self.primitives::<Date64Type>(array, |ms| self.date(ms.div_euclid(86_400_000))),
            T::Time32(TimeUnit::Second) => {
                self.primitives::<Time32SecondType>(array, |n| self.time(i64::from(n) * SECOND_NS))
            }
            T::Time32(_) => self.primitives::<Time32MillisecondType>(array, |n| self.time(i64::from(n) * 1_000_000)),
            T::Time64(TimeUnit::Nanosecond) => self.primitives::<Time64NanosecondType>(array, |n| self.time(n)),
            T::Time64(_) => self.primitives::<Time64MicrosecondType>(array, |n| self.time(n.saturating_mul(1000))),
            T::Timestamp(unit, zone) => self.timestamps(array, *unit, zone.as_deref()),
            T::Duration(unit) => self.durations(array, *unit),
            T::Interval(unit) => self.intervals(array, *unit),
            T::List(_) => self.lists(array.as_list::<i32>()),
            T::LargeList(_) => self.lists(array.as_list::<i64>()),
            T::ListView(_) => self.lists(array.as_list_view::<i32>()),
            T::LargeListView(_) => self.lists(array.as_list_view::<i64>()),
            T::FixedSizeList(..) => self.lists(array.as_fixed_size_list()),
            T::Struct(_) => self.structs(array.as_struct()),
            T::Map(..) => self.maps(array.as_map()),
            T::Dictionary(_, plain) => self.values(&self.cast(array, plain)?),
            T::RunEndEncoded(_, plain) => self.values(&self.cast(array, plain.data_type())?),
            other => Err(self.refused(format!("type {other} has no value in Python"))),
        }
    }

    fn each(self, array: &ArrayRef, value: impl Fn(usize) -> PyResult<Object<'py>>) -> PyResult<Vec<Object<'py>>> {
        let none = self.py.None().into_bound(self.py);
        (0..array.len()).map(|row| if array.is_null(row) { Ok(none.clone()) } else { value(row) }).collect()
    }

    fn primitives<T: ArrowPrimitiveType>(
        self,
        array: &ArrayRef,
        value: impl Fn(T::Native) -> PyResult<Object<'py>>,
    ) -> PyResult<Vec<Object<'py>>> {
        let array_of = array.as_primitive::<T>();
        self.each(array, |row| value(array_of.value(row)))
    }

    fn numbers<T: ArrowPrimitiveType<Native: IntoPyObject<'py>>>(self, array: &ArrayRef) -> PyResult<Vec<Object<'py>>> {
        self.primitives::<T>(array, |number| object(self.py, number))
    }

    fn decimals<T: DecimalType>(self, array: &ArrayRef) -> PyResult<Vec<Object<'py>>> {
        let decimal = self.py.import("decimal")?.getattr("Decimal")?;
        let array_of = array.as_primitive::<T>();
        self.each(array, |row| decimal.call1((array_of.value_as_string(row),)))
    }

    fn date(self, days: i64) -> PyResult<Object<'py>> {
        let date = NaiveDate::from_epoch_days(i32::try_from(days).unwrap_or(i32::MAX)).filter(has_year);
        let Some(date) = date else { return Err(self.no_room(format!("the date {days} days after 1970-01-01"))) };
        Ok(PyDate::new(self.py, date.year(), date.month() as u8, date.day() as u8)?.into_any())
    }

    fn time(self, ns: i64) -> PyResult<Object<'py>> {
        let seconds = u32::try_from(ns.div_euclid(SECOND_NS)).unwrap_or(u32::MAX);
        let time = NaiveTime::from_num_seconds_from_midnight_opt(seconds, ns.rem_euclid(SECOND_NS) as u32);
        let Some(time) = time else { return Err(self.no_room(format!("the time {ns} ns after midnight"))) };
        let microsecond = self.microseconds(i64::from(time.nanosecond()))? as u32;
        let (hour, minute, second) = (time.hour() as u8, time.minute() as u8, time.second() as u8);
        Ok(PyTime::new(self.py, hour, minute, second, microsecond, None)?.into_any())
    }

    fn timestamps(self, array: &ArrayRef, unit: TimeUnit, zone: Option<&str>) -> PyResult<Vec<Object<'py>>> {
        let zone = zone.map(|zone| self.zone(zone)).transpose()?;
        match unit {
            TimeUnit::Second => self.primitives::<TimestampSecondType>(array, |n| {
                self.timestamp(DateTime::from_timestamp(n, 0), n, zone.as_ref())
            }),
            TimeUnit::Millisecond => self.primitives::<TimestampMillisecondType>(array, |n| {
                self.timestamp(DateTime::from_timestamp_millis(n), n, zone.as_ref())
            }),
            TimeUnit::Microsecond => self.primitives::<TimestampMicrosecondType>(array, |n| {
                self.timestamp(DateTime::from_timestamp_micros(n), n, zone.as_ref())
            }),
            TimeUnit::Nanosecond => self.primitives::<TimestampNanosecondType>(array, |n| {
                self.timestamp(Some(DateTime::from_timestamp_nanos(n)), n, zone.as_ref())
            }),
        }
    }

    /// A moment in UTC, of so many units, in a time zone if it has one.
    fn timestamp(
        self,
        moment: Option<DateTime<chrono::Utc>>,
        units: i64,
        zone: Option<&Object<'py>>,
    ) -> PyResult<Object<'py>> {
        let moment: Option<NaiveDateTime> = moment.map(|moment| moment.naive_utc());
        let Some(moment) = moment.filter(|moment| has_year(&moment.date())) else {
            return Err(self.no_room(format!("the timestamp {units}")));
        };
        let microsecond = self.microseconds(i64::from(moment.nanosecond()))? as u32;
        let (month, day) = (moment.month() as u8, moment.day() as u8);
        let (hour, minute, second) = (moment.hour() as u8, moment.minute() as u8, moment.second() as u8);
        let utc = zone.map(|_| self.utc()).transpose()?;
        let utc = utc.as_ref().map(|utc| utc.cast()).transpose()?;
        let made = PyDateTime::new(self.py, moment.year(), month, day, hour, minute, second, microsecond, utc)?;
        match zone {
            None => Ok(made.into_any()),
            Some(zone) => made.call_method1("astimezone", (zone,)),
        }
    }

    fn utc(self) -> PyResult<Object<'py>> {
        self.py.import("datetime")?.getattr("timezone")?.getattr("utc")
    }

    /// A time zone by its name, or its offset: `+05:30`.
    fn zone(self, name: &str) -> PyResult<Object<'py>> {
        if name.eq_ignore_ascii_case("utc") || name == "+00:00" || name == "Z" {
            return self.utc();
        }
        if name.starts_with(['+', '-']) {
            let parsed = self.py.import("datetime")?.getattr("datetime")?.call_method1("strptime", (name, "%z"))?;
            return parsed.getattr("tzinfo");
        }
        self.py.import("zoneinfo")?.getattr("ZoneInfo")?.call1((name,))
    }

    fn durations(self, array: &ArrayRef, unit: TimeUnit) -> PyResult<Vec<Object<'py>>> {
        match unit {
            TimeUnit::Second => self.primitives::<DurationSecondType>(array, |n| self.delta(i128::from(n) * 1_000_000)),
            TimeUnit::Millisecond => {
                self.primitives::<DurationMillisecondType>(array, |n| self.delta(i128::from(n) * 1000))
            }
            TimeUnit::Microsecond => self.primitives::<DurationMicrosecondType>(array, |n| self.delta(i128::from(n))),
            TimeUnit::Nanosecond => {
                self.primitives::<DurationNanosecondType>(array, |n| self.delta(i128::from(self.microseconds(n)?)))
            }
        }
    }

    fn delta(self, microseconds: i128) -> PyResult<Object<'py>> {
        const DAY: i128 = 86_400_000_000;
        let rest = microseconds.rem_euclid(DAY);
        let days = i32::try_from(microseconds.div_euclid(DAY)).ok().filter(|days| days.abs() <= 999_999_999);
        let Some(days) = days else { return Err(self.no_room(format!("{microseconds} microseconds"))) };
        Ok(PyDelta::new(self.py, days, (rest / 1_000_000) as i32, (rest % 1_000_000) as i32, false)?.into_any())
    }

    fn intervals(self, array: &ArrayRef, unit: IntervalUnit) -> PyResult<Vec<Object<'py>>> {
        match unit {
            IntervalUnit::YearMonth => self.primitives::<IntervalYearMonthType>(array, |n| self.interval(n, 0, 0)),
            IntervalUnit::DayTime => self.primitives::<IntervalDayTimeType>(array, |n| {
                self.interval(0, n.days, i64::from(n.milliseconds) * 1_000_000)
            }),
            IntervalUnit::MonthDayNano => {
                self.primitives::<IntervalMonthDayNanoType>(array, |n| self.interval(n.months, n.days, n.nanoseconds))
            }
        }
    }

    /// A `timedelta` has days of 24 hours and whole microseconds: what has months, or less, is an interval of ours.
    fn interval(self, months: i32, days: i32, nanoseconds: i64) -> PyResult<Object<'py>> {
        if months == 0 && nanoseconds % 1000 == 0 && days.unsigned_abs() < 900_000_000 {
            return self.delta(i128::from(days) * 86_400_000_000 + i128::from(nanoseconds / 1000));
        }
        self.py.import("onehop.interval")?.getattr("Interval")?.call1((months, days, nanoseconds))
    }

    fn lists(self, lists: &impl ListLikeArray) -> PyResult<Vec<Object<'py>>> {
        let list = |row: usize| match lists.is_null(row) {
            true => Ok(self.py.None().into_bound(self.py)),
            false => {
                let range = lists.element_range(row);
                let values = self.values(&lists.values().slice(range.start, range.len()))?;
                Ok(PyList::new(self.py, values)?.into_any())
            }
        };
        (0..lists.len()).map(list).collect()
    }

    fn structs(self, structs: &StructArray) -> PyResult<Vec<Object<'py>>> {
        let members = structs.columns().iter().map(|member| self.values(member)).collect::<PyResult<Vec<_>>>()?;
        let one = |row: usize| {
            if structs.is_null(row) {
                return Ok(self.py.None().into_bound(self.py));
            }
            let dict = PyDict::new(self.py);
            for (field, member) in structs.fields().iter().zip(&members) {
                dict.set_item(field.name(), &member[row])?;
            }
            Ok(dict.into_any())
        };
        (0..structs.len()).map(one).collect()
    }

    /// As lists of pairs: a map may have a key twice, and keys that no dict can have.
    fn maps(self, maps: &MapArray) -> PyResult<Vec<Object<'py>>> {
        let one = |row: usize| {
            if maps.is_null(row) {
                return Ok(self.py.None().into_bound(self.py));
            }
            let entries = maps.value(row);
            let (keys, values) = (self.values(entries.column(0))?, self.values(entries.column(1))?);
            Ok(PyList::new(self.py, keys.into_iter().zip(values))?.into_any())
        };
        (0..maps.len()).map(one).collect()
    }

    fn cast(self, array: &ArrayRef, to: &DataType) -> PyResult<ArrayRef> {
        cast(&Arc::clone(array), to).map_err(|e| self.refused(e.to_string()))
    }

    /// Nanoseconds that are microseconds as well.
    fn microseconds(self, ns: i64) -> PyResult<i64> {
        match ns % 1000 {
            0 => Ok(ns / 1000),
            _ => Err(self.no_room(format!("{ns} nanoseconds"))),
        }
    }

    fn no_room(self, what: String) -> PyErr {
        self.refused(format!("Python has no value for {what}"))
    }

    fn refused(self, what: String) -> PyErr {
        let message = format!("column \"{}\": {what}", self.name);
        error::data(self.py, message, "arrow() has all values as they are; CAST in the query makes others of them")
    }
}

fn has_year(date: &NaiveDate) -> bool {
    (1..=9999).contains(&date.year())
}

fn object<'py>(py: Python<'py>, value: impl IntoPyObject<'py>) -> PyResult<Object<'py>> {
    value.into_bound_py_any(py)
}

fn text<'py>(py: Python<'py>, value: &str) -> PyResult<Object<'py>> {
    Ok(PyString::new(py, value).into_any())
}

fn bytes<'py>(py: Python<'py>, value: &[u8]) -> PyResult<Object<'py>> {
    Ok(PyBytes::new(py, value).into_any())
}
