//! `'abc' BETWEEN 20 AND TRUE` is refused: there is no type that all three have in common.
//!
//! DataFusion 55.2.0 says so as an internal error, of which a report is asked for.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::expr::Between;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use crate::catalog::names::sql_name;
use crate::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct RefusedBetween;

impl AnalyzerRule for RefusedBetween {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_between = |expr: &Expr| matches!(expr, Expr::Between(_));
        let checked = |expr: Expr, schema: &DFSchema| check(&expr, schema).map(|()| Transformed::no(expr));
        expressions::rewritten_if_any(plan, is_between, checked)
    }

    fn name(&self) -> &str {
        "refused_between"
    }
}

fn check(expr: &Expr, schema: &DFSchema) -> Result<()> {
    let Expr::Between(Between { expr: value, low, high, .. }) = expr else { return Ok(()) };
    let [value, low, high] = [value, low, high].map(|expr| expressions::type_of(expr, schema));
    let ends = comparison_coercion(&value, &low).zip(comparison_coercion(&value, &high));
    if ends.is_some_and(|(low, high)| comparison_coercion(&low, &high).is_some()) {
        return Ok(());
    }
    let [value, low, high] = [value, low, high].map(|data_type| sql_name(&data_type));
    let message = format!("{value} cannot be BETWEEN {low} AND {high}");
    Err(Error::new(ErrorKind::Invalid, message).with_hint("casts make one type of them").into())
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn what_has_no_type_in_common_is_refused() {
        let error = fails("SELECT 'abc' BETWEEN 20 AND TRUE").await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(rows("SELECT 5 BETWEEN 1.5 AND 7e0, NULL BETWEEN 1 AND 2").await, ["true NULL"]);
    }
}
