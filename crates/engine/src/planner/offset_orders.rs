//! OFFSET without LIMIT skips the first rows in the order of the sort below it.
//!
//! An OFFSET depends on the order of its rows. DataFusion's `EnsureRequirements` ignores that if
//! the outer query orders or groups them in another way. `SELECT sum(id) FROM (SELECT id FROM t
//! ORDER BY b OFFSET 3)` skips any three rows, because the sort is removed ([#23534]). `SELECT id
//! FROM (SELECT id FROM t ORDER BY b OFFSET 3) ORDER BY id` skips the first three of `id`. The
//! outer sort is moved below the OFFSET ([#25378]; both seen in 55.2.0). So
//!
//! - the plan requires the order of the sort below an OFFSET, until `OutputRequirements` removes
//!   the requirement;
//! - no sort passes the barrier above an OFFSET. If the query ends with the OFFSET, there is no
//!   sort to pass it, and no barrier.
//!
//! A LIMIT becomes part of the sort below it, which then stays where it is.
//!
//! [#23534]: https://github.com/apache/datafusion/issues/23534
//! [#25378]: https://github.com/apache/datafusion/issues/25378

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::{Distribution, OrderingRequirements};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::unseen;

/// Runs before DataFusion's rules.
#[derive(Debug)]
pub(super) struct OffsetOrders;

impl PhysicalOptimizerRule for OffsetOrders {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        settled(plan, true)
    }

    fn name(&self) -> &str {
        "OffsetOrders"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns the plan with its OFFSETs settled. `is_last`: the statement's rows have the order of
/// this plan.
fn settled(plan: Arc<dyn ExecutionPlan>, is_last: bool) -> Result<Arc<dyn ExecutionPlan>> {
    let is_last_below = is_last && plan.maintains_input_order() == [true];
    let inputs = plan.children().into_iter().map(|input| settled(Arc::clone(input), is_last_below));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let plan = replace_children_if_necessary(plan, inputs)?;
    let Some(offset) = plan.downcast_ref::<GlobalLimitExec>().filter(|limit| limit.fetch().is_none()) else {
        return Ok(plan);
    };
    let plan = match with_order(offset.input())? {
        Some(rows) => replace_children_if_necessary(Arc::clone(&plan), vec![rows])?,
        None => plan,
    };
    Ok(if is_last { plan } else { unseen::barrier("Offset", plan) })
}

/// Returns the plan with a requirement of the order of the sort that orders its rows. Returns
/// `None` if there is no such sort. The plan itself may have lost the order: a projection may drop
/// a key.
fn with_order(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if plan.is::<SortExec>() || plan.is::<SortPreservingMergeExec>() {
        let Some(order) = plan.output_ordering().cloned() else { return Ok(None) };
        let order = Some(OrderingRequirements::from(order));
        let asked = OutputRequirementExec::new(Arc::clone(plan), order, Distribution::SinglePartition, None);
        return Ok(Some(Arc::new(asked)));
    }
    let children = plan.children();
    let [rows] = children.as_slice() else { return Ok(None) };
    if plan.maintains_input_order() != [true] {
        return Ok(None);
    }
    match with_order(rows)? {
        Some(rows) => replace_children_if_necessary(Arc::clone(plan), vec![rows]).map(Some),
        None => Ok(None),
    }
}
