//! Subqueries in expressions, and their outer columns.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{LogicalPlan, Subquery};
use datafusion::prelude::Expr;

use super::deep;
use super::laterals::lateral_of;
use crate::planner::expressions;

/// Changes the subquery of an expression.
pub(in crate::planner) fn with_subquery(expr: Expr, change: impl FnOnce(Subquery) -> Result<Subquery>) -> Result<Expr> {
    Ok(match expr {
        Expr::Exists(exists) => Expr::Exists(Exists { subquery: change(exists.subquery)?, ..exists }),
        Expr::InSubquery(is_in) => Expr::InSubquery(InSubquery { subquery: change(is_in.subquery)?, ..is_in }),
        Expr::SetComparison(set) => Expr::SetComparison(SetComparison { subquery: change(set.subquery)?, ..set }),
        Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(change(subquery)?),
        other => other,
    })
}

pub(in crate::planner) fn subquery_in(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. })
        | Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    }
}

pub(in crate::planner) fn subquery_of(plan: &Arc<LogicalPlan>) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery { subquery: Arc::clone(plan), outer_ref_columns, spans: Default::default() }
}

/// Returns whether a schema has a column of exactly that qualified name.
pub(in crate::planner) fn has(schema: &DFSchema, column: &Column) -> bool {
    schema.iter().any(|(table, field)| table == column.relation.as_ref() && *field.name() == column.name)
}

/// Returns the outer columns of a plan, including those of all its subqueries.
pub(in crate::planner) fn outer_columns_of(plan: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found = Vec::new();
    find_outer(plan, &|_| false, &mut found)?;
    Ok(found)
}

fn find_outer(plan: &LogicalPlan, is_near: &dyn Fn(&Column) -> bool, found: &mut Vec<Column>) -> Result<()> {
    deep(|| find_outer_in(plan, is_near, found))
}

fn find_outer_in(plan: &LogicalPlan, is_near: &dyn Fn(&Column) -> bool, found: &mut Vec<Column>) -> Result<()> {
    let readable = expressions::readable(plan)?;
    plan.apply_expressions(|expr| {
        expr.apply(|expr| {
            if let Expr::OuterReferenceColumn(_, column) = expr
                && !is_near(column)
                && !found.contains(column)
            {
                found.push(column.clone());
            }
            if let Some(subquery) = subquery_in(expr) {
                find_outer(&subquery.subquery, &|column| is_near(column) || has(&readable, column), found)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    for input in plan.inputs() {
        match plan {
            LogicalPlan::Join(join) if lateral_of(input).is_some() => {
                find_outer(input, &|column| is_near(column) || has(join.left.schema(), column), found)?;
            }
            _ => find_outer(input, is_near, found)?,
        }
    }
    Ok(())
}

/// Returns whether a nested subquery contains columns of the query around both.
pub(in crate::planner) fn names_across(plan: &LogicalPlan, around: &DFSchema) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        let readable = expressions::readable(node)?;
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Some(subquery) = subquery_in(expr) {
                    let named = outer_columns_of(&subquery.subquery)?;
                    found = found || named.iter().any(|column| !has(&readable, column) && has(around, column));
                }
                // The value before IN may belong to the outer query as well.
                if let Expr::InSubquery(InSubquery { expr, .. }) | Expr::SetComparison(SetComparison { expr, .. }) =
                    expr
                {
                    found = found || expr.contains_outer();
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
