//! What is compared with each other loses nothing for it.
//!
//! DataFusion makes one type of both sides, and values of it:
//!
//! - of a text beside a decimal column, a decimal of that column: `n = '1.001'` finds 1.00. It becomes the decimal that it is;
//! - of an integer beside a REAL, a REAL: 16777217 equals 16777216. Both become DOUBLE, unless the integer is a literal that a REAL
//!   holds;
//! - of a date beside a timestamp, nanoseconds, which `9999-12-31` has none of. It becomes a TIMESTAMP of microseconds.
//!
//! Decimals beside floats have [rules of their own](super::floats_beside_decimals).

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;
use super::floats_beside_decimals::COMPARISONS;
use super::literals::DECIMAL_DIGITS;

#[derive(Debug)]
pub(super) struct ExactComparisons;

impl AnalyzerRule for ExactComparisons {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let joins = |node: &LogicalPlan| Ok(matches!(node, LogicalPlan::Join(_)));
        if !expressions::has(&plan, compares)? && !plan.exists(joins)? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = expressions::readable(&node)?;
            let mut rewritten = expressions::rewritten(node, |expr| Ok(rewrite(expr, &schema)))?;
            if let LogicalPlan::Join(join) = &mut rewritten.data {
                for (left, right) in &mut join.on {
                    rewritten.transformed |= settle(&mut [left, right], &schema);
                }
            }
            Ok(rewritten)
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "exact_comparisons"
    }
}

fn compares(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => COMPARISONS.contains(op),
        other => matches!(other, Expr::Between(_) | Expr::InList(_) | Expr::Case(_)),
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let changed = match &mut expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if COMPARISONS.contains(op) => {
            settle(&mut [left, right], schema)
        }
        Expr::Between(between) => settle(&mut [&mut between.expr, &mut between.low, &mut between.high], schema),
        Expr::InList(list) => {
            let mut all: Vec<&mut Expr> = list.list.iter_mut().collect();
            all.push(&mut list.expr);
            settle(&mut all, schema)
        }
        Expr::Case(case) => match &mut case.expr {
            Some(operand) => {
                let mut all: Vec<&mut Expr> = case.when_then_expr.iter_mut().map(|(when, _)| when.as_mut()).collect();
                all.push(operand);
                settle(&mut all, schema)
            }
            None => false,
        },
        _ => false,
    };
    if changed { Transformed::yes(expr) } else { Transformed::no(expr) }
}

/// Makes of what is compared what loses nothing; whether something was to be done.
fn settle(exprs: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<DataType> = exprs.iter().map(|expr| expr.get_type(schema).unwrap_or(DataType::Null)).collect();
    let has = |is: fn(&DataType) -> bool| types.iter().any(is);
    let mut changed = false;
    if has(DataType::is_decimal) {
        for expr in exprs.iter_mut() {
            if let Some(decimal) = decimal(expr) {
                **expr = decimal;
                changed = true;
            }
        }
    }
    if has(|t| *t == DataType::Float32) && has(is_wide_integer) {
        let is_held = |(expr, data_type): (&&mut Expr, &DataType)| !is_wide_integer(data_type) || fits_real(expr);
        if !exprs.iter().zip(&types).all(is_held) {
            for (expr, data_type) in exprs.iter_mut().zip(&types) {
                if *data_type == DataType::Float32 {
                    let real = std::mem::take(&mut **expr);
                    **expr = cast(real, DataType::Float64);
                    changed = true;
                }
            }
        }
    }
    let is_moment = |t: &DataType| matches!(t, DataType::Timestamp(unit, None) if *unit != TimeUnit::Nanosecond);
    if types.iter().any(is_moment) {
        for (expr, data_type) in exprs.iter_mut().zip(&types) {
            if *data_type == DataType::Date32 {
                let date = std::mem::take(&mut **expr);
                **expr = cast(date, DataType::Timestamp(TimeUnit::Microsecond, None));
                changed = true;
            }
        }
    }
    changed
}

fn is_wide_integer(data_type: &DataType) -> bool {
    use DataType::{Int32, Int64, UInt32, UInt64};
    matches!(data_type, Int32 | Int64 | UInt32 | UInt64)
}

/// Whether it is a literal that a REAL holds.
fn fits_real(expr: &Expr) -> bool {
    let value = match expr {
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => *value,
        Expr::Literal(ScalarValue::Int32(Some(value)), _) => i64::from(*value),
        Expr::Literal(value, _) => return value.is_null(),
        _ => return false,
    };
    value.unsigned_abs() <= 1 << f32::MANTISSA_DIGITS
}

/// A text that is a number, as a decimal of its own digits.
fn decimal(expr: &Expr) -> Option<Expr> {
    let Expr::Literal(value, metadata) = expr else { return None };
    let text = value.try_as_str()??.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    let is_number = !all.is_empty() && all.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || all.trim_start_matches('0').len() > DECIMAL_DIGITS || fraction.len() > DECIMAL_DIGITS {
        return None;
    }
    let unscaled: i128 = all.parse().ok()?;
    let unscaled = if text.starts_with('-') { -unscaled } else { unscaled };
    let scale = i8::try_from(fraction.len()).ok()?;
    let precision = u8::try_from(all.trim_start_matches('0').len().max(fraction.len()).max(1)).ok()?;
    Some(Expr::Literal(ScalarValue::Decimal128(Some(unscaled), precision, scale), metadata.clone()))
}

/// The type in which a value of one type is compared with items of another, if it is another than DataFusion's.
pub(super) fn common(value: &DataType, item: &DataType) -> Option<DataType> {
    match (value, item) {
        (DataType::Float32, other) | (other, DataType::Float32) if is_wide_integer(other) => Some(DataType::Float64),
        // As many places as there is room for.
        (DataType::Decimal128(precision, scale), text) if text.is_string() => {
            let whole = precision.saturating_sub(scale.unsigned_abs());
            let places = (DECIMAL_DIGITS as u8).saturating_sub(whole);
            Some(DataType::Decimal128(DECIMAL_DIGITS as u8, places as i8))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn nothing_is_lost() {
        let table = "(VALUES (CAST(1.00 AS DECIMAL(10, 2)), 16777217, CAST(16777216 AS REAL), DATE '9999-12-31'), \
                     (2.55, 3, 3.5, DATE '2020-01-01')) AS t(n, i, r, d)";
        for (condition, expected) in [
            ("n = '1.001'", "0"),
            ("n = '1.00'", "1"),
            ("n > '1.005'", "1"),
            ("n IN ('1.001', '2.55')", "1"),
            ("n BETWEEN '1.001' AND '1.009'", "0"),
            ("'2.549' < n", "1"),
            ("n = ANY('{1.001}')", "0"),
            ("n = ANY('{1.000,2.55}')", "2"),
            ("n > ALL('{1.005}')", "1"),
            ("CASE n WHEN '1.001' THEN TRUE ELSE FALSE END", "0"),
            ("i = r", "0"),
            ("i > r", "1"),
            ("r = 16777217", "0"),
            ("r = 16777216", "1"),
            ("i IN (r, 5)", "0"),
            ("i = ANY(ARRAY[r])", "0"),
            ("d > TIMESTAMP '2020-01-01 00:00:01'", "1"),
            ("d = TIMESTAMP '2020-01-01 00:00:00'", "1"),
        ] {
            let query = format!("SELECT count(*) FROM {table} WHERE {condition}");
            assert_eq!(rows(&query).await, [expected], "{condition}");
        }
    }
}
