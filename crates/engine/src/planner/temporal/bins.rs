//! `date_bin(stride, t [, origin])`: the start of the bin that contains a timestamp. Bins are
//! `stride` long, counted from `origin`.
//!
//! Strides of days and less are durations, of 24 hours a day, with or without a zone, as in
//! PostgreSQL. Strides of months, which PostgreSQL refuses, count calendar months from the origin.
//! The two do not mix.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Time64NanosecondArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalMonthDayNanoType, Time64NanosecondType, TimeUnit};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};

use super::shifts::add_months;
use super::{DAY_MICROS, INTERVAL, Kernel, TIMESTAMP, function, in_type, is_text, is_zoned, micros_of, out_of_range};
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Rule};

/// The length of a bin.
#[derive(Clone, Copy)]
enum Stride {
    Micros(i64),
    Months(i64),
}

impl Stride {
    fn of(interval: IntervalMonthDayNano) -> Result<Self> {
        let IntervalMonthDayNano { months, days, nanoseconds } = interval;
        let micros = i64::from(days).checked_mul(DAY_MICROS).and_then(|days| days.checked_add(nanoseconds / 1000));
        match (months, micros) {
            (0, Some(micros)) if micros > 0 => Ok(Self::Micros(micros)),
            (months, Some(0)) if months > 0 => Ok(Self::Months(months.into())),
            _ => {
                let message = "the stride of date_bin is longer than nothing, and of months or of days and hours";
                Err(Error::new(ErrorKind::Data, message).breaking(Rule::Range).into())
            }
        }
    }

    fn start(self, micros: i64, origin: i64) -> Result<i64> {
        match self {
            Self::Micros(stride) => {
                let since = i128::from(micros) - i128::from(origin);
                let start = i128::from(micros) - since.rem_euclid(stride.into());
                i64::try_from(start).map_err(|_| out_of_range())
            }
            Self::Months(stride) => {
                let month = |micros: i64| {
                    let (year, month, _) = onehop_pipeline::bind::civil(micros.div_euclid(DAY_MICROS));
                    year * 12 + i64::from(month)
                };
                let mut months = (month(micros) - month(origin)).div_euclid(stride) * stride;
                let mut start = add_months(origin, months).ok_or_else(out_of_range)?;
                if start > micros {
                    months -= stride;
                    start = add_months(origin, months).ok_or_else(out_of_range)?;
                }
                Ok(start)
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct DateBin;

impl DateBin {
    pub(super) fn function() -> Arc<ScalarUDF> {
        Arc::new(function(Self))
    }
}

impl Kernel for DateBin {
    fn name(&self) -> &str {
        "date_bin"
    }

    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (stride, value) = match types {
            [stride, value] | [stride, value, _] => (stride, value),
            _ => return exec_err!("date_bin takes a stride, a timestamp and perhaps an origin"),
        };
        if !matches!(stride, DataType::Interval(_) | DataType::Duration(_)) && !is_text(stride) {
            return exec_err!("the stride of date_bin is an interval, not {stride}");
        }
        let value = match (value, types.get(2)) {
            (DataType::Timestamp(..), _) => value.clone(),
            (DataType::Time32(_) | DataType::Time64(_), _) => DataType::Time64(TimeUnit::Nanosecond),
            (DataType::Date32 | DataType::Date64, Some(origin)) if is_zoned(origin) => origin.clone(),
            (other, _) if is_text(other) || matches!(other, DataType::Date32 | DataType::Date64) => TIMESTAMP,
            (other, _) => return exec_err!("date_bin is about a timestamp or a date, not {other}"),
        };
        Ok([INTERVAL, value.clone(), value].into_iter().take(types.len()).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.get(1).cloned().unwrap_or(DataType::Null))
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [strides, values, origins @ ..] = columns else { return exec_err!("date_bin takes two arguments") };
        let strides = strides.as_primitive::<IntervalMonthDayNanoType>();
        if let DataType::Time64(_) = values.data_type() {
            return times(strides, values, origins.first());
        }
        let micros = micros_of(values)?;
        let origins = origins.first().map(micros_of).transpose()?;
        let origin = |row: usize| match &origins {
            None => Some(0),
            Some(origins) => origins.is_valid(row).then(|| origins.value(row)),
        };
        let bins = (0..micros.len()).map(|row| match origin(row) {
            Some(origin) if micros.is_valid(row) && strides.is_valid(row) => {
                Stride::of(strides.value(row))?.start(micros.value(row), origin).map(Some)
            }
            _ => Ok(None),
        });
        in_type(bins.collect::<Result<TimestampMicrosecondArray>>()?, values.data_type())
    }

    fn ordering(&self, input: &[ExprProperties]) -> SortProperties {
        match input {
            [stride, value, rest @ ..]
                if stride.sort_properties == SortProperties::Singleton
                    && rest.iter().all(|origin| origin.sort_properties == SortProperties::Singleton) =>
            {
                value.sort_properties
            }
            _ => SortProperties::Unordered,
        }
    }
}

fn times(
    strides: &arrow::array::IntervalMonthDayNanoArray,
    values: &ArrayRef,
    origins: Option<&ArrayRef>,
) -> Result<ArrayRef> {
    let values = values.as_primitive::<Time64NanosecondType>();
    let origins = origins.map(|origins| origins.as_primitive::<Time64NanosecondType>());
    let bins = (0..values.len()).map(|row| {
        let origin = match origins {
            None => 0,
            Some(origins) if origins.is_valid(row) => origins.value(row),
            Some(_) => return Ok(None),
        };
        if values.is_null(row) || strides.is_null(row) {
            return Ok(None);
        }
        match Stride::of(strides.value(row))? {
            Stride::Micros(stride) => {
                let start = values.value(row) - (values.value(row) - origin).rem_euclid(stride.saturating_mul(1000));
                Ok(Some(start.rem_euclid(DAY_MICROS * 1000)))
            }
            Stride::Months(_) => exec_err!("a time of day has no months"),
        }
    });
    Ok(Arc::new(bins.collect::<Result<Time64NanosecondArray>>()?))
}
