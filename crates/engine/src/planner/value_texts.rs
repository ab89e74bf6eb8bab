//! `CAST(x AS VARCHAR)` is written as PostgreSQL writes it: a timestamp `2020-01-02 03:04:05.6`, and one with a zone with its offset behind
//! it; an interval `1 day 02:03:04`; a double `Infinity`, or `1e+20`. Lists, structs and maps are written as DuckDB writes
//! lists, `[1, NULL, 2]`.
//!
//! Arrow writes `2020-01-02T03:04:05.600`, `1 days 2 hours 3 mins`, `inf` and `1e20`, and nothing for a NULL: `[1, , 2]`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, IntervalMonthDayNanoType, IntervalUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
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
use crate::postgres::{interval_text, text};

/// After DataFusion has settled types: what is put together with a text is cast as well.
#[derive(Debug)]
pub(super) struct ValueTexts;

impl AnalyzerRule for ValueTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_text = |expr: &Expr| expressions::cast_to(expr).is_some_and(DataType::is_string);
        expressions::rewritten_if_any(plan, is_text, |expr, schema| Ok(rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        "value_texts"
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let (Expr::Cast(Cast { expr: inner, field }) | Expr::TryCast(TryCast { expr: inner, field })) = &mut expr else {
        return Transformed::no(expr);
    };
    if !field.data_type().is_string() || !inner.get_type(schema).is_ok_and(|from| is_written(&from)) {
        return Transformed::no(expr);
    }
    let value = std::mem::take(inner.as_mut());
    **inner = ScalarUDF::from(TextOfValue::new()).call(vec![value]);
    Transformed::yes(expr)
}

/// Whether values of a type are written here.
fn is_written(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(..) | DataType::Duration(_) | DataType::Interval(_) => true,
        nested if nested.is_nested() => true,
        data_type => matches!(data_type, DataType::Float32 | DataType::Float64),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextOfValue {
    signature: Signature,
}

impl TextOfValue {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for TextOfValue {
    fn name(&self) -> &str {
        "text_of_value"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        expressions::map_only(self.name(), call, texts)
    }
}

fn texts(values: &ArrayRef) -> Result<ArrayRef> {
    let texts: StringArray = match values.data_type() {
        DataType::Float32 => values
            .as_primitive::<Float32Type>()
            .iter()
            .map(|value| value.map(|value| written(|out| text::float32(value, out))))
            .collect(),
        DataType::Float64 => values
            .as_primitive::<Float64Type>()
            .iter()
            .map(|value| value.map(|value| written(|out| text::float64(value, out))))
            .collect(),
        DataType::Duration(_) => return self::texts(&interval_text::of_duration(values)?),
        DataType::Interval(_) => {
            let values = cast(values, &DataType::Interval(IntervalUnit::MonthDayNano))?;
            let values = values.as_primitive::<IntervalMonthDayNanoType>();
            values.iter().map(|value| value.map(|value| written(|out| text::interval(value, out)))).collect()
        }
        nested if nested.is_nested() => {
            let formatter = ArrayFormatter::try_new(values, &NESTED)?;
            let text = |row: usize| values.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose();
            (0..values.len()).map(text).collect::<std::result::Result<_, _>>()?
        }
        _ => {
            let texts = cast(values, &DataType::Utf8)?;
            texts.as_string::<i32>().iter().map(|text| text.map(in_sql)).collect()
        }
    };
    Ok(Arc::new(texts))
}

/// How what is in lists, structs and maps is written.
const NESTED: FormatOptions<'static> = FormatOptions::new()
    .with_display_error(false)
    .with_null("NULL")
    .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
    .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"));

fn written(write: impl FnOnce(&mut String)) -> String {
    let mut out = String::new();
    write(&mut out);
    out
}

/// What Arrow writes of a timestamp, as it is written in SQL.
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
    async fn values_are_written_as_in_sql() {
        // As PostgreSQL 15.18 answers.
        for (expr, expected) in [
            ("CAST(TIMESTAMP '2020-01-02 03:04:05' AS VARCHAR)", "2020-01-02 03:04:05"),
            ("CAST(TIMESTAMP '2020-01-02 03:04:05.600' AS VARCHAR)", "2020-01-02 03:04:05.6"),
            ("CAST(TIMESTAMP '1969-12-31 23:59:59.000001' AS VARCHAR)", "1969-12-31 23:59:59.000001"),
            ("CAST(TIMESTAMPTZ '2020-01-02 03:04:05+02' AS VARCHAR)", "2020-01-02 01:04:05+00"),
            ("'at ' || TIMESTAMP '2020-01-02 03:04:05'", "at 2020-01-02 03:04:05"),
            ("CAST(DATE '2020-01-02' AS VARCHAR)", "2020-01-02"),
            ("CAST(CAST(TIMESTAMP '2020-01-02 03:04:05' AS VARCHAR) AS TIMESTAMP)", "2020-01-02T03:04:05"),
            ("CAST(INTERVAL '1 day 02:03:04' AS VARCHAR)", "1 day 02:03:04"),
            ("CAST(TIMESTAMP '2020-01-03 12:00' - TIMESTAMP '2020-01-01' AS VARCHAR)", "2 days 12:00:00"),
            ("CAST(TIMESTAMP '2020-01-01' - TIMESTAMP '2020-01-03 12:00' AS VARCHAR)", "-2 days -12:00:00"),
            ("CAST(CAST('inf' AS DOUBLE) AS VARCHAR)", "Infinity"),
            ("CAST(1e20 AS VARCHAR)", "1e+20"),
            ("CAST(CAST(0.1 AS REAL) AS VARCHAR) || 'x'", "0.1x"),
            ("CAST(CAST(2 AS DOUBLE) AS VARCHAR)", "2"),
            ("CAST(CAST(1e-5 AS VARCHAR) AS DOUBLE)", "0.00001"),
            ("CAST([1, NULL, 2] AS VARCHAR)", "[1, NULL, 2]"),
            ("CAST(['', NULL] AS VARCHAR)", "[, NULL]"),
            ("CAST({'x': NULL, 'y': ''} AS VARCHAR)", "{x: NULL, y: }"),
            ("CAST([TIMESTAMP '2020-01-02 03:04:05'] AS VARCHAR)", "[2020-01-02 03:04:05]"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
