//! Comparisons of different types without loss of precision.
//!
//! DataFusion casts both sides of a comparison to one type:
//!
//! - A string beside a decimal becomes a decimal of the other side's digits: `n = '1.001'` finds
//!   1.00, and `text > 0.75` does not find '0.754'. Here a literal becomes a decimal of its own
//!   digits. For any other string, both sides become decimals that hold either.
//! - Decimals that together need more than 38 digits become DECIMAL(38, s): `a > 0.5` is an error
//!   for an `a` of 38 digits. Here all become decimals of 256 bits.
//! - An integer beside a REAL becomes a REAL: 16777217 equals 16777216. Here both become DOUBLE,
//!   unless the integer is a literal that a REAL holds.
//! - A date beside a timestamp becomes nanoseconds, which cannot represent `9999-12-31`. Here it
//!   becomes a timestamp of microseconds, and so does a TIMESTAMP(9) beside a literal out of the
//!   range of nanoseconds. A TIMESTAMP(9) beside columns of dates and other timestamps becomes a
//!   decimal of its nanoseconds, and so do they.
//! - A string beside a timestamp makes both nanoseconds: `t < '9000-01-01'` is an error. Here the
//!   string becomes a timestamp of microseconds.
//!
//! A literal string beside a Boolean becomes a Boolean: DataFusion refuses `b = 'yes'`.
//!
//! Decimals beside floats have [rules of their own](super::floats_beside_decimals).

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::expressions;
use super::floats_beside_decimals::COMPARISONS;
use super::literals::DECIMAL_DIGITS;

#[derive(Debug)]
pub(super) struct ExactComparisons;

impl AnalyzerRule for ExactComparisons {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let joins = |node: &LogicalPlan| matches!(node, LogicalPlan::Join(_));
        if !expressions::has(&plan, compares)? && !expressions::has_node(&plan, joins)? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = expressions::readable(&node)?;
            let mut rewritten = expressions::rewritten(node, |expr| rewrite(expr, &schema))?;
            if let LogicalPlan::Join(join) = &mut rewritten.data {
                for (left, right) in &mut join.on {
                    rewritten.transformed |= settle(&mut [left, right], &schema);
                }
            }
            // Recomputed even if unchanged: the types of an input may have changed.
            rewritten.map_data(LogicalPlan::recompute_schema)
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "exact_comparisons"
    }
}

/// Casts a literal string beside a Boolean before DataFusion computes the type of the comparison.
#[derive(Debug)]
pub(super) struct BooleanTexts;

impl ExprPlanner for BooleanTexts {
    fn plan_binary_op(&self, mut expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
        if matches!(expr.op, Eq | NotEq | Lt | LtEq | Gt | GtEq) {
            as_boolean(&expr.left, &mut expr.right, schema);
            as_boolean(&expr.right, &mut expr.left, schema);
        }
        Ok(PlannerResult::Original(expr))
    }
}

fn as_boolean(value: &Expr, text: &mut Expr, schema: &DFSchema) {
    let is_text = matches!(&*text, Expr::Literal(literal, _) if literal.data_type().is_string());
    if is_text && matches!(value.get_type(schema), Ok(DataType::Boolean)) {
        let literal = std::mem::take(text);
        *text = cast(literal, DataType::Boolean);
    }
}

fn compares(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => COMPARISONS.contains(op),
        Expr::ScalarFunction(call) => call.name() == "nullif",
        other => matches!(other, Expr::Between(_) | Expr::InList(_) | Expr::InSubquery(_) | Expr::Case(_)),
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
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
        Expr::InSubquery(found) => expressions::settle_subquery(found, schema, settle_types)?,
        Expr::ScalarFunction(call) if call.name() == "nullif" => match compared_apart(&call.args, schema) {
            Some(case) => {
                expr = case;
                true
            }
            None => false,
        },
        _ => false,
    };
    Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
}

/// Rewrites `nullif(a, b)` to `CASE WHEN a = b THEN NULL ELSE a END` if the comparison needs other
/// types than the result. It also rewrites `nullif` of floats, since DataFusion's own distinguishes
/// 0.0 from -0.0. It rewrites `nullif` of lists and structs, since DataFusion's leaves their items
/// under a NULL, where a field access or an appended list finds them.
fn compared_apart(arguments: &[Expr], schema: &DFSchema) -> Option<Expr> {
    let [value, other] = arguments else { return None };
    let (mut left, mut right) = (value.clone(), other.clone());
    let is_compared_apart = |expr| {
        let data_type = expressions::type_of(expr, schema);
        data_type.is_floating() || data_type.is_nested()
    };
    let is_settled = settle(&mut [&mut left, &mut right], schema);
    if value.is_volatile() || !is_settled && !is_compared_apart(value) && !is_compared_apart(other) {
        return None;
    }
    let is_equal = (Box::new(left.eq(right)), Box::new(Expr::Literal(ScalarValue::Null, None)));
    Some(Expr::Case(Case::new(None, vec![is_equal], Some(Box::new(value.clone())))))
}

/// Casts compared expressions to lossless types. Returns whether any needed it.
fn settle(exprs: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<DataType> = exprs.iter().map(|expr| expressions::type_of(expr, schema)).collect();
    settle_types(exprs, &types)
}

fn settle_types(exprs: &mut [&mut Expr], types: &[DataType]) -> bool {
    let has = |is: fn(&DataType) -> bool| types.iter().any(is);
    let (mut changed, mut settled) = (false, types.to_vec());
    if has(DataType::is_decimal) && has(is_text) {
        let all_fit = types.iter().filter(|t| t.is_decimal()).all(fits_any_decimal);
        let mut is_wide = false;
        for (expr, data_type) in exprs.iter_mut().zip(&mut settled).filter(|(_, data_type)| is_text(data_type)) {
            if let Some(decimal) = decimal(expr) {
                if let Expr::Literal(value, _) = &decimal {
                    *data_type = value.data_type();
                }
                **expr = decimal;
            } else if let Expr::Literal(value, _) = &**expr {
                // The string has more digits than a DECIMAL. Another rule reports a string that is
                // not a number.
                is_wide |= !value.is_null() && value.cast_to(&ANY_DECIMAL).is_ok();
            } else {
                is_wide = true;
            }
        }
        if is_wide && all_fit {
            for (expr, _) in exprs.iter_mut().zip(types).filter(|(_, t)| is_text(t) || t.is_decimal()) {
                let value = std::mem::take(&mut **expr);
                **expr = cast(value, ANY_DECIMAL);
            }
        }
        changed = true;
    }
    if let Some(wide) = wide_decimal(exprs, &settled) {
        for (expr, data_type) in exprs.iter_mut().zip(&settled) {
            if *data_type != wide && !data_type.is_null() {
                let value = std::mem::take(&mut **expr);
                **expr = cast(value, wide.clone());
                changed = true;
            }
        }
    }
    if has(|t| *t == DataType::Float32) && has(is_wide_integer) {
        let is_held = |(expr, data_type): (&&mut Expr, &DataType)| !is_wide_integer(data_type) || fits_real(expr);
        if !exprs.iter().zip(types).all(is_held) {
            for (expr, data_type) in exprs.iter_mut().zip(types) {
                if *data_type == DataType::Float32 {
                    let real = std::mem::take(&mut **expr);
                    **expr = cast(real, DataType::Float64);
                    changed = true;
                }
            }
        }
    }
    if has(|t| *t == DataType::Boolean) {
        for (expr, _) in exprs.iter_mut().zip(types).filter(|(_, data_type)| is_text(data_type)) {
            if matches!(&**expr, Expr::Literal(..)) {
                let text = std::mem::take(&mut **expr);
                **expr = cast(text, DataType::Boolean);
                changed = true;
            }
        }
    }
    if nanoseconds(exprs, types) {
        return true;
    }
    let is_nano = |t: &DataType| *t == DataType::Timestamp(TimeUnit::Nanosecond, None);
    let zone = types.iter().find_map(|data_type| match data_type {
        DataType::Timestamp(unit, zone) if *unit != TimeUnit::Nanosecond => Some(zone.clone()),
        _ => None,
    });
    let is_beyond = types.iter().any(is_nano) && exprs.iter().any(|expr| is_beyond_nanoseconds(expr));
    if zone.is_some() || is_beyond {
        let moment = DataType::Timestamp(TimeUnit::Microsecond, zone.clone().flatten());
        for (expr, data_type) in exprs.iter_mut().zip(types) {
            let is_other = *data_type == DataType::Date32 || zone.is_some() && is_text(data_type);
            if is_other || is_beyond && is_nano(data_type) {
                let other = std::mem::take(&mut **expr);
                **expr = cast(other, moment.clone());
                changed = true;
            }
        }
    }
    changed
}

/// Converts timestamps to decimals of nanoseconds if a compared column may exceed their range.
/// Returns false if there are none.
fn nanoseconds(exprs: &mut [&mut Expr], types: &[DataType]) -> bool {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let is_local = |t: &DataType| matches!(t, DataType::Date32 | DataType::Timestamp(_, None) | DataType::Null);
    let is_zoned = |t: &DataType| matches!(t, DataType::Timestamp(_, Some(_)) | DataType::Null);
    let is_nano = |t: &DataType| matches!(t, DataType::Timestamp(Nanosecond, _));
    let may_be_beyond = |(expr, t): (&&mut Expr, &DataType)| {
        matches!(t, DataType::Date32 | DataType::Timestamp(Second | Millisecond | Microsecond, _)) && !is_constant(expr)
    };
    let are_alike = types.iter().all(is_local) || types.iter().all(is_zoned);
    if !are_alike || !types.iter().any(is_nano) || !exprs.iter().zip(types).any(may_be_beyond) {
        return false;
    }
    let number = |moment: Expr| cast(cast(moment, DataType::Int64), DataType::Decimal128(19, 0));
    for (expr, data_type) in exprs.iter_mut().zip(types) {
        let moment = std::mem::take(&mut **expr);
        **expr = match data_type {
            DataType::Null => moment,
            nano if is_nano(nano) => number(moment),
            other => {
                let zone = if let DataType::Timestamp(_, zone) = other { zone.clone() } else { None };
                let thousand = Expr::Literal(ScalarValue::Decimal128(Some(1000), 4, 0), None);
                number(cast(moment, DataType::Timestamp(Microsecond, zone))) * thousand
            }
        };
    }
    true
}

fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(..) => true,
        Expr::Cast(cast) => matches!(*cast.expr, Expr::Literal(..)),
        _ => false,
    }
}

/// Returns the type for decimals, and integers beside them, if 38 digits do not hold a value that
/// uses all of its digits, as a literal does. Narrower sums and products keep their type, since
/// pipelines compare no wider ones.
fn wide_decimal(exprs: &[&mut Expr], types: &[DataType]) -> Option<DataType> {
    const MOST: i16 = DECIMAL128_MAX_PRECISION as i16;
    // The minimum number of digits before the point that the fraction must leave.
    const LEAST: i16 = 10;
    let (mut whole, mut scale, mut full, mut has_decimal) = (0, 0, 0, false);
    for (expr, data_type) in exprs.iter().zip(types) {
        let (digits, places, is_full) = match data_type {
            DataType::Decimal128(p, s) => {
                has_decimal = true;
                let is_full = *p == DECIMAL128_MAX_PRECISION || matches!(expr, Expr::Literal(..));
                (i16::from(*p) - i16::from(*s), i16::from(*s), is_full)
            }
            integer if integer.is_integer() => (integer_digits(expr, integer), 0, true),
            DataType::Null => continue,
            _ => return None,
        };
        (whole, scale) = (whole.max(digits), scale.max(places));
        full = full.max(if is_full { digits } else { 0 });
    }
    let precision = u8::try_from(whole + scale).ok().filter(|precision| *precision <= DECIMAL256_MAX_PRECISION)?;
    let is_wide = has_decimal && (full + scale > MOST || MOST - scale < whole.min(LEAST));
    is_wide.then_some(DataType::Decimal256(precision, i8::try_from(scale).ok()?))
}

/// Returns the digits of an integer. Most literals have few.
fn integer_digits(expr: &Expr, data_type: &DataType) -> i16 {
    if let Expr::Literal(value, _) = expr {
        let digits = value.to_string().trim_start_matches('-').len();
        return i16::try_from(digits).unwrap_or(20);
    }
    match data_type.primitive_width() {
        Some(1) => 3,
        Some(2) => 5,
        Some(4) => 10,
        _ => 20,
    }
}

/// Returns whether the expression is a literal outside the range of nanoseconds, 1677 to 2262.
fn is_beyond_nanoseconds(expr: &Expr) -> bool {
    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
    let value = match expr {
        Expr::Literal(value @ (ScalarValue::Date32(_) | ScalarValue::TimestampMicrosecond(..)), _) => {
            value.cast_to(&micros)
        }
        // `DATE '3000-01-01'` is planned as this cast.
        Expr::Cast(cast) => match (cast.expr.as_ref(), cast.field.data_type()) {
            (Expr::Literal(value, _), DataType::Date32 | DataType::Timestamp(TimeUnit::Microsecond, None)) => {
                value.cast_to(&DataType::Date32).and_then(|value| value.cast_to(&micros))
            }
            _ => return false,
        },
        _ => return false,
    };
    matches!(value, Ok(ScalarValue::TimestampMicrosecond(Some(micros), _)) if micros.checked_mul(1000).is_none())
}

/// A type that holds every decimal of up to 38 digits at any scale, and strings of such decimals.
const ANY_DECIMAL: DataType = DataType::Decimal256(76, DECIMAL_DIGITS as i8);

fn fits_any_decimal(data_type: &DataType) -> bool {
    match data_type {
        DataType::Decimal256(precision, scale) => {
            let digits = DECIMAL_DIGITS as i16;
            i16::from(*scale) <= digits && i16::from(*precision) - i16::from(*scale) <= digits
        }
        other => other.is_decimal(),
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => values.is_string(),
        other => other.is_string(),
    }
}

fn is_wide_integer(data_type: &DataType) -> bool {
    use DataType::{Int32, Int64, UInt32, UInt64};
    matches!(data_type, Int32 | Int64 | UInt32 | UInt64)
}

/// Returns whether the expression is a literal that a REAL holds.
fn fits_real(expr: &Expr) -> bool {
    let value = match expr {
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => *value,
        Expr::Literal(ScalarValue::Int32(Some(value)), _) => i64::from(*value),
        Expr::Literal(value, _) => return value.is_null(),
        _ => return false,
    };
    value.unsigned_abs() <= 1 << f32::MANTISSA_DIGITS
}

/// Converts a numeric string literal to a decimal of its own digits.
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

/// Returns the type in which to compare a value with items of another type, if it differs from
/// DataFusion's.
pub(super) fn common(value: &DataType, item: &DataType) -> Option<DataType> {
    match (value, item) {
        (DataType::Float32, other) | (other, DataType::Float32) if is_wide_integer(other) => Some(DataType::Float64),
        (DataType::Date32, DataType::Timestamp(unit, zone)) | (DataType::Timestamp(unit, zone), DataType::Date32)
            if *unit != TimeUnit::Nanosecond =>
        {
            Some(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        (text, DataType::Timestamp(unit, zone)) | (DataType::Timestamp(unit, zone), text)
            if is_text(text) && *unit != TimeUnit::Nanosecond =>
        {
            Some(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        (text, decimal) | (decimal, text) if is_text(text) && fits_any_decimal(decimal) => Some(ANY_DECIMAL),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn nothing_is_lost() {
        let table = "(VALUES (CAST(1.00 AS DECIMAL(10, 2)), 16777217, CAST(16777216 AS REAL), DATE '9999-12-31'), \
                     (2.55, 3, 3.5, DATE '2020-01-01')) AS t(n, i, r, d)";
        for (condition, expected) in [
            ("n = '1.001'", "0"),
            ("n = '1.00'", "1"),
            ("n < '12345678901234567890123456789012345678.5'", "2"),
            ("n = '12345678901234567890123456789012345678.5'", "0"),
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
            ("i IN (SELECT CAST(16777216 AS REAL))", "0"),
            ("d IN (SELECT TIMESTAMP '2020-01-01 00:00:00')", "1"),
            ("d > TIMESTAMP '2020-01-01 00:00:01'", "1"),
            ("d > TIMESTAMPTZ '2020-01-01 00:00:01+00'", "1"),
            ("d > ANY (SELECT TIMESTAMP '2020-01-01 00:00:01')", "1"),
            ("TIMESTAMP '2020-01-01 00:00:01' > ALL (SELECT d)", "1"),
            ("d = ANY(ARRAY[TIMESTAMP '2020-01-01 00:00:00'])", "1"),
            ("d = TIMESTAMP '2020-01-01 00:00:00'", "1"),
            ("d > CAST('2020-01-01' AS TIMESTAMP(9))", "1"),
            ("d >= arrow_cast(TIMESTAMP '2020-01-01', 'Timestamp(Nanosecond, None)')", "2"),
            ("d IN (arrow_cast(TIMESTAMP '2020-01-01', 'Timestamp(Nanosecond, None)'), NULL)", "1"),
            ("n < 99999999999999999999999999999999999999", "2"),
            ("CAST(0.5 AS DECIMAL(38, 38)) < '12'", "2"),
            ("CAST(0.5 AS DECIMAL(38, 38)) < n", "2"),
            ("CAST(i % 3 * 0.1 AS DECIMAL(38, 38)) < '12'", "2"),
        ] {
            let query = format!("SELECT count(*) FROM {table} WHERE {condition}");
            assert_eq!(rows(&query).await, [expected], "{condition}");
        }
    }

    #[tokio::test]
    async fn texts_beside_decimals_are_the_numbers_that_they_are() {
        let table = "(VALUES ('0.754', 0.75), ('10.5', 9.5), ('0.00001', 0.00001), (NULL, 1.0), \
                     ('123456789012345678901234567.1', 123456789012345678901234567.2)) AS t(p, d)";
        let few = "(VALUES ('0.7500', 0.754), (NULL, 10.5)) AS s(p, d)";
        for (condition, expected) in [
            ("p > 0.75", "3"),
            ("p > 9.5", "2"),
            ("p = 0.75", "0"),
            ("p <> 0.75", "4"),
            ("0.754 = p", "1"),
            ("p = 0.00001", "1"),
            ("p IS NOT DISTINCT FROM 0.75", "0"),
            ("p BETWEEN 0.753 AND 0.755", "1"),
            ("p IN (0.75, 10.5)", "1"),
            ("p NOT IN (0.75, 10.5)", "3"),
            ("p = d", "1"),
            ("p > d", "2"),
            ("p < d", "1"),
            ("d IN (p, '0.75')", "2"),
            ("CASE p WHEN 0.75 THEN FALSE WHEN 10.5 THEN TRUE ELSE FALSE END", "1"),
            ("p = ANY(ARRAY[d, 0.75])", "1"),
            ("p > ANY(ARRAY[d, 100.0])", "3"),
            ("nullif(p, 0.75) IS NULL", "1"),
            ("nullif(p, d) IS NULL", "2"),
            ("p > (SELECT 0.75)", "3"),
            (format!("p IN (SELECT d FROM {few})").as_str(), "2"),
            (format!("p NOT IN (SELECT d FROM {few})").as_str(), "2"),
            (format!("d IN (SELECT p FROM {few} WHERE p IS NOT NULL)").as_str(), "1"),
            (format!("EXISTS (SELECT 1 FROM {few} WHERE s.d = t.p)").as_str(), "2"),
        ] {
            let query = format!("SELECT count(*) FROM {table} WHERE {condition}");
            assert_eq!(rows(&query).await, [expected], "{condition}");
        }
        // The compared value differs from the result. A list of another type is on either side.
        for (query, expected) in [
            ("SELECT nullif(p, 0.75) FROM (VALUES ('0.754'), ('0.750')) AS t(p)", "0.754,NULL"),
            ("SELECT arrow_typeof(nullif(d, '0.250')) FROM (VALUES (1.50)) AS t(d)", "Decimal128(3, 2)"),
            ("SELECT x = 0.75 FROM (SELECT nullif(p, 0.5) AS x FROM (VALUES ('0.754')) AS t(p)) AS s", "false"),
            ("SELECT d = ANY(a) FROM (VALUES (CAST(2 AS DECIMAL(38, 0)), ARRAY['1.5', '3'])) AS t(d, a)", "false"),
            ("SELECT d < ALL(a) FROM (VALUES (CAST(2 AS DECIMAL(38, 0)), ARRAY['2.4', '3'])) AS t(d, a)", "true"),
            ("SELECT d < ALL('{2.4,3}') FROM (VALUES (CAST(2 AS DECIMAL(38, 0)))) AS t(d)", "true"),
            (
                "SELECT p < CAST('12345678901234567890123456789012345678901' AS DECIMAL(50, 0)) FROM (VALUES ('5')) AS t(p)",
                "true",
            ),
        ] {
            assert_eq!(rows(query).await.join(","), expected, "{query}");
        }
        let join = format!("SELECT t.p, s.d FROM {table} JOIN {few} ON t.p = s.d ORDER BY s.d");
        assert_eq!(rows(&join).await, ["0.754 0.754", "10.5 10.500"]);
        let error = fails(&format!("SELECT count(*) FROM {table} WHERE p || 'x' > 0.5")).await;
        assert!(error.message().contains("'0.754x'"), "{error}");
    }
}
