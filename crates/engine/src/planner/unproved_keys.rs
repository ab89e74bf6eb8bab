//! Removes functional dependencies that DataFusion derives wrongly.
//!
//! DataFusion 55.2 notes at each node which columns determine others. It uses the notes to remove
//! keys of GROUP BY and ORDER BY, a DISTINCT, or a join. The notes are wrong if the rows of a
//! derived table are multiplied. A join, `unnest`, and each outer row of a LATERAL or correlated
//! subquery multiply rows.
//!
//! ```sql
//! SELECT d.id, count(DISTINCT u.w) FROM (SELECT DISTINCT id FROM t) d
//! JOIN u ON u.t_id = d.id GROUP BY d.id, u.id
//! ```
//!
//! groups by `d.id` alone, because an aggregate over a join notes that one of its keys determines
//! the other. The planner adds columns to GROUP BY by the same notes. Tables of ours declare no
//! keys, so there are no other notes:
//!
//! 1. When a relation of FROM is planned, they are removed before the SELECT around it is planned.
//! 2. Before a rule of the optimizer reads them, they are derived again. The columns by which an
//!    aggregate groups are a key of its rows, also under other names, until rows are joined or
//!    added.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Dependency, FunctionalDependence, FunctionalDependencies, Result};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Distinct, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::prelude::Expr;
use datafusion::sql::sqlparser::ast::TableFactor;

use super::passes::OptimizerPass as Rule;

/// Returns the pass that proves keys.
pub(super) fn proved_keys() -> Rule {
    Arc::new(ProvedKeys)
}

/// Makes a rule visit a node before its inputs.
pub(super) fn top_down(rule: Rule) -> Rule {
    Arc::new(TopDown(rule))
}

/// A rule that visits a node before it changes the inputs. A changed node has DataFusion's notes
/// again.
#[derive(Debug)]
struct TopDown(Rule);

impl OptimizerRule for TopDown {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        self.0.rewrite(plan, config)
    }
}

#[derive(Debug)]
struct ProvedKeys;

impl OptimizerRule for ProvedKeys {
    fn name(&self) -> &str {
        "proved_keys"
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // The plan is unchanged, so no other rule has to visit it again.
        plan.transform_up_with_subqueries(|node| Ok(Transformed::no(with_keys(node, proved))))
    }
}

/// Returns the keys of a node, derived from the keys of its inputs.
fn proved(node: &LogicalPlan) -> FunctionalDependencies {
    let columns = node.schema().fields().len();
    match node {
        LogicalPlan::Aggregate(node) => {
            let keys = node.group_expr.len();
            if keys == 0 || node.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
                return FunctionalDependencies::empty();
            }
            let is_nullable = (0..keys).any(|key| node.schema.field(key).is_nullable());
            let key = FunctionalDependence::new((0..keys).collect(), (0..columns).collect(), is_nullable);
            FunctionalDependencies::new(vec![key.with_mode(Dependency::Single)])
        }
        LogicalPlan::SubqueryAlias(node) => node.input.schema().functional_dependencies().clone(),
        LogicalPlan::Projection(node) => {
            let input = node.input.schema();
            let place = |expr: &Expr| match expr.clone().unalias_nested().data {
                Expr::Column(column) => input.maybe_index_of_column(&column),
                _ => None,
            };
            // An expression that is not a column of the input gets an index that no column has.
            let places: Vec<usize> = node.expr.iter().map(|expr| place(expr).unwrap_or(usize::MAX)).collect();
            input.functional_dependencies().project_functional_dependencies(&places, columns)
        }
        _ => FunctionalDependencies::empty(),
    }
}

/// A planner of relations of FROM that removes their keys.
#[derive(Debug)]
pub(super) struct Relations;

thread_local! {
    /// True if this planner has requested the next relation, which DataFusion then plans.
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
        // An error may occur before the relation is reached.
        IS_ASKED.set(false);
        // The notes below the alias are removed as well: the planner adds another alias to a
        // LATERAL subquery.
        let bare =
            planned?.transform_up(|node| Ok(Transformed::no(with_keys(node, |_| FunctionalDependencies::empty()))));
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(bare.data()?, None))))
    }
}

/// Sets the keys of a node. A node that shares the schema of its input shares its keys.
fn with_keys(mut node: LogicalPlan, keys: fn(&LogicalPlan) -> FunctionalDependencies) -> LogicalPlan {
    let keys = keys(&node);
    if *node.schema().functional_dependencies() == keys {
        return node;
    }
    let schema = match &mut node {
        LogicalPlan::Projection(node) => &mut node.schema,
        LogicalPlan::Aggregate(node) => &mut node.schema,
        LogicalPlan::Window(node) => &mut node.schema,
        LogicalPlan::Join(node) => &mut node.schema,
        LogicalPlan::SubqueryAlias(node) => &mut node.schema,
        LogicalPlan::Unnest(node) => &mut node.schema,
        LogicalPlan::Union(node) => &mut node.schema,
        LogicalPlan::TableScan(node) => &mut node.projected_schema,
        LogicalPlan::Values(node) => &mut node.schema,
        LogicalPlan::EmptyRelation(node) => &mut node.schema,
        LogicalPlan::Distinct(Distinct::On(node)) => &mut node.schema,
        _ => return node,
    };
    // The keys refer to columns of the schema.
    if let Ok(noted) = schema.as_ref().clone().with_functional_dependencies(keys) {
        *schema = Arc::new(noted);
    }
    node
}

#[cfg(test)]
mod tests {}
