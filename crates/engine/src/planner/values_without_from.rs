//! A scalar subquery without FROM is its value: `(SELECT a / b)` over columns of the outer row.
//!
//! DataFusion (55.2) makes a join of it, which computes the value for all rows, even if a branch
//! guards it. `CASE WHEN b <> 0 THEN (SELECT a / b) END` divides by zero. The value replaces its
//! subquery, and is guarded like any expression.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{LogicalPlan, Subquery};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::{expressions, unnesting};

/// Runs after subqueries whose rows are a list, and before all other passes that move subqueries.
#[derive(Debug)]
pub(super) struct ValuesWithoutFrom;

impl AnalyzerRule for ValuesWithoutFrom {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| matches!(expr, Expr::ScalarSubquery(subquery) if only_value(subquery).is_some());
        expressions::rewritten_if_any(plan, is_one, |expr, around| match &expr {
            Expr::ScalarSubquery(subquery) => {
                Ok(value_of(subquery, around)?.map_or_else(|| Transformed::no(expr), Transformed::yes))
            }
            _ => Ok(Transformed::no(expr)),
        })
    }

    fn name(&self) -> &str {
        "values_without_from"
    }
}

/// Returns the expression of a subquery that has exactly one and no FROM.
fn only_value(subquery: &Subquery) -> Option<&Expr> {
    let LogicalPlan::Projection(projection) = subquery.subquery.as_ref() else { return None };
    match (projection.input.as_ref(), projection.expr.as_slice()) {
        (LogicalPlan::EmptyRelation(rows), [value]) if rows.produce_one_row && rows.schema.fields().is_empty() => {
            Some(value)
        }
        _ => None,
    }
}

/// Returns the value over columns of the outer query. A value that contains columns of a query
/// further out stays a subquery.
fn value_of(subquery: &Subquery, around: &DFSchema) -> Result<Option<Expr>> {
    let Some(value) = only_value(subquery) else { return Ok(None) };
    let is_more = |expr: &Expr| unnesting::subquery_in(expr).is_some() || matches!(expr, Expr::Unnest(_));
    let named = unnesting::outer_columns_of(&subquery.subquery)?;
    let is_near = !named.is_empty() && named.iter().all(|column| unnesting::has(around, column));
    let is_value = is_near && !value.is_volatile() && !value.exists(|expr| Ok(is_more(expr)))?;
    if !is_value {
        return Ok(None);
    }
    let value = value.clone().unalias_nested().data.transform_up(|expr| match expr {
        Expr::OuterReferenceColumn(_, column) if unnesting::has(around, &column) => {
            Ok(Transformed::yes(Expr::Column(column)))
        }
        other => Ok(Transformed::no(other)),
    });
    Ok(Some(value?.data))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn guards_guard_it() {
        let table = "(VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30)) AS t(id, a, b)";
        for (value, expected) in [
            ("CASE WHEN a <> 2 THEN (SELECT 10 / (a - 2)) END", "-10,NULL,10"),
            ("coalesce(nullif(a, 1), (SELECT b / a))", "10,2,3"),
            ("sum(CASE WHEN a <> 2 THEN (SELECT 10 / (a - 2)) END) OVER (ORDER BY id)", "-10,-10,0"),
            ("(SELECT (SELECT t.a + t.b))", "11,22,33"),
            ("(SELECT count(*) FROM (VALUES (1), (2)) AS u(k) WHERE k = (SELECT t.a))", "1,1,0"),
            ("(SELECT max((SELECT t.a + u.k)) FROM (VALUES (1), (2)) AS u(k))", "3,4,5"),
            ("(SELECT max(v) FROM (SELECT (SELECT t.a) AS v) AS q)", "1,2,3"),
        ] {
            let query = format!("SELECT {value} AS v FROM {table} ORDER BY id");
            assert_eq!(rows(&query).await.join(","), expected, "{value}");
        }
        let query = format!("SELECT a FROM {table} WHERE a <> 2 AND (SELECT 10 / (a - 2)) > 0");
        assert_eq!(rows(&query).await, ["3"]);
    }
}
