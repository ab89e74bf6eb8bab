//! `sqrt(x)` of a REAL is a DOUBLE, as in PostgreSQL and DuckDB.
//!
//! DataFusion computes roots, logarithms, powers and angles of a REAL in single precision:
//! `sqrt(2::REAL)` is 1.4142135. It has a separate logarithm of decimals, which cannot represent
//! the base if all 38 digits are behind the point. Its result is a DOUBLE, and so is the decimal
//! here.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

/// Runs before DataFusion settles types.
#[derive(Debug)]
pub(super) struct SinglePrecision;

impl AnalyzerRule for SinglePrecision {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        match expressions::has(&plan, is_inexact)? {
            true => expressions::rewritten_everywhere(plan, rewrite),
            false => Ok(plan),
        }
    }

    fn name(&self) -> &str {
        "single_precision"
    }
}

/// The functions whose results are seldom exact.
const INEXACT: [&str; 24] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "cot", "degrees", "exp", "ln",
    "log", "log10", "log2", "power", "radians", "sin", "sinh", "sqrt", "tan", "tanh",
];

fn is_inexact(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if INEXACT.contains(&call.name()))
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    if !is_inexact(&expr) {
        return Transformed::no(expr);
    }
    let Expr::ScalarFunction(call) = &mut expr else { return Transformed::no(expr) };
    let is_logarithm = call.name() == "log";
    let mut is_changed = false;
    for arg in &mut call.args {
        let data_type = expressions::type_of(arg, schema);
        if matches!(data_type, DataType::Float16 | DataType::Float32) || is_logarithm && data_type.is_decimal() {
            let value = std::mem::take(arg);
            *arg = cast(value, DataType::Float64);
            is_changed = true;
        }
    }
    if is_changed { Transformed::yes(expr) } else { Transformed::no(expr) }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn roots_of_reals_are_doubles() {
        for (expression, expected) in [
            ("sqrt(CAST(2 AS REAL))", "1.4142135623730951"),
            ("arrow_typeof(ln(x))", "Float64"),
            ("power(x, 0.5)", "1.4142135623730951"),
            ("exp(CAST(NULL AS REAL))", "NULL"),
            ("arrow_typeof(abs(x))", "Float32"),
        ] {
            let query = format!("SELECT {expression} FROM (VALUES (CAST(2 AS REAL))) AS t(x)");
            assert_eq!(rows(&query).await, [expected], "{expression}");
        }
    }
}
