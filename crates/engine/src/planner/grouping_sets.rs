//! Hides the properties of grouping set keys.
//!
//! A filter `a = b` below makes `a` and `b` equal in all operators above, and `a = 2` makes `a`
//! constant. DataFusion keeps these properties through GROUPING SETS, ROLLUP and CUBE, which
//! replace keys by NULL. It sorts `SELECT a, b .. WHERE a = b GROUP BY GROUPING SETS ((a), (b))
//! ORDER BY a, b` by `a` alone. A window partitioned by a constant `a` has one partition for both 2
//! and NULL. DataFusion also assumes that keys are unique (seen in 55.2.0).
//!
//! This rule puts an operator without properties above each such aggregation. The operator stays in
//! the plan, since a sort queries its input again when it runs.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::unseen;

/// Runs before all rules that query the properties of rows.
#[derive(Debug)]
pub(super) struct GroupingSets;

impl PhysicalOptimizerRule for GroupingSets {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let silenced = plan.transform_up(|node| {
            let has_sets = |aggregate: &AggregateExec| aggregate.group_expr().has_grouping_set();
            match node.downcast_ref::<AggregateExec>() {
                Some(aggregate) if has_sets(aggregate) => {
                    Ok(Transformed::yes(unseen::silent("GroupingSetsExec", node)))
                }
                _ => Ok(Transformed::no(node)),
            }
        });
        Ok(silenced?.data)
    }

    fn name(&self) -> &str {
        "GroupingSets"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn keys_are_neither_equal_nor_constant_nor_unique() {
        let table = "(VALUES (2, 2), (1, 1), (3, 3), (2, 1), (2, 3), (NULL, 2)) AS t(a, b)";
        for (query, expected) in [
            (
                "SELECT a, b, count(*) FROM t WHERE a = b GROUP BY GROUPING SETS ((a), (b)) ORDER BY a, b",
                "1 NULL 1,2 NULL 1,3 NULL 1,NULL 1 1,NULL 2 1,NULL 3 1",
            ),
            ("SELECT a, b FROM t WHERE a = 2 GROUP BY ROLLUP (a, b) ORDER BY a, b", "2 1,2 2,2 3,2 NULL,NULL NULL"),
            (
                "SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM \
                 (SELECT a, b FROM t WHERE a = 2 GROUP BY ROLLUP (a, b)) AS x ORDER BY n, b, a",
                "2 1 1,NULL NULL 1,2 2 2,2 3 3,2 NULL 4",
            ),
            ("SELECT DISTINCT a FROM (SELECT a FROM t GROUP BY ROLLUP (a)) AS x ORDER BY a", "1,2,3,NULL"),
            (
                "SELECT a, n FROM (SELECT a, count(*) AS n FROM t GROUP BY ROLLUP (a) ORDER BY a LIMIT 9) AS x ORDER BY a, n",
                "1 1,2 3,3 1,NULL 1,NULL 6",
            ),
            ("SELECT a, b FROM (SELECT a, b FROM t GROUP BY ROLLUP (a, b)) AS x WHERE a = 2 AND b IS NULL", "2 NULL"),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }
}
