//! A volatile condition is evaluated at its place, on the rows that are there.
//!
//! DataFusion 55.2.0 pushes filters down. Below an aggregate it evaluates `random() < 0.5` on other
//! rows than the groups. A filter on a volatile group computes another value there
//! (apache/datafusion #25415):
//!
//! ```sql
//! SELECT count(*) FROM t HAVING random() > 1000                              -- a row
//! -- Returns rows whose k is false.
//! SELECT * FROM (SELECT random() < 0.5 AS k FROM t GROUP BY 1) q WHERE k
//! ```
//!
//! Below a join it is evaluated once for all matches of a row. Here such conditions stay above, and
//! the other conditions of the same filter are pushed down without them.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Aggregate, Filter, Join, JoinType, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::prelude::Expr;

use super::passes::OptimizerPass as Rule;

/// Restricts the rule.
pub(super) fn what_is_certain(rule: Rule) -> Rule {
    Arc::new(WhatIsCertain(rule))
}

#[derive(Debug)]
struct WhatIsCertain(Rule);

impl OptimizerRule for WhatIsCertain {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Join(join) if is_by_chance(&join) => match join.join_type {
                JoinType::Inner => certain(join).map(Transformed::yes),
                // The condition is evaluated for each pair of rows, so no part of it moves.
                _ => Ok(Transformed::no(LogicalPlan::Join(join))),
            },
            LogicalPlan::Filter(filter) => match join_by_chance(&filter) {
                Some(JoinType::Inner) => {
                    let settled = certain_below(filter)?;
                    self.apart(settled, config).map(|rewritten| Transformed::yes(rewritten.data))
                }
                Some(_) => Ok(Transformed::no(LogicalPlan::Filter(filter))),
                None if has_chance(&filter) => self.apart(filter, config),
                None => self.0.rewrite(LogicalPlan::Filter(filter), config),
            },
            plan => self.0.rewrite(plan, config),
        }
    }
}

impl WhatIsCertain {
    fn apart(&self, filter: Filter, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let (mut stay, mut rest, mut filters) = (Vec::new(), Vec::new(), 0);
        let mut next = Arc::new(LogicalPlan::Filter(filter));
        // The conditions of the lower filter come first.
        while let LogicalPlan::Filter(filter) = next.as_ref() {
            filters += 1;
            let (stays, moves): (Vec<Expr>, Vec<Expr>) = split_conjunction_owned(filter.predicate.clone())
                .into_iter()
                .partition(|expr| is_chance(expr, &filter.input));
            stay.splice(0..0, stays);
            rest.splice(0..0, moves);
            next = Arc::clone(&filter.input);
        }
        if rest.is_empty() {
            let is_changed = filters > 1;
            let plan = filtered(stay, next)?;
            return Ok(if is_changed { Transformed::yes(plan) } else { Transformed::no(plan) });
        }
        let pushed = self.0.rewrite(filtered(rest, next)?, config)?;
        let is_changed = pushed.transformed || filters > 1;
        let plan = filtered(stay, Arc::new(pushed.data))?;
        Ok(if is_changed { Transformed::yes(plan) } else { Transformed::no(plan) })
    }
}

fn is_by_chance(join: &Join) -> bool {
    join.filter.as_ref().is_some_and(Expr::is_volatile)
}

/// Returns the type of a join directly below filters if its condition is volatile.
fn join_by_chance(filter: &Filter) -> Option<JoinType> {
    match filter.input.as_ref() {
        LogicalPlan::Filter(below) => join_by_chance(below),
        LogicalPlan::Join(join) => is_by_chance(join).then_some(join.join_type),
        _ => None,
    }
}

/// Returns the same filters above an inner join without volatile conditions.
fn certain_below(mut filter: Filter) -> Result<Filter> {
    let below = match Arc::unwrap_or_clone(filter.input) {
        LogicalPlan::Filter(below) => LogicalPlan::Filter(certain_below(below)?),
        LogicalPlan::Join(join) => certain(join)?,
        other => other,
    };
    filter.input = Arc::new(below);
    Ok(filter)
}

/// Moves the volatile conditions of an inner join to a filter above it.
fn certain(mut join: Join) -> Result<LogicalPlan> {
    let conditions = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
    let (stay, rest): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(Expr::is_volatile);
    join.filter = conjunction(rest);
    filtered(stay, Arc::new(LogicalPlan::Join(join)))
}

fn filtered(conditions: Vec<Expr>, input: Arc<LogicalPlan>) -> Result<LogicalPlan> {
    Ok(match conjunction(conditions) {
        Some(condition) => LogicalPlan::Filter(Filter::try_new(condition, input)?),
        None => Arc::unwrap_or_clone(input),
    })
}

/// Returns whether a filter, or one directly below it, has a condition that stays.
fn has_chance(filter: &Filter) -> bool {
    if is_chance(&filter.predicate, &filter.input) {
        return true;
    }
    match filter.input.as_ref() {
        LogicalPlan::Filter(below) => has_chance(below),
        _ => false,
    }
}

fn is_chance(condition: &Expr, input: &LogicalPlan) -> bool {
    condition.is_volatile() || groups_by_chance(input).iter().any(|column| condition.column_refs().contains(column))
}

/// Returns the columns of volatile groups.
fn groups_by_chance(input: &LogicalPlan) -> Vec<Column> {
    match input {
        LogicalPlan::Filter(filter) => groups_by_chance(&filter.input),
        LogicalPlan::Aggregate(Aggregate { group_expr, schema, .. }) => {
            let columns = schema.columns().into_iter().zip(group_expr);
            columns.filter(|(_, group)| group.is_volatile()).map(|(column, _)| column).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn what_is_random_stays() {
        let many = "generate_series(1, 1000) AS t(a)";
        for (query, expected) in [
            (
                format!(
                    "SELECT bool_and(k) FROM (SELECT random() < 0.5 AS k, count(*) FROM {many} GROUP BY 1) q WHERE k"
                ),
                vec!["true"],
            ),
            (format!("SELECT count(*) FROM {many} HAVING random() > 1000"), vec![]),
            (format!("SELECT count(*) FROM {many} WHERE a < 3 HAVING random() < 2 AND count(*) = 2"), vec!["2"]),
            (
                // Each pair of rows has its own value: the probability that all pairs of one `a`
                // agree is 2^-50.
                format!(
                    "SELECT count(DISTINCT n) > 1 FROM (SELECT a, count(*) AS n FROM {many}, {} WHERE random() < 0.5 AND a < 20 GROUP BY a)",
                    many.replace("t(a)", "u(b)")
                ),
                vec!["true"],
            ),
            (
                format!(
                    "SELECT count(DISTINCT n) > 1 FROM (SELECT a, count(*) AS n FROM {many} LEFT JOIN {} \
                     ON random() < 0.5 AND a + b > 0 WHERE a < 20 GROUP BY a)",
                    many.replace("t(a)", "u(b)")
                ),
                vec!["true"],
            ),
            (
                format!(
                    "SELECT count(DISTINCT n) > 1 FROM (SELECT a, count(*) AS n FROM {many} JOIN {} \
                     ON random() < 0.5 WHERE a < 20 AND b > 0 GROUP BY a)",
                    many.replace("t(a)", "u(b)")
                ),
                vec!["true"],
            ),
        ] {
            assert_eq!(rows(&query).await, expected, "{query}");
        }
    }
}
