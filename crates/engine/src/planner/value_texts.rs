//! `CAST(x AS VARCHAR)` is written as PostgreSQL writes it: a timestamp `2020-01-02 03:04:05.6`, and one with a zone with its offset behind
//! it; an interval `1 day 02:03:04`; a double `Infinity`, or `1e+20`; bytes `\\x0a1b`. Lists, structs and maps are written as
//! DuckDB does: [`nested_text`].
//!
//! Arrow writes `2020-01-02T03:04:05.600`, `1 days 2 hours 3 mins`, `inf` and `1e20`, takes bytes for the letters of a text, and of
//! `[1, NULL]` makes `[1, ]`. Seen in DataFusion 55.2.0: `SELECT CAST([1, NULL, 2] AS VARCHAR)` is `[1, , 2]`, and
//! `SELECT CAST(named_struct('a', 1) AS VARCHAR)` is `Unsupported CAST from Struct`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Float32Type, Float64Type, IntervalMonthDayNanoType, IntervalUnit};
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
use crate::postgres::{interval_text, nested_text, text};

/// A value without a text is an error, not NULL.
const CHECKED: CastOptions<'static> =
    CastOptions { safe: false, format_options: arrow::util::display::FormatOptions::new() };

/// Which casts are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueTexts {
    /// Before DataFusion settles types: bytes, in casts that are written. Those that DataFusion puts around bytes beside a text
    /// take them for its letters.
    Written,
    /// After it: what is put together with a text is cast as well.
    Settled,
}

impl AnalyzerRule for ValueTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_text = |expr: &Expr| expressions::cast_to(expr).is_some_and(DataType::is_string);
        expressions::rewritten_if_any(plan, is_text, |expr, schema| Ok(self.rewrite(expr, schema)))
    }

    fn name(&self) -> &str {
        match self {
            Self::Written => "value_texts_of_bytes",
            Self::Settled => "value_texts",
        }
    }
}

impl ValueTexts {
    fn rewrite(self, mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
        let (Expr::Cast(Cast { expr: inner, field }) | Expr::TryCast(TryCast { expr: inner, field })) = &mut expr
        else {
            return Transformed::no(expr);
        };
        if !field.data_type().is_string() || !inner.get_type(schema).is_ok_and(|from| self.writes(&from)) {
            return Transformed::no(expr);
        }
        let value = std::mem::take(inner.as_mut());
        **inner = text_of(value);
        Transformed::yes(expr)
    }

    /// Whether values of a type are written here.
    fn writes(self, data_type: &DataType) -> bool {
        match (self, data_type) {
            (Self::Written, data_type) => is_binary(data_type),
            (_, DataType::Timestamp(..) | DataType::Duration(_) | DataType::Interval(_)) => true,
            (_, data_type) => data_type.is_floating() || nested_text::is_nested(data_type),
        }
    }
}

/// The text of a value of any type, as a cast to VARCHAR writes it.
pub(crate) fn text_of(value: Expr) -> Expr {
    ScalarUDF::from(TextOfValue::new()).call(vec![value])
}

fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
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

/// Values of any type as a cast to VARCHAR writes them.
pub(crate) fn texts(values: &ArrayRef) -> Result<ArrayRef> {
    let texts: StringArray = match values.data_type() {
        data_type if nested_text::is_nested(data_type) => nested_text::texts(values, &texts)?,
        data_type if is_binary(data_type) => {
            let bytes = cast(values, &DataType::BinaryView)?;
            bytes
                .as_binary_view()
                .iter()
                .map(|value| value.map(|value| written(|out| text::bytes(value, out))))
                .collect()
        }
        DataType::Dictionary(_, plain) => return self::texts(&cast(values, plain)?),
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
        DataType::Timestamp(..) => {
            let texts = cast(values, &DataType::Utf8)?;
            texts.as_string::<i32>().iter().map(|text| text.map(in_sql)).collect()
        }
        DataType::Float16 => return self::texts(&cast(values, &DataType::Float32)?),
        _ => return Ok(cast_with_options(values, &DataType::Utf8, &CHECKED)?),
    };
    Ok(Arc::new(texts))
}

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
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
