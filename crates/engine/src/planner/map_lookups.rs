//! `m[[10, 11]]` of a map whose keys are lists.
//!
//! DataFusion compares such keys row by row within a mask of another length, and panics.
//! `map_extract()` compares them one by one and returns a list of the one value. Seen in 55.2.0;
//! see docs/internals/upstream.md.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::functions_nested::extract::array_element_udf;
use datafusion::functions_nested::map_extract::map_extract_udf;
use datafusion::logical_expr::{LogicalPlan, lit};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

/// Runs before DataFusion settles types.
#[derive(Debug)]
pub(super) struct MapLookups;

impl AnalyzerRule for MapLookups {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, is_lookup, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "map_lookups"
    }
}

fn is_lookup(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.name() == "get_field")
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::ScalarFunction(call) = &expr else { return Transformed::no(expr) };
    let [map, key] = call.args.as_slice() else { return Transformed::no(expr) };
    let is_nested =
        matches!(expressions::type_of(map, schema), DataType::Map(..)) && expressions::type_of(key, schema).is_nested();
    if !is_lookup(&expr) || !is_nested {
        return Transformed::no(expr);
    }
    let found = map_extract_udf().call(vec![map.clone(), key.clone()]);
    Transformed::yes(array_element_udf().call(vec![found, lit(1i64)]))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn keys_are_lists() {
        let map = "map([[1, 2], [10, 11]], ['a', 'b'])";
        for (key, expected) in [("[10, 11]", "b"), ("[1, 2]", "a"), ("[7]", "NULL")] {
            assert_eq!(rows(&format!("SELECT {map}[{key}]")).await, [expected], "{key}");
            let query = format!("SELECT m[k] FROM (SELECT {map} AS m, {key} AS k FROM (VALUES (1), (2)) AS t(x)) AS s");
            assert_eq!(rows(&query).await, [expected, expected], "{key}");
        }
        assert_eq!(rows("SELECT map(['x'], [5])['x']").await, ["5"]);
    }
}
