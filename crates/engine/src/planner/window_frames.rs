//! Frames of windows: offsets that SQL forbids are refused, and keys of any type may order rows.
//!
//! `RANGE BETWEEN INTERVAL '-1 day' PRECEDING AND CURRENT ROW` contains no rows in DataFusion, or
//! wrong ones. PostgreSQL and DuckDB refuse it (apache/datafusion #24902). `row_number() OVER
//! (ORDER BY i)` of intervals is the internal error "Cannot run range queries on datatype:
//! Interval". The default frame is a RANGE (seen in 55.2.0). A RANGE without an offset ends at
//! peers, as GROUPS does, so DataFusion receives GROUPS for such keys. An offset is cast to the
//! key's type: `1.25 FOLLOWING` of a DECIMAL(5, 1) is 1.3, and of an integer an error. A key with
//! fewer digits than an offset of its windows gets as many, and a DATE beside hours becomes a
//! TIMESTAMP.

use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, IntervalMonthDayNano, IntervalUnit, TimeUnit,
};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;
use super::interval_days::DAY_NANOS;
use crate::{Error, ErrorKind};

const SECOND_NANOS: i64 = 1_000_000_000;

/// The number of digits of which every number, and its sum with a key of 32 bits, is a BIGINT.
const BIGINT_DIGITS: i16 = 18;

#[derive(Debug)]
pub(super) struct WindowFrames;

impl AnalyzerRule for WindowFrames {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        refuse_without_arguments(&plan)?;
        let is_ranged = |expr: &Expr| match expr {
            Expr::WindowFunction(call) => call.params.window_frame.units == WindowFrameUnits::Range,
            _ => false,
        };
        if !expressions::has(&plan, is_ranged)? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = expressions::readable(&node)?;
            let offsets = Offsets::of(&node)?;
            expressions::rewritten(node, |expr| rewrite(expr, &schema, offsets))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "window_frames"
    }
}

/// Fails for `last_value() OVER ()` and the like. DataFusion 55.2 panics, although the signature
/// allows no arguments.
fn refuse_without_arguments(plan: &LogicalPlan) -> Result<()> {
    let mut refused = None;
    expressions::has(plan, |expr| {
        if let Expr::WindowFunction(call) = expr
            && call.params.args.is_empty()
            && ["first_value", "last_value", "nth_value"].contains(&call.fun.name())
        {
            refused = Some(call.fun.name().to_string());
        }
        refused.is_some()
    })?;
    match refused {
        Some(name) => Err(Error::new(ErrorKind::Invalid, format!("function {name} takes arguments")).into()),
        None => Ok(()),
    }
}

/// Rewrites a window call. `offsets` are those of the expression's node.
fn rewrite(expr: Expr, schema: &DFSchema, offsets: Offsets) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
    let Some(key) = call.params.order_by.first().map(|key| expressions::type_of(&key.expr, schema)) else {
        return Ok(Transformed::no(Expr::WindowFunction(call)));
    };
    let mut changed = false;
    if call.params.window_frame.units == WindowFrameUnits::Range {
        for bound in [&call.params.window_frame.start_bound, &call.params.window_frame.end_bound] {
            check(bound, &key)?;
        }
        changed = !has_ranges(&key) && by_groups(&mut call);
    }
    // All windows of a node have one order, with or without ranges.
    changed |= with_room(&mut call, &key, offsets);
    let expr = Expr::WindowFunction(call);
    Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
}

/// Returns whether DataFusion orders the rows of a RANGE by such a key.
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

/// Replaces a RANGE by GROUPS. Returns false if it has an offset.
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

/// The digits and units that the key needs for the offsets of a node's frames. The windows of a
/// node have one order, and so one key.
#[derive(Clone, Copy, Debug, Default)]
struct Offsets {
    /// The number of digits before the point.
    whole: i16,
    /// The number of digits after the point.
    fraction: i16,
    /// True if an interval has a part of a day.
    has_time: bool,
    /// True if an interval has a part of a second.
    has_subseconds: bool,
}

impl Offsets {
    fn of(node: &LogicalPlan) -> Result<Self> {
        let mut all = Self::default();
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::WindowFunction(call) = expr
                    && call.params.window_frame.units == WindowFrameUnits::Range
                {
                    let frame = &call.params.window_frame;
                    [&frame.start_bound, &frame.end_bound].into_iter().filter_map(offset).for_each(|one| all.add(one));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(all)
    }

    fn add(&mut self, offset: &str) {
        if let Some((whole, fraction)) = digits_of(offset) {
            (self.whole, self.fraction) = (self.whole.max(whole), self.fraction.max(fraction));
        } else if let Ok(number) = offset.trim().parse::<f64>() {
            // A number with an exponent has at least this many digits.
            self.whole = self.whole.max(number.abs().log10().ceil().clamp(1.0, 76.0) as i16 + 1);
        } else if let Some(interval) = interval(offset) {
            self.has_time |= interval.nanoseconds % DAY_NANOS != 0;
            self.has_subseconds |= interval.nanoseconds % SECOND_NANOS != 0;
        }
    }
}

/// Casts the key to a type that holds its sums with the offsets. Otherwise DataFusion's sums
/// overflow: past the end of the type, a frame also contains the rows of NULL. Returns whether the
/// type changed.
fn with_room(call: &mut WindowFunction, key: &DataType, offsets: Offsets) -> bool {
    let has_distance = offsets.whole > 0 || offsets.fraction > 0;
    let wide = match key {
        DataType::Date32 if offsets.has_time => Some(DataType::Timestamp(TimeUnit::Microsecond, None)),
        // An offset is truncated to the unit of the key.
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) if offsets.has_subseconds => {
            Some(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) if has_distance => {
            with_digits(i16::from(*precision) - i16::from(*scale), i16::from(*scale), offsets)
        }
        DataType::Int64 | DataType::UInt64 if has_distance => with_digits(20, 0, offsets),
        integer if integer.is_integer() && has_distance => {
            let is_near = offsets.whole <= BIGINT_DIGITS && offsets.fraction == 0;
            if is_near { Some(DataType::Int64) } else { with_digits(10, 0, offsets) }
        }
        _ => None,
    };
    let Some(wide) = wide.filter(|wide| wide != key) else { return false };
    for key in call.params.order_by.iter_mut().take(1) {
        key.expr = cast(std::mem::take(&mut key.expr), wide.clone());
    }
    true
}

/// Returns the decimal type with all digits of such a key, of the offsets, and of their sum.
fn with_digits(whole: i16, scale: i16, offsets: Offsets) -> Option<DataType> {
    let scale = scale.max(offsets.fraction);
    let precision = u8::try_from(whole.max(offsets.whole) + scale + 1).ok()?;
    let scale = i8::try_from(scale).ok()?;
    match precision {
        _ if precision <= DECIMAL128_MAX_PRECISION => Some(DataType::Decimal128(precision, scale)),
        _ if precision <= DECIMAL256_MAX_PRECISION => Some(DataType::Decimal256(precision, scale)),
        _ => None,
    }
}

/// Returns the number of digits before and after the point of a number without an exponent.
fn digits_of(number: &str) -> Option<(i16, i16)> {
    let number = number.trim();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    i16::try_from(whole.len()).ok().zip(i16::try_from(fraction.len()).ok())
}

fn interval(offset: &str) -> Option<IntervalMonthDayNano> {
    let data_type = DataType::Interval(IntervalUnit::MonthDayNano);
    match ScalarValue::try_from_string(offset.to_string(), &data_type) {
        Ok(ScalarValue::IntervalMonthDayNano(interval)) => interval,
        // DataFusion reports the error in it.
        _ => None,
    }
}

/// Returns the offset of a bound as a string.
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
    // `temporal_types` has already replaced intervals by numbers.
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
    interval(offset).is_some_and(|interval| {
        let days = i128::from(interval.months) * 30 + i128::from(interval.days);
        days * i128::from(DAY_NANOS) + i128::from(interval.nanoseconds) < 0
    })
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
        // Expected values are PostgreSQL 15.18's, and for the integers DuckDB 2.0's.
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
            ("c RANGE BETWEEN 99999999999 PRECEDING AND CURRENT ROW", "1,2,3"),
            ("c RANGE BETWEEN CURRENT ROW AND 123456.789 FOLLOWING", "3,2,1"),
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
    async fn dates_have_hours() {
        let table = "(VALUES (DATE '2020-01-01'), (DATE '2020-01-02'), (DATE '2020-01-04')) AS t(d)";
        for (frame, expected) in [
            ("INTERVAL '1 hour' PRECEDING AND INTERVAL '1 hour' PRECEDING", "0,0,0"),
            ("INTERVAL '36 hours' PRECEDING AND INTERVAL '1 hour' PRECEDING", "0,1,0"),
            ("INTERVAL '30 minutes' FOLLOWING AND INTERVAL '2 days' FOLLOWING", "1,1,0"),
            ("UNBOUNDED PRECEDING AND INTERVAL '1 hour' PRECEDING", "0,1,2"),
            ("INTERVAL '1 day' PRECEDING AND CURRENT ROW", "1,2,1"),
        ] {
            let query =
                format!("SELECT d, count(*) OVER (ORDER BY d RANGE BETWEEN {frame}) AS n FROM {table} ORDER BY d");
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
        // Expected values are PostgreSQL 15.18's.
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
