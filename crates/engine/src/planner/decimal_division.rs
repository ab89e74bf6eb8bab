//! Dividing decimals returns a double.
//!
//! Arrow keeps four digits more than the dividend has: `1 / 3.0` would be 0.3333, a share of a
//! total 0.0000, and wide decimals overflow. DuckDB divides decimals as doubles too.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, Operator, cast};
use datafusion::prelude::Expr;
use datafusion::sql::sqlparser::ast::BinaryOperator;

#[derive(Debug)]
pub(super) struct DecimalDivision;

impl ExprPlanner for DecimalDivision {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        if expr.op != BinaryOperator::Divide {
            return Ok(PlannerResult::Original(expr));
        }
        // An expression without a type, such as a parameter, is left to DataFusion.
        let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
            return Ok(PlannerResult::Original(expr));
        };
        let is_number = |t: &DataType| t.is_numeric() || t.is_null();
        if !(left.is_decimal() || right.is_decimal()) || !is_number(&left) || !is_number(&right) {
            return Ok(PlannerResult::Original(expr));
        }
        let left = Box::new(cast(expr.left, DataType::Float64));
        let right = Box::new(cast(expr.right, DataType::Float64));
        Ok(PlannerResult::Planned(Expr::BinaryExpr(BinaryExpr::new(left, Operator::Divide, right))))
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn no_digits_are_lost() {
        assert_eq!(rows("SELECT 1 / 3.0 = 1e0 / 3e0, 1.00 / 8, 1 / 2").await, ["true 0.125 0"]);
        let share = "SELECT sum(x) / 1000000.00 FROM (VALUES (CAST(0.01 AS DECIMAL(38, 2)))) AS t(x)";
        assert_eq!(rows(share).await, ["1e-8"]);
    }
}
