//! `CAST('{1,2,NULL}' AS INTEGER[])` is an array of three, and `CAST('\x0a1b' AS BYTEA)` two bytes, as in PostgreSQL.
//!
//! Arrow makes an array of one item of a text, which is the whole text, or says that it is no number; and bytes of its letters.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, ListArray, StringArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions::{self, shown};
use crate::postgres::{array_text, bytea};
use crate::{Error, ErrorKind, Rule};

#[derive(Debug)]
pub(super) struct CastTexts;

impl AnalyzerRule for CastTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let reads = |expr: &Expr| expressions::cast_to(expr).is_some_and(|to| innermost(to).0 > 0 || is_bytes(to));
        expressions::rewritten_if_any(plan, reads, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "cast_texts"
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::Cast(Cast { expr: inner, field }) = &mut expr else { return Transformed::no(expr) };
    let (depth, item) = innermost(field.data_type());
    let are_bytes = is_bytes(item);
    if depth == 0 && !are_bytes {
        return Transformed::no(expr);
    }
    if !inner.get_type(schema).is_ok_and(|from| from.is_string()) {
        return Transformed::no(expr);
    }
    let text = std::mem::take(inner.as_mut());
    **inner = ScalarUDF::from(ReadText::new(depth, are_bytes)).call(vec![text]);
    Transformed::yes(expr)
}

fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// How many arrays lie within each other, and of what.
fn innermost(data_type: &DataType) -> (usize, &DataType) {
    match data_type {
        DataType::List(item) => {
            let (depth, innermost) = innermost(item.data_type());
            (depth + 1, innermost)
        }
        other => (0, other),
    }
}

/// What its argument stands for.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ReadText {
    /// An array of items, which are texts or bytes, so many arrays deep.
    depth: usize,
    are_bytes: bool,
    signature: Signature,
}

impl ReadText {
    fn new(depth: usize, are_bytes: bool) -> Self {
        Self { depth, are_bytes, signature: Signature::any(1, Volatility::Immutable) }
    }

    /// What comes of a text, so many arrays deep.
    fn read_type(&self, depth: usize) -> DataType {
        match depth {
            0 if self.are_bytes => DataType::Binary,
            0 => DataType::Utf8,
            depth => DataType::List(Arc::new(Field::new_list_field(self.read_type(depth - 1), true))),
        }
    }

    fn read(&self, values: &ArrayRef, depth: usize) -> Result<ArrayRef> {
        match depth {
            0 if self.are_bytes => bytes(values),
            0 => Ok(cast(values, &DataType::Utf8)?),
            depth => self.items(values, depth),
        }
    }

    fn items(&self, values: &ArrayRef, depth: usize) -> Result<ArrayRef> {
        let values = cast(values, &DataType::Utf8)?;
        let mut all = Vec::new();
        let mut lengths = Vec::with_capacity(values.len());
        for text in values.as_string::<i32>() {
            let before = all.len();
            if let Some(text) = text {
                all.extend(array_text::items(text, depth > 1).ok_or_else(|| malformed(text))?);
            }
            lengths.push(all.len() - before);
        }
        let inner = self.read(&(Arc::new(StringArray::from(all)) as ArrayRef), depth - 1)?;
        let item = Arc::new(Field::new_list_field(self.read_type(depth - 1), true));
        let nulls = values.nulls().cloned();
        Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), inner, nulls)?))
    }
}

impl ScalarUDFImpl for ReadText {
    fn name(&self) -> &str {
        "value_of_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.read_type(self.depth))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| self.read(values, self.depth))
    }
}

fn bytes(values: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(values, &DataType::Utf8)?;
    let read = |text: &str| {
        bytea::bytes(text).ok_or_else(|| {
            let error = Error::new(ErrorKind::Data, format!("{} are no bytes", shown(text))).breaking(Rule::Form);
            error.with_hint("they are written '\\x0a1b'; encode and decode know other forms")
        })
    };
    let bytes =
        texts.as_string::<i32>().iter().map(|text| text.map(read).transpose()).collect::<Result<BinaryArray, _>>()?;
    Ok(Arc::new(bytes))
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
            ("CAST(CAST('{\"\\\\x01\"}' AS BYTEA[]) AS VARCHAR)", "[01]"),
        ] {
            let query = format!(r#"SELECT {expr} FROM (VALUES ('{{a,"b c",null}}')) AS t(x)"#);
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
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
