//! Rewrites LATERAL joins to plain joins.
//!
//! A subquery may consist of columns and conditions above a plan without outer columns. It is
//! joined on these conditions, without D. DataFusion's own rule, which takes conditions on both
//! sides out of a subquery wherever they are, then finds none.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, TableReference};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Filter, Join, JoinConstraint, JoinType, LogicalPlan, Subquery};
use datafusion::prelude::Expr;

use super::outer_columns::{has, outer_columns_of, subquery_of, with_subquery};
use super::superset::has_subquery;
use super::{Domain, Names, Unnested, deep, projected, refused, under_alias};
use crate::planner::expressions;

/// Rewrites LATERAL joins to plain joins, except those that DataFusion answers correctly.
pub(in crate::planner) fn without_laterals(plan: LogicalPlan, names: &Names) -> Result<LogicalPlan> {
    let rewritten = Laterals { names, around: Vec::new() }.without(plan)?;
    match rewritten.transformed {
        // The operators above have columns that may be NULL now.
        true => Ok(rewritten.data.transform_up(|node| node.recompute_schema().map(Transformed::yes))?.data),
        false => Ok(rewritten.data),
    }
}

/// A rewriter of LATERAL joins.
struct Laterals<'a> {
    names: &'a Names,
    /// The schemas of the queries around the current one.
    around: Vec<DFSchemaRef>,
}

impl<'a> Laterals<'a> {
    fn within(&self, schema: DFSchemaRef) -> Self {
        let around = self.around.iter().cloned().chain([schema]).collect();
        Self { names: self.names, around }
    }

    fn without(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        deep(|| {
            let plan = self.without_in_expressions(plan)?;
            plan.transform_data(|plan| match below_lateral(plan)? {
                LogicalPlan::Join(join) => self.join(join),
                other => other.map_children(|input| self.without(input)),
            })
        })
    }

    fn without_in_expressions(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let mut has_one = false;
        plan.apply_subqueries(|_| {
            has_one = true;
            Ok(TreeNodeRecursion::Stop)
        })?;
        if !has_one {
            return Ok(Transformed::no(plan));
        }
        let inside = self.within(Arc::new(expressions::readable(&plan)?));
        let mut has_changed = false;
        let rewritten = expressions::rewritten(plan, |expr| {
            let rewritten = with_subquery(expr, |subquery| {
                let rewritten = inside.without(subquery.subquery.as_ref().clone())?;
                if !rewritten.transformed {
                    return Ok(subquery);
                }
                has_changed = true;
                Ok(subquery_of(&Arc::new(rewritten.data)))
            });
            Ok(Transformed::yes(rewritten?))
        })?;
        Ok(Transformed::new(rewritten.data, has_changed, TreeNodeRecursion::Continue))
    }

    fn join(&self, mut join: Join) -> Result<Transformed<LogicalPlan>> {
        let left = self.without(Arc::unwrap_or_clone(join.left))?;
        join.left = Arc::new(left.data);
        let inside = self.within(Arc::clone(join.left.schema()));
        if let Some((subquery, alias)) = lateral_of(&join.right) {
            let (subquery, alias) = (subquery.subquery.as_ref().clone(), alias.cloned());
            let subquery = inside.without(subquery)?.data;
            return Ok(Transformed::yes(joined(join, subquery, alias, self.names)?));
        }
        // DataFusion does not mark the join as LATERAL if only subqueries of the subquery contain
        // outer columns.
        let right = inside.without(join.right.as_ref().clone())?;
        let named = outer_columns_of(&right.data)?;
        let named: Vec<&Column> = named.iter().filter(|column| has(join.left.schema(), column)).collect();
        if named.is_empty() {
            join.right = Arc::new(right.data);
            let is_changed = left.transformed || right.transformed;
            return Ok(Transformed::new(LogicalPlan::Join(join), is_changed, TreeNodeRecursion::Continue));
        }
        if named.iter().any(|column| self.around.iter().any(|schema| has(schema, column))) {
            return Err(refused("a column that two queries around it have"));
        }
        Ok(Transformed::yes(joined(join, right.data, None, self.names)?))
    }
}

/// Moves conditions of WHERE on the left side below a LATERAL join, so that the subquery is
/// answered only for those rows.
fn below_lateral(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Filter(filter) = plan else { return Ok(plan) };
    let LogicalPlan::Join(join) = filter.input.as_ref() else { return Ok(LogicalPlan::Filter(filter)) };
    if lateral_of(&join.right).is_none() || !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Ok(LogicalPlan::Filter(filter));
    }
    let is_of_left = |column: &&Column| has(join.left.schema(), column);
    let is_before = |condition: &Expr| is_plain_condition(condition) && condition.column_refs().iter().all(is_of_left);
    let (before, behind): (Vec<Expr>, Vec<Expr>) =
        split_conjunction_owned(filter.predicate.clone()).into_iter().partition(is_before);
    let Some(before) = conjunction(before) else { return Ok(LogicalPlan::Filter(filter)) };
    let left = Arc::new(LogicalPlan::Filter(Filter::try_new(before, Arc::clone(&join.left))?));
    let join = LogicalPlan::Join(Join { left, ..join.clone() });
    match conjunction(behind) {
        Some(behind) => Ok(LogicalPlan::Filter(Filter::try_new(behind, Arc::new(join))?)),
        None => Ok(join),
    }
}

/// Returns whether a condition depends on one row alone and always has the same value for it.
pub(in crate::planner) fn is_plain_condition(condition: &Expr) -> bool {
    !has_subquery(condition) && !condition.is_volatile() && !condition.contains_outer()
}

/// Returns whether there is a LATERAL join outside of expressions.
pub(in crate::planner) fn has_lateral(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_))))
}

pub(super) fn lateral_of(right: &LogicalPlan) -> Option<(&Subquery, Option<&TableReference>)> {
    match right {
        LogicalPlan::Subquery(subquery) => Some((subquery, None)),
        LogicalPlan::SubqueryAlias(alias) => match alias.input.as_ref() {
            LogicalPlan::Subquery(subquery) => Some((subquery, Some(&alias.alias))),
            _ => None,
        },
        _ => None,
    }
}

/// A subquery whose conditions on both sides are above its other operators.
struct Plain {
    /// The rows below the conditions. Their keys are the columns that the conditions read.
    rows: Unnested,
    /// The conditions on keys and on columns of the outer query.
    conditions: Vec<Expr>,
}

impl Plain {
    /// Splits a subquery. Returns `None` if it has another form.
    fn of(plan: &LogicalPlan, around: &DFSchema, names: &Names) -> Result<Option<Self>> {
        match plan {
            LogicalPlan::Projection(projection) if projection.expr.iter().all(is_plain_condition) => {
                let Some(Self { rows, conditions }) = Self::of(&projection.input, around, names)? else {
                    return Ok(None);
                };
                let exprs = rows.key_exprs().into_iter().chain(projection.expr.iter().cloned()).collect();
                let rows = Unnested { plan: projected(exprs, rows.plan)?, keys: rows.keys };
                Ok(Some(Self { rows, conditions }))
            }
            LogicalPlan::Filter(filter) => {
                let is_odd = |condition: &Expr| condition.is_volatile() || has_subquery(condition);
                let is_of_both = outer_columns_of(plan)?.iter().all(|column| has(around, column));
                if is_odd(&filter.predicate) || !is_of_both {
                    return Ok(None);
                }
                let input = Self::of(&filter.input, around, names)?;
                input.map(|input| input.filtered(filter.predicate.clone(), names)).transpose()
            }
            source if outer_columns_of(source)?.is_empty() => {
                let rows = Unnested { plan: source.clone(), keys: Vec::new() };
                Ok(Some(Self { rows, conditions: Vec::new() }))
            }
            _ => Ok(None),
        }
    }

    fn filtered(self, condition: Expr, names: &Names) -> Result<Self> {
        let Self { rows, mut conditions } = self;
        let (both, own): (Vec<Expr>, Vec<Expr>) =
            split_conjunction_owned(condition).into_iter().partition(Expr::contains_outer);
        let mut read: Vec<(Column, Column)> = Vec::new();
        for condition in both {
            let outside = condition.transform_up(|expr| {
                Ok(Transformed::yes(Expr::Column(match expr {
                    Expr::OuterReferenceColumn(_, column) => column,
                    Expr::Column(column) => match read.iter().find(|(column_read, _)| *column_read == column) {
                        Some((_, key)) => key.clone(),
                        None => {
                            let key = Column::from_name(names.next());
                            read.push((column, key.clone()));
                            key
                        }
                    },
                    other => return Ok(Transformed::no(other)),
                })))
            });
            conditions.push(outside?.data);
        }
        let plan = match conjunction(own) {
            Some(own) => LogicalPlan::Filter(Filter::try_new(own, Arc::new(rows.plan))?),
            None => rows.plan,
        };
        let (mut keys, mut exprs) = (Vec::new(), Vec::new());
        for (column, key) in read {
            exprs.push(Expr::Column(column).alias(&key.name));
            keys.push(key);
        }
        exprs.extend(plan.schema().columns().into_iter().map(Expr::Column));
        keys.extend(rows.keys);
        Ok(Self { rows: Unnested { plan: projected(exprs, plan)?, keys }, conditions })
    }
}

/// Rewrites a LATERAL join to a plain join.
fn joined(join: Join, subquery: LogicalPlan, alias: Option<TableReference>, names: &Names) -> Result<LogicalPlan> {
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return Err(refused("LATERAL behind RIGHT or FULL JOIN"));
    }
    let columns = outer_columns_of(&subquery)?;
    let columns: Vec<Column> = columns.into_iter().filter(|column| has(join.left.schema(), column)).collect();
    let schema = Arc::clone(&join.schema);
    let aliased = |plan: LogicalPlan, keys: &[Column]| match &alias {
        Some(alias) => under_alias(plan, keys, alias.clone(), names),
        None => Ok(plan),
    };
    if columns.is_empty() {
        // The subquery contains only columns of queries further out.
        let right = Arc::new(aliased(subquery, &[])?);
        return with_right(join, right, Vec::new());
    }
    let (right, conditions) = match Plain::of(&subquery, join.left.schema(), names)? {
        Some(Plain { rows, conditions }) => (rows, conditions),
        None => {
            let domain = Domain::new(&join.left, columns, names)?;
            let unnested = domain.answered(&subquery)?;
            let is_same = domain.is_row_of(&unnested);
            (unnested, is_same)
        }
    };
    let right = aliased(right.plan, &right.keys)?;
    let plan = with_right(join, Arc::new(right), conditions)?;
    let columns: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
    projected(columns, plan)
}

fn with_right(join: Join, right: Arc<LogicalPlan>, conditions: Vec<Expr>) -> Result<LogicalPlan> {
    let conditions = conditions.into_iter().chain(join.filter);
    let Join { left, on, join_type, null_equality, .. } = join;
    let filter = conjunction(conditions);
    let join = Join::try_new(left, right, on, filter, join_type, JoinConstraint::On, null_equality, false)?;
    Ok(LogicalPlan::Join(join))
}
