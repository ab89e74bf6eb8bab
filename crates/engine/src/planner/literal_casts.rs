//! Reports an invalid cast of a literal in SQL notation: `'x' is no DATE`,
//! `70000 is out of range for SMALLINT`.
//!
//! Arrow's error names the array type that it could not build. This rule checks explicit casts, and
//! those of a literal beside a column. Arrow checks the values of columns.
//! [`string_casts`](super::string_casts) parses and refuses string literals.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Cast, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use crate::Error;
use crate::convert::{Misfit, misfit_error};

#[derive(Debug)]
pub(super) struct LiteralCasts;

impl AnalyzerRule for LiteralCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has(&plan, |expr| matches!(expr, Expr::Cast(cast) if matches!(*cast.expr, Expr::Literal(..))))?
        {
            return Ok(plan);
        }
        let checked = plan.transform_up_with_subqueries(|node| expressions::rewritten(node, rewrite));
        Ok(checked?.data)
    }

    fn name(&self) -> &str {
        "literal_casts"
    }
}

fn rewrite(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Cast(Cast { expr: inner, field }) = &expr else { return Ok(Transformed::no(expr)) };
    let Expr::Literal(value, _) = inner.as_ref() else { return Ok(Transformed::no(expr)) };
    let to = field.data_type();
    let is_told = to.is_numeric() || is_moment(to) || *to == DataType::Boolean;
    if !is_told || value.is_null() || value.cast_to(to).is_ok() {
        return Ok(Transformed::no(expr));
    }
    Err(misfit(value, to).into())
}

/// Returns the error for a literal that does not fit a type.
fn misfit(value: &ScalarValue, to: &DataType) -> Error {
    let shown = match value.try_as_str() {
        Some(Some(text)) => expressions::shown(text),
        _ => value.to_string(),
    };
    let is_number = value.cast_to(&DataType::Float64).is_ok_and(|number| !number.is_null());
    misfit_error(&shown, to, if to.is_numeric() && is_number { Misfit::Range } else { Misfit::Form })
}

fn is_moment(data_type: &DataType) -> bool {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    matches!(data_type, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};
    use crate::{ErrorKind, Rule};

    #[tokio::test]
    async fn what_does_not_fit_is_told_as_it_is_written() {
        for (expr, said, rule) in [
            ("CAST(70000 AS SMALLINT)", "70000 is out of range for SMALLINT", Rule::Range),
            ("CAST('70000' AS SMALLINT)", "'70000' is out of range for SMALLINT", Rule::Range),
            ("CAST('x' AS INTEGER)", "'x' is no INTEGER", Rule::Form),
            ("CAST('x' AS BOOLEAN)", "'x' is no BOOLEAN", Rule::Form),
            ("CAST('2020-13-01' AS DATE)", "'2020-13-01' is no DATE", Rule::Moment),
            ("CAST('x' AS TIMESTAMP)", "'x' is no TIMESTAMP", Rule::Moment),
            ("d > 'nonsense'", "'nonsense' is no DATE", Rule::Moment),
        ] {
            let error = fails(&format!("SELECT {expr} FROM (VALUES (DATE '2020-01-01')) AS t(d)")).await;
            assert!(error.message().starts_with(said), "{expr}: {error}");
            assert_eq!((error.kind(), error.rule()), (ErrorKind::Data, Some(rule)), "{expr}: {error}");
        }
        for (expr, expected) in [
            ("TRY_CAST('x' AS INTEGER)", "NULL"),
            ("CAST('12' AS INTEGER)", "12"),
            ("TIMESTAMP '2020-01-02 03:04'", "2020-01-02T03:04:00"),
            ("d < CAST('2020-01-02T03:04' AS TIMESTAMP)", "true"),
            ("CAST('2020-01-02 03:04+02' AS TIMESTAMPTZ)", "2020-01-02T01:04:00Z"),
        ] {
            let query = format!("SELECT {expr} FROM (VALUES (DATE '2020-01-01')) AS t(d)");
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
    }
}
