//! A LIMIT does not pass several windows if one looks ahead of another.
//!
//! DataFusion's `LimitPushPastWindows` sorts no more rows than a LIMIT and the frames above need.
//! If one window is computed from another, it takes the larger look-ahead instead of the sum.
//! `lead(s, 2)` of a sum that ends 3 rows ahead needs 5 more rows, and gets 3. Values of the last
//! rows are NULL or too small (seen in 55.2.0). So the rule is skipped for a plan in which one
//! window is computed from another. It also trusts the declarations of functions: see
//! `unbounded_windows`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::BoundedWindowAggExec;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Restricts the rule.
pub(super) fn where_one_window_is(rule: Rule) -> Rule {
    Arc::new(WhereOneWindowIs(rule))
}

#[derive(Debug)]
struct WhereOneWindowIs(Rule);

impl PhysicalOptimizerRule for WhereOneWindowIs {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let mut windows = 0;
        plan.apply(|node| {
            windows += usize::from(node.is::<BoundedWindowAggExec>());
            Ok(TreeNodeRecursion::Continue)
        })?;
        if windows > 1 { Ok(plan) } else { self.0.optimize(plan, config) }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

    use crate::planner::tests::rows;

    #[tokio::test]
    async fn windows_over_windows_see_all_that_they_need() {
        let query = "SELECT id, lead(s, 2) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS l FROM \
                     (SELECT value AS id, sum(value) OVER (ORDER BY value ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING) AS s \
                     FROM generate_series(1, 20)) AS t ORDER BY id LIMIT 3";
        assert_eq!(rows(query).await, ["1 18", "2 22", "3 26"]);
    }

    #[test]
    fn the_rule_is_there() {
        assert!(PhysicalOptimizer::new().rules.iter().any(|rule| rule.name() == "LimitPushPastWindows"));
    }
}
