//! `count(DISTINCT a), sum(d)` sums once.
//!
//! DataFusion splits an aggregate with one DISTINCT argument into two, and the second sums the sums
//! of the first. With decimals each sum has ten digits more. The column's type then differs from
//! the one in the plan around it, and the comparison in `HAVING sum(d) > 0` fails. DataFusion's
//! rule applies only if the types stay.

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
        // The rule still applies to other types.
        let plan =
            rows("EXPLAIN SELECT count(DISTINCT b), sum(a) FROM (VALUES (1, 2), (2, 3)) AS t(a, b)").await.join("");
        assert!(plan.contains("AS alias1]]"), "{plan}");
    }
}
