//! A superset of the outer query's rows that a second execution finds.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ExprSchema, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Distinct, Filter, Join, JoinType, Limit, LogicalPlan, SubqueryAlias};
use datafusion::prelude::Expr;

use super::laterals::lateral_of;
use super::outer_columns::subquery_in;
use super::{deep, projected, refused};
use crate::planner::{expressions, looks};

/// A plan that returns all rows of another plan, and possibly more, by the same names.
pub(super) struct Superset {
    pub(super) plan: LogicalPlan,
    /// The columns that may have other values when they are computed again.
    pub(super) is_chance: HashSet<Column>,
}

/// Returns a plan that finds all rows that the original finds. LIMIT, random values and the first
/// of equal rows may choose other rows in a second execution. So the plan omits these choices, and
/// may return more rows.
pub(super) fn superset(plan: &LogicalPlan) -> Result<Superset> {
    let over = |input: &Arc<LogicalPlan>| deep(|| superset(input));
    Ok(match plan {
        LogicalPlan::Limit(Limit { input, .. }) => over(input)?,
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let Superset { plan, is_chance } = over(input)?;
            // DISTINCT keeps one of several representations of equal values, which is the one in
            // the outer query.
            let makes_one = plan.schema().fields().iter().any(|field| looks::look_type(field.data_type()).is_some());
            let plan = if makes_one { LogicalPlan::Distinct(Distinct::All(Arc::new(plan))) } else { plan };
            Superset { plan, is_chance }
        }
        LogicalPlan::Sort(sort) => over(&sort.input)?,
        LogicalPlan::Distinct(Distinct::On(distinct)) => chosen(over(&distinct.input)?, distinct.select_expr.clone())?,
        LogicalPlan::Projection(projection) => chosen(over(&projection.input)?, projection.expr.clone())?,
        LogicalPlan::Filter(filter) => {
            let Superset { plan, is_chance } = over(&filter.input)?;
            let mut kept = split_conjunction_owned(filter.predicate.clone());
            // Subqueries are not evaluated twice.
            kept.retain(|condition| !is_by_chance(condition, &is_chance) && !has_subquery(condition));
            let plan = match conjunction(kept) {
                Some(condition) => LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan))?),
                None => plan,
            };
            Superset { plan, is_chance }
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let input = over(&alias.input)?;
            let aliased = SubqueryAlias::try_new(Arc::new(input.plan), alias.alias.clone())?;
            let columns = aliased.input.schema().columns().into_iter().zip(aliased.schema.columns());
            let is_chance =
                columns.filter(|(column, _)| input.is_chance.contains(column)).map(|(_, column)| column).collect();
            Superset { plan: LogicalPlan::SubqueryAlias(aliased), is_chance }
        }
        LogicalPlan::Window(window) => {
            // A window depends on exactly these rows.
            check_exact(&window.input)?;
            let is_chance = window.schema.columns().split_off(window.input.schema().fields().len());
            Superset { plan: plan.clone(), is_chance: is_chance.into_iter().collect() }
        }
        LogicalPlan::Aggregate(aggregate) => {
            check_exact(&aggregate.input)?;
            let is_certain = |expr: &Expr, column: &Column| match expr.clone().unalias_nested().data {
                Expr::AggregateFunction(call) => {
                    let is_float =
                        aggregate.schema.field_from_column(column).is_ok_and(|field| field.data_type().is_floating());
                    let name = call.func.name();
                    matches!(name, "count" | "min" | "max") || (matches!(name, "sum" | "avg") && !is_float)
                }
                _ => false,
            };
            let columns = aggregate.schema.columns();
            let groups = columns.len() - aggregate.aggr_expr.len();
            let values = aggregate.aggr_expr.iter().zip(&columns[groups..]);
            let is_chance = values.filter(|(expr, column)| !is_certain(expr, column)).map(|(_, column)| column.clone());
            Superset { plan: plan.clone(), is_chance: is_chance.collect() }
        }
        LogicalPlan::Join(join) if lateral_of(&join.right).is_none() => superset_of_join(join)?,
        other => {
            check_exact(other)?;
            Superset { plan: other.clone(), is_chance: HashSet::new() }
        }
    })
}

fn superset_of_join(join: &Join) -> Result<Superset> {
    let (left, right) = match join.join_type {
        JoinType::LeftSemi | JoinType::LeftAnti => return superset(&join.left),
        JoinType::RightSemi | JoinType::RightAnti => return superset(&join.right),
        JoinType::Inner => (superset(&join.left)?, superset(&join.right)?),
        JoinType::Left => (superset(&join.left)?, exact(&join.right)?),
        JoinType::Right => (exact(&join.left)?, superset(&join.right)?),
        _ => (exact(&join.left)?, exact(&join.right)?),
    };
    let is_chance: HashSet<Column> = left.is_chance.into_iter().chain(right.is_chance).collect();
    let on = join.on.iter().flat_map(|(left, right)| [left, right]);
    if on.chain(&join.filter).any(|expr| is_by_chance(expr, &is_chance)) {
        return Err(refused("a join by what may be otherwise when it is computed again"));
    }
    let (on, filter) = (join.on.clone(), join.filter.clone());
    let (left, right) = (Arc::new(left.plan), Arc::new(right.plan));
    let plan = Join::try_new(
        left,
        right,
        on,
        filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    Ok(Superset { plan: LogicalPlan::Join(plan), is_chance })
}

fn chosen(input: Superset, exprs: Vec<Expr>) -> Result<Superset> {
    let is_chance: Vec<bool> = exprs.iter().map(|expr| is_by_chance(expr, &input.is_chance)).collect();
    let plan = projected(exprs, input.plan)?;
    let columns = plan.schema().columns().into_iter().zip(is_chance);
    let is_chance = columns.filter(|(_, is_chance)| *is_chance).map(|(column, _)| column).collect();
    Ok(Superset { plan, is_chance })
}

/// Returns whether a value may differ when it is computed again.
fn is_by_chance(expr: &Expr, is_chance: &HashSet<Column>) -> bool {
    let is_one = |expr: &Expr| match expr {
        Expr::Column(column) => is_chance.contains(column),
        other => {
            subquery_in(other).is_some_and(|subquery| check_exact(&subquery.subquery).is_err())
                || other.is_volatile_node()
        }
    };
    expr.exists(|expr| Ok(is_one(expr))).unwrap_or(true)
}

pub(super) fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(subquery_in(expr).is_some())).unwrap_or(true)
}

fn exact(plan: &Arc<LogicalPlan>) -> Result<Superset> {
    check_exact(plan)?;
    Ok(Superset { plan: plan.as_ref().clone(), is_chance: HashSet::new() })
}

/// Refuses a plan that may return other rows in a second execution.
fn check_exact(plan: &LogicalPlan) -> Result<()> {
    let mut found = is_volatile(plan)?;
    plan.apply_with_subqueries(|node| {
        found = found
            || matches!(node, LogicalPlan::Limit(_) | LogicalPlan::Window(_) | LogicalPlan::Distinct(Distinct::On(_)));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if found { Err(refused("rows around it that may be others when they are computed again")) } else { Ok(()) }
}

pub(super) fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    expressions::has(plan, Expr::is_volatile_node)
}
