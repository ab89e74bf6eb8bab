//! Computed keys of windows become columns of the query below.
//!
//! DataFusion 55.2.0 sorts by the key of a window, and then checks whether the rows are sorted. It
//! derives the order of an expression from the ranges of its parts, and knows nothing about the
//! whole if that fails. A comparison with the value of a function has no range. Such a query is
//! refused with a plan that "does not satisfy order requirements":
//!
//! ```sql
//! SELECT count(*) OVER (PARTITION BY length(s) > 1) FROM t
//! SELECT count(*) OVER (ORDER BY CASE WHEN x = 0 THEN TRUE ELSE 77 % x > 4 END) FROM t
//! ```
//!
//! apache/datafusion #20194 has another cause of the same message. The order of a column is known.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, Window};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

/// The prefix of the name of such a column; a number follows.
const KEY: &str = "__window_key";

#[derive(Debug)]
pub(super) struct WindowKeys;

impl AnalyzerRule for WindowKeys {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(rewrite)?.data)
    }

    fn name(&self) -> &str {
        "window_keys"
    }
}

fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let window = match plan {
        LogicalPlan::Window(window) => window,
        other => return Ok(Transformed::no(other)),
    };
    let mut keys = Keys { first: window.input.schema().fields().len(), computed: Vec::new() };
    let calls: Vec<Expr> =
        window.window_expr.iter().map(|call| over_columns(call.clone(), &mut keys)).collect::<Result<_>>()?;
    if keys.computed.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    let first = keys.first;
    let computed = keys.computed.into_iter().enumerate().map(|(at, key)| key.alias(name_of(first + at)));
    let below: Vec<Expr> = window.input.schema().columns().into_iter().map(Expr::Column).chain(computed).collect();
    let input = LogicalPlanBuilder::new_from_arc(Arc::clone(&window.input)).project(below)?.build()?;
    let columns: Vec<Expr> = window.schema.columns().into_iter().map(Expr::Column).collect();
    let over = LogicalPlan::Window(Window::try_new(calls, Arc::new(input))?);
    Ok(Transformed::yes(LogicalPlanBuilder::new(over).project(columns)?.build()?))
}

/// The computed keys of one node.
struct Keys {
    /// The index of the first one as a column, which makes its name unique.
    first: usize,
    computed: Vec<Expr>,
}

/// Replaces the computed keys of a call by columns, and adds them to `keys`. The call keeps its
/// name.
fn over_columns(call: Expr, keys: &mut Keys) -> Result<Expr> {
    let name = NamePreserver::new_for_projection().save(&call);
    let call = call.transform(|expr| match expr {
        Expr::WindowFunction(mut call) => {
            let params = &mut call.params;
            let written = params.partition_by.iter_mut().chain(params.order_by.iter_mut().map(|key| &mut key.expr));
            written.for_each(|key| replace(key, keys));
            Ok(Transformed::yes(Expr::WindowFunction(call)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(name.restore(call.data))
}

fn replace(key: &mut Expr, keys: &mut Keys) {
    // A plan is analysed twice, and `equal_values` puts a function around the column of a double.
    let is_done = key.column_refs().iter().all(|column| column.name.starts_with(KEY));
    if matches!(key, Expr::Column(_)) || is_done || key.contains_outer() {
        return;
    }
    let at = keys.computed.iter().position(|known| known == key).unwrap_or_else(|| {
        keys.computed.push(key.clone());
        keys.computed.len() - 1
    });
    *key = Expr::Column(Column::from_name(name_of(keys.first + at)));
}

fn name_of(at: usize) -> String {
    format!("{KEY}{at}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn keys_are_any_expressions() {
        let table = "(VALUES (1, 'a', 5), (2, 'bb', 0), (3, NULL, NULL)) AS t(id, s, x)";
        // Expected values are PostgreSQL 15.18's.
        for (call, expected) in [
            ("count(*) OVER (PARTITION BY length(s) > 1)", "1,1,1"),
            ("count(*) OVER (PARTITION BY length(s) > 1 OR s IS NULL)", "1,2,2"),
            ("sum(id) OVER (ORDER BY CASE WHEN x = 0 THEN TRUE ELSE 77 % x > 4 END, id)", "1,3,6"),
            ("row_number() OVER (PARTITION BY id > 1 ORDER BY length(s) = 2 DESC NULLS LAST, -id)", "1,1,2"),
            ("max(id) OVER (ORDER BY -id ROWS 1 PRECEDING)", "2,3,3"),
            ("count(*) OVER (PARTITION BY CAST(x AS DOUBLE))", "1,1,1"),
            ("rank() OVER (ORDER BY -CAST(x AS DOUBLE), CAST(id AS DOUBLE))", "1,2,3"),
            ("sum(id) OVER (ORDER BY id + 0 RANGE BETWEEN 1 PRECEDING AND 1 PRECEDING)", "NULL,1,2"),
        ] {
            let query = format!("SELECT id, {call} AS w FROM {table} ORDER BY id");
            let found: Vec<String> =
                rows(&query).await.iter().map(|row| row.split(' ').nth(1).unwrap().to_string()).collect();
            assert_eq!(found.join(","), expected, "{call}");
        }
        assert_eq!(
            rows(&format!("SELECT *, count(*) OVER (PARTITION BY length(s) > 1) FROM {table} ORDER BY 1 LIMIT 1"))
                .await,
            ["1 a 5 1"]
        );
    }
}
