//! Functions whose order DataFusion cannot determine: an unknown order is not an error.
//!
//! `abs`, `sqrt`, `ln` and others are monotone over a part of their arguments. DataFusion checks
//! whether an argument lies there, and fails if it does not know the type of its bounds, as for any
//! function's value. It then knows nothing about the whole expression, not even that the rows were
//! just sorted by it. It refuses `ORDER BY abs(length(s))`, and windows whose keys are such
//! expressions. The message is that a plan "does not satisfy order requirements" (seen in 55.2.0;
//! apache/datafusion #20194 has another cause of the same message). Here such functions have no
//! order.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::prelude::Expr;

const NAMES: [&str; 10] = ["abs", "acos", "acosh", "asin", "atanh", "cosh", "ln", "log10", "log2", "sqrt"];

/// Returns the functions that replace DataFusion's.
pub(super) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let all = SessionStateDefaults::default_scalar_functions().into_iter();
    let monotone = all.filter(|function| NAMES.contains(&function.name()));
    monotone.map(|inner| Arc::new(ScalarUDF::from(Monotone { inner })))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Monotone {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Monotone {
    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        Ok(self.inner.output_ordering(inputs).unwrap_or(SortProperties::Unordered))
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        self.inner.evaluate_bounds(inputs).or_else(|_| Interval::make_unbounded(&DataType::Null))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn is_strict(&self) -> bool {
        self.inner.inner().is_strict()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[test]
    fn all_are_there() {
        assert_eq!(super::functions().count(), super::NAMES.len());
    }

    #[tokio::test]
    async fn keys_of_any_function_order_rows() {
        let table = "(VALUES (1, 1000, 'a'), (2, 5000, 'bb'), (3, NULL, NULL), (4, 0, '')) AS t(id, b, s)";
        for (query, expected) in [
            ("SELECT id FROM t WHERE id < 4 ORDER BY abs(b - 9) % 7, id", "2,1,3"),
            (
                "SELECT id, rank() OVER (ORDER BY abs(length(s)), id) AS r FROM t WHERE id < 4 ORDER BY id",
                "1 1,2 2,3 3",
            ),
            (
                "SELECT id, row_number() OVER (PARTITION BY abs(b - 9) % 7 ORDER BY b, id) AS r FROM t WHERE id < 3 ORDER BY id",
                "1 1,2 1",
            ),
            ("SELECT array_agg(id ORDER BY sqrt(abs(length(s))), id) FROM t WHERE id < 4", "[1, 2, 3]"),
        ] {
            let query = query.replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }
}
