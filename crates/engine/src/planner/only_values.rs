//! A correlated scalar subquery `(SELECT x ..)`: its value is that of its one row, or NULL if it
//! has none. Two rows are an error.
//!
//! The number of rows per outer row is known only after the subquery is joined with the outer
//! query. It is an error only for rows that the outer query asks for. So the subquery returns a
//! list of at most two values for each key, and the outer query takes the value out of it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::functions_aggregate::expr_fn::array_agg;
use datafusion::logical_expr::{
    Aggregate, ColumnarValue, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::Expr;

use super::expressions;
use super::unnesting::Unnested;
use crate::{Error, ErrorKind, Rule};

/// Aggregates the one column to a list for each key.
pub(super) fn listed(of: Unnested) -> Result<Unnested> {
    let values = of.columns().into_iter().map(|column| array_agg(Expr::Column(column))).collect();
    let keys = of.keys.iter().cloned().map(Expr::Column).collect();
    let plan = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(of.plan), keys, values)?);
    Ok(Unnested { plan, keys: of.keys })
}

/// Returns the value in a list.
pub(super) fn only(list: Expr) -> Expr {
    ScalarUDF::from(OnlyValue { signature: Signature::any(1, Volatility::Immutable) }).call(vec![list])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OnlyValue {
    signature: Signature,
}

impl ScalarUDFImpl for OnlyValue {
    fn name(&self) -> &str {
        "only_value"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match expressions::type_of_only(self.name(), types)? {
            DataType::List(item) => Ok(item.data_type().clone()),
            other => internal_err!("{} takes a list, not {other}", self.name()),
        }
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, first_of_each)
    }
}

fn first_of_each(lists: &ArrayRef) -> Result<ArrayRef> {
    let Some(lists) = lists.as_list_opt::<i32>() else { return internal_err!("only_value takes a list") };
    let first = (0..lists.len()).map(|row| match lists.value_length(row) {
        _ if lists.is_null(row) => Ok(None),
        0 => Ok(None),
        1 => Ok(u32::try_from(lists.value_offsets()[row]).ok()),
        _ => Err(more_than_one()),
    });
    let first = first.collect::<Result<UInt32Array>>()?;
    Ok(take(lists.values(), &first, None)?)
}

fn more_than_one() -> DataFusionError {
    let message = "a subquery that is a value has more than one row";
    let error = Error::new(ErrorKind::Data, message).breaking(Rule::OneRow);
    error.with_hint("LIMIT 1 takes the first one, max() or min() one of them").into()
}

#[cfg(test)]
mod tests {
    use crate::Rule;
    use crate::planner::tests::{fails, rows};

    const TABLES: &str = "WITH t(id, a) AS (VALUES (1, 1), (2, 2), (3, NULL), (4, 4)), \
                          u(a, b) AS (VALUES (1, 10), (2, NULL), (4, 1), (4, 2))";

    #[tokio::test]
    async fn there_is_one_row_or_none() {
        // Expected rows are PostgreSQL 15.18's.
        for (query, expected) in [
            ("SELECT id, (SELECT b FROM u WHERE u.a = t.a) AS b FROM t WHERE id < 4 ORDER BY id", "1 10,2 NULL,3 NULL"),
            ("SELECT id FROM t WHERE id < 4 AND (SELECT b FROM u WHERE u.a = t.a) IS NULL ORDER BY id", "2,3"),
            (
                "SELECT id, (SELECT b FROM u WHERE u.a = t.a ORDER BY b DESC LIMIT 1) AS b FROM t ORDER BY id",
                "1 10,2 NULL,3 NULL,4 2",
            ),
            (
                "SELECT id, (SELECT DISTINCT u.a FROM u WHERE u.a = t.a) + 1 AS b FROM t ORDER BY id",
                "1 2,2 3,3 NULL,4 5",
            ),
        ] {
            assert_eq!(rows(&format!("{TABLES} {query}")).await.join(","), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn two_rows_are_an_error() {
        for query in [
            "SELECT id, (SELECT b FROM u WHERE u.a = t.a) AS b FROM t",
            "SELECT id FROM t WHERE (SELECT b FROM u WHERE u.a >= t.a) = 1",
        ] {
            let error = fails(&format!("{TABLES} {query}")).await;
            assert_eq!(error.rule(), Some(Rule::OneRow), "{query}: {error}");
        }
    }
}
