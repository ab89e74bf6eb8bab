//! `[1, 2] || NULL` is `[1, 2]`, and `concat([1], [2])` is `[1, 2]`.
//!
//! DataFusion appends an untyped NULL as an element, where PostgreSQL reads a NULL list. Its
//! `concat` joins the string forms of lists. A NULL of the element type is appended, as in
//! PostgreSQL. Seen in 55.2.0; see docs/internals/upstream.md.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::functions_nested::concat::array_concat_udf;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{ExprSchemable, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::expressions;

/// Handles the operator before DataFusion plans it.
#[derive(Debug)]
pub(super) struct ListOperators;

impl ExprPlanner for ListOperators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        if expr.op != BinaryOperator::StringConcat {
            return Ok(PlannerResult::Original(expr));
        }
        let types = (expr.left.get_type(schema), expr.right.get_type(schema));
        Ok(match types {
            (Ok(left), Ok(DataType::Null)) if left.is_list() => PlannerResult::Planned(expr.left),
            (Ok(DataType::Null), Ok(right)) if right.is_list() => PlannerResult::Planned(expr.right),
            _ => PlannerResult::Original(expr),
        })
    }
}

/// Handles the function before DataFusion settles types.
#[derive(Debug)]
pub(super) struct ListConcatenation;

impl AnalyzerRule for ListConcatenation {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        match expressions::has(&plan, |expr| matches!(expr, Expr::ScalarFunction(call) if call.name() == "concat"))? {
            true => expressions::rewritten_everywhere(plan, rewrite),
            false => Ok(plan),
        }
    }

    fn name(&self) -> &str {
        "list_concatenation"
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::ScalarFunction(call) = &expr else { return Transformed::no(expr) };
    let types: Vec<DataType> = call.args.iter().map(|arg| expressions::type_of(arg, schema)).collect();
    let are_lists = types.iter().any(DataType::is_list) && types.iter().all(|t| t.is_list() || t.is_null());
    match expr {
        Expr::ScalarFunction(call) if call.name() == "concat" && are_lists => {
            // An untyped NULL adds no item.
            let lists = call.args.into_iter().zip(&types).filter(|(_, data_type)| !data_type.is_null());
            let lists = lists.map(|(list, _)| list).collect();
            Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(array_concat_udf(), lists)))
        }
        other => Transformed::no(other),
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn lists_are_put_together() {
        for (expression, expected) in [
            ("[1, 2] || NULL", "[1, 2]"),
            ("NULL || [1, 2]", "[1, 2]"),
            ("[1, 2] || CAST(NULL AS INT)", "[1, 2, NULL]"),
            ("[1, 2] || [3]", "[1, 2, 3]"),
            ("[1, 2] || 3", "[1, 2, 3]"),
            ("concat([42], [43])", "[42, 43]"),
            ("concat([42], NULL, [43])", "[42, 43]"),
            ("concat('a', NULL, 'b')", "ab"),
        ] {
            assert_eq!(rows(&format!("SELECT {expression}")).await, [expected], "{expression}");
        }
    }
}
