//! Properties of inputs that DataFusion wrongly derives for outer joins, or loses in unions.
//!
//! A filter `c = 5` below a scan makes `c` a constant of all operators above. DataFusion (55.2)
//! keeps it through outer joins, which add rows with NULL in its place. So DataFusion takes `ORDER
//! BY c LIMIT 3` above the join for sorted, and returns any three rows. It takes groups by `c` for
//! sorted as well.
//!
//! Columns that are equal in each input of a union (`SELECT id AS a, id AS b .. UNION ALL ..`) are
//! equal in all its rows, but the union's properties lack that. `ORDER BY b, a` is moved into the
//! inputs, where it is an order by one column. The check of the finished plan finds that the union
//! lost it.
//!
//! While DataFusion's physical rules run, such inputs are hidden behind an [`unseen`] operator that
//! declares nothing about its rows. Afterwards the operator is removed from inputs without
//! constants.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::unseen;

/// The name of the operator in between.
const HIDDEN: &str = "Hidden";

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Returns the pass before DataFusion's rules.
pub(super) fn hide() -> Rule {
    Arc::new(Hide)
}

/// Returns the pass after them.
pub(super) fn show() -> Rule {
    Arc::new(Show)
}

#[derive(Debug)]
struct Hide;

#[derive(Debug)]
struct Show;

impl PhysicalOptimizerRule for Hide {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = plan.transform_up(|node| {
            let hides = hidden_inputs(&node);
            if !hides.contains(&true) {
                return Ok(Transformed::no(node));
            }
            let children = node.children().into_iter().cloned().zip(hides);
            // A sort that is moved below a union uses an input's own equal columns.
            let hide = if node.downcast_ref::<UnionExec>().is_some() { unseen::barrier } else { unseen::silent };
            let children = children.map(|(child, hides)| if hides { hide(HIDDEN, child) } else { child }).collect();
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
            // A sort checks its input again when it runs, and passes it on if it is sorted.
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

/// Returns for each input whether it is hidden. Empty if none is.
fn hidden_inputs(node: &Arc<dyn ExecutionPlan>) -> Vec<bool> {
    if node.downcast_ref::<UnionExec>().is_some() {
        return node.children().into_iter().map(has_equal_columns).collect();
    }
    match join_type(node) {
        Some(JoinType::Left) => vec![false, true],
        Some(JoinType::Right) => vec![true, false],
        Some(JoinType::Full) => vec![true, true],
        _ => Vec::new(),
    }
}

fn has_equal_columns(input: &Arc<dyn ExecutionPlan>) -> bool {
    input.equivalence_properties().eq_group().iter().any(|class| class.len() > 1)
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

    #[tokio::test]
    async fn a_union_of_equal_columns_is_sorted() {
        let text = "SELECT x AS a, x AS b FROM (VALUES (2), (1)) AS v(x) UNION ALL SELECT y, y FROM (VALUES (3), (0)) AS w(y) \
                    ORDER BY b DESC, a";
        assert_eq!(rows(text).await, ["3 3", "2 2", "1 1", "0 0"]);
        let text = "SELECT x AS a, x AS b FROM (VALUES (2), (1)) AS v(x) UNION ALL SELECT y, 7 FROM (VALUES (3), (0)) AS w(y) \
                    ORDER BY b DESC, a LIMIT 3";
        assert_eq!(rows(text).await, ["0 7", "3 7", "2 2"]);
    }
}
