//! Does not push filters through nodes in which two columns have the same name.
//!
//! DataFusion's physical filter pushdown finds columns by name. For a join with columns `k` and
//! `k`, it takes the first and applies a filter on the second to it (apache/datafusion #21246):
//! wrong rows. Names repeat wherever two tables with a common column name are joined. This rule
//! runs DataFusion's on the largest parts of a plan without such a node. The nodes above keep their
//! filters; the logical plan has pushed down most of them by then.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Restricts the rule to parts of a plan with unique column names.
pub(super) fn where_names_are_unique(rule: Rule) -> Rule {
    Arc::new(WhereNamesAreUnique(rule))
}

#[derive(Debug)]
struct WhereNamesAreUnique(Rule);

impl PhysicalOptimizerRule for WhereNamesAreUnique {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        match self.optimize_below(plan, config)? {
            Part::Clean(plan) => self.0.optimize(plan, config),
            Part::Done(plan) => Ok(plan),
        }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

enum Part {
    /// A part without repeated names. It is optimized with the nodes above it, or alone at the end.
    Clean(Arc<dyn ExecutionPlan>),
    /// A part with a repeated name. Its clean parts are optimized.
    Done(Arc<dyn ExecutionPlan>),
}

impl WhereNamesAreUnique {
    fn optimize_below(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Part> {
        let children = plan.children().into_iter().map(|child| self.optimize_below(Arc::clone(child), config));
        let children = children.collect::<Result<Vec<Part>>>()?;
        if has_unique_names(plan.as_ref()) && children.iter().all(|child| matches!(child, Part::Clean(_))) {
            return Ok(Part::Clean(plan));
        }
        let children = children.into_iter().map(|child| match child {
            Part::Clean(child) => self.0.optimize(child, config),
            Part::Done(child) => Ok(child),
        });
        let children = children.collect::<Result<Vec<_>>>()?;
        replace_children_if_necessary(plan, children).map(Part::Done)
    }
}

fn has_unique_names(plan: &dyn ExecutionPlan) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::with_capacity(schema.fields().len());
    schema.fields().iter().all(|field| names.insert(field.name().as_str()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;

    use crate::planner::tests::{rows, run, state};

    #[tokio::test]
    async fn a_filter_stays_above_columns_of_one_name() {
        let found = rows(
            "WITH a(k, x) AS (VALUES (1, 1), (2, NULL), (3, 5)), b(k, x) AS (VALUES (1, 1), (2, 7), (9, 2))
             SELECT a.k, b.k FROM a FULL JOIN b ON a.k = b.k
             WHERE NOT ((b.k > 82) OR (a.x IS NOT DISTINCT FROM b.x)) ORDER BY 1, 2",
        );
        assert_eq!(found.await, ["2 2", "NULL 9"]);
    }

    #[tokio::test]
    async fn filters_still_reach_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        run(&format!("COPY (VALUES (1, 2), (3, 4)) TO '{}'", path.display())).await;
        let context = SessionContext::new_with_state(state());
        context.register_parquet("t", path.to_str().unwrap(), Default::default()).await.unwrap();
        // Once without a repeated column name, once below a join with one.
        for query in ["SELECT * FROM t WHERE column1 = 3", "SELECT * FROM t, t AS u WHERE t.column1 = 3"] {
            let plan = context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            assert!(plan.contains("predicate=column1"), "{plan}");
        }
    }
}
