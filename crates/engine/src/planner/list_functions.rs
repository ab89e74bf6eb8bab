//! Functions of lists that say of constants what they say of columns, and of any start.
//!
//! DataFusion 55.2.0 takes a NULL for an empty list in `array_has_all` and `array_has_any` where no list of a batch has items, and
//! makes an empty map of it in `map`, if it is a constant. `array_position(list, item, start)` computes with a start of -2^63 until it panics, and a start
//! beside the list is an error: in PostgreSQL the search begins with the first item then, or finds nothing. `array_sort(list)` puts
//! NULL first, where PostgreSQL 18 and DuckDB put it last, and sorts the lists of all rows as the first row says.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::Result;
use datafusion::functions_nested::array_has::{array_has_all_udf, array_has_any_udf};
use datafusion::functions_nested::map::map_udf;
use datafusion::functions_nested::position::array_position_udf;
use datafusion::functions_nested::sort::array_sort_udf;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::scalar::ScalarValue;

use crate::{Error, ErrorKind};

/// The functions, in place of DataFusion's.
pub(super) fn functions() -> [Arc<ScalarUDF>; 5] {
    let all = [array_has_all_udf(), array_has_any_udf(), map_udf(), array_position_udf(), array_sort_udf()];
    all.map(|of| Arc::new(ScalarUDF::from(OfColumns { of })))
}

/// A function that gets columns instead of constants alone, and arguments that it computes with.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OfColumns {
    of: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for OfColumns {
    fn name(&self) -> &str {
        self.of.name()
    }

    fn aliases(&self) -> &[String] {
        self.of.aliases()
    }

    fn signature(&self) -> &Signature {
        self.of.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.of.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.of.return_field_from_args(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.of.coerce_types(types)
    }

    fn invoke_with_args(&self, mut call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.name() {
            "array_sort" => return self.sorted(call),
            "array_has_all" | "array_has_any" => return self.null_of_null(call),
            _ => {}
        }
        let is_constant = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let has_start = self.name() == "array_position" && call.args.len() == 3;
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
}

impl OfColumns {
    /// NULL where a list is.
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
        // Whatever the lists of the rows are, an empty constant gives a constant.
        let found = found.into_array(rows)?;
        let found = found.as_boolean();
        let nulls = NullBuffer::union(nulls.as_ref(), found.nulls());
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::new(found.values().clone(), nulls))))
    }

    /// With NULL last, unless it is told otherwise.
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

/// Starts of a search, each the number of an item or the one behind the last; nothing is found from NULL.
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
