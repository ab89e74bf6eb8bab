//! Expressions over dates, times and intervals to which DataFusion 55.2 gives another type than
//! PostgreSQL. They are rewritten before types are settled.
//!
//! - `t - u` of timestamps is an INTERVAL. This module also rewrites its `extract`, and that of
//!   centuries and the like ([`temporal`](super::temporal)).
//! - `generate_series` of timestamps counts microseconds, and steps in the session's zone.
//! - `CAST(t AS TIMESTAMP(0))` rounds. Arrow's cast truncates `10:00:00.999` to `10:00:00`.
//! - A window that is ordered by intervals is ordered by their length: DataFusion refuses it with
//!   an internal error.
//! - To a timestamp of seconds or milliseconds, an interval is added in microseconds.

use arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr, Cast, LogicalPlan, Operator, TryCast, WindowFrameBound, WindowFrameUnits, cast as cast_to, try_cast,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions::{self, type_of};
use super::temporal::{
    IntervalLength, RoundedTimestamp, STRFTIME_FORMAT, difference_of, part_of, series_of, strftime_format,
};
use crate::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct TemporalTypes;

impl AnalyzerRule for TemporalTypes {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has(&plan, is_one)? {
            return Ok(plan);
        }
        expressions::try_rewritten_everywhere(plan, |expr, schema| {
            Ok(rewrite(&expr, schema)?.map_or(Transformed::no(expr), Transformed::yes))
        })
    }

    fn name(&self) -> &str {
        "temporal_types"
    }
}

fn is_one(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(op, Operator::Plus | Operator::Minus),
        Expr::ScalarFunction(call) => ["date_part", "generate_series", "range", "to_char"].contains(&call.name()),
        Expr::WindowFunction(_) => true,
        expr => matches!(expressions::cast_to(expr), Some(DataType::Timestamp(..))),
    }
}

fn rewrite(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right }) => {
            let types = [type_of(left, schema), type_of(right, schema)];
            let difference = match op {
                Operator::Minus => difference_of(left, right, [&types[0], &types[1]]),
                _ => None,
            };
            Ok(difference.or_else(|| in_micros(left, *op, right, &types)))
        }
        Expr::ScalarFunction(call) => called(call, schema),
        Expr::WindowFunction(window) => {
            let is_interval = |expr: &Expr| matches!(type_of(expr, schema), DataType::Interval(_));
            if !window.params.order_by.iter().any(|key| is_interval(&key.expr)) {
                return Ok(None);
            }
            let mut window = window.clone();
            for key in window.params.order_by.iter_mut().filter(|key| is_interval(&key.expr)) {
                key.expr = IntervalLength::of(std::mem::take(&mut key.expr));
            }
            let frame = &mut window.params.window_frame;
            if frame.units == WindowFrameUnits::Range {
                for bound in [&mut frame.start_bound, &mut frame.end_bound] {
                    measure(bound)?;
                }
            }
            Ok(Some(Expr::WindowFunction(window)))
        }
        Expr::Cast(Cast { expr: value, field }) | Expr::TryCast(TryCast { expr: value, field }) => {
            Ok(rounded(value, field.data_type(), schema).map(|value| match expr {
                Expr::Cast(_) => cast_to(value, field.data_type().clone()),
                _ => try_cast(value, field.data_type().clone()),
            }))
        }
        _ => Ok(None),
    }
}

/// Replaces the offset of a RANGE over intervals by its length. The offset is a string until types
/// are settled.
fn measure(bound: &mut WindowFrameBound) -> Result<()> {
    let (WindowFrameBound::Preceding(ScalarValue::Utf8(Some(offset)))
    | WindowFrameBound::Following(ScalarValue::Utf8(Some(offset)))) = bound
    else {
        return Ok(());
    };
    let interval = ScalarValue::try_from_string(offset.clone(), &DataType::Interval(IntervalUnit::MonthDayNano));
    match interval {
        Ok(ScalarValue::IntervalMonthDayNano(Some(interval))) if offset.parse::<f64>().is_err() => {
            *offset = IntervalLength::micros(interval).to_string();
            Ok(())
        }
        _ => {
            Err(Error::new(ErrorKind::Invalid, format!("the offset {offset} of a RANGE over intervals is no INTERVAL"))
                .with_hint("INTERVAL '1 day' is an offset of a day")
                .into())
        }
    }
}

/// Rewrites `t + i` of a timestamp in seconds or milliseconds.
fn in_micros(left: &Expr, op: Operator, right: &Expr, types: &[DataType; 2]) -> Option<Expr> {
    let micros = |data_type: &DataType| match data_type {
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) => {
            Some(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        _ => None,
    };
    let is_interval = |data_type: &DataType| matches!(data_type, DataType::Interval(_));
    let (left, right) = match types {
        [moment, interval] if is_interval(interval) => (cast_to(left.clone(), micros(moment)?), right.clone()),
        [interval, moment] if is_interval(interval) => (left.clone(), cast_to(right.clone(), micros(moment)?)),
        _ => return None,
    };
    Some(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right))))
}

fn called(call: &ScalarFunction, schema: &DFSchema) -> Result<Option<Expr>> {
    let types: Vec<DataType> = call.args.iter().map(|arg| type_of(arg, schema)).collect();
    match (call.name(), call.args.as_slice()) {
        ("date_part", [part, value]) => part_of(part, value, &types[1]),
        ("to_char", [value, format]) if !is_formatted(format) => {
            let mut call = call.clone();
            call.args = vec![value.clone(), strftime_format().call(vec![format.clone()])];
            Ok(Some(Expr::ScalarFunction(call)))
        }
        (name, args) => Ok(series_of(name, args, &types)),
    }
}

fn is_formatted(format: &Expr) -> bool {
    matches!(format, Expr::ScalarFunction(call) if call.name() == STRFTIME_FORMAT)
}

/// Rounds a timestamp to the units of a coarser type.
fn rounded(value: &Expr, to: &DataType, schema: &DFSchema) -> Option<Expr> {
    let DataType::Timestamp(to, _) = to else { return None };
    let DataType::Timestamp(from, _) = type_of(value, schema) else { return None };
    let micros = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 1_000_000,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1,
        TimeUnit::Nanosecond => 0,
    };
    let is_rounded = matches!(value, Expr::ScalarFunction(call) if call.name() == "rounded_timestamp");
    (micros(to) > micros(&from) && !is_rounded)
        .then(|| RoundedTimestamp::function(micros(to)).call(vec![value.clone()]))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn differences_are_intervals() {
        let table =
            "(VALUES (TIMESTAMP '2024-01-02 12:00:00', TIMESTAMP '2024-01-01', DATE '2024-01-31')) AS t(a, b, d)";
        for (expr, expected) in [
            ("CAST(a - b AS VARCHAR)", "1 day 12:00:00"),
            ("CAST(-(a - b) AS VARCHAR)", "-1 days -12:00:00"),
            ("extract(hour FROM a - b)", "12"),
            ("extract(epoch FROM a - b)", "129600.0"),
            ("d + (a - b)", "2024-02-01T12:00:00"),
            ("CAST(sum(a - b) AS VARCHAR)", "1 day 12:00:00"),
            ("CAST(avg(a - b) AS VARCHAR)", "1 day 12:00:00"),
            ("CAST(TIME '10:00' - TIME '08:30' AS VARCHAR)", "01:30:00"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr} FROM {table}")).await, [expected], "{expr}");
        }
        assert!(
            fails("SELECT extract(week FROM INTERVAL '1 day')").await.message().contains("an interval has no 'week'")
        );
    }

    #[tokio::test]
    async fn timestamps_round() {
        for (expr, expected) in [
            ("TIMESTAMP '2024-01-01 10:00:00.999'::TIMESTAMP(0)", "2024-01-01T10:00:01"),
            ("TIMESTAMP '2024-01-01 10:00:00.9999'::TIMESTAMP(3)", "2024-01-01T10:00:01"),
            ("'2024-01-01 10:00:00.5'::TIMESTAMP(0)", "2024-01-01T10:00:01"),
            ("date_trunc('month', DATE '9999-12-31')", "9999-12-01T00:00:00"),
            ("date_trunc('century', TIMESTAMP '2024-01-01')", "2001-01-01T00:00:00"),
            ("array_length(generate_series(TIMESTAMP '2020-01-01', TIMESTAMP '2020-07-01', INTERVAL '3 months'))", "3"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
