//! `t - u` of timestamps, dates and times is an INTERVAL of days of 24 hours and a remainder.
//!
//! DataFusion 55.2 returns a Duration, which `extract` does not split, and to which no DATE can be
//! added (apache/datafusion#24915).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, IntervalMonthDayNanoArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNano, TimeUnit};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::cast as cast_to;
use datafusion::prelude::Expr;

use super::{DAY_MICROS, INTERVAL, Kernel, TIMESTAMP, function, is_zoned, micros_of, out_of_range, timestamptz};
use crate::pg_types::zone::Zone;

/// Returns the difference of two values of these types, if they are moments.
pub(in super::super) fn difference_of(left: &Expr, right: &Expr, types: [&DataType; 2]) -> Option<Expr> {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    let is_of = |which: fn(&DataType) -> bool| which(types[0]) && which(types[1]);
    let both = match () {
        () if is_of(|t| matches!(t, Time32(_) | Time64(_))) => DataType::Time64(TimeUnit::Nanosecond),
        () if is_of(|t| matches!(t, Date32 | Date64)) => return None,
        () if !is_of(|t| matches!(t, Date32 | Date64 | Timestamp(..))) => return None,
        () if types.iter().any(|t| is_zoned(t)) => timestamptz(),
        () => TIMESTAMP,
    };
    let side = |side: &Expr, data_type: &DataType| match *data_type == both {
        true => side.clone(),
        false => cast_to(side.clone(), both.clone()),
    };
    Some(function(Difference).call(vec![side(left, types[0]), side(right, types[1])]))
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Difference;

impl Kernel for Difference {
    fn name(&self) -> &str {
        "difference"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn run(&self, columns: &[ArrayRef], _: Zone) -> Result<ArrayRef> {
        let [left, right] = columns else { return exec_err!("difference takes two arguments") };
        if let DataType::Time64(_) = left.data_type() {
            let nanos = |values: &ArrayRef| cast(values, &DataType::Int64);
            let (left, right) = (nanos(left)?, nanos(right)?);
            let pairs = left.as_primitive::<Int64Type>().iter().zip(right.as_primitive::<Int64Type>());
            let between = pairs.map(|pair| match pair {
                (Some(left), Some(right)) => Some(IntervalMonthDayNano::new(0, 0, left - right)),
                _ => None,
            });
            return Ok(Arc::new(between.collect::<IntervalMonthDayNanoArray>()));
        }
        let (left, right) = (micros_of(left)?, micros_of(right)?);
        let between = left.iter().zip(&right).map(|pair| match pair {
            (Some(left), Some(right)) => {
                let micros = left.checked_sub(right).ok_or_else(out_of_range)?;
                // The largest difference is less than 107 million days.
                let days = (micros / DAY_MICROS) as i32;
                Ok(Some(IntervalMonthDayNano::new(0, days, micros % DAY_MICROS * 1000)))
            }
            _ => Ok(None),
        });
        Ok(Arc::new(between.collect::<Result<IntervalMonthDayNanoArray>>()?))
    }
}
