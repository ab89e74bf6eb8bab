//! Upper bounds in bytes for the result of a call, computed from its arguments.
//!
//! Most functions return at most a small multiple of their arguments. The functions listed here
//! multiply: the lengths of their arguments with each other, or a length with a number.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit};
use datafusion::common::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};

use super::own_memory::values_bytes;

/// The bytes of a result row beside its value.
const ROW_BYTES: u64 = 16;

/// The result of a function that does not multiply, as a multiple of its arguments.
const TIMES: u64 = 4;

/// The letters that one letter of a format becomes, at most: the full name of a month.
const FORMAT_TIMES: u64 = 16;

/// Returns the bytes that a call makes, at most.
pub(super) fn estimate(name: &str, call: &ScalarFunctionArgs) -> Result<u64> {
    let args = call.args.as_slice();
    let rows = match args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_))) {
        true => 1,
        false => call.number_rows,
    };
    let made = match (name, args) {
        ("repeat", [text, count, ..]) => per_row(rows, &[lengths(text)?, counts(count)?], |row| times(row[0], row[1])),
        ("lpad" | "rpad", [text, count, ..]) => {
            per_row(rows, &[lengths(text)?, counts(count)?], |row| row[0].max(times(row[1], 4)))
        }
        // Each letter, and each gap between two letters, may become the replacement.
        ("replace" | "regexp_replace", [text, _, with, ..]) => {
            let made = |row: &[u64]| row[0].saturating_add(times(row[0].saturating_add(1), row[1]));
            per_row(rows, &[lengths(text)?, lengths(with)?], made)
        }
        ("translate", [text, ..]) => per_row(rows, &[lengths(text)?], |row| times(row[0], 4)),
        ("to_char", [_, format, ..]) => per_row(rows, &[lengths(format)?], |row| times(row[0], FORMAT_TIMES)),
        ("array_to_string" | "list_to_string" | "array_join" | "list_join", [list, with, ..]) => {
            let made = |row: &[u64]| times(row[0], row[1].saturating_add(32));
            per_row(rows, &[items(list)?, lengths(with)?], made).saturating_add(bytes_of(list))
        }
        ("concat_ws", [with, ..]) => {
            let made = |row: &[u64]| times(row[0], args.len() as u64);
            per_row(rows, &[lengths(with)?], made).saturating_add(all_bytes(args, rows))
        }
        ("array_repeat" | "list_repeat", [value, count]) => {
            per_row(rows, &[average(value, rows), counts(count)?], |row| times(row[0], row[1]))
        }
        ("array_resize" | "list_resize", [list, size, ..]) => {
            let item = args.get(2).map_or(8, |value| average(value, rows).at(0)).max(8);
            per_row(rows, &[counts(size)?], |row| times(row[0], item)).saturating_add(bytes_of(list))
        }
        ("range" | "generate_series", [stop]) => per_row(rows, &[counts(stop)?], |row| times(row[0], 8)),
        ("range" | "generate_series", [start, stop, rest @ ..]) => series(rows, start, stop, rest.first())?,
        ("string_to_array" | "string_to_list", [text, ..]) => per_row(rows, &[lengths(text)?], |row| times(row[0], 24)),
        _ => times(all_bytes(args, rows), TIMES),
    };
    Ok(made.saturating_add(times(rows as u64, ROW_BYTES)))
}

fn times(a: u64, b: u64) -> u64 {
    a.saturating_mul(b)
}

/// Returns the sum of `made` over all rows, plus its largest value once more. A function builds
/// each value beside the result and then copies it.
fn per_row(rows: usize, columns: &[Numbers], made: impl Fn(&[u64]) -> u64) -> u64 {
    let mut numbers = vec![0; columns.len()];
    let row = |row| {
        numbers.iter_mut().zip(columns).for_each(|(number, column)| *number = column.at(row));
        made(&numbers)
    };
    let add = |(sum, largest): (u64, u64), made: u64| (sum.saturating_add(made), largest.max(made));
    let (sum, largest) = (0..rows).map(row).fold((0, 0), add);
    sum.saturating_add(largest)
}

/// A number for each row. NULL and negative numbers count as 0.
#[derive(Debug)]
pub(super) enum Numbers {
    One(u64),
    Each(Vec<u64>),
}

impl Numbers {
    /// Returns whether all rows share one number.
    pub fn is_one(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Returns the number of a row.
    pub fn at(&self, row: usize) -> u64 {
        match self {
            Self::One(number) => *number,
            Self::Each(all) => all.get(row).copied().unwrap_or(0),
        }
    }

    fn of(value: &ColumnarValue, numbers: impl Fn(&ArrayRef) -> Result<ArrayRef>) -> Result<Self> {
        let (array, is_one) = match value {
            ColumnarValue::Array(array) => (Arc::clone(array), false),
            ColumnarValue::Scalar(value) => (value.to_array()?, true),
        };
        let numbers = cast(&numbers(&array)?, &DataType::Int64)?;
        let numbers = numbers.as_primitive::<Int64Type>().iter();
        let all: Vec<u64> = numbers.map(|number| u64::try_from(number.unwrap_or(0)).unwrap_or(0)).collect();
        Ok(match (is_one, all.first()) {
            (true, first) => Self::One(first.copied().unwrap_or(0)),
            _ => Self::Each(all),
        })
    }
}

/// Returns the lengths of strings, in bytes.
pub(super) fn lengths(value: &ColumnarValue) -> Result<Numbers> {
    match value.data_type() {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => Numbers::of(value, |array| Ok(length(array)?)),
        _ => Ok(average(value, 1)),
    }
}

/// Returns the length of the longest string in bytes, or 0 if the type is not a string.
pub(super) fn longest(value: &ColumnarValue) -> Result<u64> {
    Ok(match value.data_type().is_string() {
        true => match lengths(value)? {
            Numbers::One(length) => length,
            Numbers::Each(lengths) => lengths.into_iter().max().unwrap_or(0),
        },
        false => 0,
    })
}

/// Returns the values of a numeric column.
pub(super) fn counts(value: &ColumnarValue) -> Result<Numbers> {
    match value.data_type().is_numeric() {
        true => Numbers::of(value, |array| Ok(Arc::clone(array))),
        false => Ok(Numbers::One(0)),
    }
}

/// Returns the number of items of each list.
fn items(value: &ColumnarValue) -> Result<Numbers> {
    Ok(match value {
        ColumnarValue::Array(array) => {
            Numbers::Each((0..array.len()).map(|row| items_of(array.as_ref(), row)).collect())
        }
        ColumnarValue::Scalar(scalar) => Numbers::One(items_of(scalar.to_array()?.as_ref(), 0)),
    })
}

/// Returns the number of items of a row's list, or 1 if the type is not a list.
pub(super) fn items_of(array: &dyn Array, row: usize) -> u64 {
    match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::List(_) => array.as_list::<i32>().value_length(row) as u64,
        DataType::LargeList(_) => array.as_list::<i64>().value_length(row) as u64,
        DataType::FixedSizeList(_, length) => *length as u64,
        _ => 1,
    }
}

/// Returns the bytes of a value.
pub(super) fn bytes_of(value: &ColumnarValue) -> u64 {
    match value {
        ColumnarValue::Array(array) => values_bytes(array.as_ref()) as u64,
        ColumnarValue::Scalar(scalar) => scalar.to_array().map_or(0, |array| values_bytes(array.as_ref()) as u64),
    }
}

/// Returns the average bytes of a value.
fn average(value: &ColumnarValue, rows: usize) -> Numbers {
    Numbers::One(match value {
        ColumnarValue::Array(_) => bytes_of(value).div_ceil(rows.max(1) as u64),
        ColumnarValue::Scalar(_) => bytes_of(value),
    })
}

/// Returns the bytes of the arguments. Constants count once for each row.
fn all_bytes(args: &[ColumnarValue], rows: usize) -> u64 {
    let bytes = |arg: &ColumnarValue| match arg {
        ColumnarValue::Array(_) => bytes_of(arg),
        ColumnarValue::Scalar(_) => times(bytes_of(arg), rows as u64),
    };
    args.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Returns the bytes of the items from `start` to `stop`.
fn series(rows: usize, start: &ColumnarValue, stop: &ColumnarValue, step: Option<&ColumnarValue>) -> Result<u64> {
    let (start, stop) = (positions(start)?, positions(stop)?);
    let step = step.map(strides).transpose()?;
    let at = |all: &[Option<i128>], row: usize| match all {
        [one] => *one,
        all => all.get(row).copied().flatten(),
    };
    let mut sum = 0_u64;
    for row in 0..rows {
        let (Some(start), Some(stop)) = (at(&start, row), at(&stop, row)) else { continue };
        let step = step.as_ref().map_or(Some(1), |step| at(step, row));
        // A step of zero or NULL yields no items: the function fails or returns NULL.
        let Some(step) = step.filter(|step| *step != 0) else { continue };
        let is_empty = (stop < start) == (step > 0) && stop != start;
        let count = if is_empty { 0 } else { (stop - start).unsigned_abs() / step.unsigned_abs() + 1 };
        sum = sum.saturating_add(u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(8));
    }
    Ok(sum)
}

/// Returns integers as they are, and dates and timestamps in nanoseconds.
fn positions(value: &ColumnarValue) -> Result<Vec<Option<i128>>> {
    let array = value.to_array(1)?;
    let unit: i128 = match array.data_type() {
        DataType::Date32 => 86_400_000_000_000,
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1,
        other if other.is_integer() => 1,
        _ => return Ok(vec![None]),
    };
    let array = match array.data_type() {
        DataType::Date32 => cast(&array, &DataType::Int32)?,
        _ => array,
    };
    let numbers = cast(&array, &DataType::Int64)?;
    Ok(numbers.as_primitive::<Int64Type>().iter().map(|number| Some(i128::from(number?) * unit)).collect())
}

/// Returns steps in the units of [`positions`]. A month counts as 28 days, so the number of items
/// is an upper bound.
fn strides(value: &ColumnarValue) -> Result<Vec<Option<i128>>> {
    let array = value.to_array(1)?;
    if *array.data_type() != DataType::Interval(IntervalUnit::MonthDayNano) {
        return positions(value);
    }
    const DAY: i128 = 86_400_000_000_000;
    let intervals = array.as_primitive::<IntervalMonthDayNanoType>().iter();
    let length = |interval: arrow::datatypes::IntervalMonthDayNano| {
        let days = i128::from(interval.months) * 28 + i128::from(interval.days);
        days * DAY + i128::from(interval.nanoseconds)
    };
    Ok(intervals.map(|interval| interval.map(length)).collect())
}
