//! Skips DataFusion's physical rules for plans that they would not change.
//!
//! The plan of most star queries is a fused subtree, a projection of its columns, and a sort of the
//! few groups. It has one partition, no join, no aggregate, no filter, and no order except the
//! sort's. Twenty rules walk such a plan, rebuild its properties and equivalences, and leave it
//! unchanged. On a query of a millisecond that is a fifth of the planning. So every rule first
//! [checks](has_nothing) for this plan. `EnsureCooperative`, which makes leaves yield to other
//! tasks, and `SanityCheckPlan`, which checks, always run.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::lower::FusedExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The rules that always run: DataFusion's checks, and ours that are not part of its list.
const ALWAYS: [&str; 6] =
    ["EnsureCooperative", "SanityCheckPlan", "GroupingSets", "OffsetOrders", "RecursiveLimits", "LargeTops"];

/// Skips a rule for plans that it would not change.
pub(super) fn left_out(rule: Rule) -> Rule {
    if ALWAYS.contains(&rule.name()) { rule } else { Arc::new(Otherwise(rule)) }
}

/// A rule for all other plans.
#[derive(Debug)]
struct Otherwise(Rule);

impl PhysicalOptimizerRule for Otherwise {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if has_nothing(plan.as_ref()) { Ok(plan) } else { self.0.optimize(plan, config) }
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if has_nothing(plan.as_ref()) { Ok(plan) } else { self.0.optimize_with_context(plan, context) }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Returns whether a plan is a chain of column projections, sorts and limits above a fused subtree
/// without inputs and without an order.
fn has_nothing(plan: &dyn ExecutionPlan) -> bool {
    if let Some(fused) = plan.downcast_ref::<FusedExec>() {
        return fused.children().is_empty() && fused.properties().output_ordering().is_none();
    }
    let is_plain = match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => projection.expr().iter().all(|projected| projected.expr.downcast_ref::<Column>().is_some()),
        None => plan.downcast_ref::<SortExec>().is_some() || plan.downcast_ref::<GlobalLimitExec>().is_some(),
    };
    is_plain && plan.children().iter().all(|child| has_nothing(child.as_ref()))
}
