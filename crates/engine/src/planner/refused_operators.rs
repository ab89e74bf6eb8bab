//! Operators without a meaning for their operands' types, which DataFusion 55.2.0 accepts:
//!
//! - `'abc' BETWEEN 20 AND TRUE`: the three have no common type. DataFusion answers with an
//!   internal error that asks for a report.
//! - `1.5 & 1`: DataFusion truncates a column to an integer and rounds a literal. PostgreSQL and
//!   DuckDB have the operator only for integers.
//! - `d IN (1, 2)` of a date: DataFusion compares the days since 1970.
//! - `-x` of a timestamp: DataFusion mirrors the moment at 1970 for a literal, and fails for a
//!   column.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::Between;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{BinaryExpr, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct RefusedOperators;

impl AnalyzerRule for RefusedOperators {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let checked = |expr: Expr, schema: &DFSchema| check(&expr, schema).map(|()| Transformed::no(expr));
        expressions::rewritten_if_any(plan, is_checked, checked)
    }

    fn name(&self) -> &str {
        "refused_operators"
    }
}

fn is_checked(expr: &Expr) -> bool {
    match expr {
        Expr::Between(_) | Expr::Negative(_) | Expr::InList(_) => true,
        Expr::BinaryExpr(binary) => BITS.contains(&binary.op),
        _ => false,
    }
}

const BITS: [Operator; 5] = [
    Operator::BitwiseAnd,
    Operator::BitwiseOr,
    Operator::BitwiseXor,
    Operator::BitwiseShiftLeft,
    Operator::BitwiseShiftRight,
];

fn check(expr: &Expr, schema: &DFSchema) -> Result<()> {
    let type_of = |expr: &Expr| expressions::type_of(expr, schema);
    match expr {
        Expr::Between(Between { expr: value, low, high, .. }) => {
            check_ends(type_of(value), type_of(low), type_of(high))
        }
        Expr::InList(list) => {
            let value = type_of(&list.expr);
            let is_of_other = |other: &DataType| {
                (value.is_temporal() && other.is_numeric()) || (value.is_numeric() && other.is_temporal())
            };
            match list.list.iter().map(type_of).find(is_of_other) {
                Some(other) => refused("IN", &[value, other], "casts make one type of them"),
                None => Ok(()),
            }
        }
        Expr::Negative(inner) => match type_of(inner) {
            DataType::Timestamp(..) => refused("-", &[type_of(inner)], "an interval or a number has a negative"),
            _ => Ok(()),
        },
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if BITS.contains(op) => {
            let types = [type_of(left), type_of(right)];
            let has_bits = |t: &DataType| !t.is_decimal() && !t.is_floating();
            match types.iter().all(has_bits) {
                true => Ok(()),
                false => refused(&op.to_string(), &types, "CAST(.. AS BIGINT) makes an integer, which has bits"),
            }
        }
        _ => Ok(()),
    }
}

fn check_ends(value: DataType, low: DataType, high: DataType) -> Result<()> {
    let ends = comparison_coercion(&value, &low).zip(comparison_coercion(&value, &high));
    if ends.is_some_and(|(low, high)| comparison_coercion(&low, &high).is_some()) {
        return Ok(());
    }
    let [value, low, high] = [value, low, high].map(|data_type| sql_name(&data_type));
    let message = format!("{value} cannot be BETWEEN {low} AND {high}");
    Err(Error::new(ErrorKind::Invalid, message).with_hint("casts make one type of them").into())
}

fn refused(operator: &str, types: &[DataType], hint: &str) -> Result<()> {
    let types: Vec<String> = types.iter().map(|data_type| sql_name(data_type).to_string()).collect();
    let message = format!("the operator {operator} takes no {}", types.join(" and "));
    Err(Error::new(ErrorKind::Invalid, message).with_hint(hint).into())
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn what_has_no_type_in_common_is_refused() {
        let error = fails("SELECT 'abc' BETWEEN 20 AND TRUE").await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(rows("SELECT 5 BETWEEN 1.5 AND 7e0, NULL BETWEEN 1 AND 2").await, ["true NULL"]);
    }

    #[tokio::test]
    async fn bits_are_of_integers_and_moments_have_no_negative() {
        for query in [
            "SELECT 1.5 & 1",
            "SELECT 1 | x FROM (VALUES (2.5)) AS t(x)",
            "SELECT x & 1 FROM (VALUES (2.5e0)) AS t(x)",
            "SELECT 2.5 << 1",
            "SELECT -TIMESTAMP '2020-01-01'",
            "SELECT -x FROM (VALUES (TIMESTAMPTZ '2020-01-01 00:00+00')) AS t(x)",
        ] {
            let error = fails(query).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{query}: {error}");
        }
        assert_eq!(rows("SELECT 6 & 3, 6 | NULL, 1 << 2, -INTERVAL '1 day'").await, ["2 NULL 4 -1 days"]);
    }
}
