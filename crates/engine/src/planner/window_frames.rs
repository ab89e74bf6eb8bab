//! Frames of windows: offsets that SQL forbids are refused, and any key may order rows.
//!
//! `RANGE BETWEEN INTERVAL '-1 day' PRECEDING AND CURRENT ROW` has no row in DataFusion, or others
//! than are meant; expected is an error, as in PostgreSQL and DuckDB (apache/datafusion #24902).
//! `row_number() OVER (ORDER BY i)` of intervals is the internal error "Cannot run range queries on
//! datatype: Interval", for the frame that is not written is a RANGE (seen in 55.2.0). Where a
//! RANGE has no offset, it ends at peers, and GROUPS ends there too: it is what DataFusion gets for
//! such keys.
//! An offset is made one of the key's type: `1.25 FOLLOWING` of a DECIMAL(5, 1) is 1.3, and of an integer an error. A key that has
//! fewer digits behind the point than an offset of its windows gets as many.

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, IntervalUnit};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;
use crate::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct WindowFrames;

impl AnalyzerRule for WindowFrames {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_ranged = |expr: &Expr| match expr {
            Expr::WindowFunction(call) => call.params.window_frame.units == WindowFrameUnits::Range,
            _ => false,
        };
        if !expressions::has(&plan, is_ranged)? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = expressions::readable(&node)?;
            let digits = most_digits(&node)?;
            expressions::rewritten(node, |expr| rewrite(expr, &schema, digits))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "window_frames"
    }
}

/// `digits`: those that a key of the node has at least behind the point.
fn rewrite(expr: Expr, schema: &DFSchema, digits: i16) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
    let key = match call.params.order_by.first() {
        Some(key) if call.params.window_frame.units == WindowFrameUnits::Range => {
            expressions::type_of(&key.expr, schema)
        }
        _ => return Ok(Transformed::no(Expr::WindowFunction(call))),
    };
    for bound in [&call.params.window_frame.start_bound, &call.params.window_frame.end_bound] {
        check(bound, &key)?;
    }
    let changed = !has_ranges(&key) && by_groups(&mut call) || with_digits(&mut call, &key, digits);
    let expr = Expr::WindowFunction(call);
    Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
}

/// Whether DataFusion orders the rows of a RANGE by such a key.
fn has_ranges(key: &DataType) -> bool {
    match key {
        DataType::Dictionary(_, value) => has_ranges(value),
        DataType::Boolean | DataType::Null | DataType::List(_) | DataType::LargeList(_) => true,
        other => other.is_numeric() || other.is_string() || is_moment(other),
    }
}

fn is_moment(key: &DataType) -> bool {
    matches!(
        key,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_)
    )
}

/// Counts peers in place of distances; whether no distance is written.
fn by_groups(call: &mut WindowFunction) -> bool {
    let frame = &call.params.window_frame;
    let bounds = [&frame.start_bound, &frame.end_bound];
    if bounds.into_iter().any(|bound| offset(bound).is_some()) {
        return false;
    }
    let unit = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(_) => WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
        WindowFrameBound::Following(_) => WindowFrameBound::Following(ScalarValue::UInt64(None)),
        WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
    };
    call.params.window_frame =
        WindowFrame::new_bounds(WindowFrameUnits::Groups, unit(&frame.start_bound), unit(&frame.end_bound));
    true
}

/// The most digits behind the point that an offset of a node's frames has: its windows have one order, and so one key.
fn most_digits(node: &LogicalPlan) -> Result<i16> {
    let mut most = 0;
    node.apply_expressions(|expr| {
        expr.apply(|expr| {
            if let Expr::WindowFunction(call) = expr
                && call.params.window_frame.units == WindowFrameUnits::Range
            {
                let frame = &call.params.window_frame;
                let offsets = [&frame.start_bound, &frame.end_bound].into_iter().filter_map(offset);
                most = offsets.filter_map(digits_behind_point).fold(most, i16::max);
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(most)
}

/// Gives the key that many digits behind the point; whether it had fewer.
fn with_digits(call: &mut WindowFunction, key: &DataType, wanted: i16) -> bool {
    let (whole, scale) = match key {
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            (i16::from(*precision) - i16::from(*scale), i16::from(*scale))
        }
        integer if integer.is_integer() => (20, 0),
        _ => return false,
    };
    if wanted <= scale {
        return false;
    }
    // A sum of the key and an offset has a digit more.
    let wide = u8::try_from(whole + wanted + 1).ok().zip(i8::try_from(wanted).ok());
    let data_type = match wide {
        Some((precision, scale)) if precision <= DECIMAL128_MAX_PRECISION => DataType::Decimal128(precision, scale),
        Some((precision, scale)) if precision <= DECIMAL256_MAX_PRECISION => DataType::Decimal256(precision, scale),
        _ => return false,
    };
    for key in call.params.order_by.iter_mut().take(1) {
        let value = std::mem::take(&mut key.expr);
        key.expr = cast(value, data_type.clone());
    }
    true
}

/// How many digits a number needs behind the point, as it is written.
fn digits_behind_point(number: &str) -> Option<i16> {
    let number = number.trim().to_ascii_lowercase();
    let (digits, exponent) = number.split_once('e').unwrap_or((&number, "0"));
    let fraction = digits.split_once('.').map_or("", |(_, fraction)| fraction.trim_end_matches('0'));
    let exponent: i16 = exponent.parse().ok()?;
    Some(i16::try_from(fraction.len()).ok()?.saturating_sub(exponent).max(0))
}

/// The offset of a bound, as it was written.
fn offset(bound: &WindowFrameBound) -> Option<&str> {
    match bound {
        WindowFrameBound::Preceding(ScalarValue::Utf8(Some(offset)))
        | WindowFrameBound::Following(ScalarValue::Utf8(Some(offset))) => Some(offset),
        _ => None,
    }
}

fn check(bound: &WindowFrameBound, key: &DataType) -> Result<()> {
    let Some(offset) = offset(bound) else { return Ok(()) };
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::Invalid, message).with_hint(hint).into());
    // Intervals are numbers by now, of `temporal_types`.
    if matches!(key, DataType::Duration(_)) {
        return refuse(
            "RANGE with an offset is not supported over durations".to_string(),
            "ROWS and GROUPS count rows and peers",
        );
    }
    if key.is_string() || matches!(key, DataType::Boolean) {
        let message = format!("RANGE with the offset {offset} needs an ORDER BY of numbers, dates or times");
        return refuse(message, "ROWS and GROUPS count rows and peers");
    }
    if is_moment(key) && offset.parse::<f64>().is_ok() {
        let message = format!("the offset {offset} of a RANGE over dates or times is no INTERVAL");
        return refuse(message, "INTERVAL '1 day' is an offset of a day");
    }
    if is_negative(offset, key) {
        let message = format!("the offset {offset} of a frame is negative");
        return refuse(message, "PRECEDING looks back and FOLLOWING ahead, by an offset of zero or more");
    }
    Ok(())
}

fn is_negative(offset: &str, key: &DataType) -> bool {
    if !is_moment(key) {
        return offset.trim_start().starts_with('-');
    }
    let interval = DataType::Interval(IntervalUnit::MonthDayNano);
    match ScalarValue::try_from_string(offset.to_string(), &interval) {
        Ok(ScalarValue::IntervalMonthDayNano(Some(interval))) => {
            const NANOS_PER_DAY: i128 = 86_400_000_000_000;
            let days = i128::from(interval.months) * 30 + i128::from(interval.days);
            days * NANOS_PER_DAY + i128::from(interval.nanoseconds) < 0
        }
        // DataFusion says what is wrong with it.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn negative_offsets_are_refused() {
        let table = "(VALUES (TIMESTAMP '2020-01-01', 1), (TIMESTAMP '2020-01-02', 2)) AS t(m, i)";
        for (frame, message) in [
            ("m RANGE BETWEEN INTERVAL '-1 day' PRECEDING AND CURRENT ROW", "is negative"),
            ("m RANGE BETWEEN CURRENT ROW AND INTERVAL '-1' DAY FOLLOWING", "is negative"),
            ("m RANGE BETWEEN INTERVAL '1 day -25 hours' PRECEDING AND CURRENT ROW", "is negative"),
            ("m RANGE 1 PRECEDING", "is no INTERVAL"),
            ("m - m RANGE 1 PRECEDING", "is no INTERVAL"),
            ("m - m RANGE INTERVAL '-1 day' PRECEDING", "is negative"),
            ("CAST(i AS VARCHAR) RANGE 1 PRECEDING", "needs an ORDER BY of numbers"),
            ("i ROWS BETWEEN -1 PRECEDING AND CURRENT ROW", "negative"),
            ("i RANGE BETWEEN -1 PRECEDING AND CURRENT ROW", "offset"),
            ("i ROWS NULL PRECEDING", "offset"),
        ] {
            let error = fails(&format!("SELECT count(*) OVER (ORDER BY {frame}) FROM {table}")).await;
            assert!(error.message().contains(message), "{frame}: {error}");
        }
        let query = format!(
            "SELECT count(*) OVER (ORDER BY m RANGE INTERVAL '2 days -1 hour' PRECEDING) AS n FROM {table} ORDER BY n"
        );
        assert_eq!(rows(&query).await, ["1", "2"]);
    }

    #[tokio::test]
    async fn offsets_keep_their_digits() {
        // As PostgreSQL 15.18 answers, and of the integers DuckDB 2.0.
        let table = "(VALUES (CAST(1.2 AS DECIMAL(5, 1)), 1, CAST(1.2 AS DECIMAL(38, 1))), (1.3, 2, 1.3), (2.5, 4, 2.5)) AS t(c, i, w)";
        for (frame, expected) in [
            ("c RANGE BETWEEN CURRENT ROW AND 1.25 FOLLOWING", "2,2,1"),
            ("c RANGE BETWEEN CURRENT ROW AND 1.250 FOLLOWING", "2,2,1"),
            ("c RANGE BETWEEN CURRENT ROW AND 1.3 FOLLOWING", "3,2,1"),
            ("c RANGE BETWEEN 0.05 PRECEDING AND CURRENT ROW", "1,1,1"),
            ("c RANGE BETWEEN 1e-1 PRECEDING AND CURRENT ROW", "1,2,1"),
            ("c DESC RANGE BETWEEN 1.25 PRECEDING AND CURRENT ROW", "2,2,1"),
            ("c RANGE BETWEEN 0.05 PRECEDING AND 1.2 FOLLOWING", "2,2,1"),
            ("w RANGE BETWEEN CURRENT ROW AND 1.25 FOLLOWING", "2,2,1"),
            ("i RANGE BETWEEN 0.5 PRECEDING AND CURRENT ROW", "1,1,1"),
            ("i RANGE BETWEEN 1.5 PRECEDING AND CURRENT ROW", "1,2,1"),
        ] {
            let query = format!("SELECT c, count(*) OVER (ORDER BY {frame}) AS n FROM {table} ORDER BY c");
            let counts: Vec<String> =
                rows(&query).await.iter().filter_map(|row| Some(row.split_once(' ')?.1.to_string())).collect();
            assert_eq!(counts.join(","), expected, "{frame}");
        }
    }

    #[tokio::test]
    async fn intervals_order_rows() {
        let table = "(VALUES (INTERVAL '2 days'), (INTERVAL '1 day'), (INTERVAL '24 hours'), (NULL)) AS t(x)";
        let query = format!(
            "SELECT row_number() OVER (ORDER BY x NULLS FIRST) AS r, count(x) OVER (ORDER BY x NULLS FIRST) AS n FROM {table} ORDER BY r"
        );
        assert_eq!(rows(&query).await, ["1 0", "2 2", "3 2", "4 3"]);
        // As PostgreSQL 15.18 answers.
        for (frame, expected) in [
            ("x RANGE INTERVAL '1 day' PRECEDING", "1,2,2,3"),
            ("x RANGE INTERVAL '23:59' PRECEDING", "1,1,2,2"),
            ("x DESC NULLS LAST RANGE BETWEEN CURRENT ROW AND INTERVAL '24:00' FOLLOWING", "1,2,2,3"),
        ] {
            let query = format!("SELECT count(*) OVER (ORDER BY {frame}) AS n FROM {table} ORDER BY n");
            assert_eq!(rows(&query).await.join(","), expected, "{frame}");
        }
    }
}
