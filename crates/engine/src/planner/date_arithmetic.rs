//! Days are integers: `DATE '2020-03-01' - DATE '2020-02-01'` is 29, and `DATE '2020-02-01' + 29`
//! is the first of March.
//!
//! DataFusion computes the difference of two dates as a duration in seconds, which does not compare
//! with a number: `a - b > 3` fails one of its assertions. It converts a number to an interval in
//! nanoseconds before it adds it to a date, so 106,752 days overflow. PostgreSQL and DuckDB count
//! days. This rule does too, with integers that are checked like all others, before types are
//! settled.
//!
//! DataFusion returns a date for a date plus an interval, which loses the hours of
//! `DATE '2020-01-01' + INTERVAL '36 hours'`. This rule returns a date only if the interval is
//! written in whole days, months and years, so that such dates compare with date columns. Otherwise
//! it returns a timestamp, as PostgreSQL and DuckDB always do. DataFusion handles timestamps.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, LogicalPlan, Operator, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;

#[derive(Debug)]
pub(super) struct DateArithmetic;

impl AnalyzerRule for DateArithmetic {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_everywhere(plan, rewrite)
    }

    fn name(&self) -> &str {
        "date_arithmetic"
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right }) = &expr else {
        return Transformed::no(expr);
    };
    let (Ok(a), Ok(b)) = (left.get_type(schema), right.get_type(schema)) else { return Transformed::no(expr) };
    let computed = |left: Expr, right: Expr| Expr::BinaryExpr(BinaryExpr::new(Box::new(left), *op, Box::new(right)));
    let number = |expr: &Expr| cast(expr.clone(), DataType::Int64);
    match (a, op, b) {
        (DataType::Date32, Operator::Minus, DataType::Date32) => Transformed::yes(computed(days(left), days(right))),
        (DataType::Date32, _, b) if b.is_integer() => Transformed::yes(date(computed(days(left), number(right)))),
        (a, Operator::Plus, DataType::Date32) if a.is_integer() => {
            Transformed::yes(date(computed(number(left), days(right))))
        }
        (DataType::Date32, _, DataType::Interval(_)) if !is_of_whole_days(right) => {
            Transformed::yes(computed(midnight(left), right.as_ref().clone()))
        }
        (DataType::Interval(_), Operator::Plus, DataType::Date32) if !is_of_whole_days(left) => {
            Transformed::yes(computed(left.as_ref().clone(), midnight(right)))
        }
        _ => Transformed::no(expr),
    }
}

/// Returns whether the expression is known to have no part below a day.
fn is_of_whole_days(interval: &Expr) -> bool {
    match interval {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(value)), _) => value.nanoseconds == 0,
        Expr::Literal(ScalarValue::IntervalDayTime(Some(value)), _) => value.milliseconds == 0,
        Expr::Literal(ScalarValue::IntervalYearMonth(_), _) => true,
        Expr::Negative(inner) => is_of_whole_days(inner),
        Expr::Alias(alias) => is_of_whole_days(&alias.expr),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus | Operator::Minus, right }) => {
            is_of_whole_days(left) && is_of_whole_days(right)
        }
        _ => false,
    }
}

fn midnight(date: &Expr) -> Expr {
    cast(date.clone(), DataType::Timestamp(TimeUnit::Microsecond, None))
}

/// Returns the days since 1970-01-01.
fn days(date: &Expr) -> Expr {
    cast(cast(date.clone(), DataType::Int32), DataType::Int64)
}

fn date(days: Expr) -> Expr {
    cast(cast(days, DataType::Int32), DataType::Date32)
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn days_are_counted() {
        let table = "(VALUES (DATE '2020-03-01', 29, INTERVAL '25 hours'), (DATE '1969-12-31', -1, INTERVAL '1 day'), \
                     (NULL, 5, NULL)) AS t(d, n, i)";
        for (expression, expected) in [
            // Expected values are from DuckDB.
            ("d - DATE '2020-02-01'", "29 -18294 NULL"),
            ("d - DATE '2020-02-01' > 3", "true false NULL"),
            ("arrow_typeof(d - d)", "Int64 Int64 Int64"),
            ("d + n", "2020-03-30 1969-12-30 NULL"),
            ("n + d", "2020-03-30 1969-12-30 NULL"),
            ("d - n", "2020-02-01 1970-01-01 NULL"),
            ("DATE '1998-01-01' + 200000 - d", "191905 210228 NULL"),
            ("DATE '1998-01-01' + 200000", "2545-08-01 2545-08-01 2545-08-01"),
            ("d + CAST(n AS TINYINT) + CAST(1 AS SMALLINT)", "2020-03-31 1969-12-31 NULL"),
            // With an interval.
            ("d + INTERVAL '36 hours'", "2020-03-02T12:00:00 1970-01-01T12:00:00 NULL"),
            ("INTERVAL '1 minute' + d", "2020-03-01T00:01:00 1969-12-31T00:01:00 NULL"),
            ("d - INTERVAL '1 second'", "2020-02-29T23:59:59 1969-12-30T23:59:59 NULL"),
            ("d + INTERVAL '1 day 1 hour'", "2020-03-02T01:00:00 1970-01-01T01:00:00 NULL"),
            ("d + i", "2020-03-02T01:00:00 1970-01-01T00:00:00 NULL"),
            ("arrow_typeof(d + INTERVAL '1 month')", "Date32 Date32 Date32"),
            ("arrow_typeof(d - INTERVAL '1' DAY)", "Date32 Date32 Date32"),
            ("CAST(d + INTERVAL '1 month' AS DATE)", "2020-04-01 1970-01-31 NULL"),
            (
                "TIMESTAMP '2020-01-02 00:00:00' - TIMESTAMP '2020-01-01 00:00:00' > INTERVAL '3 hours'",
                "true true true",
            ),
        ] {
            assert_eq!(rows(&format!("SELECT {expression} FROM {table}")).await.join(" "), expected, "{expression}");
        }
        assert_eq!(rows(&format!("SELECT count(*) FROM {table} WHERE d - DATE '1998-01-01' > 3")).await, ["1"]);
        assert_eq!(rows(&format!("SELECT d - DATE '2020-02-01' AS age FROM {table} ORDER BY age")).await.len(), 3);
    }

    #[tokio::test]
    async fn days_that_are_too_many_are_an_error() {
        for expression in ["d + 9000000000", "d + 9223372036854775807", "d - 9000000000"] {
            let error = fails(&format!("SELECT {expression} FROM (VALUES (DATE '2020-03-01')) AS t(d)")).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{expression}: {error}");
        }
    }
}
