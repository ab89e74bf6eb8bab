//! The representation of a value, where equal values may have several: `-0.0` and `0.0`, `1 day`
//! and `24 hours` (see [`equal_values`](super::equal_values)).
//!
//! A computation that runs once for all equal values returns one result for all of them. Their own
//! results may differ if their representations do: `1 / x`, `x::VARCHAR`. [`look`] converts a value
//! to a form that is equal only if all bits are. [`seen`] converts the form back to the value.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray, PrimitiveArray};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, FieldRef, Float32Type, Float64Type, Int32Type, Int64Type, IntervalMonthDayNanoType,
    IntervalUnit,
};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::Expr;

use super::expressions;

/// The bytes of an interval's months, days and nanoseconds.
const INTERVAL_BYTES: i32 = 16;

/// Returns the type of a value's bit form, or `None` if equal values of the type have the same
/// bits.
pub(super) fn look_type(value: &DataType) -> Option<DataType> {
    match value {
        DataType::Float32 => Some(DataType::Int32),
        DataType::Float64 => Some(DataType::Int64),
        DataType::Interval(IntervalUnit::MonthDayNano) => Some(DataType::FixedSizeBinary(INTERVAL_BYTES)),
        _ => None,
    }
}

/// Returns the bit form of a value, of the type that [`look_type`] returns.
pub(super) fn look(value: Expr) -> Expr {
    ScalarUDF::from(Look::new(Direction::OfValue)).call(vec![value])
}

/// Returns the value of a bit form.
pub(super) fn seen(look: Expr) -> Expr {
    ScalarUDF::from(Look::new(Direction::ToValue)).call(vec![look])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    OfValue,
    ToValue,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Look {
    signature: Signature,
    direction: Direction,
}

impl Look {
    fn new(direction: Direction) -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable), direction }
    }

    fn type_of(&self, argument: &DataType) -> Result<DataType> {
        let made = match (self.direction, argument) {
            (Direction::OfValue, value) => look_type(value),
            (Direction::ToValue, DataType::Int32) => Some(DataType::Float32),
            (Direction::ToValue, DataType::Int64) => Some(DataType::Float64),
            (Direction::ToValue, DataType::FixedSizeBinary(INTERVAL_BYTES)) => {
                Some(DataType::Interval(IntervalUnit::MonthDayNano))
            }
            _ => None,
        };
        made.map_or_else(|| internal_err!("{} of {argument}", self.name()), Ok)
    }
}

impl ScalarUDFImpl for Look {
    fn name(&self) -> &str {
        match self.direction {
            Direction::OfValue => "look",
            Direction::ToValue => "seen",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [argument] => self.type_of(argument),
            _ => internal_err!("{} takes one argument", self.name()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [argument] => {
                let made = self.type_of(argument.data_type())?;
                Ok(Arc::new(argument.as_ref().clone().with_data_type(made)))
            }
            _ => internal_err!("{} takes one argument", self.name()),
        }
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| {
            Ok(match values.data_type() {
                DataType::Float32 => reread::<Float32Type, Int32Type>(values)?,
                DataType::Float64 => reread::<Float64Type, Int64Type>(values)?,
                DataType::Int32 => reread::<Int32Type, Float32Type>(values)?,
                DataType::Int64 => reread::<Int64Type, Float64Type>(values)?,
                DataType::Interval(IntervalUnit::MonthDayNano) => {
                    let intervals = values.as_primitive::<IntervalMonthDayNanoType>();
                    let bytes = intervals.values().inner().clone();
                    Arc::new(FixedSizeBinaryArray::try_new(INTERVAL_BYTES, bytes, intervals.nulls().cloned())?)
                }
                DataType::FixedSizeBinary(INTERVAL_BYTES) => {
                    let looks = values.as_fixed_size_binary();
                    // The array's memory may be unaligned.
                    let bytes = Buffer::from_slice_ref(looks.value_data());
                    let intervals = ScalarBuffer::new(bytes, 0, looks.len());
                    let nulls = looks.nulls().cloned();
                    Arc::new(PrimitiveArray::<IntervalMonthDayNanoType>::try_new(intervals, nulls)?)
                }
                other => return internal_err!("{} of {other}", self.name()),
            })
        })
    }
}

/// Reinterprets the bits as another type of the same width.
fn reread<From: ArrowPrimitiveType, To: ArrowPrimitiveType>(values: &ArrayRef) -> Result<ArrayRef> {
    let values = values.as_primitive::<From>();
    let bits = ScalarBuffer::from(values.values().inner().clone());
    Ok(Arc::new(PrimitiveArray::<To>::try_new(bits, values.nulls().cloned())?))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    /// Expected values are from PostgreSQL.
    #[tokio::test]
    async fn subqueries_see_values_as_they_look() {
        let table = "(VALUES (1, -0e0), (2, 0e0), (3, 1e0), (4, NULL)) AS t(i, x)";
        for (query, expected) in [
            ("SELECT i, v FROM t, LATERAL (SELECT x::VARCHAR AS v)", "1 -0,2 0,3 1,4 NULL"),
            (
                "SELECT i, (SELECT max(x::VARCHAR || b) FROM (VALUES ('a'), ('b')) s(b) WHERE i + length(b) < 9) FROM t",
                "1 -0b,2 0b,3 1b,4 NULL",
            ),
            (
                "SELECT i, (SELECT count(*) FROM (VALUES (0e0), (-0e0), (1e0)) s(y) WHERE y <= x AND x::VARCHAR <> '') FROM t",
                "1 2,2 2,3 3,4 0",
            ),
            (
                "SELECT i, (SELECT (SELECT max(x::VARCHAR || b || c) FROM (VALUES ('c')) u(c)) \
                 FROM (VALUES ('a'), ('b')) s(b) WHERE b >= 'b' OR x > 5) FROM t",
                "1 -0bc,2 0bc,3 1bc,4 NULL",
            ),
            (
                "SELECT i, n, v FROM t, LATERAL (SELECT count(*) AS n, min(x::VARCHAR) AS v FROM t AS s WHERE s.x <= t.x)",
                "1 2 -0,2 2 -0,3 3 -0,4 0 NULL",
            ),
        ] {
            let query = format!("WITH t AS (SELECT * FROM {table}) {query} ORDER BY i");
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
        // The outer query may have merged equal values already.
        for (query, expected) in [
            (
                "SELECT x, (SELECT count(*) FROM (VALUES (1), (2)) c(k) WHERE c.k > t.x) FROM (SELECT DISTINCT x FROM z) t",
                "0.0 2,1.0 1",
            ),
            (
                "SELECT x, v.n FROM (SELECT DISTINCT x FROM z) t, LATERAL (SELECT count(*) AS n FROM (VALUES (1), (2)) c(k) WHERE c.k > t.x) v",
                "0.0 2,1.0 1",
            ),
            (
                "SELECT x, (SELECT count(*) FROM (VALUES (1), (2)) c(k) WHERE c.k > t.x) FROM (SELECT x FROM z UNION SELECT 5) t",
                "0.0 2,1.0 1,5.0 0",
            ),
            (
                "SELECT x, (SELECT count(*) FROM (VALUES (1), (2)) c(k) WHERE c.k > t.x) FROM (SELECT x FROM z EXCEPT SELECT 1) t",
                "0.0 2",
            ),
            (
                "SELECT x, (SELECT count(*) FROM (VALUES (1), (2)) c(k) WHERE c.k > t.x) FROM (SELECT x FROM z INTERSECT SELECT x FROM z) t",
                "0.0 2,1.0 1",
            ),
            (
                "SELECT x, (SELECT count(*) FROM (VALUES (1), (2)) c(k) WHERE c.k > t.x) FROM (SELECT x FROM z GROUP BY x) t",
                "0.0 2,1.0 1",
            ),
        ] {
            let query = format!("WITH z(i, x) AS (VALUES (1, -0e0), (2, 1e0)) {query} ORDER BY x");
            assert_eq!(rows(&query).await.join(",").replace("-0", "0"), expected, "{query}");
        }
        let intervals = "(VALUES (1, INTERVAL '1 day'), (2, INTERVAL '24 hours'), (3, NULL)) AS t(i, d)";
        let query = format!("SELECT i, v FROM {intervals}, LATERAL (SELECT d::VARCHAR AS v) ORDER BY i");
        assert_eq!(rows(&query).await.join(","), "1 1 day,2 24:00:00,3 NULL");
    }
}
