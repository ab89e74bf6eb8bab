//! Restores `count(DISTINCT x)` from two aggregates.
//!
//! DataFusion counts distinct values in two aggregates: one groups by the values, and one counts
//! these groups. A pipeline has sets of values, and needs only one. This also covers queries
//! written as two: `SELECT k, count(x) FROM (SELECT DISTINCT k, x FROM t) GROUP BY k`.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Column;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};

use super::graph::{Outputs, substituted};
use super::{Lowered, because};
use crate::planner;

/// Returns the single aggregate that is equivalent to two; `None` if there are not two, or no
/// single one is equivalent.
pub(super) fn flattened(outer: &Aggregate) -> Option<Aggregate> {
    let (inner, outputs) = inner(&outer.input)?;
    flatten(outer, inner, &outputs).ok()
}

/// Returns the aggregate below a plan, and the plan's columns in terms of the aggregate's.
fn inner(plan: &LogicalPlan) -> Option<(&Aggregate, Outputs)> {
    match plan {
        LogicalPlan::Aggregate(inner) => {
            let columns = inner.schema.columns().into_iter();
            Some((inner, columns.map(|column| (column.clone(), Expr::Column(column))).collect()))
        }
        LogicalPlan::Projection(projection) => {
            let (inner, below) = inner(&projection.input)?;
            let columns = projection.schema.columns().into_iter().zip(&projection.expr);
            let outputs = columns.map(|(column, expr)| Ok((column, substituted(expr.clone().unalias(), &below)?)));
            Some((inner, outputs.collect::<Lowered<Outputs>>().ok()?))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let (inner, below) = inner(&alias.input)?;
            let renamed = alias.schema.columns().into_iter().zip(alias.input.schema().columns());
            let outputs = renamed.map(|(to, from)| Some((to, below.get(&from)?.clone())));
            Some((inner, outputs.collect::<Option<Outputs>>()?))
        }
        _ => None,
    }
}

fn flatten(outer: &Aggregate, inner: &Aggregate, outputs: &Outputs) -> Lowered<Aggregate> {
    let made: HashMap<Column, &Expr> =
        inner.schema.columns().into_iter().zip(inner.group_expr.iter().chain(&inner.aggr_expr)).collect();
    let is_key = |column: &Column| inner.schema.columns().iter().take(inner.group_expr.len()).any(|key| key == column);
    let is_set = |expr: &Expr| matches!(expr, Expr::GroupingSet(_));
    if inner.group_expr.iter().any(is_set) || outer.group_expr.iter().any(is_set) {
        return because("grouping sets");
    }
    // Each key above must be a key below.
    let mut keys = Vec::with_capacity(outer.group_expr.len());
    let mut kept: Vec<Column> = Vec::new();
    for key in &outer.group_expr {
        let Expr::Column(column) = substituted(key.clone().unalias(), outputs)? else {
            return because("a group of what is made of groups");
        };
        let (true, Some(expr)) = (is_key(&column), made.get(&column)) else { return because("a group of results") };
        keys.push((*expr).clone().unalias());
        kept.push(column);
    }
    // At most one key below is left: each group above has a set of its values. If none is left, a
    // group above has one row of each key.
    let mut rest = inner.schema.columns().into_iter().take(inner.group_expr.len()).filter(|key| !kept.contains(key));
    let (values, None) = (rest.next(), rest.next()) else { return because("groups of several columns") };
    let is_set_of = |column: &Column| is_key(column) && values.as_ref().is_none_or(|values| values == column);
    let mut calls = Vec::with_capacity(outer.aggr_expr.len());
    for call in &outer.aggr_expr {
        let Expr::AggregateFunction(AggregateFunction { func, params }) = call.clone().unalias() else {
            return because("an aggregate that is no call");
        };
        let ([arg], None, []) = (params.args.as_slice(), &params.filter, params.order_by.as_slice()) else {
            return because("an aggregate of another kind");
        };
        let (arg, cast) = match planner::as_any_cast(arg) {
            Some((inner, _)) if func.name() == "avg" => (inner, Some(arg)),
            _ => (arg, None),
        };
        let Expr::Column(column) = substituted(arg.clone(), outputs)? else { return because("a result of results") };
        let Some(below) = made.get(&column) else { return because("a result of nothing") };
        let below = (*below).clone().unalias();
        let call = |arg: Expr, distinct: bool| {
            let arg = cast.and_then(|cast| planner::recast(cast, arg.clone())).unwrap_or(arg);
            let params = AggregateFunctionParams { args: vec![arg], distinct, ..params.clone() };
            Expr::AggregateFunction(AggregateFunction { func: Arc::clone(&func), params })
        };
        calls.push(match (func.name(), &below) {
            ("count" | "sum" | "avg", below) if is_set_of(&column) => call(below.clone(), true),
            ("min" | "max", below) if is_key(&column) => call(below.clone(), false),
            ("sum" | "min" | "max", Expr::AggregateFunction(part))
                if part.func.name() == func.name() && !params.distinct && !is_key(&column) =>
            {
                below.clone()
            }
            _ => return because("a result of results"),
        });
    }
    Ok(Aggregate::try_new_with_schema(Arc::clone(&inner.input), keys, calls, Arc::clone(&outer.schema))?)
}
