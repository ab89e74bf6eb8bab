//! `CAST(s AS type)` and `TRY_CAST` of strings go through the engine's
//! [conversion](crate::convert), like all strings that become values.
//!
//! Arrow 59.3 differs. It reads a string as an array of one item, or as the bytes of its
//! characters. It reads the interval `1` as a month, and the time `11` as nanoseconds. It rejects
//! `1e3` as a DECIMAL and a time without seconds. It truncates fractions, shifts a TIMESTAMP by a
//! zone that follows it, and accepts other strings in TRY_CAST than in CAST.
//!
//! A literal is converted when the statement is planned, so that an error shows it.
//! `CAST('{1,2,NULL}' AS INTEGER[])` is an array of three.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringArray, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, exec_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{ExprSchemable, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions::{self, shown};
use super::temporal::{Kernel, function};
use crate::convert::{ColumnParser, OnError, parse_column};
use crate::pg_types::array_text;
use crate::pg_types::zone::Zone;
use crate::{Error, ErrorKind, Rule};

/// Runs after DataFusion has settled types: a literal beside a column is cast to its type.
#[derive(Debug)]
pub(super) struct StringCasts;

impl AnalyzerRule for StringCasts {
    fn analyze(&self, plan: LogicalPlan, options: &ConfigOptions) -> Result<LogicalPlan> {
        let zone = Zone::of_session(options);
        let reads = |expr: &Expr| match expr {
            Expr::ScalarFunction(call) => ["arrow_cast", "arrow_try_cast"].contains(&call.name()),
            expr => expressions::cast_to(expr).is_some_and(is_read),
        };
        expressions::rewritten_if_any(plan, reads, |expr, schema| rewrite(expr, schema, zone))
    }

    fn name(&self) -> &str {
        "string_casts"
    }
}

/// Returns whether strings are converted here to values of a type, or to arrays of them.
fn is_read(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) => is_read(item.data_type()) || item.data_type().is_string(),
        other => !other.is_string() && !other.is_null() && ColumnParser::new(other, Zone::Utc, 0).is_some(),
    }
}

/// Returns whether values are strings, or arrays of strings if the target is an array.
fn is_of_strings(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::List(from), DataType::List(to)) => {
            is_of_strings(from.data_type(), to.data_type()) && !to.data_type().is_string()
        }
        (from, _) => from.is_string(),
    }
}

fn rewrite(expr: Expr, schema: &DFSchema, zone: Zone) -> Result<Transformed<Expr>> {
    let Some((value, to, is_try)) = expressions::as_cast(&expr, schema) else { return Ok(Transformed::no(expr)) };
    let from = value.get_type(schema);
    if !is_read(&to) || !from.is_ok_and(|from| is_of_strings(&from, &to)) {
        return Ok(Transformed::no(expr));
    }
    let kernel = ReadStrings { target: to, on_error: if is_try { OnError::Null } else { OnError::Fail } };
    let read = match value {
        Expr::Literal(literal, _) => {
            let read = kernel.read(&literal.to_array()?, &kernel.target, zone)?;
            Expr::Literal(ScalarValue::try_from_array(&read, 0)?, None)
        }
        value => function(kernel).call(vec![value.clone()]),
    };
    Ok(Transformed::yes(read))
}

/// A function that converts strings to values.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ReadStrings {
    target: DataType,
    on_error: OnError,
}

impl ReadStrings {
    fn read(&self, strings: &ArrayRef, target: &DataType, zone: Zone) -> Result<ArrayRef> {
        match (strings.data_type(), target) {
            (DataType::List(_), DataType::List(item)) => {
                with_items(strings.as_list(), item, |items| self.read(items, item.data_type(), zone))
            }
            (_, DataType::List(item)) => self.arrays(strings, item, zone),
            (_, target) if target.is_string() => Ok(cast(strings, target)?),
            (_, target) => Ok(parse_column(strings, target, zone, self.on_error)?),
        }
    }

    /// Converts `{1,2,NULL}`.
    fn arrays(&self, strings: &ArrayRef, item: &FieldRef, zone: Zone) -> Result<ArrayRef> {
        let is_nested = matches!(item.data_type(), DataType::List(_));
        // An invalid item invalidates the array.
        let strict = Self { target: DataType::Null, on_error: OnError::Fail };
        let one = |text: &str| -> Result<ArrayRef> {
            let items = array_text::items(text, is_nested).ok_or_else(|| malformed(text))?;
            strict.read(&(Arc::new(StringArray::from(items)) as ArrayRef), item.data_type(), zone)
        };
        let strings = cast(strings, &DataType::Utf8)?;
        let (mut parts, mut lengths, mut is_there) = (Vec::new(), Vec::new(), Vec::new());
        for text in strings.as_string::<i32>() {
            let values = match (text.map(one), self.on_error) {
                (None, _) | (Some(Err(_)), OnError::Null) => None,
                (Some(values), _) => Some(values?),
            };
            lengths.push(values.as_ref().map_or(0, |values| values.len()));
            is_there.push(values.is_some());
            parts.extend(values);
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let values = match parts.is_empty() {
            true => arrow::array::new_empty_array(item.data_type()),
            false => concat(&parts)?,
        };
        let (offsets, nulls) = (OffsetBuffer::from_lengths(lengths), Some(NullBuffer::from(is_there)));
        Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?))
    }
}

impl Kernel for ReadStrings {
    fn name(&self) -> &str {
        "value_of_string"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.target.clone())
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [strings] = columns else { return exec_err!("value_of_string takes one argument") };
        self.read(strings, &self.target, zone)
    }
}

/// Converts the items of lists. Items that belong to no row or to NULL are omitted: they may be
/// invalid.
pub(super) fn with_items(
    lists: &ListArray,
    item: &FieldRef,
    convert: impl FnOnce(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    let lists = own_items(lists)?;
    let items = convert(lists.values())?;
    let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, items, nulls)?))
}

/// Removes the items of lists that belong to no row or to NULL.
fn own_items(lists: &ListArray) -> Result<ListArray> {
    let (first, last) = (lists.value_offsets().first(), lists.value_offsets().last());
    let are_all = first == Some(&0) && last.is_some_and(|last| usize::try_from(*last) == Ok(lists.values().len()));
    if are_all && lists.null_count() == 0 {
        return Ok(lists.clone());
    }
    let rows = UInt64Array::from_iter_values(0..lists.len() as u64);
    Ok(take(lists, &rows, None)?.as_list().clone())
}

fn malformed(text: &str) -> Error {
    let error = Error::new(ErrorKind::Data, format!("{} is no array", shown(text))).breaking(Rule::Form);
    error.with_hint("one is written '{1,2,NULL}', or '{\"a b\",c}'")
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn texts_become_what_they_stand_for() {
        for (expr, expected) in [
            ("CAST('{1,2,NULL}' AS INTEGER[])", "[1, 2, NULL]"),
            ("CAST('{}' AS INTEGER[])", "[]"),
            ("CAST(x AS VARCHAR[])", "[a, b c, NULL]"),
            ("CAST(CAST(NULL AS VARCHAR) AS VARCHAR[])", "NULL"),
            ("CAST('{{1,2},{3}}' AS INTEGER[][])", "[[1, 2], [3]]"),
            ("CAST('{1.5,2}' AS DECIMAL(10,2)[])", "[1.50, 2.00]"),
            ("CAST('{t,false}' AS BOOLEAN[])", "[true, false]"),
            ("CAST(ARRAY['1'] AS INTEGER[])", "[1]"),
            ("CAST('\\x0a1b' AS BYTEA)", "0a1b"),
            ("CAST('a' AS BYTEA)", "61"),
            ("CAST('2020-01-01 10:00:00+02' AS TIMESTAMP)", "2020-01-01T10:00:00"),
            ("CAST(CAST('2020-01-01 10:00+02' AS VARCHAR) AS TIMESTAMPTZ)", "2020-01-01T08:00:00Z"),
            ("CAST(' 2020-01-01 10:00 ' AS TIMESTAMP)", "2020-01-01T10:00:00"),
            ("CAST('2020-01-01' AS TIMESTAMP)", "2020-01-01T00:00:00"),
            ("CAST('1' AS INTERVAL) = INTERVAL '1 second'", "true"),
            ("TIMESTAMP '2020-01-01' + CAST('1 day 03:00' AS INTERVAL)", "2020-01-02T03:00:00"),
            ("TIMESTAMP '2020-01-01' + INTERVAL '1 day 03:00'", "2020-01-02T03:00:00"),
            ("CAST(CAST('{\"\\\\x01\"}' AS BYTEA[]) AS VARCHAR)", "['\\\\x01']"),
        ] {
            let query = format!(r#"SELECT {expr} FROM (VALUES ('{{a,"b c",null}}')) AS t(x)"#);
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
    }

    #[tokio::test]
    async fn items_of_other_rows_are_not_read() {
        let table = "(VALUES (1, ARRAY['a']), (2, ARRAY['1', '2']), (3, ARRAY['b']), (4, NULL)) AS t(i, x)";
        let query =
            format!("SELECT CAST(x AS INTEGER[]) FROM (SELECT * FROM {table} ORDER BY i LIMIT 1 OFFSET 1) AS s");
        assert_eq!(rows(&query).await, ["[1, 2]"]);
    }

    #[tokio::test]
    async fn what_is_none_is_an_error() {
        for text in ["{1,2", "1", "{1,x}", "{{1},{2}}", ""] {
            let error = fails(&format!("SELECT CAST('{text}' AS INTEGER[])")).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{text}: {error}");
        }
        assert_eq!(fails("SELECT CAST('\\xz' AS BYTEA)").await.kind(), ErrorKind::Data);
    }
}
