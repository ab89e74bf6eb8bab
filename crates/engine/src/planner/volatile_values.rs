//! A volatile value that an expression uses twice is computed once.
//!
//! DataFusion 55.2.0 (apache/datafusion #25457, #25477) rewrites `x BETWEEN a AND b` to `x >= a AND
//! x <= b`. It rewrites `coalesce(x, y)` to `CASE WHEN x IS NOT NULL THEN x ELSE y END`, and a
//! short IN list to comparisons. Each copy of `random()` has another value:
//!
//! ```sql
//! SELECT bool_or(random() BETWEEN 0.6 AND 0.5) FROM generate_series(1, 1000)   -- true, not false
//! ```
//!
//! Here such a value is the argument of a function, which computes it once.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::kernels::{cmp, zip::zip};
use arrow::compute::{and_kleene, is_not_null};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::functions_nested::expr_fn::make_array;
use datafusion::logical_expr::expr::{Between, InList, ScalarFunction};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{
    ColumnarValue, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, not,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::{equal_values, exact_comparisons, expressions, quantified};

/// DataFusion's functions that it rewrites to a CASE of their arguments.
const FIRST_KNOWN: [&str; 3] = ["coalesce", "nvl", "ifnull"];

#[derive(Debug)]
pub(super) struct VolatileValues;

impl AnalyzerRule for VolatileValues {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, Expr::is_volatile_node, computed_once)
    }

    fn name(&self) -> &str {
        "volatile_values"
    }
}

fn computed_once(expr: Expr, _: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::Between(Between { expr: value, negated, low, high }) if value.is_volatile() => {
            let is_between = function(Once::Between).call(vec![*value, *low, *high]);
            Transformed::yes(if negated { not(is_between) } else { is_between })
        }
        Expr::InList(InList { expr: value, list, negated }) if value.is_volatile() => {
            let is_in = quantified::equals_any(*value, make_array(list));
            Transformed::yes(if negated { not(is_in) } else { is_in })
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if FIRST_KNOWN.contains(&func.name()) && args.iter().any(Expr::is_volatile) =>
        {
            Transformed::yes(function(Once::FirstKnown).call(args))
        }
        other => Transformed::no(other),
    })
}

fn function(once: Once) -> ScalarUDF {
    ScalarUDF::from(ComputedOnce { once, signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Once {
    Between,
    FirstKnown,
}

/// A function of values that are computed already.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ComputedOnce {
    once: Once,
    signature: Signature,
}

impl ScalarUDFImpl for ComputedOnce {
    fn name(&self) -> &str {
        match self.once {
            Once::Between => "is_between",
            Once::FirstKnown => "first_known",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match (self.once, types) {
            (Once::Between, _) => Ok(DataType::Boolean),
            (Once::FirstKnown, [first, ..]) => Ok(first.clone()),
            (Once::FirstKnown, []) => internal_err!("first_known takes arguments"),
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let common = |a: &DataType, b: &DataType| match exact_comparisons::common(a, b) {
            Some(common) => Some(common),
            None => comparison_coercion(a, b),
        };
        let mut all = types.iter().filter(|data_type| !data_type.is_null());
        let first = all.next().cloned().unwrap_or(DataType::Null);
        match all.try_fold(first, |of, data_type| common(&of, data_type)) {
            Some(common) => Ok(vec![common; types.len()]),
            None => plan_err!("{types:?} cannot be compared with each other"),
        }
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let args = ColumnarValue::values_to_arrays(&call.args)?;
        let value = match self.once {
            Once::Between => between(&args)?,
            Once::FirstKnown => first_known(&args)?,
        };
        Ok(ColumnarValue::Array(value))
    }
}

fn between(args: &[ArrayRef]) -> Result<ArrayRef> {
    let args = args.iter().map(equal_values::as_one).collect::<Result<Vec<_>>>()?;
    let [value, low, high] = args.as_slice() else { return internal_err!("is_between takes three arguments") };
    let is_between = and_kleene(&cmp::gt_eq(value, low)?, &cmp::lt_eq(value, high)?)?;
    Ok(Arc::new(is_between))
}

fn first_known(args: &[ArrayRef]) -> Result<ArrayRef> {
    let [first, rest @ ..] = args else { return internal_err!("first_known takes arguments") };
    let mut found = ArrayRef::clone(first);
    for next in rest {
        found = zip(&is_not_null(&found)?, &found, next)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn a_random_value_is_one_value() {
        for value in [
            "NOT bool_or((random() * 10)::INT BETWEEN 6 AND 5)",
            "bool_and((random() * 10)::INT NOT BETWEEN 6 AND 5)",
            "bool_and(coalesce(nullif(random() < 0.5, false), true))",
            "count(coalesce(nullif(random() < 0.5, false), true)) = 1000",
            "NOT bool_or(random() IN (2, 3))",
            "bool_and(random() BETWEEN 0 AND 1)",
        ] {
            let query = format!("SELECT {value} FROM generate_series(1, 1000)");
            assert_eq!(rows(&query).await, ["true"], "{query}");
        }
    }
}
