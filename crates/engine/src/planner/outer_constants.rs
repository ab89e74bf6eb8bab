//! What is constant on the side of an outer join that may be missing is not constant in the join.
//!
//! A filter `c = 5` below a scan makes `c` a constant of all that follows, and DataFusion (55.2)
//! keeps it through outer joins, which make rows with NULL in its place. So it takes `ORDER BY c
//! LIMIT 3` above the join for sorted, and returns any three rows; groups by `c` it takes for
//! sorted, too. While DataFusion's physical rules run, such inputs are hidden behind an [`unseen`]
//! operator that promises nothing about its rows; when they are done, it goes again from inputs
//! that have no constants.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::unseen;

/// The name of the operator in between.
const HIDDEN: &str = "Hidden";

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The rules, with constants hidden while they run.
pub(super) fn hidden_from(rules: Vec<Rule>) -> Vec<Rule> {
    let first: Rule = Arc::new(Hide);
    let last: Rule = Arc::new(Show);
    [first].into_iter().chain(rules).chain([last]).collect()
}

#[derive(Debug)]
struct Hide;

#[derive(Debug)]
struct Show;

impl PhysicalOptimizerRule for Hide {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = plan.transform_up(|node| {
            let Some(join_type) = join_type(&node) else { return Ok(Transformed::no(node)) };
            let may_be_missing = match join_type {
                JoinType::Left => [false, true],
                JoinType::Right => [true, false],
                JoinType::Full => [true, true],
                _ => return Ok(Transformed::no(node)),
            };
            let children = node.children().into_iter().cloned().zip(may_be_missing);
            let children =
                children.map(|(child, hides)| if hides { unseen::silent(HIDDEN, child) } else { child }).collect();
            replace_children_if_necessary(node, children).map(Transformed::yes)
        });
        Ok(hidden?.data)
    }

    fn name(&self) -> &str {
        "HideOuterConstants"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl PhysicalOptimizerRule for Show {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let shown = plan.transform_up(|node| match unseen::input_of(&node, HIDDEN) {
            // A sort looks once more when it runs, and has its input pass if that is sorted.
            Some(input) if input.equivalence_properties().constants().is_empty() => {
                Ok(Transformed::yes(Arc::clone(input)))
            }
            _ => Ok(Transformed::no(node)),
        });
        Ok(shown?.data)
    }

    fn name(&self) -> &str {
        "ShowOuterConstants"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn join_type(node: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        return Some(*join.join_type());
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        return Some(*join.join_type());
    }
    node.downcast_ref::<SortMergeJoinExec>().map(SortMergeJoinExec::join_type)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rows;

    const JOIN: &str = "(VALUES (1), (2), (3), (4)) AS a(x) \
                        LEFT JOIN (SELECT y, 'b' AS c FROM (VALUES (1), (3), (5)) AS v(y) WHERE y = 3) AS b ON x = y";

    #[tokio::test]
    async fn a_constant_is_none_where_it_may_be_missing() {
        let text = format!("SELECT x, y FROM {JOIN} ORDER BY y NULLS LAST, x LIMIT 2");
        assert_eq!(rows(&text).await, ["3 3", "1 NULL"]);
        let text = format!("SELECT x, c FROM {JOIN} ORDER BY c NULLS FIRST, x DESC LIMIT 2");
        assert_eq!(rows(&text).await, ["4 NULL", "2 NULL"]);
        let text = format!("SELECT c, count(*), max(x) FROM {JOIN} GROUP BY c ORDER BY c NULLS LAST");
        assert_eq!(rows(&text).await, ["b 1 3", "NULL 3 4"]);
        let text = "SELECT k, x FROM (SELECT y AS k FROM (VALUES (2), (3)) AS v(y) WHERE y = 3) AS k \
                    RIGHT JOIN (VALUES (1), (3)) AS a(x) ON k = x ORDER BY k NULLS LAST LIMIT 1";
        assert_eq!(rows(text).await, ["3 3"]);
    }
}
