//! `CAST(1e300 AS REAL)` and `CAST('1e309' AS DOUBLE)` are errors, as in PostgreSQL and DuckDB.
//!
//! Arrow returns infinities. This rule checks explicit casts only, and only those that may
//! overflow. An explicit infinity, `'inf'`, stays one.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;
use crate::{Error, ErrorKind, Rule};

#[derive(Debug)]
pub(super) struct FiniteCasts;

impl AnalyzerRule for FiniteCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            expressions::rewritten(node, |expr| rewrite(expr, &schema))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "finite_casts"
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::Cast(Cast { expr: inner, field }) = &mut expr else { return Ok(Transformed::no(expr)) };
    let to = field.data_type().clone();
    let may_overflow = match (inner.get_type(schema), &to) {
        (Ok(DataType::Float64), DataType::Float32) => true,
        (Ok(from), DataType::Float32 | DataType::Float64) => from.is_string(),
        _ => false,
    };
    // The rule runs again over a view's plan.
    let is_checked = matches!(inner.as_ref(), Expr::ScalarFunction(call) if call.func.inner().is::<Fits>());
    if !may_overflow || is_checked {
        return Ok(Transformed::no(expr));
    }
    let fits = Fits::new(to);
    if let Expr::Literal(value, _) = inner.as_ref() {
        fits.check(&value.to_array()?)?;
        return Ok(Transformed::no(expr));
    }
    let value = std::mem::take(inner.as_mut());
    **inner = ScalarUDF::from(fits).call(vec![value]);
    Ok(Transformed::yes(expr))
}

/// A function that returns its argument. Fails if the cast to `to` turns a finite argument into an
/// infinity.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Fits {
    to: DataType,
    signature: Signature,
}

impl Fits {
    fn new(to: DataType) -> Self {
        Self { to, signature: Signature::any(1, Volatility::Immutable) }
    }

    fn check(&self, values: &ArrayRef) -> Result<()> {
        // The cast itself reports a value that is not a number.
        let floats = cast(&cast(values, &self.to)?, &DataType::Float64)?;
        let floats = floats.as_primitive::<Float64Type>();
        for row in (0..values.len()).filter(|row| floats.is_valid(*row) && floats.value(*row).is_infinite()) {
            let (text, is_infinity) = match ScalarValue::try_from_array(values, row)? {
                ScalarValue::Float64(Some(value)) => (format!("{value:e}"), value.is_infinite()),
                other => (other.to_string(), other.to_string().to_ascii_lowercase().contains("inf")),
            };
            if !is_infinity {
                let name = if self.to == DataType::Float32 { "REAL" } else { "DOUBLE" };
                let error = Error::new(ErrorKind::Data, format!("{name} out of range: {text}"));
                return Err(error.breaking(Rule::Range).into());
            }
        }
        Ok(())
    }
}

impl ScalarUDFImpl for Fits {
    fn name(&self) -> &str {
        "fits"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        expressions::type_of_only(self.name(), types)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| self.check(values).map(|()| Arc::clone(values)))
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn what_is_too_large_is_no_infinity() {
        for (cast, said) in [
            ("CAST(1e39 AS REAL)", "REAL out of range: 1e39"),
            ("CAST(x AS REAL)", "REAL out of range: 1e300"),
            ("CAST('1e309' AS DOUBLE)", "DOUBLE out of range: 1e309"),
            ("CAST('-1e39' AS REAL)", "REAL out of range: -1e39"),
        ] {
            let error = fails(&format!("SELECT {cast} FROM (VALUES (1e300), (1e0)) AS t(x)")).await;
            assert!(error.message().contains(said), "{cast}: {error}");
            assert_eq!(error.kind(), ErrorKind::Data, "{cast}: {error}");
        }
        for (cast, expected) in [
            ("CAST(CAST('inf' AS DOUBLE) AS REAL)", "inf"),
            ("CAST('-Infinity' AS REAL)", "-inf"),
            ("CAST(x AS REAL)", "2.5"),
            ("CAST('1e300' AS DOUBLE)", "1e300"),
            ("CAST(NULL AS REAL)", "NULL"),
        ] {
            assert_eq!(rows(&format!("SELECT {cast} FROM (VALUES (2.5e0)) AS t(x)")).await, [expected], "{cast}");
        }
    }
}
