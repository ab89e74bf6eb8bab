//! `strptime(s, format)`, `to_timestamp(s, format)`, `to_timestamp(number)`, and strftime's `%f`.
//!
//! `%f` is microseconds, a fraction of any number of digits, as in C, Python and DuckDB. DataFusion
//! 55.2 relies on chrono, which takes it for a number of nanoseconds: `.5` is read as 5 ns.
//! `to_timestamp` of a number is a TIMESTAMP WITH TIME ZONE, as in PostgreSQL, and has its range;
//! DataFusion's stops at 2262.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use chrono::Timelike;
use chrono::format::{Parsed, StrftimeItems, parse};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;

use super::{Kernel, MICROS, TIMESTAMP, function, in_type, is_text, out_of_range, texts, timestamptz};
use crate::convert::{OnError, parse_column};
use crate::error::shown;
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Rule};

/// The function that translates a format of strftime's to chrono's notation.
pub(in super::super) const STRFTIME_FORMAT: &str = "strftime_format";

/// `to_timestamp` or `strptime`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Reads {
    name: &'static str,
    /// True if the result is a moment.
    has_zone: bool,
}

impl Reads {
    pub(super) fn to_timestamp() -> Arc<ScalarUDF> {
        Arc::new(function(Self { name: "to_timestamp", has_zone: true }))
    }

    pub(super) fn strptime() -> Arc<ScalarUDF> {
        Arc::new(function(Self { name: "strptime", has_zone: false }))
    }

    fn result(&self) -> DataType {
        if self.has_zone { timestamptz() } else { TIMESTAMP }
    }
}

impl Kernel for Reads {
    fn name(&self) -> &str {
        self.name
    }

    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [first, formats @ ..] if is_text(first) && formats.iter().all(is_text) => {
                Ok(vec![DataType::Utf8; types.len()])
            }
            [number] if self.has_zone && number.is_integer() => Ok(vec![DataType::Int64]),
            [number] if self.has_zone && number.is_numeric() => Ok(vec![DataType::Float64]),
            [DataType::Timestamp(..) | DataType::Date32 | DataType::Date64] if self.has_zone => Ok(vec![timestamptz()]),
            _ => {
                let message = format!("{} takes a text and formats of it", self.name);
                let error = Error::new(ErrorKind::Invalid, message);
                Err(error.with_hint("to_timestamp takes a number of seconds since 1970, too").into())
            }
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.result())
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values, formats @ ..] = columns else { return exec_err!("{} takes a text", self.name) };
        let micros: TimestampMicrosecondArray = match values.data_type() {
            DataType::Timestamp(..) => return Ok(Arc::clone(values)),
            DataType::Int64 => {
                let seconds = values.as_primitive::<Int64Type>().iter();
                let micros = |seconds: i64| seconds.checked_mul(MICROS).ok_or_else(out_of_range);
                seconds.map(|seconds| seconds.map(micros).transpose()).collect::<Result<_>>()?
            }
            DataType::Float64 => {
                let seconds = values.as_primitive::<Float64Type>().iter();
                seconds.map(|seconds| seconds.map(micros_of_seconds).transpose()).collect::<Result<_>>()?
            }
            _ if formats.is_empty() => return Ok(parse_column(values, &self.result(), zone, OnError::Fail)?),
            _ => {
                let values = texts(values)?;
                let formats = formats.iter().map(texts).collect::<Result<Vec<_>>>()?;
                let formats: Vec<&StringArray> = formats.iter().map(|formats| formats.as_string::<i32>()).collect();
                let values = values.as_string::<i32>();
                let read = |row: usize| self.read(values, &formats, row, zone);
                (0..values.len()).map(read).collect::<Result<_>>()?
            }
        };
        in_type(micros, &self.result())
    }
}

impl Reads {
    fn read(&self, values: &StringArray, formats: &[&StringArray], row: usize, zone: Zone) -> Result<Option<i64>> {
        if values.is_null(row) || formats.iter().all(|formats| formats.is_null(row)) {
            return Ok(None);
        }
        let text = values.value(row);
        for format in formats.iter().filter(|formats| formats.is_valid(row)).map(|formats| formats.value(row)) {
            if let Some(read) = parsed(text, &chrono_format(format)) {
                let micros = match (read, self.has_zone) {
                    ((micros, None), true) => zone.moment(micros),
                    ((micros, None), false) => Some(micros),
                    ((micros, Some(offset)), _) => micros.checked_sub(offset * MICROS),
                };
                return micros.map(Some).ok_or_else(out_of_range);
            }
        }
        let format = formats.iter().find(|formats| formats.is_valid(row)).map_or("", |formats| formats.value(row));
        let message = format!("{} is not written as {}", shown(text), shown(format));
        Err(Error::new(ErrorKind::Data, message).breaking(Rule::Moment).into())
    }
}

/// Parses a text. Returns the microseconds of the local time and the offset from UTC in the text.
fn parsed(text: &str, format: &str) -> Option<(i64, Option<i64>)> {
    let mut parsed = Parsed::new();
    parse(&mut parsed, text.trim(), StrftimeItems::new(format)).ok()?;
    if parsed.to_naive_date().is_err() {
        // A missing day is the first of its month, and a missing month the first of its year.
        let _ = (parsed.set_month(1), parsed.set_day(1));
    }
    let date = parsed.to_naive_date().ok()?;
    let time = match parsed.to_naive_time() {
        Ok(time) => time,
        Err(_) if parsed.hour_div_12().is_none() && parsed.minute().is_none() => chrono::NaiveTime::MIN,
        Err(_) => {
            let _ = (parsed.set_minute(0), parsed.set_second(0));
            parsed.to_naive_time().ok()?
        }
    };
    // Digits beyond microseconds are rounded.
    let rounds_up = i64::from(time.nanosecond() % 1000 >= 500);
    let micros = date.and_time(time).and_utc().timestamp_micros().checked_add(rounds_up)?;
    Some((micros, parsed.offset().map(i64::from)))
}

fn micros_of_seconds(seconds: f64) -> Result<i64> {
    let micros = (seconds * MICROS as f64).round_ties_even();
    match micros.is_finite() && micros.abs() < i64::MAX as f64 {
        true => Ok(micros as i64),
        false => Err(out_of_range()),
    }
}

/// Translates a format of strftime's to chrono's notation, for parsing.
fn chrono_format(format: &str) -> String {
    replaced(format, |behind_point| if behind_point { "%.f" } else { "%6f" })
}

/// Translates a format of strftime's to chrono's notation, for formatting.
fn chrono_format_to_write(format: &str) -> String {
    replaced(format, |behind_point| if behind_point { ".%6f" } else { "%6f" })
}

/// Replaces `%f` and `.%f`.
fn replaced(format: &str, fraction: impl Fn(bool) -> &'static str) -> String {
    let mut out = String::with_capacity(format.len() + 4);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        let (before, field) = rest.split_at(at);
        match field.as_bytes().get(1) {
            Some(b'f') => {
                let behind_point = before.ends_with('.');
                out.push_str(before.strip_suffix('.').unwrap_or(before));
                out.push_str(fraction(behind_point));
                rest = &field[2..];
            }
            Some(_) => {
                let end = 1 + field[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(before);
                out.push_str(&field[..end]);
                rest = &field[end..];
            }
            None => break,
        }
    }
    out.push_str(rest);
    out
}

/// The function [`STRFTIME_FORMAT`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct StrftimeFormat;

pub(in super::super) fn strftime_format() -> Arc<ScalarUDF> {
    Arc::new(function(StrftimeFormat))
}

impl Kernel for StrftimeFormat {
    fn name(&self) -> &str {
        STRFTIME_FORMAT
    }

    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![DataType::Utf8; types.len()])
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [formats] = columns else { return exec_err!("{STRFTIME_FORMAT} takes one argument") };
        let formats = cast(formats, &DataType::Utf8)?;
        let formats = formats.as_string::<i32>().iter().map(|format| format.map(chrono_format_to_write));
        Ok(Arc::new(formats.collect::<StringArray>()))
    }
}
