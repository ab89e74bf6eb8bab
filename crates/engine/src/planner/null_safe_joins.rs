//! A join in which NULL equals NULL, beside equalities in which it does not.
//!
//! DataFusion makes keys of `a.x IS NOT DISTINCT FROM b.x`, and marks the join once for all of its
//! keys: NULLs are equal. It then adds `a.y = b.y` from WHERE to these keys. It also splits and
//! rebuilds inner joins, and gives all of them the mark of one. The result has extra rows with NULL
//! in y, or lacks rows. Here such a key is replaced by a value that is not NULL. Null-safe joins
//! stay as they are, with all operators above them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{NullEquality, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Join, JoinType, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::passes::OptimizerPass as Rule;

/// Restricts the rule that makes keys.
pub(super) fn keys_without_null(rule: Rule) -> Rule {
    Arc::new(KeysWithoutNull(rule))
}

/// Restricts the rule that splits joins.
pub(super) fn kept_together(rule: Rule) -> Rule {
    Arc::new(KeptTogether(rule))
}

#[derive(Debug)]
struct KeysWithoutNull(Rule);

impl OptimizerRule for KeysWithoutNull {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let keys = match &plan {
            LogicalPlan::Join(join) if is_null_safe(join) && !join.on.is_empty() => join.on.len(),
            _ => return self.0.rewrite(plan, config),
        };
        self.0.rewrite(plan, config)?.map_data(|plan| {
            let LogicalPlan::Join(mut join) = plan else { return Ok(plan) };
            let more = join.on[keys..].iter().map(|(left, _)| left.clone().is_not_null());
            join.filter = conjunction(more.chain(join.filter));
            Ok(LogicalPlan::Join(join))
        })
    }
}

#[derive(Debug)]
struct KeptTogether(Rule);

impl OptimizerRule for KeptTogether {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let is_one = |node: &LogicalPlan| {
            Ok(matches!(node, LogicalPlan::Join(join) if is_null_safe(join) && join.join_type == JoinType::Inner))
        };
        if !plan.exists(is_one)? {
            return self.0.rewrite(plan, config);
        }
        plan.map_children(|input| self.rewrite(input, config))
    }
}

fn is_null_safe(join: &Join) -> bool {
    join.null_equality == NullEquality::NullEqualsNull
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn null_equals_null_where_it_is_said() {
        // Expected rows are PostgreSQL 15.18's.
        let tables = "WITH t(x, y) AS (VALUES (1, 1), (NULL, NULL), (NULL, 2)), u(x, y) AS (VALUES (1, 1), (1, NULL), (NULL, NULL), (NULL, 2))";
        for (query, expected) in [
            ("SELECT t.x, t.y FROM t JOIN u ON t.x IS NOT DISTINCT FROM u.x WHERE t.y = u.y ORDER BY 2", "1 1,NULL 2"),
            (
                "SELECT t.x, t.y FROM t JOIN u ON t.x IS NOT DISTINCT FROM u.x JOIN t AS v ON v.y = u.y WHERE v.x = t.x",
                "1 1",
            ),
            (
                "SELECT t.x, v.y FROM t JOIN u ON t.y = u.y JOIN t AS v ON v.x IS NOT DISTINCT FROM u.x ORDER BY 1, 2",
                "1 1,NULL 2,NULL NULL",
            ),
            (
                "SELECT t.x, u.y FROM t JOIN u ON t.y = u.y, t AS v WHERE v.x IS NOT DISTINCT FROM t.x AND v.y = u.y ORDER BY 2",
                "1 1,NULL 2",
            ),
        ] {
            assert_eq!(rows(&format!("{tables} {query}")).await.join(","), expected, "{query}");
        }
    }
}
