//! `CAST(x AS VARCHAR)` is written as PostgreSQL writes it: a timestamp `2020-01-02 03:04:05.6`, and one with a zone as clocks of the
//! session show it, with their offset behind it; an interval `1 day 02:03:04`; a double `Infinity`, or `1e+20`. Lists,
//! structs and maps are written as DuckDB writes lists, `[1, NULL, 2]`.
//!
//! Arrow writes `2020-01-02T03:04:05.600`, `1 days 2 hours 3 mins`, `inf` and `1e20`, and nothing for a NULL: `[1, , 2]`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_datafusion_err, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Cast, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use super::temporal::{Kernel, function};
use crate::convert::Zone;
use crate::postgres::column_text::{is_written, texts};

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
    if !field.data_type().is_string() || !inner.get_type(schema).is_ok_and(|from| from.is_nested() || is_written(&from))
    {
        return Transformed::no(expr);
    }
    let value = std::mem::take(inner.as_mut());
    **inner = function(TextOfValue).call(vec![value]);
    Transformed::yes(expr)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextOfValue;

impl Kernel for TextOfValue {
    fn name(&self) -> &str {
        "text_of_value"
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn run(&self, columns: &[ArrayRef], zone: Zone) -> Result<ArrayRef> {
        let [values] = columns else { return internal_err!("text_of_value takes one argument") };
        if values.data_type().is_nested() {
            return nested_texts(values);
        }
        texts(values, zone)?.ok_or_else(|| internal_datafusion_err!("text_of_value of {}", values.data_type()))
    }
}

fn nested_texts(values: &ArrayRef) -> Result<ArrayRef> {
    let formatter = ArrayFormatter::try_new(values, &NESTED)?;
    let text = |row: usize| values.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose();
    let texts: StringArray = (0..values.len()).map(text).collect::<std::result::Result<_, _>>()?;
    Ok(Arc::new(texts))
}

/// How the items of lists, structs and maps are written.
const NESTED: FormatOptions<'static> = FormatOptions::new()
    .with_display_error(false)
    .with_null("NULL")
    .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
    .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"));

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
