//! `count(DISTINCT a), sum(d)` sums once.
//!
//! DataFusion turns an aggregate with one DISTINCT argument into two, and sums the sums of the first in the second. With
//! decimals each sum has ten digits more, so that the column is of another type than the plan around it says, and
//! `HAVING sum(d) > 0` fails on comparing the two. Its rule counts only where the types stay.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::passes::OptimizerPass as Rule;

/// Restricts the rule.
pub(super) fn where_types_stay(rule: Rule) -> Rule {
    Arc::new(WhereTypesStay(rule))
}

#[derive(Debug)]
struct WhereTypesStay(Rule);

impl OptimizerRule for WhereTypesStay {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !matches!(plan, LogicalPlan::Aggregate(_)) {
            return self.0.rewrite(plan, config);
        }
        let rewritten = self.0.rewrite(plan.clone(), config)?;
        let types =
            |plan: &LogicalPlan| -> Vec<_> { plan.schema().fields().iter().map(|f| f.data_type().clone()).collect() };
        Ok(if types(&rewritten.data) == types(&plan) { rewritten } else { Transformed::no(plan) })
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn sums_of_decimals_keep_their_type() {
        let query = "SELECT a, count(DISTINCT b), sum(x), arrow_typeof(sum(x))
                     FROM (VALUES (1, 2, 1.5), (1, 3, 2.5), (1, 3, -9.0), (2, 1, 1.0)) AS t(a, b, x)
                     GROUP BY a HAVING sum(x) > -8 ORDER BY a";
        assert_eq!(rows(query).await, ["1 2 -5.0 Decimal128(12, 1)", "2 1 1.0 Decimal128(12, 1)"]);
        // Other types still go that way.
        let plan =
            rows("EXPLAIN SELECT count(DISTINCT b), sum(a) FROM (VALUES (1, 2), (2, 3)) AS t(a, b)").await.join("");
        assert!(plan.contains("AS alias1]]"), "{plan}");
    }
}
