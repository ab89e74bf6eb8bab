//! `generate_series(t, u, i)` and `range(t, u, i)` of timestamps, in microseconds and in the local
//! time of the session.
//!
//! DataFusion 55.2 steps in UTC, in nanoseconds. Three months from 2020-01-01 are not three months
//! in a zone with daylight saving time, and years before 1678 and after 2261 fail.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, TimestampMicrosecondArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, IntervalMonthDayNanoType};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::cast as cast_to;
use datafusion::prelude::Expr;

use super::shifts::shifted;
use super::{INTERVAL, Kernel, TIMESTAMP, function, in_type, is_zoned, micros_of, out_of_range, timestamptz};
use crate::limits::{go_on, go_on_with};
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Rule};

/// The maximum number of values of a series.
const MOST: usize = 100_000_000;

/// The initial capacity, in values.
const FIRST: usize = 64;

/// The number of values between two checks of cancellation.
const LOOK_EVERY: usize = 1 << 14;

/// Returns the series of a call of one of DataFusion's functions, if it is of timestamps.
pub(in super::super) fn series_of(name: &str, args: &[Expr], types: &[DataType]) -> Option<Expr> {
    let includes_end = match name {
        "generate_series" => true,
        "range" => false,
        _ => return None,
    };
    let ([_, _, _], [first, second, step]) = (args, types) else { return None };
    if !matches!(first, DataType::Timestamp(..)) && !matches!(second, DataType::Timestamp(..)) {
        return None;
    }
    let item = if is_zoned(first) || is_zoned(second) { timestamptz() } else { TIMESTAMP };
    let wanted = [(first, item.clone()), (second, item), (step, INTERVAL)];
    let args = args.iter().zip(wanted).map(|(arg, (is, wanted))| match *is == wanted {
        true => arg.clone(),
        false => cast_to(arg.clone(), wanted),
    });
    Some(function(Series { includes_end }).call(args.collect()))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Series {
    includes_end: bool,
}

impl Series {
    fn values(&self, start: i64, end: i64, step: IntervalMonthDayNano, zone: Zone, out: &mut Vec<i64>) -> Result<()> {
        let IntervalMonthDayNano { months, days, nanoseconds } = step;
        let signs = [months.signum().into(), days.signum().into(), nanoseconds.signum()];
        let (has_later, has_earlier) = (signs.contains(&1), signs.contains(&-1));
        if has_later == has_earlier {
            let message = "the step of a series is longer than nothing, and all of one sign";
            return Err(Error::new(ErrorKind::Data, message).breaking(Rule::Range).into());
        }
        let mut at = start;
        loop {
            let is_over = match (has_later, self.includes_end) {
                (true, true) => at > end,
                (true, false) => at >= end,
                (false, true) => at < end,
                (false, false) => at <= end,
            };
            if is_over {
                return Ok(());
            }
            if out.len() >= MOST {
                let error = Error::new(ErrorKind::Resources, "a series of timestamps has more than 100 million values");
                return Err(error.with_hint("a longer step has fewer").into());
            }
            push(out, at)?;
            let next = shifted(at, step, zone).ok_or_else(out_of_range)?;
            // The step is less than a microsecond, or a change of the clock cancels it.
            if next == at {
                return exec_err!("the step of a series leads nowhere");
            }
            at = next;
        }
    }
}

/// Appends a value. Checks the memory limit before it grows the vector, and checks for
/// cancellation.
fn push(out: &mut Vec<i64>, value: i64) -> Result<()> {
    if out.len() == out.capacity() {
        let more = out.capacity().max(FIRST);
        go_on_with((size_of::<i64>() * (out.capacity() + more)) as u64)?;
        out.reserve_exact(more);
    } else if out.len().is_multiple_of(LOOK_EVERY) {
        go_on()?;
    }
    out.push(value);
    Ok(())
}

impl Kernel for Series {
    fn name(&self) -> &str {
        if self.includes_end { "series_of_timestamps" } else { "range_of_timestamps" }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let item = types.first().cloned().unwrap_or(DataType::Null);
        Ok(DataType::List(Arc::new(Field::new_list_field(item, true))))
    }

    fn run(&self, columns: &[ArrayRef], session: Zone) -> Result<ArrayRef> {
        let [starts, ends, steps] = columns else { return exec_err!("a series takes three arguments") };
        let item = starts.data_type().clone();
        let zone = if is_zoned(&item) { session } else { Zone::Utc };
        let (starts, ends) = (micros_of(starts)?, micros_of(ends)?);
        let steps = steps.as_primitive::<IntervalMonthDayNanoType>();
        let (mut all, mut lengths, mut is_there) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..starts.len() {
            let before = all.len();
            let has_all = starts.is_valid(row) && ends.is_valid(row) && steps.is_valid(row);
            if has_all {
                self.values(starts.value(row), ends.value(row), steps.value(row), zone, &mut all)?;
            }
            lengths.push(all.len() - before);
            is_there.push(has_all);
        }
        let values = in_type(TimestampMicrosecondArray::from(all), &item)?;
        let field = Arc::new(Field::new_list_field(item, true));
        let nulls = Some(NullBuffer::from(is_there));
        Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), values, nulls)?))
    }
}
