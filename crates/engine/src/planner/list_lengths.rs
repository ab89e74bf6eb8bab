//! `length(list)` counts the list's values, as in DuckDB.
//!
//! DataFusion formats the list as a string, `[1, 2, 3]`, and counts its characters: 9.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::functions_nested::expr_fn::array_length;
use datafusion::logical_expr::{ExprSchemable, LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

/// DataFusion's name of length(), len() and char_length().
const LENGTH: &str = "character_length";

#[derive(Debug)]
pub(super) struct ListLengths;

impl AnalyzerRule for ListLengths {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_everywhere(plan, rewrite)
    }

    fn name(&self) -> &str {
        "list_lengths"
    }
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let list = match &expr {
        Expr::ScalarFunction(call) if call.name() == LENGTH => match call.args.as_slice() {
            [list] if list.get_type(schema).is_ok_and(|t| is_list(&t)) => list.clone(),
            _ => return Transformed::no(expr),
        },
        _ => return Transformed::no(expr),
    };
    Transformed::yes(cast(array_length(list), DataType::Int64))
}

fn is_list(data_type: &DataType) -> bool {
    matches!(data_type, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn values_are_counted() {
        for (text, expected) in [
            // Expected values are from DuckDB.
            ("SELECT len([1, 2, 3]), length(['a', NULL]), length('abc')", "3 2 3"),
            ("SELECT len(x), length(x) + 1 FROM (VALUES ([1, 2]), ([3])) AS t(x) ORDER BY 1", "1 2,2 3"),
            ("SELECT sum(len(x)) FROM (SELECT array_agg(y) AS x FROM (VALUES (1), (2)) AS t(y)) AS s", "2"),
        ] {
            assert_eq!(rows(text).await.join(","), expected, "{text}");
        }
    }
}
