//! `extract(part FROM x)` where DataFusion's `date_part` lacks the part or returns another value.
//! These are parts of intervals, and centuries, decades, millennia, Julian days and offsets of
//! timestamps. The hours of an interval are below 24 only if its literal says so.
//!
//! `extract(epoch FROM INTERVAL '1 year')` counts a year as 365.25 days, and a month that is not
//! part of a year as 30. DataFusion 55.2 counts a year as 360.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalMonthDayNanoType};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::cast as cast_to;
use datafusion::prelude::Expr;
use onehop_pipeline::bind::civil;

use super::{DAY_MICROS, INTERVAL, Kernel, MICROS, function, is_zoned, micros_of};
use crate::error::shown;
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind};

const DAY_SECONDS: f64 = 86_400.0;
/// The number of days from the first Julian day to 1970-01-01.
const JULIAN_1970: i64 = 2_440_588;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Hash)]
enum Part {
    Millennium,
    Century,
    Decade,
    Year,
    Quarter,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Epoch,
    Julian,
    Timezone,
    TimezoneHour,
    TimezoneMinute,
}

impl Part {
    fn parse(name: &str) -> Option<Self> {
        Some(match name.trim().trim_matches('\'').to_ascii_lowercase().as_str() {
            "millennium" | "millennia" | "mil" => Self::Millennium,
            "century" | "centuries" | "c" => Self::Century,
            "decade" | "decades" | "dec" => Self::Decade,
            "year" | "years" | "y" => Self::Year,
            "quarter" | "quarters" | "qtr" => Self::Quarter,
            "month" | "months" | "mon" | "mons" => Self::Month,
            "day" | "days" | "d" => Self::Day,
            "hour" | "hours" | "h" => Self::Hour,
            "minute" | "minutes" | "min" | "mins" | "m" => Self::Minute,
            "second" | "seconds" | "sec" | "s" => Self::Second,
            "millisecond" | "milliseconds" | "msec" | "ms" => Self::Millisecond,
            "microsecond" | "microseconds" | "usec" | "us" => Self::Microsecond,
            "epoch" => Self::Epoch,
            "julian" => Self::Julian,
            "timezone" => Self::Timezone,
            "timezone_hour" => Self::TimezoneHour,
            "timezone_minute" => Self::TimezoneMinute,
            _ => return None,
        })
    }

    /// Returns whether DataFusion's function lacks this part for a timestamp.
    fn is_missing(self) -> bool {
        matches!(
            self,
            Self::Millennium
                | Self::Century
                | Self::Decade
                | Self::Julian
                | Self::Timezone
                | Self::TimezoneHour
                | Self::TimezoneMinute
        )
    }
}

/// Returns the part of a `date_part` call, if this module computes it.
pub(in super::super) fn part_of(name: &Expr, value: &Expr, data_type: &DataType) -> Result<Option<Expr>> {
    let Expr::Literal(name, _) = name else { return Ok(None) };
    let Some(name) = name.try_as_str().flatten() else { return Ok(None) };
    let part = Part::parse(name);
    let kernel = match data_type {
        DataType::Interval(_) | DataType::Duration(_) => {
            let Some(part) = part.filter(|part| *part <= Part::Epoch) else {
                let error =
                    Error::new(ErrorKind::Invalid, format!("an interval has no {}", shown(&name.to_lowercase())));
                return Err(error
                    .with_hint("it has epoch, year, month, day, hour, minute, second and the like")
                    .into());
            };
            let value = if *data_type == INTERVAL { value.clone() } else { cast_to(value.clone(), INTERVAL) };
            return Ok(Some(function(PartOfInterval(part)).call(vec![value])));
        }
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => part.filter(|part| part.is_missing()),
        _ => None,
    };
    let Some(part) = kernel else { return Ok(None) };
    let is_offset = matches!(part, Part::Timezone | Part::TimezoneHour | Part::TimezoneMinute);
    if is_offset && !is_zoned(data_type) {
        let error = Error::new(ErrorKind::Invalid, format!("a value without a time zone has no {}", shown(name)));
        return Err(error.with_hint("cast it to TIMESTAMPTZ").into());
    }
    Ok(Some(function(PartOfMoment(part)).call(vec![value.clone()])))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PartOfInterval(Part);

impl Kernel for PartOfInterval {
    fn name(&self) -> &str {
        "part_of_interval"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(if self.0 == Part::Epoch { DataType::Float64 } else { DataType::Int64 })
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("part_of_interval takes one argument") };
        let values = values.as_primitive::<IntervalMonthDayNanoType>();
        Ok(match self.0 {
            Part::Epoch => Arc::new(values.iter().map(|value| value.map(epoch)).collect::<Float64Array>()),
            part => Arc::new(values.iter().map(|value| value.map(|value| whole(part, value))).collect::<Int64Array>()),
        })
    }
}

fn epoch(interval: IntervalMonthDayNano) -> f64 {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let years = f64::from(months / 12) * 365.25 * DAY_SECONDS;
    let days = (f64::from(months % 12) * 30.0 + f64::from(days)) * DAY_SECONDS;
    years + days + (nanoseconds / 1000) as f64 / MICROS as f64
}

fn whole(part: Part, interval: IntervalMonthDayNano) -> i64 {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let (months, micros) = (i64::from(months), nanoseconds / 1000);
    match part {
        Part::Millennium => months / 12_000,
        Part::Century => months / 1200,
        Part::Decade => months / 120,
        Part::Year => months / 12,
        Part::Quarter => months % 12 / 3 + 1,
        Part::Month => months % 12,
        Part::Day => days.into(),
        Part::Hour => micros / (3600 * MICROS),
        Part::Minute => micros / (60 * MICROS) % 60,
        Part::Second => micros / MICROS % 60,
        Part::Millisecond => micros % (60 * MICROS) / 1000,
        _ => micros % (60 * MICROS),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PartOfMoment(Part);

impl Kernel for PartOfMoment {
    fn name(&self) -> &str {
        "part_of_timestamp"
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match (self.0, types) {
            (Part::Julian, [DataType::Timestamp(..)]) => DataType::Float64,
            _ => DataType::Int64,
        })
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("part_of_timestamp takes one argument") };
        let data_type = values.data_type();
        if let DataType::Date32 | DataType::Date64 = data_type {
            let days = cast(&cast(values, &DataType::Date32)?, &DataType::Int32)?;
            let days = days.as_primitive::<arrow::datatypes::Int32Type>().iter();
            let parts = days.map(|day| day.map(|day| of_day(self.0, day.into())));
            return Ok(Arc::new(parts.collect::<Int64Array>()));
        }
        let is_zoned = is_zoned(data_type);
        let offset = |micros: i64| if is_zoned { zone.offset_seconds(micros) } else { 0 };
        let local = |micros: i64| micros.saturating_add(offset(micros) * MICROS);
        let micros = micros_of(values)?;
        let part = |micros: i64| match self.0 {
            Part::Timezone => offset(micros),
            Part::TimezoneHour => offset(micros) / 3600,
            Part::TimezoneMinute => offset(micros) / 60 % 60,
            part => of_day(part, local(micros).div_euclid(DAY_MICROS)),
        };
        if self.0 == Part::Julian {
            let julian = |micros: i64| {
                let (local, day) = (local(micros), local(micros).div_euclid(DAY_MICROS));
                (day + JULIAN_1970) as f64 + local.rem_euclid(DAY_MICROS) as f64 / DAY_MICROS as f64
            };
            return Ok(Arc::new(micros.iter().map(|micros| micros.map(julian)).collect::<Float64Array>()));
        }
        Ok(Arc::new(micros.iter().map(|micros| micros.map(part)).collect::<Int64Array>()))
    }
}

fn of_day(part: Part, day: i64) -> i64 {
    let (year, ..) = civil(day);
    // There is no year 0, and so no century of that number.
    let counted = |each: i64| match year > 0 {
        true => (year + each - 1) / each,
        false => (year - each) / each,
    };
    match part {
        Part::Julian => day + JULIAN_1970,
        Part::Millennium => counted(1000),
        Part::Century => counted(100),
        _ => year.div_euclid(10),
    }
}

/// The length of an interval in microseconds, with months of 30 days: a key in the order of
/// intervals.
///
/// `row_number() OVER (ORDER BY interval)` is an internal error in DataFusion 55.2, "Cannot run
/// range queries on datatype" (apache/datafusion#24915).
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct IntervalLength;

impl IntervalLength {
    pub(in super::super) fn of(interval: Expr) -> Expr {
        function(Self).call(vec![interval])
    }

    /// Returns the length of one interval.
    pub(in super::super) fn micros(interval: IntervalMonthDayNano) -> i128 {
        let IntervalMonthDayNano { months, days, nanoseconds } = interval;
        (i128::from(months) * 30 + i128::from(days)) * i128::from(DAY_MICROS) + i128::from(nanoseconds / 1000)
    }
}

impl Kernel for IntervalLength {
    fn name(&self) -> &str {
        "interval_length"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Decimal128(38, 0))
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("interval_length takes one argument") };
        let values = cast(values, &INTERVAL)?;
        let values = values.as_primitive::<IntervalMonthDayNanoType>();
        let lengths: Decimal128Array = values.iter().map(|value| value.map(Self::micros)).collect();
        Ok(Arc::new(lengths.with_precision_and_scale(38, 0)?))
    }
}
