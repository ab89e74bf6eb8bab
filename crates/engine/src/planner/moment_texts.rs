//! `CAST(t AS VARCHAR)` of a timestamp is `2020-01-02 03:04:05.6`, as in PostgreSQL and DuckDB; with a zone it has its offset behind it.
//!
//! Arrow writes `2020-01-02T03:04:05.600`, and `Z` for UTC.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    Cast, ColumnarValue, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TryCast,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

/// After DataFusion has settled types: what is put together with a text is cast as well.
#[derive(Debug)]
pub(super) struct MomentTexts;

impl AnalyzerRule for MomentTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_text = |expr: &Expr| expressions::cast_to(expr).is_some_and(DataType::is_string);
        expressions::rewritten_if_any(plan, is_text, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "moment_texts"
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let (Expr::Cast(Cast { expr: inner, field }) | Expr::TryCast(TryCast { expr: inner, field })) = &mut expr else {
        return Transformed::no(expr);
    };
    let is_moment = || matches!(inner.get_type(schema), Ok(DataType::Timestamp(..)));
    if !field.data_type().is_string() || !is_moment() {
        return Transformed::no(expr);
    }
    let moment = std::mem::take(inner.as_mut());
    **inner = ScalarUDF::from(TextOfMoment::new()).call(vec![moment]);
    Transformed::yes(expr)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextOfMoment {
    signature: Signature,
}

impl TextOfMoment {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for TextOfMoment {
    fn name(&self) -> &str {
        "text_of_moment"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, |values| {
            let texts = cast(values, &DataType::Utf8)?;
            let texts: StringArray = texts.as_string::<i32>().iter().map(|text| text.map(in_sql)).collect();
            Ok(Arc::new(texts) as ArrayRef)
        })
    }
}

/// What Arrow writes, as it is written in SQL.
fn in_sql(text: &str) -> String {
    let Some((date, time)) = text.split_once('T') else { return text.to_string() };
    let zone = time.find(['Z', '+', '-']).unwrap_or(time.len());
    let (time, zone) = time.split_at(zone);
    let time = if time.contains('.') { time.trim_end_matches('0').trim_end_matches('.') } else { time };
    let zone = if zone == "Z" { "+00" } else { zone.strip_suffix(":00").unwrap_or(zone) };
    format!("{date} {time}{zone}")
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn moments_are_written_as_in_sql() {
        // As PostgreSQL 15.18 answers.
        for (expr, expected) in [
            ("CAST(TIMESTAMP '2020-01-02 03:04:05' AS VARCHAR)", "2020-01-02 03:04:05"),
            ("CAST(TIMESTAMP '2020-01-02 03:04:05.600' AS VARCHAR)", "2020-01-02 03:04:05.6"),
            ("CAST(TIMESTAMP '1969-12-31 23:59:59.000001' AS VARCHAR)", "1969-12-31 23:59:59.000001"),
            ("CAST(TIMESTAMPTZ '2020-01-02 03:04:05+02' AS VARCHAR)", "2020-01-02 01:04:05+00"),
            ("'at ' || TIMESTAMP '2020-01-02 03:04:05'", "at 2020-01-02 03:04:05"),
            ("CAST(DATE '2020-01-02' AS VARCHAR)", "2020-01-02"),
            ("CAST(CAST(TIMESTAMP '2020-01-02 03:04:05' AS VARCHAR) AS TIMESTAMP)", "2020-01-02T03:04:05"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
