//! A literal that is not what it is cast to is told of as it is written: `'x' is no DATE`, `70000 is out of range for SMALLINT`.
//!
//! Arrow says of it what array it could not make. Casts are looked at that are written, and those that stand for a literal beside a
//! column; values of columns are left to Arrow.
//!
//! `'2020-12-31 23:59'` is a TIMESTAMP, as in PostgreSQL and DuckDB: Arrow wants the seconds.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Cast, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::{expressions, timestamps};
use crate::catalog::names::sql_name;
use crate::{Error, ErrorKind, Rule};

#[derive(Debug)]
pub(super) struct LiteralCasts;

impl AnalyzerRule for LiteralCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has(&plan, |expr| matches!(expr, Expr::Cast(cast) if matches!(*cast.expr, Expr::Literal(..))))?
        {
            return Ok(plan);
        }
        let checked = plan.transform_up_with_subqueries(|node| expressions::rewritten(node, rewrite));
        Ok(checked?.data)
    }

    fn name(&self) -> &str {
        "literal_casts"
    }
}

fn rewrite(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Cast(Cast { expr: inner, field }) = &expr else { return Ok(Transformed::no(expr)) };
    let Expr::Literal(value, _) = inner.as_ref() else { return Ok(Transformed::no(expr)) };
    let to = field.data_type();
    let is_told = to.is_numeric() || is_moment(to) || *to == DataType::Boolean;
    if !is_told || value.is_null() || value.cast_to(to).is_ok() {
        return Ok(Transformed::no(expr));
    }
    let with_seconds = value.try_as_str().flatten().filter(|_| is_moment(to)).and_then(timestamps::with_seconds);
    if let Some(text) = with_seconds
        && let Ok(moment) = ScalarValue::from(text).cast_to(to)
    {
        return Ok(Transformed::yes(Expr::Literal(moment, None)));
    }
    Err(misfit(value, to).into())
}

/// What is said of a literal that is not of a type.
fn misfit(value: &ScalarValue, to: &DataType) -> Error {
    let name = sql_name(to);
    let shown = match value.try_as_str() {
        Some(Some(text)) => expressions::shown(text),
        _ => value.to_string(),
    };
    let is_number = value.cast_to(&DataType::Float64).is_ok_and(|number| !number.is_null());
    let error = if to.is_numeric() && is_number {
        Error::new(ErrorKind::Data, format!("{shown} is out of range for {name}")).breaking(Rule::Range)
    } else if is_moment(to) {
        let form = match to {
            DataType::Date32 | DataType::Date64 => "2020-12-31",
            DataType::Time32(_) | DataType::Time64(_) => "23:59:59.5",
            _ => "2020-12-31 23:59:59.5",
        };
        Error::new(ErrorKind::Data, format!("{shown} is no {name}"))
            .breaking(Rule::Moment)
            .with_hint(format!("one is written '{form}'"))
    } else {
        Error::new(ErrorKind::Data, format!("{shown} is no {name}")).breaking(Rule::Form)
    };
    if error.hint().is_some() { error } else { error.with_hint("TRY_CAST gives NULL for what does not fit") }
}

fn is_moment(data_type: &DataType) -> bool {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    matches!(data_type, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};
    use crate::{ErrorKind, Rule};

    #[tokio::test]
    async fn what_does_not_fit_is_told_as_it_is_written() {
        for (expr, said, rule) in [
            ("CAST(70000 AS SMALLINT)", "70000 is out of range for SMALLINT", Rule::Range),
            ("CAST('70000' AS SMALLINT)", "'70000' is out of range for SMALLINT", Rule::Range),
            ("CAST('x' AS INTEGER)", "'x' is no INTEGER", Rule::Form),
            ("CAST('x' AS BOOLEAN)", "'x' is no BOOLEAN", Rule::Form),
            ("CAST('2020-13-01' AS DATE)", "'2020-13-01' is no DATE", Rule::Moment),
            ("CAST('x' AS TIMESTAMP)", "'x' is no TIMESTAMP", Rule::Moment),
            ("d > 'nonsense'", "'nonsense' is no DATE", Rule::Moment),
        ] {
            let error = fails(&format!("SELECT {expr} FROM (VALUES (DATE '2020-01-01')) AS t(d)")).await;
            assert!(error.message().starts_with(said), "{expr}: {error}");
            assert_eq!((error.kind(), error.rule()), (ErrorKind::Data, Some(rule)), "{expr}: {error}");
        }
        for (expr, expected) in [
            ("TRY_CAST('x' AS INTEGER)", "NULL"),
            ("CAST('12' AS INTEGER)", "12"),
            ("TIMESTAMP '2020-01-02 03:04'", "2020-01-02T03:04:00"),
            ("d < CAST('2020-01-02T03:04' AS TIMESTAMP)", "true"),
            ("CAST('2020-01-02 03:04+02' AS TIMESTAMPTZ)", "2020-01-02T01:04:00Z"),
        ] {
            let query = format!("SELECT {expr} FROM (VALUES (DATE '2020-01-01')) AS t(d)");
            assert_eq!(rows(&query).await, [expected], "{expr}");
        }
    }
}
