//! Preserves the guards in join conditions: a CASE, and the other parts of the condition.
//!
//! A physical rule of DataFusion 55.2 moves a part of a condition that reads one side only below
//! the join, and computes it once for each row of that side. For
//! `CASE WHEN p.k = 0 THEN FALSE ELSE 6 / p.k = q.id END`, that part is the division, which then
//! fails for the rows that the guard excludes. AND, OR and `coalesce` with a
//! [fallible](super::guards) part are such a CASE by then. A plan with such a join keeps its
//! conditions whole and runs only the other half of the rule.
//!
//! A logical rule of DataFusion makes a join key of `6 / p.k = q.id`, which is computed for all
//! rows of `p`, also after `p.k <> 0 AND`. The other conditions on that side guard the key:
//! `CASE WHEN p.k <> 0 THEN 6 / p.k END`. A NULL key matches no row.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, LogicalPlan, Operator, when};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::CaseExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::projection::remove_unnecessary_projections;
use datafusion::prelude::Expr;

use super::guards::can_fail;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;
type OptimizingRule = Arc<dyn OptimizerRule + Send + Sync>;

/// Restricts the rule to plans without a CASE in a join condition.
pub(super) fn where_nothing_guards(rule: Rule) -> Rule {
    Arc::new(WhereNothingGuards(rule))
}

/// Guards join keys. Runs directly before DataFusion extracts them.
#[derive(Debug)]
struct GuardedKeys;

/// Returns the rule that guards join keys.
pub(super) fn guarded_keys() -> OptimizingRule {
    Arc::new(GuardedKeys)
}

impl OptimizerRule for GuardedKeys {
    fn name(&self) -> &str {
        "guarded_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(mut join) = plan else { return Ok(Transformed::no(plan)) };
        let Some(condition) = join.filter.take() else { return Ok(Transformed::no(LogicalPlan::Join(join))) };
        let mut conditions = split_conjunction_owned(condition);
        let mut changed = false;
        for side in [&join.left, &join.right] {
            changed |= guard_keys(&mut conditions, side.schema())?;
        }
        join.filter = conjunction(conditions);
        let join = LogicalPlan::Join(join);
        Ok(if changed { Transformed::yes(join) } else { Transformed::no(join) })
    }
}

/// Guards the fallible keys of one side. Returns whether it changed any.
fn guard_keys(conditions: &mut [Expr], side: &DFSchema) -> Result<bool> {
    let is_of_side = |expr: &Expr| {
        let columns = expr.column_refs();
        !columns.is_empty() && !expr.is_volatile() && columns.into_iter().all(|column| side.has_column(column))
    };
    let mut guards = Vec::new();
    for condition in conditions.iter().filter(|condition| is_of_side(condition)) {
        if !can_fail(condition, side)? {
            guards.push(condition.clone());
        }
    }
    let Some(guard) = conjunction(guards) else { return Ok(false) };
    let mut changed = false;
    for condition in conditions.iter_mut() {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else { continue };
        for key in [left, right] {
            // The rule runs more than once.
            if !matches!(key.as_ref(), Expr::Case(_)) && is_of_side(key) && can_fail(key, side)? {
                **key = when(guard.clone(), std::mem::take(key.as_mut())).end()?;
                changed = true;
            }
        }
    }
    Ok(changed)
}

#[derive(Debug)]
struct WhereNothingGuards(Rule);

impl PhysicalOptimizerRule for WhereNothingGuards {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let guards = |node: &Arc<dyn ExecutionPlan>| {
            let join = node.downcast_ref::<NestedLoopJoinExec>();
            join.and_then(NestedLoopJoinExec::filter).map_or(Ok(false), |filter| has_case(filter.expression()))
        };
        if plan.exists(guards)? {
            return plan.transform_down(remove_unnecessary_projections).data();
        }
        self.0.optimize(plan, config)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn has_case(condition: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    condition.exists(|expr| Ok(expr.is::<CaseExpr>()))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn a_join_is_guarded() {
        let tables = "WITH p(id, dept) AS (VALUES (1, 1), (2, 2)), q(id) AS (VALUES (1), (6))";
        let case = "CASE WHEN p.dept = 1 THEN FALSE ELSE 6 / (p.dept - 1) = q.id END";
        let or = "(p.dept = 1 OR 6 / (p.dept - 1) = q.id)";
        for (query, expected) in [
            (format!("SELECT p.id, q.id FROM p JOIN q ON {case}"), "2 6"),
            (format!("SELECT p.id, q.id FROM p, q WHERE {case}"), "2 6"),
            (format!("SELECT p.id, q.id FROM p LEFT JOIN q ON {or} ORDER BY 1, 2"), "1 1,1 6,2 6"),
            (format!("SELECT id FROM p WHERE EXISTS (SELECT 1 FROM q WHERE {case})"), "2"),
            (format!("SELECT id FROM p WHERE NOT EXISTS (SELECT 1 FROM q WHERE {case})"), "1"),
            (format!("SELECT id, (SELECT count(*) FROM q WHERE {or}) FROM p ORDER BY id"), "1 2,2 1"),
            (
                "SELECT p.id, q.id FROM p JOIN q ON coalesce(p.dept = 1, 6 / (p.dept - 1) > q.id) ORDER BY 2".into(),
                "1 1,1 6",
            ),
            ("SELECT id FROM p WHERE NOT EXISTS (SELECT 1 FROM q WHERE p.dept <> 1 AND 6 / (p.dept - 1) = q.id)".into(), "1"),
            ("SELECT p.id, q.id FROM p LEFT JOIN q ON p.dept <> 1 AND 6 / (p.dept - 1) = q.id ORDER BY 1".into(), "1 NULL,2 6"),
            ("SELECT p.id, q.id FROM q RIGHT JOIN p ON q.id > 1 AND q.id = 6 / (p.dept - 1) AND p.dept > 1 ORDER BY 1".into(), "1 NULL,2 6"),
            ("SELECT p.id, q.id FROM p FULL JOIN q ON p.dept > 1 AND 6 / (p.dept - 1) = q.id ORDER BY 1, 2".into(), "1 NULL,2 6,NULL 1"),
            (
                "SELECT a.v, b.k FROM (VALUES ('x'), ('3')) AS a(v) JOIN (VALUES (3)) AS b(k) \
                 ON CASE WHEN a.v ~ '^[0-9]+$' THEN CAST(a.v AS INT) = b.k ELSE FALSE END"
                    .into(),
                "3 3",
            ),
        ] {
            assert_eq!(rows(&format!("{tables} {query}")).await.join(","), expected, "{query}");
        }
    }
}
