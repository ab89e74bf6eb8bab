//! Conversions of timestamps between zones: `t AT TIME ZONE z`, casts between types with and
//! without a zone, and `t + interval` in local time.
//!
//! To a timestamp with a time zone, months and days are added in local time, and the rest to the
//! moment. A day later is not always 24 hours later.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalMonthDayNanoType};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;

use super::super::zoned_moments::TIMEZONE;
use super::{
    DAY_MICROS, INTERVAL, Kernel, TIMESTAMP, function, in_type, is_text, is_zoned, micros_of, out_of_range, texts,
    timestamptz,
};
use crate::convert::rounded_micros;
use crate::error::shown;
use crate::pg_types::calendar::days_of_civil;
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Rule};

/// Returns a zone by its name or abbreviation.
pub(super) fn zone_named(name: &str) -> Result<Zone> {
    Zone::behind_time(name).ok_or_else(|| {
        let error = Error::new(ErrorKind::Data, format!("there is no time zone {}", shown(name)));
        error.breaking(Rule::Setting).with_hint("Europe/Berlin is one, and UTC-02:00, two hours east of it").into()
    })
}

/// Maps the microseconds of a column.
fn mapped(values: &ArrayRef, map: impl Fn(i64) -> Option<i64>) -> Result<TimestampMicrosecondArray> {
    let micros = micros_of(values)?;
    micros.iter().map(|micros| micros.map(|micros| map(micros).ok_or_else(out_of_range)).transpose()).collect()
}

/// The local time of the session at a moment.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct LocalTime;

impl LocalTime {
    pub(in super::super) fn function() -> ScalarUDF {
        function(Self)
    }
}

impl Kernel for LocalTime {
    fn name(&self) -> &str {
        "local_time"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(TIMESTAMP)
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("local_time takes one argument") };
        in_type(mapped(values, |micros| zone.local(micros))?, &TIMESTAMP)
    }
}

/// The moment of a local time of the session.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct MomentOfLocal;

impl MomentOfLocal {
    pub(in super::super) fn function() -> ScalarUDF {
        function(Self)
    }
}

impl Kernel for MomentOfLocal {
    fn name(&self) -> &str {
        "moment_of_local_time"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(timestamptz())
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("moment_of_local_time takes one argument") };
        in_type(mapped(values, |micros| zone.moment(micros))?, &timestamptz())
    }
}

/// `timezone(zone, t)`: the local time of a moment in the zone, or the moment of a local time in
/// the zone.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct AtTimeZone;

impl AtTimeZone {
    pub(super) fn function() -> Arc<ScalarUDF> {
        Arc::new(function(Self))
    }
}

impl Kernel for AtTimeZone {
    fn name(&self) -> &str {
        TIMEZONE
    }

    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let value = match types {
            [zone, value] if is_text(zone) => value,
            _ => return exec_err!("timezone takes the name of a zone and a timestamp"),
        };
        let value = match value {
            DataType::Timestamp(..) => value.clone(),
            // PostgreSQL interprets a literal or a date as a moment.
            DataType::Date32 | DataType::Date64 | DataType::Null => timestamptz(),
            text if text.is_string() => timestamptz(),
            _ => {
                let error = Error::new(ErrorKind::Invalid, "AT TIME ZONE is about a timestamp, or a date");
                return Err(error.with_hint("cast the value to TIMESTAMP or TIMESTAMPTZ").into());
            }
        };
        Ok(vec![DataType::Utf8, value])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(if types.get(1).is_some_and(is_zoned) { TIMESTAMP } else { timestamptz() })
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [zones, values] = columns else { return exec_err!("timezone takes two arguments") };
        let zones = texts(zones)?;
        let zones = zones.as_string::<i32>();
        let is_moment = is_zoned(values.data_type());
        let micros = micros_of(values)?;
        let mut known: Option<(&str, Zone)> = None;
        let moved = (0..micros.len()).map(|row| {
            if zones.is_null(row) || micros.is_null(row) {
                return Ok(None);
            }
            let name = zones.value(row);
            let zone = match known {
                Some((last, zone)) if last == name => zone,
                _ => zone_named(name)?,
            };
            known = Some((name, zone));
            let micros = micros.value(row);
            let moved = if is_moment { zone.local(micros) } else { zone.moment(micros) };
            moved.map(Some).ok_or_else(out_of_range)
        });
        let moved = moved.collect::<Result<TimestampMicrosecondArray>>()?;
        in_type(moved, &if is_moment { TIMESTAMP } else { timestamptz() })
    }
}

/// `t + i` and `t - i` of a timestamp with a time zone.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Shift {
    /// True for `t - i`.
    pub is_back: bool,
}

impl Shift {
    pub(in super::super) fn function(is_back: bool) -> ScalarUDF {
        function(Self { is_back })
    }
}

impl Kernel for Shift {
    fn name(&self) -> &str {
        if self.is_back { "timestamp_minus_interval" } else { "timestamp_plus_interval" }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values, intervals] = columns else { return exec_err!("{} takes two arguments", self.name()) };
        let intervals = cast(intervals, &INTERVAL)?;
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        let micros = micros_of(values)?;
        let shifted = micros.iter().zip(intervals).map(|pair| match pair {
            (Some(micros), Some(interval)) => {
                let interval = if self.is_back { opposite(interval) } else { Some(interval) };
                let shifted = interval.and_then(|interval| shifted(micros, interval, zone));
                shifted.map(Some).ok_or_else(out_of_range)
            }
            _ => Ok(None),
        });
        in_type(shifted.collect::<Result<TimestampMicrosecondArray>>()?, values.data_type())
    }
}

fn opposite(interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    Some(IntervalMonthDayNano::new(months.checked_neg()?, days.checked_neg()?, nanoseconds.checked_neg()?))
}

/// Adds an interval to a moment.
pub(super) fn shifted(micros: i64, interval: IntervalMonthDayNano, zone: Zone) -> Option<i64> {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let mut micros = micros;
    if months != 0 {
        micros = zone.moment(add_months(zone.local(micros)?, months.into())?)?;
    }
    if days != 0 {
        micros = zone.moment(zone.local(micros)?.checked_add(i64::from(days).checked_mul(DAY_MICROS)?)?)?;
    }
    micros.checked_add(nanoseconds / 1000)
}

/// Adds months to a time. A day that the resulting month lacks becomes its last day.
pub(super) fn add_months(micros: i64, months: i64) -> Option<i64> {
    let (year, month, day) = onehop_pipeline::bind::civil(micros.div_euclid(DAY_MICROS));
    let all = year.checked_mul(12)?.checked_add(i64::from(month) - 1)?.checked_add(months)?;
    let (year, month) = (all.div_euclid(12), (all.rem_euclid(12) + 1) as u32);
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    let last = days_of_civil(next.0, next.1, 1) - days_of_civil(year, month, 1);
    let days = days_of_civil(year, month, 1) + i64::from(day).min(last) - 1;
    days.checked_mul(DAY_MICROS)?.checked_add(micros.rem_euclid(DAY_MICROS))
}

/// Timestamps rounded to multiples of `each` microseconds. Arrow's casts to TIMESTAMP(0) and
/// TIMESTAMP(3) truncate.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct RoundedTimestamp {
    each: i64,
}

impl RoundedTimestamp {
    pub(in super::super) fn function(each: i64) -> ScalarUDF {
        function(Self { each })
    }
}

impl Kernel for RoundedTimestamp {
    fn name(&self) -> &str {
        "rounded_timestamp"
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let zone = match types.first() {
            Some(DataType::Timestamp(_, zone)) => zone.clone(),
            _ => None,
        };
        Ok(DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, zone))
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return exec_err!("rounded_timestamp takes one argument") };
        let data_type = self.return_type(&[values.data_type().clone()])?;
        if let DataType::Timestamp(arrow::datatypes::TimeUnit::Nanosecond, _) = values.data_type()
            && self.each == 1
        {
            let nanos = cast(values, &DataType::Int64)?;
            let nanos = nanos.as_primitive::<arrow::datatypes::Int64Type>();
            let micros = nanos.iter().map(|nanos| nanos.map(|nanos| (nanos.saturating_add(500)).div_euclid(1000)));
            return in_type(micros.collect(), &data_type);
        }
        in_type(mapped(values, |micros| rounded_micros(micros, self.each).checked_mul(self.each))?, &data_type)
    }
}
