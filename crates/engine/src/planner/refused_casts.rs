//! `CAST(5 AS DATE)` and `CAST(d AS INT)` of a date are refused, as in PostgreSQL and DuckDB. So is
//! `INSERT` of one into the other, and a cast of a number to bytes.
//!
//! Arrow interprets a number as days since 1970, or as nanoseconds, which is not the user's
//! intention.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{Cast, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use super::lossy_casts::as_any_cast;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind};

/// Runs before DataFusion settles types, so that it checks only explicit casts.
#[derive(Debug)]
pub(super) struct RefusedCasts;

impl AnalyzerRule for RefusedCasts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has(&plan, |expr| expressions::cast_to(expr).is_some())? {
            return Ok(plan);
        }
        plan.apply_with_subqueries(|node| {
            let schema = expressions::readable(node)?;
            node.apply_expressions(|expr| expr.apply(|expr| check(expr, &schema)))
        })?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "refused_casts"
    }
}

/// Checks an expression. Skips its parts if a rewrite of ours produced it.
fn check(expr: &Expr, schema: &DFSchema) -> Result<TreeNodeRecursion> {
    let (Expr::Cast(Cast { expr: inner, field }) | Expr::TryCast(TryCast { expr: inner, field })) = expr else {
        return Ok(TreeNodeRecursion::Continue);
    };
    let to = field.data_type();
    // A duration is not a type of SQL: DataFusion casts a TIME to it before adding it to a date.
    if matches!(to, DataType::Duration(_)) {
        return Ok(TreeNodeRecursion::Jump);
    }
    // Casts of ours compute the numbers of days and moments. They stay in a plan that is analyzed
    // again.
    if let Some((moment, between)) = as_any_cast(inner) {
        let is_number_of = |moment: &Expr| moment.get_type(schema).is_ok_and(|from| from.is_temporal());
        let is_bigint = moment.get_type(schema).is_ok_and(|from| from == DataType::Int64);
        let is_of_days =
            (between, to) == (&DataType::Int32, &DataType::Date32) && is_bigint && !matches!(moment, Expr::Literal(..));
        let is_exact = matches!(to, DataType::Int64 | DataType::Decimal128(19, 0));
        if is_of_days || (is_exact && between.is_integer() && is_number_of(moment)) {
            return Ok(TreeNodeRecursion::Jump);
        }
    }
    match inner.get_type(schema) {
        Ok(from) => refusal(&from, to).map_or(Ok(TreeNodeRecursion::Continue), |e| Err(e.into())),
        Err(_) => Ok(TreeNodeRecursion::Continue),
    }
}

fn refusal(from: &DataType, to: &DataType) -> Option<Error> {
    match (from, to) {
        (DataType::List(from), DataType::List(to)) => return refusal(from.data_type(), to.data_type()),
        (DataType::Struct(from), DataType::Struct(to)) => {
            return from.iter().zip(to).find_map(|(from, to)| refusal(from.data_type(), to.data_type()));
        }
        _ => {}
    }
    let is_number = |data_type: &DataType| data_type.is_numeric() || *data_type == DataType::Boolean;
    let hint = match (from, to) {
        (from, DataType::Date32 | DataType::Date64) if is_number(from) => "DATE '1970-01-01' + x is so many days later",
        (from, DataType::Timestamp(..)) if is_number(from) => "to_timestamp(x) is so many seconds after 1970 began",
        (from, DataType::Time32(_) | DataType::Time64(_)) if is_number(from) => "TIME '00:00:00' is one",
        (from, DataType::Binary | DataType::LargeBinary | DataType::BinaryView) if is_number(from) => {
            "CAST(CAST(x AS VARCHAR) AS BYTEA) has its digits"
        }
        (DataType::Date32 | DataType::Date64, to) if is_number(to) => {
            "x - DATE '1970-01-01' is the number of days since then"
        }
        (DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_) | DataType::Interval(_), to)
            if is_number(to) =>
        {
            "extract(epoch FROM x) is its number of seconds"
        }
        _ => return None,
    };
    let message = format!("{} is no {}", sql_name(from), sql_name(to));
    Some(Error::new(ErrorKind::Invalid, message).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn numbers_are_no_dates() {
        for expr in [
            "CAST(5 AS DATE)",
            "CAST(x AS TIMESTAMP)",
            "CAST(x AS TIMESTAMPTZ)",
            "CAST(0.5 AS TIMESTAMPTZ)",
            "TRY_CAST(x + 0.5 AS DATE)",
            "CAST(TRUE AS DATE)",
            "CAST(x AS BYTEA)",
            "CAST(DATE '2020-01-02' AS INT)",
            "CAST(CAST('2020-01-0' || x AS DATE) AS BIGINT)",
            "TRY_CAST(TIMESTAMP '2020-01-02 03:04:05' AS BIGINT)",
            "CAST(now() AS DOUBLE PRECISION)",
            "CAST(CAST('03:04:05' AS TIME) AS BIGINT)",
            "CAST(ARRAY[5] AS DATE[])",
            "CAST(ARRAY[DATE '2020-01-02'] AS BIGINT[])",
            "CAST(x + 0.5 AS INT)::date",
            "DATE '1970-01-02' IN (1, 2)",
        ] {
            let error = fails(&format!("SELECT {expr} FROM (VALUES (1)) AS t(x)")).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{expr}: {error}");
        }
        for (expr, expected) in [
            ("CAST('2020-01-02' AS DATE)", "2020-01-02"),
            ("CAST(NULL AS DATE)", "NULL"),
            ("CAST(DATE '2020-01-02' - DATE '2020-01-01' AS DECIMAL(19, 0))", "1"),
            ("DATE '2020-01-02' + (1 + 1)", "2020-01-04"),
            ("DATE '2020-01-02' + TIME '12:00:00' = TIMESTAMP '2020-01-02 12:00:00'", "true"),
            ("TIME '12:00:00' - TIME '10:00:00' = INTERVAL '2 hours'", "true"),
            ("CAST(TIMESTAMP '2020-01-02 03:04:05' AS DATE)", "2020-01-02"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr}")).await, [expected], "{expr}");
        }
    }
}
