//! `date_trunc(unit, t [, zone])` of a timestamp, a date (which is a midnight), a time or an
//! interval.
//!
//! A timestamp with a time zone is truncated in local time: days and longer units begin at local
//! midnights. A part of a day keeps the offset of the moment.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, IntervalMonthDayNanoArray, Time64NanosecondArray, TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalMonthDayNanoType, Time64NanosecondType, TimeUnit};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};

use super::{
    DAY_MICROS, INTERVAL, Kernel, MICROS, TIMESTAMP, function, in_type, is_text, is_zoned, micros_of, out_of_range,
    texts,
};
use crate::pg_types::calendar::days_of_civil;
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind};

/// The unit to which a value is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A number of microseconds that divides a day.
    Micros(i64),
    Day,
    Week,
    Month,
    Quarter,
    /// A number of years, counted from the year 1, or from 0.
    Years {
        count: i64,
        from: i64,
    },
}

impl Unit {
    fn parse(name: &str) -> Result<Self> {
        let name = name.trim().to_ascii_lowercase();
        Ok(match name.as_str() {
            "microsecond" | "microseconds" | "us" => Self::Micros(1),
            "millisecond" | "milliseconds" | "ms" => Self::Micros(1000),
            "second" | "seconds" | "sec" => Self::Micros(MICROS),
            "minute" | "minutes" | "min" => Self::Micros(60 * MICROS),
            "hour" | "hours" => Self::Micros(3600 * MICROS),
            "day" | "days" => Self::Day,
            "week" | "weeks" => Self::Week,
            "month" | "months" | "mon" => Self::Month,
            "quarter" | "quarters" | "qtr" => Self::Quarter,
            "year" | "years" => Self::Years { count: 1, from: 0 },
            "decade" | "decades" => Self::Years { count: 10, from: 0 },
            "century" | "centuries" => Self::Years { count: 100, from: 1 },
            "millennium" | "millennia" => Self::Years { count: 1000, from: 1 },
            _ => {
                let message = format!("date_trunc knows no unit {}", crate::error::shown(&name));
                let error = Error::new(ErrorKind::Invalid, message);
                return Err(error.with_hint("it knows microsecond to millennium: hour, day, week, month, year").into());
            }
        })
    }

    /// Returns the start of the unit that contains a time, both in microseconds since 1970.
    fn start(self, micros: i64) -> i64 {
        let day = micros.div_euclid(DAY_MICROS);
        let (year, month, _) = onehop_pipeline::bind::civil(day);
        let of = |year: i64, month: u32| days_of_civil(year, month, 1).saturating_mul(DAY_MICROS);
        match self {
            Self::Micros(count) => micros - micros.rem_euclid(count),
            Self::Day => day * DAY_MICROS,
            // 1970-01-01 was a Thursday.
            Self::Week => (day - (day + 3).rem_euclid(7)).saturating_mul(DAY_MICROS),
            Self::Month => of(year, month),
            Self::Quarter => of(year, (month - 1) / 3 * 3 + 1),
            Self::Years { count, from } => of((year - from).div_euclid(count) * count + from, 1),
        }
    }

    fn of_zone(self, micros: i64, zone: Zone) -> Result<i64> {
        let local = zone.local(micros).ok_or_else(out_of_range)?;
        let start = self.start(local);
        match self {
            Self::Micros(_) => Ok(micros - (local - start)),
            _ => zone.moment(start).ok_or_else(out_of_range),
        }
    }

    fn of_interval(self, interval: IntervalMonthDayNano) -> Result<IntervalMonthDayNano> {
        let IntervalMonthDayNano { months, days, nanoseconds } = interval;
        let multiple = |each: i32| months - months % each;
        Ok(match self {
            Self::Micros(count) => IntervalMonthDayNano::new(months, days, nanoseconds - nanoseconds % (count * 1000)),
            Self::Day => IntervalMonthDayNano::new(months, days, 0),
            Self::Month => IntervalMonthDayNano::new(months, 0, 0),
            Self::Quarter => IntervalMonthDayNano::new(multiple(3), 0, 0),
            Self::Years { count, .. } => {
                IntervalMonthDayNano::new(multiple(i32::try_from(count * 12).unwrap_or(12)), 0, 0)
            }
            Self::Week => {
                let error =
                    Error::new(ErrorKind::Invalid, "an interval has no weeks, since months have no whole number");
                return Err(error.with_hint("date_trunc('day', i) and extract(day FROM i) / 7 are whole").into());
            }
        })
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct DateTrunc {
    aliases: Vec<String>,
}

impl DateTrunc {
    pub(super) fn function() -> Arc<ScalarUDF> {
        Arc::new(function(Self { aliases: vec!["datetrunc".into()] }))
    }
}

impl Kernel for DateTrunc {
    fn name(&self) -> &str {
        "date_trunc"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (unit, value, zone) = match types {
            [unit, value] => (unit, value, None),
            [unit, value, zone] if is_text(zone) => (unit, value, Some(DataType::Utf8)),
            _ => return exec_err!("date_trunc takes a unit, a timestamp and perhaps a time zone"),
        };
        let value = match value {
            DataType::Timestamp(..) | DataType::Time64(TimeUnit::Nanosecond) => value.clone(),
            DataType::Interval(_) | DataType::Duration(_) => INTERVAL,
            DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Nanosecond),
            other if is_text(other) || matches!(other, DataType::Date32 | DataType::Date64) => TIMESTAMP,
            other => return exec_err!("date_trunc is about a timestamp, a date or an interval, not {other}"),
        };
        if !is_text(unit) {
            return exec_err!("the unit of date_trunc is a text");
        }
        let value = if zone.is_some() && !is_zoned(&value) { super::timestamptz() } else { value };
        Ok([DataType::Utf8, value].into_iter().chain(zone).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.get(1).cloned().unwrap_or(DataType::Null))
    }

    fn run(&self, columns: &[ArrayRef], session: Zone) -> Result<ArrayRef> {
        let [units, values, zones @ ..] = columns else { return exec_err!("date_trunc takes two arguments") };
        let names = texts(units)?;
        let names = names.as_string::<i32>();
        let mut known: Option<(String, Unit)> = None;
        let mut unit = |row: usize| -> Result<Option<Unit>> {
            if names.is_null(row) {
                return Ok(None);
            }
            match &known {
                Some((name, unit)) if name == names.value(row) => Ok(Some(*unit)),
                _ => {
                    let unit = Unit::parse(names.value(row))?;
                    known = Some((names.value(row).to_string(), unit));
                    Ok(Some(unit))
                }
            }
        };
        match values.data_type() {
            DataType::Interval(_) => {
                let values = values.as_primitive::<IntervalMonthDayNanoType>();
                let cut = (0..values.len()).map(|row| match unit(row)?.filter(|_| values.is_valid(row)) {
                    Some(unit) => unit.of_interval(values.value(row)).map(Some),
                    None => Ok(None),
                });
                Ok(Arc::new(cut.collect::<Result<IntervalMonthDayNanoArray>>()?))
            }
            DataType::Time64(_) => {
                let values = values.as_primitive::<Time64NanosecondType>();
                let cut = (0..values.len()).map(|row| match unit(row)?.filter(|_| values.is_valid(row)) {
                    Some(Unit::Micros(count)) => Ok(Some(values.value(row) - values.value(row) % (count * 1000))),
                    Some(_) => Ok(Some(0)),
                    None => Ok(None),
                });
                Ok(Arc::new(cut.collect::<Result<Time64NanosecondArray>>()?))
            }
            data_type => {
                let micros = micros_of(values)?;
                let zone = |row: usize| zone_of(zones, row, session);
                let is_zoned = is_zoned(data_type);
                let cut = (0..micros.len()).map(|row| match unit(row)?.filter(|_| micros.is_valid(row)) {
                    Some(unit) if is_zoned => match zone(row)? {
                        Some(zone) => unit.of_zone(micros.value(row), zone).map(Some),
                        None => Ok(None),
                    },
                    Some(unit) => Ok(Some(unit.start(micros.value(row)))),
                    None => Ok(None),
                });
                in_type(cut.collect::<Result<TimestampMicrosecondArray>>()?, data_type)
            }
        }
    }

    fn ordering(&self, input: &[ExprProperties]) -> SortProperties {
        match input {
            [unit, value] if unit.sort_properties == SortProperties::Singleton => match value.range.data_type() {
                data_type if is_zoned(&data_type) => SortProperties::Unordered,
                _ => value.sort_properties,
            },
            _ => SortProperties::Unordered,
        }
    }
}

/// Returns the zone of a row: the argument's if there is one, or the session's.
fn zone_of(zones: &[ArrayRef], row: usize, session: Zone) -> Result<Option<Zone>> {
    let [zones] = zones else { return Ok(Some(session)) };
    let zones = cast(zones, &DataType::Utf8)?;
    let zones = zones.as_string::<i32>();
    if zones.is_null(row) {
        return Ok(None);
    }
    super::shifts::zone_named(zones.value(row)).map(Some)
}
