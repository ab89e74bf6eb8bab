//! Derives key plans: from the plan of one side of a join, smaller plans with all of its keys.
//!
//! A copy of a plan omits operators that only remove rows: joins that hardly filter, anti joins,
//! LIMIT, conditions that could fail. It also omits unused columns. So it has at least the keys of
//! the original, and costs less. It reads only tables, whose rows are the same anywhere in a
//! statement, and evaluates nothing that can fail. A row that the original never reaches, because a
//! join removed it, must not fail here.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, NullEquality, Result, TableReference};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, Filter, Join, JoinConstraint, LogicalPlan, Projection, SubqueryAlias};

use super::super::expr;
use super::super::relation::table_of;
use super::estimate::size;
use super::{Side, WANTED, column_at, key_column, substituted_key};

/// A copy omits a side of a join that keeps more than this fraction of the rows.
const HARDLY_FILTERS: f64 = 0.7;

/// A plan, and the key of which it has all values.
#[derive(Debug)]
pub(super) struct Keys {
    pub plan: LogicalPlan,
    pub key: Expr,
    /// The number of equalities of the original that were followed.
    pub hops: usize,
}

impl Keys {
    /// Returns a plan of the rows of `plan` whose `key` is among these.
    pub fn keep_of(&self, plan: &LogicalPlan, key: &Expr) -> Result<Option<LogicalPlan>> {
        let Some(column) = key_column(&self.key, self.plan.schema()) else { return Ok(None) };
        let named = Column::new(Some(TableReference::bare(WANTED)), &column.name);
        let Some(ours) = substituted_key(&self.key, &Expr::Column(named)) else { return Ok(None) };
        let only = Projection::try_new(vec![Expr::Column(column.clone())], Arc::new(self.plan.clone()))?;
        let wanted = SubqueryAlias::try_new(Arc::new(LogicalPlan::Projection(only)), WANTED)?;
        let join = Join::try_new(
            Arc::new(LogicalPlan::SubqueryAlias(wanted)),
            Arc::new(plan.clone()),
            vec![(ours, key.clone())],
            None,
            JoinType::RightSemi,
            JoinConstraint::On,
            NullEquality::NullEqualsNothing,
            false,
        )?;
        Ok(Some(LogicalPlan::Join(join)))
    }
}

/// Returns the kept side of a join, if it is one of [`Keys::keep_of`].
pub(super) fn kept(join: &Join) -> Option<&LogicalPlan> {
    let is_ours = matches!(&*join.left, LogicalPlan::SubqueryAlias(alias) if alias.alias.table() == WANTED);
    (is_ours && join.join_type == JoinType::RightSemi).then_some(&*join.right)
}

/// Finds plans that have all values of `key` in the rows of `plan`, except NULL.
pub(super) fn candidates(plan: &LogicalPlan, key: &Expr, hops: usize, found: &mut Vec<Keys>) -> Result<()> {
    let Some(column) = key_column(key, plan.schema()) else { return Ok(()) };
    let is_step = matches!(plan, LogicalPlan::Join(_) | LogicalPlan::Filter(_) | LogicalPlan::TableScan(_));
    if is_step && let Some(copy) = copied(plan, &BTreeSet::from([column.clone()]))? {
        found.push(Keys { plan: copy, key: key.clone(), hops });
    }
    let mut of_input = |input: &LogicalPlan, expr: Option<&Expr>| match expr.and_then(|e| substituted_key(key, e)) {
        Some(key) => candidates(input, &key, hops, found),
        None => Ok(()),
    };
    let place = plan.schema().maybe_index_of_column(column);
    match (plan, place) {
        (LogicalPlan::Projection(projection), Some(place)) => of_input(&projection.input, projection.expr.get(place)),
        (LogicalPlan::Aggregate(aggregate), Some(place)) => of_input(&aggregate.input, aggregate.group_expr.get(place)),
        (LogicalPlan::SubqueryAlias(alias), Some(place)) => {
            of_input(&alias.input, Some(&Expr::Column(column_at(alias.input.schema(), place))))
        }
        (LogicalPlan::Filter(filter), Some(_)) => candidates(&filter.input, key, hops, found),
        (LogicalPlan::Sort(sort), Some(_)) => candidates(&sort.input, key, hops, found),
        (LogicalPlan::Limit(limit), Some(_)) => candidates(&limit.input, key, hops, found),
        (LogicalPlan::Join(join), Some(_)) => {
            let Some(side) = Side::of(join, column) else { return Ok(()) };
            candidates(side.of_join(join), key, hops, found)?;
            for other in equal_keys(join, side, key) {
                candidates(side.other().of_join(join), &other, hops + 1, found)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns the keys of a join's other side that equal a key of this side in all rows of the result.
pub(super) fn equal_keys(join: &Join, side: Side, key: &Expr) -> Vec<Expr> {
    let is_equal = matches!(join.join_type, JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi);
    if !is_equal || join.null_equality != NullEquality::NullEqualsNothing {
        return Vec::new();
    }
    let equal = |pair: &(Expr, Expr)| {
        let (mine, theirs) = side.pair(pair);
        match mine {
            mine if mine == key => Some(theirs.clone()),
            Expr::Column(mine) if key.column_refs().contains(mine) => substituted_key(key, theirs),
            _ => None,
        }
    };
    join.on.iter().filter_map(equal).collect()
}

/// Returns a plan with at least the rows of `plan`, and the wanted columns under their names.
fn copied(plan: &LogicalPlan, wanted: &BTreeSet<Column>) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            Ok(if scan.fetch.is_none() && table_of(plan)?.is_some() { Some(plan.clone()) } else { None })
        }
        LogicalPlan::Filter(filter) => {
            let kept: Vec<Expr> =
                split_conjunction(&filter.predicate).into_iter().filter(|c| cannot_fail(c)).cloned().collect();
            let mut read = wanted.clone();
            read.extend(kept.iter().flat_map(Expr::column_refs).cloned());
            let Some(input) = copied(&filter.input, &read)? else { return Ok(None) };
            Ok(Some(match conjunction(kept) {
                Some(condition) => LogicalPlan::Filter(Filter::try_new(condition, Arc::new(input))?),
                None => input,
            }))
        }
        LogicalPlan::Projection(projection) => {
            let columns = projection.schema.columns().into_iter().zip(&projection.expr);
            let kept: Vec<Expr> =
                columns.filter(|(column, _)| wanted.contains(column)).map(|(_, expr)| expr.clone()).collect();
            if kept.iter().any(|expr| key_column(expr, projection.input.schema()).is_none()) {
                return Ok(None);
            }
            let read = kept.iter().flat_map(Expr::column_refs).cloned().collect();
            let Some(input) = copied(&projection.input, &read)? else { return Ok(None) };
            Ok(Some(LogicalPlan::Projection(Projection::try_new(kept, Arc::new(input))?)))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            // An alias renames one of two columns of the same name.
            let below = |column: &Column| {
                let below = column_at(alias.input.schema(), alias.schema.maybe_index_of_column(column)?);
                (below.name == column.name).then_some(below)
            };
            let Some(read) = wanted.iter().map(below).collect::<Option<BTreeSet<Column>>>() else { return Ok(None) };
            let Some(input) = copied(&alias.input, &read)? else { return Ok(None) };
            let only = read.into_iter().map(Expr::Column).collect();
            let input = LogicalPlan::Projection(Projection::try_new(only, Arc::new(input))?);
            Ok(Some(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?)))
        }
        LogicalPlan::Sort(sort) => copied(&sort.input, wanted),
        LogicalPlan::Limit(limit) => copied(&limit.input, wanted),
        LogicalPlan::Join(join) => copied_join(join, wanted),
        _ => Ok(None),
    }
}

fn copied_join(join: &Join, wanted: &BTreeSet<Column>) -> Result<Option<LogicalPlan>> {
    let is_of = |side: Side| wanted.iter().all(|column| Side::of(join, column) == Some(side));
    // The side with the wanted columns, and whether the other filters it.
    let (kept, filters) = match join.join_type {
        JoinType::Inner if is_of(Side::Left) => (Side::Left, true),
        JoinType::Inner if is_of(Side::Right) => (Side::Right, true),
        JoinType::LeftSemi => (Side::Left, true),
        JoinType::RightSemi => (Side::Right, true),
        JoinType::Left | JoinType::LeftAnti if is_of(Side::Left) => (Side::Left, false),
        JoinType::Right | JoinType::RightAnti if is_of(Side::Right) => (Side::Right, false),
        JoinType::Inner => return copied_inner(join, wanted),
        _ => return Ok(None),
    };
    if !is_of(kept) {
        return Ok(None);
    }
    let filters = filters && join.null_equality == NullEquality::NullEqualsNothing;
    if filters && let Some(other) = copied_side(join, kept.other(), &BTreeSet::new())? {
        let filters = match (size(&other)?, size(kept.of_join(join))?) {
            (Some(other), Some(mine)) => {
                other.share < HARDLY_FILTERS && (join.join_type == JoinType::Inner || other.scanned <= mine.scanned)
            }
            _ => false,
        };
        if filters && let Some(mine) = copied_side(join, kept, wanted)? {
            return Ok(Some(joined(join, kept, mine, other)?));
        }
    }
    copied(kept.of_join(join), wanted)
}

/// Copies an inner join if columns of both sides are wanted.
fn copied_inner(join: &Join, wanted: &BTreeSet<Column>) -> Result<Option<LogicalPlan>> {
    if join.null_equality != NullEquality::NullEqualsNothing {
        return Ok(None);
    }
    Ok(match (copied_side(join, Side::Left, wanted)?, copied_side(join, Side::Right, wanted)?) {
        (Some(left), Some(right)) => Some(joined(join, Side::Left, left, right)?),
        _ => None,
    })
}

/// Copies a side of a join with its wanted columns and its join keys.
fn copied_side(join: &Join, side: Side, wanted: &BTreeSet<Column>) -> Result<Option<LogicalPlan>> {
    let plan = side.of_join(join);
    let keys: Vec<&Expr> = join.on.iter().map(|pair| side.pair(pair).0).collect();
    if keys.is_empty() || keys.iter().any(|key| key_column(key, plan.schema()).is_none()) {
        return Ok(None);
    }
    let mut read: BTreeSet<Column> = wanted.iter().filter(|c| Side::of(join, c) == Some(side)).cloned().collect();
    read.extend(keys.iter().flat_map(|key| key.column_refs()).cloned());
    copied(plan, &read)
}

/// Joins copies of the sides, without the join's other conditions, which only remove rows.
fn joined(join: &Join, kept: Side, mine: LogicalPlan, other: LogicalPlan) -> Result<LogicalPlan> {
    let (left, right) = match kept {
        Side::Left => (mine, other),
        Side::Right => (other, mine),
    };
    Ok(LogicalPlan::Join(Join::try_new(
        Arc::new(left),
        Arc::new(right),
        join.on.clone(),
        None,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        false,
    )?))
}

/// Returns whether an expression evaluates without an error, and to the same value, for any row.
fn cannot_fail(expr: &Expr) -> bool {
    let mut cannot = true;
    let walk = expr.apply(|expr| {
        cannot &= match expr {
            Expr::Like(like) => matches!(*like.pattern, Expr::Literal(..)),
            expr => expr::cannot_fail(expr),
        };
        Ok(if cannot { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    walk.is_ok() && cannot
}
