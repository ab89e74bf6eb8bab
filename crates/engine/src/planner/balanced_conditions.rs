//! Keeps conditions of thousands of terms as trees of small depth.
//!
//! The parser builds balanced trees (see `nesting`). DataFusion splits conditions at their ANDs to
//! test each term as early as possible. It joins terms that meet again into a chain, each AND
//! nested in the next. A chain of thousands is too deep to be evaluated. This module balances long
//! chains again: as the last logical rule, and once more in the filters of a plan that is about to
//! run.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{BinaryExpr, LogicalPlan, Operator};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr as PhysicalBinary;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::prelude::Expr;

use super::nesting::{MAX_UNBALANCED, balanced};

#[derive(Debug)]
pub(super) struct BalancedConditions;

impl OptimizerRule for BalancedConditions {
    fn name(&self) -> &str {
        "balanced_conditions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        Ok(match plan {
            LogicalPlan::Filter(mut filter) if is_long(&filter.predicate) => {
                filter.predicate = balance(filter.predicate);
                Transformed::yes(LogicalPlan::Filter(filter))
            }
            LogicalPlan::Join(mut join) if join.filter.as_ref().is_some_and(is_long) => {
                join.filter = join.filter.map(balance);
                Transformed::yes(LogicalPlan::Join(join))
            }
            other => Transformed::no(other),
        })
    }
}

fn is_condition(op: Operator) -> bool {
    matches!(op, Operator::And | Operator::Or)
}

/// Returns whether the condition is a chain of one operator, longer than [`MAX_UNBALANCED`].
fn is_long(condition: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { op: first, .. }) = condition else { return false };
    let mut length = 0;
    let mut next = condition;
    while let Expr::BinaryExpr(BinaryExpr { left, op, .. }) = next
        && op == first
        && length <= MAX_UNBALANCED
    {
        length += 1;
        next = left;
    }
    is_condition(*first) && length > MAX_UNBALANCED
}

fn balance(condition: Expr) -> Expr {
    let Expr::BinaryExpr(BinaryExpr { op: first, .. }) = condition else { return condition };
    let mut terms = Vec::new();
    let mut open = vec![condition];
    while let Some(expr) = open.pop() {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if op == first => open.extend([*left, *right]),
            term => terms.push(term),
        }
    }
    terms.reverse();
    let join = &mut |left, right| Expr::BinaryExpr(BinaryExpr::new(Box::new(left), first, Box::new(right)));
    balanced(terms, join).unwrap_or_default()
}

/// Returns the plan with balanced filters.
pub(super) fn balance_filters(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let balanced = plan.transform_up(|node| match node.downcast_ref::<FilterExec>() {
        Some(filter) if is_long_filter(filter.predicate()) => {
            let predicate = balance_filter(filter.predicate());
            let filter = FilterExecBuilder::from(filter).with_predicate(predicate).build()?;
            Ok(Transformed::yes(Arc::new(filter) as _))
        }
        _ => Ok(Transformed::no(node)),
    });
    Ok(balanced?.data)
}

fn is_long_filter(predicate: &Arc<dyn PhysicalExpr>) -> bool {
    let mut length = 0;
    let mut next = predicate;
    while let Some(binary) = next.downcast_ref::<PhysicalBinary>()
        && *binary.op() == Operator::And
        && length <= MAX_UNBALANCED
    {
        length += 1;
        next = binary.left();
    }
    length > MAX_UNBALANCED
}

fn balance_filter(predicate: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    let mut terms: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
    let mut open = vec![predicate];
    while let Some(expr) = open.pop() {
        match expr.downcast_ref::<PhysicalBinary>() {
            Some(binary) if *binary.op() == Operator::And => open.extend([binary.left(), binary.right()]),
            _ => terms.push(Arc::clone(expr)),
        }
    }
    terms.reverse();
    let join = &mut |left, right| Arc::new(PhysicalBinary::new(left, Operator::And, right)) as Arc<dyn PhysicalExpr>;
    balanced(terms, join).unwrap_or_else(|| Arc::clone(predicate))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn depth(expr: &Expr) -> usize {
        match expr {
            Expr::BinaryExpr(binary) => 1 + depth(&binary.left).max(depth(&binary.right)),
            _ => 0,
        }
    }

    #[test]
    fn order_stays_and_depth_does_not() {
        let chain = |n: usize| {
            let terms = (1..=n).map(|i| datafusion::prelude::col(format!("c{i}")));
            terms.reduce(|all, term| all.and(term)).unwrap()
        };
        assert!(!is_long(&chain(60)));
        let long = chain(1000);
        assert!(is_long(&long));
        let short = balance(long.clone());
        assert_eq!(depth(&short), 10);
        assert_eq!(short.to_string(), long.to_string());
    }
}
