//! `CAST(5 AS DATE)` is refused, as PostgreSQL and DuckDB do, and with it `INSERT` of a number into a date.
//!
//! Arrow takes a number for so many days since 1970, or for nanoseconds, which nobody who writes it means.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Cast, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use super::lossy_casts::as_any_cast;
use crate::catalog::names::sql_name;
use crate::{Error, ErrorKind};

/// Before DataFusion settles types: of casts that are written.
#[derive(Debug)]
pub(super) struct RefusedCasts;

impl AnalyzerRule for RefusedCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_moment = |expr: &Expr| expressions::cast_to(expr).is_some_and(DataType::is_temporal);
        let checked = |expr: Expr, schema: &DFSchema| check(&expr, schema).map(|()| Transformed::no(expr));
        expressions::rewritten_if_any(plan, is_moment, checked)
    }

    fn name(&self) -> &str {
        "refused_casts"
    }
}

fn check(expr: &Expr, schema: &DFSchema) -> Result<()> {
    let (Expr::Cast(Cast { expr: inner, field }) | Expr::TryCast(TryCast { expr: inner, field })) = expr else {
        return Ok(());
    };
    let (what, instead) = match field.data_type() {
        DataType::Date32 | DataType::Date64 => ("DATE", "DATE '1970-01-01' + x is so many days later"),
        DataType::Timestamp(..) => ("TIMESTAMP", "to_timestamp(x) is so many seconds after 1970 began"),
        DataType::Time32(_) | DataType::Time64(_) => ("TIME", "TIME '00:00:00' is one"),
        _ => return Ok(()),
    };
    let from = match inner.get_type(schema) {
        Ok(from) if from.is_numeric() || from == DataType::Boolean => sql_name(&from),
        _ => return Ok(()),
    };
    // Days are computed in casts of ours, which are there when a plan is looked at again.
    if as_any_cast(inner).is_some_and(|(expr, _)| !matches!(expr, Expr::Literal(..))) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("{from} is no {what}")).with_hint(instead).into())
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn numbers_are_no_dates() {
        for expr in ["CAST(5 AS DATE)", "CAST(x AS TIMESTAMP)", "TRY_CAST(x + 0.5 AS DATE)", "CAST(TRUE AS DATE)"] {
            let error = fails(&format!("SELECT {expr} FROM (VALUES (1)) AS t(x)")).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{expr}: {error}");
        }
        for (expr, expected) in [
            ("CAST('2020-01-02' AS DATE)", "2020-01-02"),
            ("CAST(NULL AS DATE)", "NULL"),
            ("CAST(TIMESTAMP '2020-01-02 03:04:05' AS DATE)", "2020-01-02"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
