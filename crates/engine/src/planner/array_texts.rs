//! `CAST('{1,2,NULL}' AS INTEGER[])` is an array of three, as in PostgreSQL.
//!
//! Arrow makes an array of one item of a text, which is the whole text, or says that it is no number.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use crate::postgres::array_text;

#[derive(Debug)]
pub(super) struct ArrayTexts;

impl AnalyzerRule for ArrayTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = expressions::readable(&node)?;
            expressions::rewritten(node, |expr| Ok(rewrite(expr, &schema)))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "array_texts"
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::Cast(Cast { expr: inner, field }) = &mut expr else { return Transformed::no(expr) };
    let depth = depth_of(field.data_type());
    if depth == 0 || !inner.get_type(schema).is_ok_and(|from| from.is_string()) {
        return Transformed::no(expr);
    }
    let text = std::mem::take(inner.as_mut());
    **inner = ScalarUDF::from(ItemsOfText::new(depth)).call(vec![text]);
    Transformed::yes(expr)
}

/// How many arrays lie within each other.
fn depth_of(data_type: &DataType) -> usize {
    match data_type {
        DataType::List(item) => 1 + depth_of(item.data_type()),
        _ => 0,
    }
}

/// Texts, as many arrays deep.
fn texts(depth: usize) -> DataType {
    match depth {
        0 => DataType::Utf8,
        depth => DataType::List(Arc::new(Field::new_list_field(texts(depth - 1), true))),
    }
}

/// The items of an array's text, as texts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ItemsOfText {
    depth: usize,
    signature: Signature,
}

impl ItemsOfText {
    fn new(depth: usize) -> Self {
        Self { depth, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for ItemsOfText {
    fn name(&self) -> &str {
        "items_of_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(texts(self.depth))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| items(values, self.depth))
    }
}

fn items(values: &ArrayRef, depth: usize) -> Result<ArrayRef> {
    if depth == 0 {
        return Ok(Arc::clone(values));
    }
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
    let inner = items(&(Arc::new(StringArray::from(all)) as ArrayRef), depth - 1)?;
    let item = Arc::new(Field::new_list_field(texts(depth - 1), true));
    let nulls = values.nulls().map(|nulls| NullBuffer::new(nulls.inner().clone()));
    Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), inner, nulls)?))
}

fn malformed(text: &str) -> ArrowError {
    let short: String = text.chars().take(60).collect();
    ArrowError::CastError(format!("malformed array: '{short}'; one is written {{1,2,NULL}}, or {{\"a b\",c}}"))
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn texts_become_arrays() {
        for (expr, expected) in [
            ("CAST('{1,2,NULL}' AS INTEGER[])", "[1, 2, NULL]"),
            ("CAST('{}' AS INTEGER[])", "[]"),
            ("CAST(x AS VARCHAR[])", "[a, b c, NULL]"),
            ("CAST(CAST(NULL AS VARCHAR) AS VARCHAR[])", "NULL"),
            ("CAST('{{1,2},{3}}' AS INTEGER[][])", "[[1, 2], [3]]"),
            ("CAST('{1.5,2}' AS DECIMAL(10,2)[])", "[1.50, 2.00]"),
            ("CAST('{t,false}' AS BOOLEAN[])", "[true, false]"),
            ("CAST(ARRAY['1'] AS INTEGER[])", "[1]"),
        ] {
            let query = format!(r#"SELECT {expr} FROM (VALUES ('{{a,"b c",null}}')) AS t(x)"#);
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
    }

    #[tokio::test]
    async fn what_is_no_array_is_an_error() {
        for text in ["{1,2", "1", "{1,x}", "{{1},{2}}", ""] {
            let error = fails(&format!("SELECT CAST('{text}' AS INTEGER[])")).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{text}: {error}");
        }
    }
}
