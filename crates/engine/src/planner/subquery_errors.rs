//! Explains to the user why a subquery cannot be planned.
//!
//! DataFusion joins a subquery with the outer query on the conditions that contain columns of both.
//! It resolves a column of a query further out in the wrong query, and fails with "there is no
//! column" of an existing column. It leaves a subquery that it cannot join in place, and fails on
//! "ScalarSubquery(<subquery>)" or "OuterReferenceColumn(..)".

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError, ExprSchema, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::{Join, LogicalPlan, Subquery};
use datafusion::prelude::Expr;

use super::expressions;
use crate::{Error, ErrorKind};

/// The prefix of DataFusion's names for the subqueries that it joins.
const MADE: &str = "__correlated_sq_";

/// Replaces the error of planning by a better one, if possible.
pub(crate) fn explained(error: DataFusionError, plan: &LogicalPlan) -> DataFusionError {
    let root = error.find_root();
    let is_left = match root {
        DataFusionError::NotImplemented(message) => {
            message.contains("<subquery>") || message.contains("OuterReferenceColumn")
        }
        DataFusionError::Plan(message) => {
            message.starts_with("Correlated scalar subquery can only be used")
                || message.starts_with("A GROUP BY clause in a scalar correlated subquery")
        }
        _ => false,
    };
    let is_about_columns =
        matches!(root, DataFusionError::SchemaError(..) | DataFusionError::Internal(_) | DataFusionError::Plan(_));
    if !is_left && !is_about_columns {
        return error;
    }
    let (message, hint) = match far_column(plan, false) {
        _ if joins_outer(plan) => (
            "a subquery in the ON of a LEFT, RIGHT or FULL JOIN is not supported".to_string(),
            "join what a subquery has filtered before: LEFT JOIN (SELECT * FROM t WHERE x IN (SELECT ...)) AS t ON ...",
        ),
        Ok(Some(column)) => (
            format!("{column} in a subquery is of a query that is further out than the one around it: not supported"),
            "select that column in the query between the two as well, or join the tables instead",
        ),
        _ if is_left => (
            "a subquery cannot be joined with the query around it: its condition on both is beside an aggregate, a set \
             operation, LIMIT or a window function, and is no equality"
                .to_string(),
            "write it as a join, with GROUP BY where it aggregates",
        ),
        // The error names columns of joins that DataFusion has made.
        _ if root.to_string().contains(MADE) => (
            "this subquery, together with the others around it, is not supported".to_string(),
            "write one of them as a join",
        ),
        _ => return error,
    };
    Error::new(ErrorKind::Invalid, message).with_hint(hint).with_source(error).into()
}

/// Returns whether an outer join joins on a subquery.
fn joins_outer(plan: &LogicalPlan) -> bool {
    plan.exists(|node| match node {
        LogicalPlan::Join(Join { filter: Some(filter), .. }) => expressions::has_subquery(filter),
        _ => Ok(false),
    })
    .unwrap_or_default()
}

/// Returns a column that a nested subquery reads and that the query around it lacks.
fn far_column(plan: &LogicalPlan, is_within: bool) -> Result<Option<String>> {
    let mut found = None;
    plan.apply(|node| {
        let around = expressions::readable(node)?;
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let (subquery, value): (&Subquery, _) = match expr {
                    Expr::InSubquery(InSubquery { expr, subquery, .. }) => (subquery, Some(expr.as_ref())),
                    Expr::Exists(Exists { subquery, .. }) | Expr::ScalarSubquery(subquery) => (subquery, None),
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                let of_value = value.into_iter().flat_map(outer_columns);
                let of_rows = subquery.outer_ref_columns.iter().flat_map(outer_columns);
                let of_rows = of_rows.filter(|column| is_within && around.field_from_column(column).is_err());
                found = of_value.chain(of_rows).next().map(|column| column.to_string());
                if found.is_none() {
                    found = far_column(&subquery.subquery, true)?;
                }
                Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
    })?;
    Ok(found)
}

fn outer_columns(expr: &Expr) -> Vec<Column> {
    let mut columns = Vec::new();
    // The closure never fails.
    let _ = expr.apply(|expr| {
        if let Expr::OuterReferenceColumn(_, column) = expr {
            columns.push(column.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    columns
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::fails;

    #[tokio::test]
    async fn the_error_says_what_cannot_be_joined() {
        let table = "(VALUES (1)) AS";
        let condition = format!("EXISTS (SELECT 1 FROM {table} c(id) WHERE c.id = a.id + b.id)");
        let error = fails(&format!("SELECT * FROM {table} a(id) LEFT JOIN {table} b(id) ON {condition}")).await;
        assert!(error.message().starts_with("a subquery in the ON of a LEFT"), "{error}");
    }
}
