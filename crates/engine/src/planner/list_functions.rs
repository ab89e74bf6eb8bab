//! List functions that return the same for constants and for columns.
//!
//! DataFusion 55.2.0 differs from PostgreSQL and DuckDB in these functions:
//!
//! - `array_has_all` and `array_has_any` treat NULL as an empty list if no list of a batch has
//!   items.
//! - `map` makes an empty map of a NULL constant.
//! - `array_position(list, item, start)` panics for a start of -2^63, and refuses a start outside
//!   the list. PostgreSQL then begins with the first item, or finds nothing.
//! - `array_sort` puts NULL first, and sorts the lists of all rows with the first row's order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::Result;
use datafusion::functions_nested::array_has::{array_has_all_udf, array_has_any_udf};
use datafusion::functions_nested::map::map_udf;
use datafusion::functions_nested::position::array_position_udf;
use datafusion::functions_nested::sort::array_sort_udf;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use datafusion::scalar::ScalarValue;

use super::declared_as::declared_as;
use crate::{Error, ErrorKind};

/// Returns the replacements of DataFusion's functions.
pub(super) fn functions() -> [Arc<ScalarUDF>; 5] {
    let all = [
        (array_has_all_udf(), Correction::NullOfNull),
        (array_has_any_udf(), Correction::NullOfNull),
        (map_udf(), Correction::Columns),
        (array_position_udf(), Correction::Start),
        (array_sort_udf(), Correction::NullsLast),
    ];
    all.map(|(of, correction)| Arc::new(ScalarUDF::from(Corrected { of, correction })))
}

/// The correction of a DataFusion function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Correction {
    /// The result for a NULL list is NULL.
    NullOfNull,
    /// Constants become columns of one row.
    Columns,
    /// Constants become columns of one row, and a start is clamped to the list's positions and the
    /// one after the last.
    Start,
    /// NULL sorts last unless the call specifies otherwise, and the order is a constant.
    NullsLast,
}

/// A DataFusion function with a correction.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Corrected {
    of: Arc<ScalarUDF>,
    correction: Correction,
}

impl ScalarUDFImpl for Corrected {
    declared_as!(of);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.of.coerce_types(types)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.correction {
            Correction::NullOfNull => self.null_of_null(call),
            Correction::Columns => self.of_columns(call, false),
            Correction::Start => {
                let has_start = call.args.len() == 3;
                self.of_columns(call, has_start)
            }
            Correction::NullsLast => self.sorted(call),
        }
    }
}

impl Corrected {
    /// Calls the function on columns. With `has_start`, clamps the third argument.
    fn of_columns(&self, mut call: ScalarFunctionArgs, has_start: bool) -> Result<ColumnarValue> {
        let is_constant = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        if !is_constant && !has_start {
            return self.of.invoke_with_args(call);
        }
        let rows = if is_constant { 1 } else { call.number_rows };
        let mut columns = call.args.iter().map(|arg| arg.to_array(rows)).collect::<Result<Vec<_>>>()?;
        if has_start {
            columns[2] = starts_within(&columns[0], &columns[2])?;
        }
        call.args = columns.into_iter().map(ColumnarValue::Array).collect();
        call.number_rows = rows;
        match self.of.invoke_with_args(call)? {
            ColumnarValue::Array(array) if is_constant => {
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?))
            }
            result => Ok(result),
        }
    }

    /// Calls the function and returns NULL where a list is NULL.
    fn null_of_null(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (mut nulls, rows) = (None, call.number_rows);
        for list in &call.args {
            match list {
                ColumnarValue::Array(lists) => {
                    nulls = NullBuffer::union(nulls.as_ref(), lists.logical_nulls().as_ref())
                }
                ColumnarValue::Scalar(list) if list.is_null() => {
                    return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(None)));
                }
                ColumnarValue::Scalar(_) => {}
            }
        }
        let found = self.of.invoke_with_args(call)?;
        if nulls.is_none() {
            return Ok(found);
        }
        // DataFusion returns a constant for an empty constant.
        let found = found.into_array(rows)?;
        let found = found.as_boolean();
        let nulls = NullBuffer::union(nulls.as_ref(), found.nulls());
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::new(found.values().clone(), nulls))))
    }

    /// Sorts with NULL last unless the call specifies otherwise.
    fn sorted(&self, mut call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if call.args.iter().skip(1).any(|how| matches!(how, ColumnarValue::Array(_))) {
            let error = Error::new(ErrorKind::Invalid, "array_sort() sorts the lists of all rows alike");
            return Err(error
                .with_hint("its order is a constant: 'ASC' or 'DESC'; 'NULLS FIRST' or 'NULLS LAST'")
                .into());
        }
        for default in ["ASC", "NULLS LAST"].iter().skip(call.args.len().saturating_sub(1)) {
            call.args.push(ColumnarValue::Scalar(ScalarValue::from(*default)));
            call.arg_fields.push(Arc::new(Field::new("order", DataType::Utf8, false)));
        }
        self.of.invoke_with_args(call)
    }
}

/// Clamps starts to the list's positions and the one after the last. A NULL start finds nothing.
fn starts_within(lists: &ArrayRef, starts: &ArrayRef) -> Result<ArrayRef> {
    if matches!(lists.data_type(), DataType::Null) {
        return Ok(Arc::clone(starts));
    }
    let lengths = cast(&length(lists)?, &DataType::Int64)?;
    let (lengths, starts) = (lengths.as_primitive::<Int64Type>(), starts.as_primitive::<Int64Type>());
    let within = lengths.iter().zip(starts).map(|(length, start)| {
        let behind = length.unwrap_or(0) + 1;
        start.map_or(behind, |start| start.clamp(1, behind))
    });
    Ok(Arc::new(Int64Array::from_iter_values(within)))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn null_is_sorted_last() {
        for (expr, expected) in [
            ("array_sort([2, NULL, 1])", "[1, 2, NULL]"),
            ("list_sort(x)", "[a, b, NULL]"),
            ("list_sort(x, 'DESC')", "[b, a, NULL]"),
            ("list_sort(x, 'ASC', 'NULLS FIRST')", "[NULL, a, b]"),
            ("list_sort(x, 'DESC', 'NULLS LAST')", "[b, a, NULL]"),
            ("list_sort(CAST(NULL AS BIGINT[]))", "NULL"),
            ("list_sort(CAST([] AS BIGINT[]))", "[]"),
        ] {
            let query = format!("SELECT {expr} FROM (VALUES (['b', NULL, 'a'])) AS t(x)");
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
        let error = fails("SELECT list_sort([2, 1], o) FROM (VALUES ('ASC'), ('DESC')) AS t(o)").await;
        assert!(error.message().contains("alike"), "{error}");
    }

    #[tokio::test]
    async fn constants_have_the_results_of_columns() {
        for (expr, expected) in [
            ("array_has_all(CAST(NULL AS BIGINT[]), CAST(NULL AS BIGINT[]))", "NULL"),
            ("array_has_all([1, 2], [2])", "true"),
            ("array_has_all(x, x)", "NULL"),
            ("array_has_any(x, CAST([] AS BIGINT[]))", "NULL"),
            ("array_has_any([1], CAST([] AS BIGINT[]))", "false"),
            ("array_has_all([1], CAST([] AS BIGINT[]))", "true"),
            ("array_has_all([1], x)", "NULL"),
            ("array_position([5, 6, 5], 5, 2)", "3"),
            ("array_position([5, 6, 5], 5, -9223372036854775808)", "1"),
            ("array_position([5, 6, 5], 5, 9223372036854775807)", "NULL"),
            ("array_position([5, 6, 5], 5, 4)", "NULL"),
            ("array_position([5, 6, 5], 5, CAST(NULL AS BIGINT))", "NULL"),
            ("array_position(x, 5, y)", "NULL"),
            ("array_position([7, 5], 5, y)", "2"),
        ] {
            let query =
                format!("SELECT {expr} FROM (VALUES (CAST(NULL AS BIGINT[]), -9223372036854775808)) AS t(x, y)");
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
    }
}
