//! ORDER BY within an aggregate.
//!
//! `array_agg(DISTINCT x ORDER BY x)` beside an aggregate in another order is refused. DataFusion
//! gives an aggregate that is DISTINCT its rows in the order of the other, and keeps that order.
//!
//! DataFusion drops the ORDER BY of `any_value(k ORDER BY v)`, because any value is correct. It
//! returns the first row's value instead of the first in that order (seen in 55.2.0). The call
//! becomes `first_value(k ORDER BY v) IGNORE NULLS`.
//!
//! A repeated key, as in `string_agg(s, ',' ORDER BY id, id)`, adds no order and is removed.
//! DataFusion counts the keys again if they are values of a group, and fails.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::sql::sqlparser::ast::{
    self, FunctionArgumentClause, FunctionArguments, Ident, NullTreatment, ObjectName,
};

use super::output_names;
use crate::identifiers::normal;
use crate::{Error, ErrorKind};

/// Replaces `any_value` with an order by the function that respects orders, and removes repeated
/// keys from the order of every aggregate.
pub(super) fn rewrite(expr: &mut ast::Expr) {
    let ast::Expr::Function(call) = expr else { return };
    if let FunctionArguments::List(list) = &mut call.args {
        for clause in &mut list.clauses {
            if let FunctionArgumentClause::OrderBy(keys) = clause {
                output_names::keep_first_of_equal(keys, |key| output_names::normalized(&key.expr));
            }
        }
    }
    let [ast::ObjectNamePart::Identifier(name)] = call.name.0.as_slice() else { return };
    let FunctionArguments::List(list) = &mut call.args else { return };
    let is_order = |clause: &FunctionArgumentClause| matches!(clause, FunctionArgumentClause::OrderBy(_));
    if normal(name) != "any_value" || call.over.is_some() || !list.clauses.iter().any(is_order) {
        return;
    }
    list.clauses.retain(is_order);
    call.name = ObjectName::from(vec![Ident::new("first_value")]);
    call.null_treatment = Some(NullTreatment::IgnoreNulls);
}

#[derive(Debug)]
pub(super) struct OrderedAggregates;

impl AnalyzerRule for OrderedAggregates {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::Aggregate(aggregate) = node {
                check(aggregate)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "ordered_aggregates"
    }
}

fn check(aggregate: &Aggregate) -> Result<()> {
    let mut ordered: Vec<AggregateFunction> = Vec::new();
    for expr in &aggregate.aggr_expr {
        expr.apply(|expr| {
            if let Expr::AggregateFunction(call) = expr
                && !call.params.order_by.is_empty()
            {
                ordered.push(call.clone());
            }
            Ok::<_, DataFusionError>(TreeNodeRecursion::Continue)
        })?;
    }
    let differs = |call: &AggregateFunction| ordered.iter().any(|other| other.params.order_by != call.params.order_by);
    match ordered.iter().find(|call| call.params.distinct && differs(call)) {
        None => Ok(()),
        Some(call) => {
            let message =
                format!("{}(DISTINCT ... ORDER BY ...) beside an aggregate in another order", call.func.name());
            let error = Error::new(ErrorKind::Invalid, format!("{message} is not supported"));
            Err(error.with_hint("compute them in two subqueries").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn two_orders_are_refused_if_one_is_distinct() {
        let values = "FROM (VALUES (1), (2), (1)) AS t(i)";
        let both = format!("SELECT array_agg(i ORDER BY i DESC), array_agg(DISTINCT i ORDER BY i) {values}");
        assert_eq!(fails(&both).await.kind(), ErrorKind::Invalid);
        let ordered =
            format!("SELECT array_agg(i ORDER BY i DESC), array_agg(i ORDER BY i), count(DISTINCT i) {values}");
        assert_eq!(rows(&ordered).await, ["[2, 1, 1] [1, 1, 2] 2"]);
    }

    #[tokio::test]
    async fn any_value_of_an_order_is_its_first() {
        let values = "FROM (VALUES (1, 5), (2, 3), (3, 9), (NULL, 10)) AS t(k, v)";
        let query =
            format!("SELECT any_value(k ORDER BY v DESC), any_value(k ORDER BY v) FILTER (WHERE v > 4) {values}");
        assert_eq!(rows(&query).await, ["3 1"]);
    }
}
