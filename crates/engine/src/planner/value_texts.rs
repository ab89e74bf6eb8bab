//! `CAST(x AS VARCHAR)` has PostgreSQL's format. A timestamp is `2020-01-02 03:04:05.6`, and one
//! with a zone is in the session's local time, followed by its offset. An interval is `1 day
//! 02:03:04`; a double `Infinity`, or `1e+20`; bytes `\x0a1b`. Lists, structs and maps have
//! DuckDB's format: see [`nested_text`].
//!
//! Arrow writes `2020-01-02T03:04:05.600`, `1 days 2 hours 3 mins`, `inf` and `1e20`. It takes
//! bytes for the characters of a string, and makes `[1, ]` of `[1, NULL]`. Seen in DataFusion
//! 55.2.0: `SELECT CAST([1, NULL, 2] AS VARCHAR)` is `[1, , 2]`, and `SELECT CAST(named_struct('a',
//! 1) AS VARCHAR)` is `Unsupported CAST from Struct`.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Cast, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use super::temporal::{Kernel, function};
use crate::pg_types::column_text::{is_binary, is_written, texts_of_any};
use crate::pg_types::nested_text;
use crate::pg_types::zone::Zone;

/// The casts that a pass rewrites.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueTexts {
    /// Before DataFusion settles types: explicit casts of bytes. Casts that DataFusion adds to
    /// bytes beside a string take them for its characters.
    Written,
    /// After it: values that are concatenated with a string are cast as well.
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
        **inner = function(TextOfValue).call(vec![value]);
        Transformed::yes(expr)
    }

    /// Returns whether this pass formats values of a type.
    fn writes(self, data_type: &DataType) -> bool {
        match self {
            Self::Written => is_binary(data_type),
            Self::Settled => is_written(data_type) || data_type.is_floating() || nested_text::is_nested(data_type),
        }
    }
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
        Ok(texts_of_any(values, Some(zone))?)
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn values_are_written_as_in_sql() {
        // Expected values are PostgreSQL 15.18's.
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
