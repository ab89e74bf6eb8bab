//! There is one NaN, which equals itself and is greater than all numbers, as in PostgreSQL and
//! DuckDB.
//!
//! Arrow compares floats in their total order, in which the sign of a NaN decides its place: below
//! all numbers or above. The sign of a computed NaN is arbitrary: x86 sets it (`inf - inf`), a GPU
//! clears it, `-x` flips it. So every computed value goes through a function that makes one NaN of
//! both, before it is compared or becomes a column. This happens at the end of an expression, not
//! at each of its operators, which treat both NaNs alike. Columns then contain only this NaN.
//! Pipelines compute only this NaN, and omit the function.
//!
//! Files and objects of other programs that hold a NaN with its sign set are not covered. Neither
//! are sums of infinities of both signs.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRewriter};
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, LogicalPlan, Operator, ScalarUDF};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::equal_values::{POSITIVE_ZERO, is_float};
use super::expressions;
use super::mapped::Mapped;

/// The function's name. Code that displays expressions omits it.
pub(crate) const ONE_NAN: &str = "one_nan";

static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(Mapped::function(ONE_NAN, one_nan)));

#[derive(Debug)]
pub(super) struct OneNans;

impl AnalyzerRule for OneNans {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            // The numbers of a LIMIT must be literals.
            if matches!(node, LogicalPlan::Limit(_)) {
                return Ok(Transformed::no(node));
            }
            let schema = expressions::readable(&node)?;
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                if !expr.exists(|expr| Ok(may_compute(expr)))? {
                    return Ok(Transformed::no(expr));
                }
                let name = names.save(&expr);
                let mut wrapping = Wrapping { schema: &schema, around: Vec::new() };
                Ok(expr.rewrite(&mut wrapping)?.update_data(|expr| name.restore(expr)))
            })
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        ONE_NAN
    }
}

/// Returns whether an expression may produce a NaN that no column contains. Checking its type costs
/// more.
fn may_compute(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => is_arithmetic(*op),
        Expr::Negative(_) | Expr::Cast(_) | Expr::TryCast(_) => true,
        // A plan may be analysed twice.
        Expr::ScalarFunction(call) => ![ONE_NAN, POSITIVE_ZERO].contains(&call.name()),
        Expr::Literal(value, _) => is_other_nan(value),
        _ => false,
    }
}

fn is_arithmetic(op: Operator) -> bool {
    matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo)
}

fn is_other_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float64(Some(value)) => value.is_nan() && value.is_sign_negative(),
        ScalarValue::Float32(Some(value)) => value.is_nan() && value.is_sign_negative(),
        _ => false,
    }
}

/// Returns whether an expression computes a float.
fn computes(expr: &Expr, schema: &DFSchema) -> bool {
    match expr {
        Expr::Cast(_) | Expr::TryCast(_) => match expressions::as_cast(expr, schema) {
            Some((Expr::Literal(value, _), to, _)) => value.cast_to(&to).is_ok_and(|value| is_other_nan(&value)),
            // A cast of a number that is not a float never returns NaN.
            Some((value, to, _)) => {
                is_float(&to) && value.get_type(schema).is_ok_and(|from| from.is_string() || is_float(&from))
            }
            None => false,
        },
        expr => may_compute(expr) && expr.get_type(schema).is_ok_and(|data_type| is_float(&data_type)),
    }
}

/// A rewriter that descends to the computed values, and wraps them on the way up.
struct Wrapping<'s> {
    schema: &'s DFSchema,
    /// For each enclosing expression, whether it compares or keeps the values below instead of
    /// computing with them, and whether it is to be wrapped.
    around: Vec<(bool, bool)>,
}

impl TreeNodeRewriter for Wrapping<'_> {
    type Node = Expr;

    fn f_down(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        let is_seen = self.around.last().is_none_or(|(sees, _)| *sees);
        // The type is checked once in a chain of operators: each check inspects the whole subtree.
        let wraps = is_seen && computes(&expr, self.schema);
        let sees = match &expr {
            Expr::ScalarFunction(call) => COMPARING.contains(&call.name()) || is_seen && !wraps,
            Expr::AggregateFunction(call) => call.params.distinct || ["min", "max"].contains(&call.func.name()),
            Expr::BinaryExpr(BinaryExpr { op, .. }) => !is_arithmetic(*op),
            Expr::Cast(_) | Expr::TryCast(_) | Expr::Negative(_) => is_seen && !wraps,
            Expr::Alias(_) => is_seen,
            _ => true,
        };
        self.around.push((sees, wraps));
        Ok(Transformed::no(expr))
    }

    fn f_up(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        match self.around.pop() {
            Some((_, true)) => Ok(Transformed::yes(FUNCTION.call(vec![expr]))),
            _ => Ok(Transformed::no(expr)),
        }
    }
}

/// The functions of floats that compare them.
const COMPARING: [&str; 3] = ["greatest", "least", "nullif"];

/// Replaces every NaN by one NaN, and keeps all other values.
fn one_nan(values: &ArrayRef) -> Result<ArrayRef> {
    macro_rules! of {
        ($type:ty, $nan:expr) => {{
            let floats = values.as_primitive::<$type>();
            // Most arrays contain no NaN.
            match floats.values().iter().fold(false, |any, value| any | value.is_nan()) {
                false => Arc::clone(values),
                true => Arc::new(floats.unary::<_, $type>(|value| if value.is_nan() { $nan } else { value })),
            }
        }};
    }
    Ok(match values.data_type() {
        DataType::Float32 => of!(Float32Type, f32::NAN),
        DataType::Float64 => of!(Float64Type, f64::NAN),
        other => return internal_err!("{ONE_NAN} of {other}"),
    })
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn nan_is_above_all_numbers_however_it_was_made() {
        // Expected rows are PostgreSQL's. It raises an error for some of them; those are its rows
        // for CAST('NaN' AS DOUBLE PRECISION).
        const INF: &str = "CAST('inf' AS DOUBLE)";
        let table = format!("(VALUES (1, 1e0, 0e0, {INF}), (2, 3e0, 0e0, {INF})) AS t(i, one, zero, inf)");
        for nan in [
            "zero / zero",
            "inf - inf",
            "-inf + inf",
            "inf * zero",
            "inf % one",
            "log10(-one)",
            "ln(-one)",
            "acos(one + 7)",
            "-CAST('NaN' AS DOUBLE)",
            "-(zero / zero)",
            "CAST('-nan' AS DOUBLE)",
            "CAST(zero / zero AS REAL)",
            "CASE WHEN one > 0 THEN zero / zero ELSE one END",
            "coalesce(zero / zero, one)",
            "0e0 / 0e0",
        ] {
            for (condition, holds) in [
                ("{} > 1", true),
                ("{} >= 0e0", true),
                ("{} < 1", false),
                ("{} <= 0e0", false),
                ("{} = 1", false),
                ("{} <> 1", true),
                ("{} = CAST('NaN' AS DOUBLE)", true),
                ("{} = zero / zero", true),
                ("{} IS DISTINCT FROM CAST('NaN' AS DOUBLE)", false),
                ("{} > inf", true),
                ("{} BETWEEN 0e0 AND 5e0", false),
                ("{} BETWEEN 0e0 AND CAST('NaN' AS DOUBLE)", true),
                ("{} IN (1e0, CAST('NaN' AS DOUBLE))", true),
                ("{} IN (SELECT 0e0 / 0e0)", true),
                ("greatest({}, one) > inf", true),
                ("least({}, 9e0) = 9e0", true),
                ("nullif({}, zero / zero) IS NULL", true),
                ("abs({}) > 1", true),
            ] {
                let condition = condition.replace("{}", nan);
                let expected = if holds { "1 2" } else { "" };
                for query in [
                    format!("SELECT i FROM {table} WHERE {condition} ORDER BY i"),
                    format!("SELECT i FROM (SELECT *, {condition} AS c FROM {table}) WHERE c ORDER BY i"),
                ] {
                    assert_eq!(rows(&query).await.join(" "), expected, "{query}");
                }
            }
            for (query, expected) in [
                ("SELECT max(x), min(x) FROM (SELECT {} AS x FROM t UNION ALL SELECT one FROM t)", "NaN 1.0"),
                ("SELECT max({}) > 5, min({}) > 5 FROM t", "true true"),
                ("SELECT i FROM (SELECT i, {} AS x FROM t) WHERE x > 1 ORDER BY i", "1,2"),
                ("SELECT count(*) FROM (SELECT {} AS x FROM t UNION SELECT CAST('NaN' AS DOUBLE))", "1"),
                ("SELECT count(DISTINCT x) FROM (SELECT {} AS x FROM t UNION ALL VALUES (CAST('NaN' AS DOUBLE)))", "1"),
                ("SELECT x FROM (SELECT {} AS x FROM t UNION ALL SELECT inf FROM t) ORDER BY x DESC LIMIT 1", "NaN"),
                ("SELECT max(x) OVER () > 5 FROM (SELECT {} AS x, i FROM t) WHERE i = 1", "true"),
            ] {
                let query = format!("WITH t AS (SELECT * FROM {table}) {}", query.replace("{}", nan));
                assert_eq!(rows(&query).await.join(","), expected, "{query}");
            }
        }
    }
}
