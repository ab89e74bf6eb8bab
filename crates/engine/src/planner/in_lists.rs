//! IN with NULLs, with columns in the list, and several INs of one expression.
//!
//! DataFusion's simplifier merges `x IN (..)` and `x NOT IN (..)` as sets of literals, regardless
//! of the elements:
//!
//! - `x IN (1, 2) AND x NOT IN (3, NULL)` becomes `x IN (1, 2)`. This loses the NULL, and rows
//!   qualify although none should.
//! - `x IN (1, 2) AND x NOT IN (y)` becomes `x IN (1, 2)`, since the expression y is neither 1 nor
//!   2.
//! - `x NOT IN (1) OR x NOT IN (2)` becomes TRUE, even if x is NULL.
//!
//! This rule runs first. It moves NULLs out of lists (`x IN (1, NULL)` is `x IN (1) OR NULL`) and
//! rewrites lists with non-literal elements to comparisons. A merge to an empty list stays NULL for
//! a NULL.

use std::collections::HashSet;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Cast, LogicalPlan, Operator, lit};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;

#[derive(Debug)]
pub(super) struct InLists;

impl AnalyzerRule for InLists {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let rewritten = expressions::rewritten(node, rewrite)?;
            if rewritten.transformed { rewritten.map_data(LogicalPlan::recompute_schema) } else { Ok(rewritten) }
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "in_lists"
    }
}

fn rewrite(expr: Expr) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::InList(list) if needs_care(&list) => Transformed::yes(without_nulls(list)),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (*left, *right) {
            (Expr::InList(a), Expr::InList(b)) if can_merge(&a, op, &b) => Transformed::yes(merged(a, op, b)),
            (left, right) => Transformed::no(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))),
        },
        other => Transformed::no(other),
    })
}

/// Returns whether the list has an element that is not a non-NULL literal. DataFusion plans a list
/// of a single subquery as a semi join.
fn needs_care(list: &InList) -> bool {
    !matches!(list.list.as_slice(), [] | [Expr::ScalarSubquery(_)])
        && !list.expr.is_volatile()
        && list.list.iter().any(|value| !matches!(value, Expr::Literal(value, _) if !value.is_null()))
}

fn without_nulls(InList { expr, list, negated }: InList) -> Expr {
    let values = list.into_iter().map(folded).collect::<Vec<Expr>>();
    let is_null = |value: &Expr| matches!(value, Expr::Literal(value, _) if value.is_null());
    let (nulls, values): (Vec<Expr>, Vec<Expr>) = values.into_iter().partition(is_null);
    let op = if negated { Operator::And } else { Operator::Or };
    let rest = if values.is_empty() {
        None
    } else if values.iter().all(|value| matches!(value, Expr::Literal(..))) {
        Some(Expr::InList(InList::new(expr, values, negated)))
    } else {
        let compare =
            |value| if negated { expr.as_ref().clone().not_eq(value) } else { expr.as_ref().clone().eq(value) };
        Some(balanced(values.into_iter().map(compare).collect(), op))
    };
    let unknown = lit(ScalarValue::Boolean(None));
    match rest {
        None => unknown,
        Some(rest) if nulls.is_empty() => rest,
        Some(rest) => binary(rest, op, unknown),
    }
}

/// Folds casts of literals, which type coercion inserts.
fn folded(value: Expr) -> Expr {
    match value {
        Expr::Cast(Cast { expr, field }) => match folded(*expr) {
            Expr::Literal(inner, metadata) => match inner.cast_to(field.data_type()) {
                Ok(cast) => Expr::Literal(cast, metadata),
                // Execution reports the error if it evaluates the cast.
                Err(_) => Expr::Cast(Cast { expr: Box::new(Expr::Literal(inner, metadata)), field }),
            },
            other => Expr::Cast(Cast { expr: Box::new(other), field }),
        },
        other => other,
    }
}

/// Combines the terms to a balanced tree.
fn balanced(mut terms: Vec<Expr>, op: Operator) -> Expr {
    match terms.len() {
        0 => lit(op == Operator::And),
        1 => terms.swap_remove(0),
        n => {
            let right = terms.split_off(n / 2);
            binary(balanced(terms, op), op, balanced(right, op))
        }
    }
}

fn binary(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}

fn can_merge(a: &InList, op: Operator, b: &InList) -> bool {
    let are_lists =
        |list: &InList| !list.list.is_empty() && list.list.iter().all(|value| matches!(value, Expr::Literal(..)));
    let is_simple = match op {
        Operator::And => true,
        Operator::Or => a.negated == b.negated,
        _ => false,
    };
    is_simple && a.expr == b.expr && !a.expr.is_volatile() && are_lists(a) && are_lists(b)
}

fn merged(a: InList, op: Operator, b: InList) -> Expr {
    let both = |a: Vec<Expr>, b: Vec<Expr>| {
        let seen: HashSet<Expr> = a.iter().cloned().collect();
        a.into_iter().chain(b.into_iter().filter(|value| !seen.contains(value))).collect::<Vec<Expr>>()
    };
    let filtered = |a: Vec<Expr>, b: Vec<Expr>, is_wanted: fn(bool) -> bool| {
        let others: HashSet<Expr> = b.into_iter().collect();
        a.into_iter().filter(|value| is_wanted(others.contains(value))).collect::<Vec<Expr>>()
    };
    let common: fn(bool) -> bool = |is_in_both| is_in_both;
    let missing: fn(bool) -> bool = |is_in_both| !is_in_both;
    let expr = a.expr;
    let (values, negated) = match (a.negated, op, b.negated) {
        (false, Operator::And, false) => (filtered(a.list, b.list, common), false),
        (false, Operator::And, true) => (filtered(a.list, b.list, missing), false),
        (true, Operator::And, false) => (filtered(b.list, a.list, missing), false),
        (true, Operator::And, true) => (both(a.list, b.list), true),
        (true, _, _) => (filtered(a.list, b.list, common), true),
        (false, _, _) => (both(a.list, b.list), false),
    };
    if !values.is_empty() {
        return Expr::InList(InList::new(expr, values, negated));
    }
    // FALSE (TRUE if negated), but NULL for a NULL.
    let unknown = lit(ScalarValue::Boolean(None));
    match negated {
        false => binary(expr.is_null(), Operator::And, unknown),
        true => binary(expr.is_not_null(), Operator::Or, unknown),
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    /// Returns the condition for x = 1, 2, 3 and NULL, with y = 1 in all rows.
    async fn for_each_x(condition: &str) -> String {
        let text = format!("SELECT {condition} FROM (VALUES (1, 1), (2, 1), (3, 1), (NULL, 1)) AS t(x, y) ORDER BY x");
        rows(&text).await.join(" ")
    }

    #[tokio::test]
    async fn nulls_count() {
        for (condition, expected) in [
            ("x IN (1, 2) AND x NOT IN (3, NULL)", "NULL NULL false NULL"),
            ("x IN (1, NULL)", "true NULL NULL NULL"),
            ("x NOT IN (1, NULL)", "false NULL NULL NULL"),
            ("x IN (NULL)", "NULL NULL NULL NULL"),
            ("x NOT IN (NULL, NULL)", "NULL NULL NULL NULL"),
            ("x IN (1, 2, NULL) AND x NOT IN (2)", "true false NULL NULL"),
            ("x IN (1) OR x IN (NULL)", "true NULL NULL NULL"),
            ("x IN (CAST(NULL AS BIGINT), 1)", "true NULL NULL NULL"),
            ("x IN (1, nullif(2, 2)) AND x NOT IN (3, nullif(2, 2))", "NULL NULL false NULL"),
        ] {
            assert_eq!(for_each_x(condition).await, expected, "{condition}");
        }
    }

    #[tokio::test]
    async fn columns_in_lists_are_not_texts() {
        for (condition, expected) in [
            ("x IN (1, 2) AND x NOT IN (y)", "false true false NULL"),
            ("x NOT IN (y) AND x IN (1, 2)", "false true false NULL"),
            ("x IN (y, 2) AND x IN (1, 2)", "true true false NULL"),
            ("x NOT IN (y) OR x NOT IN (1)", "false true true NULL"),
            ("x IN (y + 1, y)", "true true false NULL"),
        ] {
            assert_eq!(for_each_x(condition).await, expected, "{condition}");
        }
    }

    #[tokio::test]
    async fn merged_lists_keep_null_for_null() {
        for (condition, expected) in [
            ("x NOT IN (1) OR x NOT IN (2)", "true true true NULL"),
            ("x IN (1) AND x IN (2)", "false false false NULL"),
            ("NOT (x IN (1) AND x IN (2, 3))", "true true true NULL"),
            ("x IN (1, 2) AND x NOT IN (1, 2, 3)", "false false false NULL"),
            ("x IN (1, 2) AND x IN (2, 3)", "false true false NULL"),
            ("x NOT IN (1) AND x NOT IN (2)", "false false true NULL"),
            ("x IN (1, 2) OR x IN (2, 3)", "true true true NULL"),
            ("x IN (1, 2) AND x IN (2, 3) AND x IN (1)", "false false false NULL"),
        ] {
            assert_eq!(for_each_x(condition).await, expected, "{condition}");
        }
    }
}
