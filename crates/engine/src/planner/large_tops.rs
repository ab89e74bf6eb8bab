//! Sorts all rows if a query keeps many of the first rows.
//!
//! DataFusion's `TopK` keeps the first rows in memory at any number. It fails for
//! `LIMIT 3 OFFSET 2900000`, although a sort of the whole table succeeds: a sort spills and `TopK`
//! does not. This rule replaces a sort that keeps more than [`MOST_KEPT`] rows by a full sort below
//! a LIMIT.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;

/// The number of rows that `TopK` may keep in memory.
const MOST_KEPT: usize = 1 << 16;

/// Runs after DataFusion's rules, which merge a LIMIT with its sort.
#[derive(Debug)]
pub(super) struct LargeTops;

impl PhysicalOptimizerRule for LargeTops {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let sorted = plan.transform_up(|node| {
            let Some((sort, rows)) = node.downcast_ref::<SortExec>().and_then(|sort| Some((sort, sort.fetch()?)))
            else {
                return Ok(Transformed::no(node));
            };
            if rows <= MOST_KEPT {
                return Ok(Transformed::no(node));
            }
            let limit = LocalLimitExec::new(Arc::new(sort.with_fetch(None)), rows);
            Ok(Transformed::yes(Arc::new(limit) as Arc<dyn ExecutionPlan>))
        });
        Ok(sorted?.data)
    }

    fn name(&self) -> &str {
        "LargeTops"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn many_first_rows_are_the_first_ones() {
        let numbers = "(SELECT value * 7919 % 200003 AS x FROM generate_series(1, 200003))";
        let past = format!("SELECT x FROM {numbers} ORDER BY x LIMIT 3 OFFSET 150000");
        assert_eq!(rows(&past).await, ["150000", "150001", "150002"]);
        let first = format!("SELECT count(*), max(x) FROM (SELECT x FROM {numbers} ORDER BY x LIMIT 100000)");
        assert_eq!(rows(&first).await, ["100000 99999"]);
    }
}
