//! `lead(v, NULL)` and `lag(v, NULL)` are NULL, as in PostgreSQL and DuckDB: no row is that far
//! away.
//!
//! DataFusion 55.2 takes the offset NULL for 0, and returns each row's own value. So such a call
//! becomes a call on NULLs.
//!
//! DataFusion casts the default of `lag(i, 1, 1.5)` to the type of `i`, and returns 1. Here both
//! are cast to their common type, as in PostgreSQL.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::{LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;

#[derive(Debug)]
pub(super) struct NullOffsets;

impl AnalyzerRule for NullOffsets {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, is_asked, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "null_offsets"
    }
}

fn is_asked(expr: &Expr) -> bool {
    has_null_offset(expr) || default_of(expr).is_some()
}

/// Returns a call's default if it is a number that is not an integer. Rows without another row at
/// the offset get it.
fn default_of(expr: &Expr) -> Option<&ScalarValue> {
    let Expr::WindowFunction(call) = expr else { return None };
    match (["lead", "lag"].contains(&call.fun.name()), call.params.args.get(2)) {
        (true, Some(Expr::Literal(value, _))) if !value.is_null() && !value.data_type().is_integer() => {
            value.data_type().is_numeric().then_some(value)
        }
        _ => None,
    }
}

fn has_null_offset(expr: &Expr) -> bool {
    let Expr::WindowFunction(call) = expr else { return false };
    ["lead", "lag"].contains(&call.fun.name()) && call.params.args.get(1).is_some_and(is_null)
}

/// Returns whether an expression is NULL, with or without a type.
fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    if !has_null_offset(&expr) {
        return with_default(expr, schema);
    }
    let Expr::WindowFunction(call) = expr else { return Transformed::no(expr) };
    let WindowFunction { fun, mut params } = *call;
    let data_type = params.args.first().map(|value| expressions::type_of(value, schema));
    let null = Expr::Literal(ScalarValue::Null, None);
    params.args = data_type.map(|data_type| cast(null, data_type)).into_iter().collect();
    Transformed::yes(Expr::WindowFunction(Box::new(WindowFunction { fun, params })))
}

/// Casts a call's value and default to one type.
fn with_default(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Some(default) = default_of(&expr).cloned() else { return Transformed::no(expr) };
    let Expr::WindowFunction(mut call) = expr else { return Transformed::no(expr) };
    let [value, _, last] = call.params.args.as_mut_slice() else {
        return Transformed::no(Expr::WindowFunction(call));
    };
    let of_value = expressions::type_of(value, schema);
    let wide = type_union_resolution(&[of_value.clone(), default.data_type()]).filter(|wide| *wide != of_value);
    match wide.and_then(|wide| Some((default.cast_to(&wide).ok()?, wide))) {
        Some((default, wide)) => {
            *value = cast(std::mem::take(value), wide);
            *last = Expr::Literal(default, None);
            Transformed::yes(Expr::WindowFunction(call))
        }
        None => Transformed::no(Expr::WindowFunction(call)),
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn no_row_is_that_far_away() {
        let table = "(VALUES (1, 'a'), (2, 'b')) AS t(v, s)";
        for call in ["lead(v, NULL)", "lag(v, NULL)", "lag(v, NULL, 7)", "lead(v, CAST(NULL AS INT))"] {
            let query = format!("SELECT {call} OVER (ORDER BY v) + 1 AS x FROM {table}");
            assert_eq!(rows(&query).await, ["NULL", "NULL"], "{call}");
        }
        let query = format!(
            "SELECT lag(s, NULL) IGNORE NULLS OVER (ORDER BY v) || 'x' AS x, lag(v) OVER (ORDER BY v) AS y FROM {table} ORDER BY v"
        );
        assert_eq!(rows(&query).await, ["NULL NULL", "NULL 1"]);
    }
}
