//! No column is taken for a key.
//!
//! DataFusion 55.2 notes at each node which columns determine others, and leaves out by it keys of GROUP BY and ORDER BY, a DISTINCT,
//! a join. Its notes are wrong where the rows of a derived table are multiplied: by a join, by `unnest`, for each row around a
//! LATERAL or correlated subquery.
//!
//! ```sql
//! SELECT d.id, count(DISTINCT u.w) FROM (SELECT DISTINCT id FROM t) d JOIN u ON u.t_id = d.id GROUP BY d.id, u.id
//! ```
//!
//! groups by `d.id` alone, for an aggregate over a join notes that one of its keys determines the other. The planner adds columns to
//! GROUP BY by the same notes. Tables of ours declare no keys, so that only such notes are there, and they are forgotten:
//!
//! 1. When a relation of FROM is planned, before the SELECT around it is.
//! 2. In what a rule of the optimizer is about to look at.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchemaRef, FunctionalDependencies, Result};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Distinct, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::sql::sqlparser::ast::TableFactor;

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules that look which columns determine others.
const LOOKING: [&str; 4] =
    ["replace_distinct_aggregate", "eliminate_join", "eliminate_duplicated_expr", "optimize_projections"];

/// The rules, with those over plans without keys.
pub(super) fn hidden_from(rules: Vec<Rule>) -> Vec<Rule> {
    let restrict =
        |rule: Rule| -> Rule { if LOOKING.contains(&rule.name()) { Arc::new(WithoutKeys(rule)) } else { rule } };
    rules.into_iter().map(restrict).collect()
}

#[derive(Debug)]
struct WithoutKeys(Rule);

impl OptimizerRule for WithoutKeys {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let plan = match self.apply_order() {
            // It looks at the inputs of the node that it is given.
            Some(_) => plan.map_children(|input| Ok(Transformed::no(without_keys(input)))).data()?,
            None => plan.transform_up_with_subqueries(|node| Ok(Transformed::no(without_keys(node)))).data()?,
        };
        self.0.rewrite(plan, config)
    }
}

/// Plans relations of FROM, and forgets their keys.
#[derive(Debug)]
pub(super) struct Relations;

thread_local! {
    /// Whether the relation that is planned next is for DataFusion: this planner has asked for it.
    static IS_ASKED: Cell<bool> = const { Cell::new(false) };
}

impl RelationPlanner for Relations {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let may_have_keys = matches!(relation, TableFactor::Derived { .. } | TableFactor::Table { args: None, .. });
        if IS_ASKED.replace(false) || !may_have_keys {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        IS_ASKED.set(true);
        let planned = context.plan(relation);
        // An error may come before the relation is reached.
        IS_ASKED.set(false);
        // Below the alias, too: of a LATERAL subquery the planner makes another.
        let bare = planned?.transform_up(|node| Ok(Transformed::no(without_keys(node)))).data()?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(bare, None))))
    }
}

/// A node that says of no column that it determines others. Those below it may still.
fn without_keys(mut node: LogicalPlan) -> LogicalPlan {
    if node.schema().functional_dependencies().is_empty() {
        return node;
    }
    match &mut node {
        LogicalPlan::Projection(node) => forget(&mut node.schema),
        LogicalPlan::Aggregate(node) => forget(&mut node.schema),
        LogicalPlan::Window(node) => forget(&mut node.schema),
        LogicalPlan::Join(node) => forget(&mut node.schema),
        LogicalPlan::SubqueryAlias(node) => forget(&mut node.schema),
        LogicalPlan::Unnest(node) => forget(&mut node.schema),
        LogicalPlan::Union(node) => forget(&mut node.schema),
        LogicalPlan::TableScan(node) => forget(&mut node.projected_schema),
        LogicalPlan::Values(node) => forget(&mut node.schema),
        LogicalPlan::EmptyRelation(node) => forget(&mut node.schema),
        LogicalPlan::Distinct(Distinct::On(node)) => forget(&mut node.schema),
        // Their schema is their input's.
        LogicalPlan::Distinct(Distinct::All(input)) => forget_below(input),
        LogicalPlan::Filter(node) => forget_below(&mut node.input),
        LogicalPlan::Sort(node) => forget_below(&mut node.input),
        LogicalPlan::Limit(node) => forget_below(&mut node.input),
        LogicalPlan::Repartition(node) => forget_below(&mut node.input),
        LogicalPlan::RecursiveQuery(node) => forget_below(&mut node.static_term),
        _ => {}
    }
    node
}

fn forget(schema: &mut DFSchemaRef) {
    let bare = Arc::unwrap_or_clone(Arc::clone(schema));
    // Without any, they are valid.
    if let Ok(bare) = bare.with_functional_dependencies(FunctionalDependencies::empty()) {
        *schema = Arc::new(bare);
    }
}

fn forget_below(input: &mut Arc<LogicalPlan>) {
    *input = Arc::new(without_keys(input.as_ref().clone()));
}

#[cfg(test)]
mod tests {
    use super::super::optimizer_rules;
    use super::LOOKING;

    #[test]
    fn the_rules_are_there() {
        let is_ours = |name: &str| name.starts_with("WithoutKeys");
        assert_eq!(optimizer_rules().iter().filter(|rule| is_ours(&format!("{rule:?}"))).count(), LOOKING.len());
    }
}
