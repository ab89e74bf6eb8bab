//! A LIMIT ends a recursion, also below an ORDER BY.
//!
//! DataFusion 55.2.0 makes one operator of a sort over a LIMIT: it sorts all rows, and keeps the
//! first. A recursion that only the LIMIT ends then never ends:
//!
//! ```sql
//! WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)
//! SELECT * FROM (SELECT * FROM t LIMIT 3) q ORDER BY x
//! ```
//!
//! Here such a LIMIT is below an operator through which no sort moves.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;

use super::unseen;

#[derive(Debug)]
pub(super) struct RecursiveLimits;

impl PhysicalOptimizerRule for RecursiveLimits {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let limited = plan.transform_up(|node| {
            let is_limit = node.is::<GlobalLimitExec>() || node.is::<LocalLimitExec>();
            Ok(match is_limit && reads_recursion(&node) {
                true => Transformed::yes(unseen::barrier("RecursiveLimit", node)),
                false => Transformed::no(node),
            })
        });
        Ok(limited?.data)
    }

    fn name(&self) -> &str {
        "RecursiveLimits"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns whether a plan reads the rows of a recursive query through operators of one input.
fn reads_recursion(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut next = plan;
    loop {
        if next.is::<RecursiveQueryExec>() {
            return true;
        }
        match next.children().as_slice() {
            [only] => next = *only,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn a_limit_below_an_order_ends_the_recursion() {
        let numbers = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)";
        let query = format!("{numbers} SELECT * FROM (SELECT x FROM t LIMIT 3) q ORDER BY x DESC");
        assert_eq!(rows(&query).await, ["3", "2", "1"]);
    }
}
