//! `extract(year FROM n) < 9999` holds for every TIMESTAMP(9).
//!
//! DataFusion instead compares the timestamp with the first moment of the year. That is NULL
//! outside the range of nanoseconds, before 1678 and after 2261 ([#25135]), so no row is found. A
//! function without such a comparison extracts the year of nanoseconds. Seen in 55.2.0.
//!
//! [#25135]: https://github.com/apache/datafusion/issues/25135

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::functions::datetime::date_part::DatePartFunc;
use datafusion::logical_expr::{ColumnarValue, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::declared_as::declared_as;
use super::expressions;

/// Runs after types are settled.
#[derive(Debug)]
pub(super) struct YearRanges;

impl AnalyzerRule for YearRanges {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, is_part, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "year_ranges"
    }
}

fn is_part(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().is::<DatePartFunc>())
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let of_nanoseconds =
        |moment: &Expr| matches!(expressions::type_of(moment, schema), DataType::Timestamp(TimeUnit::Nanosecond, _));
    match expr {
        Expr::ScalarFunction(call)
            if call.func.inner().is::<DatePartFunc>() && call.args.get(1).is_some_and(of_nanoseconds) =>
        {
            Transformed::yes(ScalarUDF::from(PartOfNanoseconds::default()).call(call.args))
        }
        other => Transformed::no(other),
    }
}

#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct PartOfNanoseconds {
    inner: DatePartFunc,
}

impl ScalarUDFImpl for PartOfNanoseconds {
    declared_as!(inner);

    fn is_strict(&self) -> bool {
        self.inner.is_strict()
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(call)
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn years_that_nanoseconds_do_not_reach() {
        let table = "(VALUES (CAST('2020-06-01 12:00:00' AS TIMESTAMP(9))), (NULL)) AS t(n)";
        for (condition, expected) in [
            ("extract(year FROM n) < 9999", "true NULL"),
            ("extract(year FROM n) >= 1000", "true NULL"),
            ("year(n) = 2262", "false NULL"),
            ("year(n) <> 1677", "true NULL"),
            ("year(n) IN (2020, 2500)", "true NULL"),
            ("year(n) IS DISTINCT FROM 9999", "true true"),
        ] {
            let found = rows(&format!("SELECT {condition} FROM {table}")).await.join(" ");
            assert_eq!(found, expected, "{condition}");
        }
    }
}
