//! Estimates the number of rows of a plan from the statistics of tables: rows, the minimum and
//! maximum of a column, entries of its dictionary.
//!
//! It assumes independent conditions, uniformly distributed values, and constants that occur in the
//! column. For joined keys, it assumes that those of one side are a subset of the other's. An
//! estimate affects the execution of a query and never its result.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{Column, JoinType, Result};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};
use onehop_segment::{ColumnType, Value};

use super::super::relation::table_of;
use super::key_column;
use crate::scan::value_of;
use crate::scan_plan::ScanPlan;
use crate::snapshot::Table;

/// The selectivity of an unknown condition.
const SOME: f64 = 0.5;
/// The selectivity of `a < b` if the range of `a` is unknown.
const COMPARED: f64 = 1.0 / 3.0;
/// The selectivity of `a LIKE '..%'`, and of `a = b` if the number of values of `a` is unknown.
const FEW: f64 = 0.1;

/// The size of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// The number of rows of the result.
    pub rows: f64,
    /// The number of rows of tables that are read for them.
    pub scanned: f64,
    /// The fraction of the rows that conditions keep.
    pub share: f64,
}

/// Statistics of a column.
#[derive(Debug)]
struct Facts {
    column_type: ColumnType,
    /// The maximum number of distinct values.
    distinct: f64,
    /// The minimum and maximum.
    ends: Option<(i128, i128)>,
}

/// Returns the size of a plan; `None` if it reads other than tables of the database, or is of an
/// unknown kind.
pub(super) fn size(plan: &LogicalPlan) -> Result<Option<Size>> {
    Ok(match plan {
        LogicalPlan::TableScan(scan) => match table_of(plan)? {
            Some(table) => {
                let rows = table.rows() as f64;
                let scanned = match scan.filters.is_empty() {
                    true => rows,
                    false => ScanPlan::new(&table, &scan.filters)?.rows() as f64,
                };
                Some(Size { rows, scanned, share: 1.0 })
            }
            None => None,
        },
        LogicalPlan::Filter(filter) => match size(&filter.input)? {
            Some(input) => Some(input.times(passing(&split_conjunction(&filter.predicate), &filter.input)?)),
            None => None,
        },
        LogicalPlan::Projection(projection) => size(&projection.input)?,
        LogicalPlan::SubqueryAlias(alias) => size(&alias.input)?,
        LogicalPlan::Sort(sort) => size(&sort.input)?,
        LogicalPlan::Aggregate(aggregate) => size(&aggregate.input)?,
        LogicalPlan::Join(join) => match (size(&join.left)?, size(&join.right)?) {
            (Some(left), Some(right)) => of_join(join, left, right)?,
            _ => None,
        },
        _ => None,
    })
}

impl Size {
    fn times(self, share: f64) -> Self {
        Self { rows: self.rows * share, share: self.share * share, ..self }
    }
}

fn of_join(join: &Join, left: Size, right: Size) -> Result<Option<Size>> {
    let scanned = left.scanned + right.scanned;
    let semi = |kept: Size, share: f64| Size { scanned, ..kept.times(share) };
    Ok(Some(match join.join_type {
        JoinType::Inner => {
            let mut rows = left.rows * right.rows;
            for (a, b) in &join.on {
                if let (Some(a), Some(b)) = (values(&join.left, a)?, values(&join.right, b)?) {
                    rows /= a.min(b).max(1.0);
                }
            }
            Size { rows, scanned, share: left.share * right.share }
        }
        JoinType::LeftSemi => semi(left, found(join, right, |(theirs, ours)| (ours, theirs))?),
        JoinType::RightSemi => semi(right, found(join, left, |(ours, theirs)| (ours, theirs))?),
        JoinType::LeftAnti | JoinType::Left => semi(left, 1.0),
        JoinType::RightAnti | JoinType::Right => semi(right, 1.0),
        _ => return Ok(None),
    }))
}

/// Returns the fraction of the rows of a semi join that find their key in the other side, `inner`.
fn found(join: &Join, inner: Size, sides: impl Fn(&(Expr, Expr)) -> (&Expr, &Expr)) -> Result<f64> {
    let (inner_plan, outer_plan) = match join.join_type {
        JoinType::RightSemi => (&join.left, &join.right),
        _ => (&join.right, &join.left),
    };
    let mut share = 1.0f64;
    for pair in &join.on {
        let (ours, theirs) = sides(pair);
        if let Some(part) = part_of_keys(inner_plan, ours, inner, values(outer_plan, theirs)?)? {
            share = share.min(part);
        }
    }
    Ok(share)
}

/// Returns the fraction of `values_kept` keys that remains if only the keys of `plan`, of size
/// `of`, are kept.
pub(super) fn part_of_keys(plan: &LogicalPlan, key: &Expr, of: Size, values_kept: Option<f64>) -> Result<Option<f64>> {
    let (Some(ours), Some(theirs)) = (values(plan, key)?, values_kept) else { return Ok(None) };
    Ok(Some((ours.min(of.rows) / ours.min(theirs).max(1.0)).min(1.0)))
}

/// Returns the maximum number of distinct values of a key, regardless of conditions.
pub(super) fn values(plan: &LogicalPlan, key: &Expr) -> Result<Option<f64>> {
    let Some(column) = key_column(key, plan.schema()) else { return Ok(None) };
    Ok(facts(plan, column)?.map(|facts| facts.distinct))
}

/// Returns the fraction of the rows of `input` that meet all of `conditions`.
fn passing(conditions: &[&Expr], input: &LogicalPlan) -> Result<f64> {
    let mut part = 1.0;
    // Both ends of one range are not independent.
    let mut ranges: HashMap<&Column, (Facts, i128, i128)> = HashMap::new();
    for condition in conditions {
        let Some((column, op, end)) = comparison(condition, input)? else {
            part *= part_of(condition, input)?;
            continue;
        };
        let (_, low, high) = match ranges.entry(column) {
            std::collections::hash_map::Entry::Occupied(range) => range.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => match facts(input, column)? {
                Some(facts) if facts.ends.is_some() => {
                    let (low, high) = facts.ends.unwrap_or_default();
                    free.insert((facts, low, high))
                }
                _ => {
                    part *= COMPARED;
                    continue;
                }
            },
        };
        match op {
            Operator::Lt | Operator::LtEq => *high = (*high).min(end),
            _ => *low = (*low).max(end),
        }
    }
    for (facts, low, high) in ranges.values() {
        part *= facts.within(*low, *high);
    }
    Ok(part)
}

/// Matches `column < value` and the like, in either order.
fn comparison<'e>(condition: &'e Expr, input: &LogicalPlan) -> Result<Option<(&'e Column, Operator, i128)>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else { return Ok(None) };
    let (column, op, literal) = match (&**left, &**right) {
        (Expr::Column(column), Expr::Literal(literal, _)) => (column, Some(*op), literal),
        (Expr::Literal(literal, _), Expr::Column(column)) => (column, op.swap(), literal),
        _ => return Ok(None),
    };
    let Some(op @ (Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq)) = op else { return Ok(None) };
    let Some(facts) = facts(input, column)? else { return Ok(None) };
    Ok(match value_of(&facts.column_type, literal) {
        Some(Value::Key(key)) => Some((column, op, key)),
        _ => None,
    })
}

/// Returns the fraction of the rows of `input` that meet a condition.
fn part_of(condition: &Expr, input: &LogicalPlan) -> Result<f64> {
    let one_of = |expr: &Expr| -> Result<f64> {
        let Expr::Column(column) = expr else { return Ok(FEW) };
        Ok(facts(input, column)?.map_or(FEW, |facts| 1.0 / facts.distinct.max(1.0)))
    };
    let negated = |is_negated: bool, part: f64| if is_negated { 1.0 - part } else { part };
    Ok(match condition {
        Expr::Alias(alias) => part_of(&alias.expr, input)?,
        Expr::Not(inner) => 1.0 - part_of(inner, input)?,
        Expr::IsNull(_) => FEW,
        Expr::IsNotNull(_) => 1.0,
        Expr::Between(Between { expr, negated: is_negated, low, high }) => {
            let end = |op, end: &Expr| Expr::BinaryExpr(BinaryExpr::new(expr.clone(), op, Box::new(end.clone())));
            let (low, high) = (end(Operator::GtEq, low), end(Operator::LtEq, high));
            negated(*is_negated, passing(&[&low, &high], input)?)
        }
        Expr::InList(InList { expr, list, negated: is_negated }) => {
            negated(*is_negated, (one_of(expr)? * list.len() as f64).min(1.0))
        }
        Expr::Like(like) => negated(like.negated, FEW),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And => passing(&split_conjunction(condition), input)?,
            Operator::Or => (part_of(left, input)? + part_of(right, input)?).min(1.0),
            Operator::Eq | Operator::NotEq => {
                let column = if matches!(**left, Expr::Literal(..)) { right } else { left };
                negated(*op == Operator::NotEq, one_of(column)?)
            }
            Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => match comparison(condition, input)? {
                Some(_) => passing(&[condition], input)?,
                None => COMPARED,
            },
            _ => SOME,
        },
        _ => SOME,
    })
}

impl Facts {
    fn new(table: &Table, column: usize) -> Result<Self> {
        let field = table.schema.field(column);
        let column_type = ColumnType::of(field.name(), field.data_type()).map_err(crate::Error::from)?;
        let (mut ends, mut entries): (Option<(i128, i128)>, u32) = (None, 0);
        for file in &table.segments {
            let info = file.segment()?.column(column);
            entries = entries.max(info.dictionary_entries);
            if let Some((min, max)) = info.zone.keys() {
                ends = Some(ends.map_or((min, max), |(a, b)| (a.min(min), b.max(max))));
            }
        }
        let mut distinct = table.rows() as f64;
        if let Some((min, max)) = ends {
            distinct = distinct.min(max.saturating_sub(min) as f64 + 1.0);
        }
        if entries > 0 {
            distinct = distinct.min(f64::from(entries));
        }
        Ok(Self { column_type, distinct, ends })
    }

    /// Returns the fraction of the values from `low` to `high`.
    fn within(&self, low: i128, high: i128) -> f64 {
        let Some((min, max)) = self.ends else { return COMPARED };
        let span = |low: i128, high: i128| high.saturating_sub(low) as f64 + 1.0;
        if low > high { 0.0 } else { (span(low, high) / span(min, max)).clamp(0.0, 1.0) }
    }
}

/// Returns the statistics of a plan's column.
fn facts(plan: &LogicalPlan, column: &Column) -> Result<Option<Facts>> {
    match origin(plan, column)? {
        Some((table, column)) => Ok(Some(Facts::new(&table, column)?)),
        None => Ok(None),
    }
}

/// Returns the column of a table that a plan's column has its values from.
fn origin(plan: &LogicalPlan, column: &Column) -> Result<Option<(Arc<Table>, usize)>> {
    let of_expr = |expr: Option<&Expr>, input: &LogicalPlan| match expr.map(|expr| key_column(expr, input.schema())) {
        Some(Some(column)) => origin(input, column),
        _ => Ok(None),
    };
    let place = plan.schema().maybe_index_of_column(column);
    match (plan, place) {
        (LogicalPlan::TableScan(_), Some(_)) => {
            let Some(table) = table_of(plan)? else { return Ok(None) };
            let place = table.schema.column_with_name(&column.name).map(|(place, _)| place);
            Ok(place.map(|place| (table, place)))
        }
        (LogicalPlan::SubqueryAlias(alias), Some(place)) => {
            let (qualifier, field) = alias.input.schema().qualified_field(place);
            origin(&alias.input, &Column::new(qualifier.cloned(), field.name()))
        }
        (LogicalPlan::Projection(projection), Some(place)) => of_expr(projection.expr.get(place), &projection.input),
        (LogicalPlan::Aggregate(aggregate), Some(place)) => of_expr(aggregate.group_expr.get(place), &aggregate.input),
        (LogicalPlan::Filter(filter), Some(_)) => origin(&filter.input, column),
        (LogicalPlan::Sort(sort), Some(_)) => origin(&sort.input, column),
        (LogicalPlan::Limit(limit), Some(_)) => origin(&limit.input, column),
        (LogicalPlan::Join(join), Some(_)) if join.left.schema().has_column(column) => origin(&join.left, column),
        (LogicalPlan::Join(join), Some(_)) if join.right.schema().has_column(column) => origin(&join.right, column),
        _ => Ok(None),
    }
}
