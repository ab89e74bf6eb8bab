//! A condition without a column stays above an aggregate that returns a row for any input.
//!
//! `SELECT c FROM (SELECT count(*) AS c FROM t) WHERE c = 1 AND c = 3` has no row. DataFusion 55.2
//! finds that the conditions are never both true. It moves FALSE, which names no column, below the
//! aggregate, like a condition on its keys. The count is then 0, and there is a row. The same
//! applies to the side of a join that is joined ON FALSE, and to the total of ROLLUP and GROUPING
//! SETS.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Aggregate, Filter, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::simplify_expressions::simplify_predicates;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::prelude::Expr;

use super::passes::OptimizerPass as Rule;

/// Restricts the rule that pushes filters down.
pub(super) fn above_one_row(rule: Rule) -> Rule {
    Arc::new(AboveOneRow(rule))
}

#[derive(Debug)]
struct AboveOneRow(Rule);

impl OptimizerRule for AboveOneRow {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Filter(filter) if has_a_row(&filter.input) => self.above(one_filter(filter)?, config),
            plan => self.0.rewrite(plan, config),
        }
    }
}

impl AboveOneRow {
    fn above(&self, filter: Filter, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // The rule simplifies as well, and would only then find a condition that is never true.
        let conditions = simplify_predicates(split_conjunction_owned(filter.predicate.clone()))?;
        let (kept, moved): (Vec<Expr>, Vec<Expr>) =
            conditions.into_iter().partition(|condition| condition.column_refs().is_empty());
        let Some(kept) = conjunction(kept) else { return self.0.rewrite(LogicalPlan::Filter(filter), config) };
        let Some(moved) = conjunction(moved) else {
            let changed = kept != filter.predicate;
            let plan = LogicalPlan::Filter(Filter::try_new(kept, filter.input)?);
            return Ok(if changed { Transformed::yes(plan) } else { Transformed::no(plan) });
        };
        let below = self.0.rewrite(LogicalPlan::Filter(Filter::try_new(moved, filter.input)?), config)?;
        below.map_data(|below| Ok(LogicalPlan::Filter(Filter::try_new(kept, Arc::new(below))?)))
    }
}

/// Merges consecutive filters, as the rule does.
fn one_filter(filter: Filter) -> Result<Filter> {
    match filter.input.as_ref() {
        LogicalPlan::Filter(below) => {
            let both = below.predicate.clone().and(filter.predicate);
            one_filter(Filter::try_new(both, Arc::clone(&below.input))?)
        }
        _ => Ok(filter),
    }
}

/// Returns whether a plan, apart from filters, has a row if its input has none.
fn has_a_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(Aggregate { group_expr, .. }) => {
            group_expr.iter().all(|key| matches!(key, Expr::GroupingSet(_)))
        }
        LogicalPlan::Filter(filter) => has_a_row(&filter.input),
        _ => false,
    }
}

#[cfg(test)]
mod tests {}
