//! `CAST(1.75 AS INTEGER)` is 2.
//!
//! Arrow truncates the fraction. PostgreSQL, DuckDB and most others round: decimals half away from
//! zero, floats half to even. Only explicit casts round. Casts that settle types are added later,
//! and never cast a fraction to an integer.
//!
//! `round(x)` of a double rounds half to even as well, as in PostgreSQL; of a decimal it rounds
//! away from zero.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::datatypes::{DECIMAL256_MAX_PRECISION, DataType, Field, Float32Type, Float64Type};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TryCast,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

#[derive(Debug)]
pub(super) struct RoundingCasts;

impl AnalyzerRule for RoundingCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            expressions::rewritten(node, |expr| Ok(rewrite(expr, &schema)))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "rounding_casts"
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    if let Expr::ScalarFunction(call) = &expr
        && call.name() == "round"
        && let [value] = call.args.as_slice()
        && matches!(value.get_type(schema), Ok(DataType::Float32 | DataType::Float64))
    {
        return Transformed::yes(ScalarUDF::from(RoundHalfEven::new()).call(vec![value.clone()]));
    }
    let (Expr::Cast(Cast { expr: inner, field }) | Expr::TryCast(TryCast { expr: inner, field })) = &mut expr else {
        return Transformed::no(expr);
    };
    let (to, is_list) = match field.data_type() {
        DataType::List(item) => (item.data_type(), true),
        other => (other, false),
    };
    if !to.is_integer() {
        return Transformed::no(expr);
    }
    let value = std::mem::take(inner.as_mut());
    let listed = |data_type: DataType| match is_list {
        true => DataType::List(Arc::new(Field::new_list_field(data_type, true))),
        false => data_type,
    };
    let from = match value.get_type(schema) {
        Ok(DataType::List(item)) if is_list => Ok(item.data_type().clone()),
        Ok(DataType::List(_)) => Ok(DataType::Null),
        other => other,
    };
    let rounded = match from {
        Ok(DataType::Decimal128(precision, scale)) if scale > 0 => {
            // One digit more, for the carry of 99.9.
            let digits = (precision - scale.unsigned_abs() + 1).min(38);
            let whole = Field::new("", listed(DataType::Decimal128(digits, 0)), true);
            Some(Expr::Cast(Cast { expr: Box::new(value.clone()), field: whole.into() }))
        }
        Ok(DataType::Decimal256(precision, scale)) if scale > 0 => {
            let digits = (precision - scale.unsigned_abs() + 1).min(DECIMAL256_MAX_PRECISION);
            let whole = Field::new("", listed(DataType::Decimal256(digits, 0)), true);
            Some(Expr::Cast(Cast { expr: Box::new(value.clone()), field: whole.into() }))
        }
        Ok(DataType::Float32 | DataType::Float64) if !is_rounded(&value) => {
            Some(ScalarUDF::from(RoundHalfEven::new()).call(vec![value.clone()]))
        }
        _ => None,
    };
    let is_rewritten = rounded.is_some();
    **inner = rounded.unwrap_or(value);
    if is_rewritten { Transformed::yes(expr) } else { Transformed::no(expr) }
}

/// Returns whether a value is rounded already: the rule runs again over a view's plan.
fn is_rounded(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().is::<RoundHalfEven>())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RoundHalfEven {
    signature: Signature,
}

impl RoundHalfEven {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

fn rounded(values: &ArrayRef) -> Result<ArrayRef> {
    Ok(match values.data_type() {
        DataType::List(item) => {
            let lists = values.as_list::<i32>();
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            Arc::new(ListArray::try_new(Arc::clone(item), offsets, rounded(lists.values())?, nulls)?)
        }
        DataType::Float32 => {
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(f32::round_ties_even))
        }
        DataType::Float64 => {
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::round_ties_even))
        }
        other => return internal_err!("round_half_even of {other}"),
    })
}

impl ScalarUDFImpl for RoundHalfEven {
    fn name(&self) -> &str {
        "round_half_even"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        expressions::type_of_only(self.name(), types)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, rounded)
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn casts_to_integers_round() {
        let table = "(VALUES (0.5, 0.5e0), (1.5, 1.5e0), (2.75, 2.75e0), (-2.5, -2.5e0), (99.9, 99.9e0), (NULL, NULL)) AS t(d, f)";
        for (expression, expected) in [
            // From DuckDB.
            ("CAST(d AS INTEGER)", "1 2 3 -3 100 NULL"),
            ("CAST(f AS INTEGER)", "0 2 3 -2 100 NULL"),
            ("CAST(f AS REAL)::BIGINT", "0 2 3 -2 100 NULL"),
            ("TRY_CAST(d * 10 AS TINYINT)", "5 15 28 -25 NULL NULL"),
            ("CAST(d AS INTEGER) + CAST(CAST(d AS VARCHAR) AS DOUBLE)::INT", "1 4 6 -5 200 NULL"),
            ("CAST(CAST(d AS INTEGER) AS BIGINT)", "1 2 3 -3 100 NULL"),
            ("CAST(CAST(d AS DECIMAL(50, 5)) AS INTEGER)", "1 2 3 -3 100 NULL"),
            ("CAST(ARRAY[d] AS INTEGER[])", "[1] [2] [3] [-3] [100] [NULL]"),
            ("CAST(ARRAY[f] AS INTEGER[])", "[0] [2] [3] [-2] [100] [NULL]"),
        ] {
            assert_eq!(rows(&format!("SELECT {expression} FROM {table}")).await.join(" "), expected, "{expression}");
        }
        assert_eq!(rows("SELECT CAST(1.75 AS INT), CAST(1e3 AS INT), CAST('12' AS INT), 7 / 2").await, ["2 1000 12 3"]);
    }
}
