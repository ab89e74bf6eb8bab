//! `1e3` is a double, and so is a number with more digits than a decimal holds.
//!
//! With decimal literals (see `configure`), DataFusion parses every non-integer number as a
//! decimal: `1e300` would be refused, and 50 digits would have a type that no column can store.
//!
//! The module spells out `INTERVAL '1 day 02:03'` and all other forms that DataFusion does not
//! parse.
//!
//! In a window frame, DataFusion accepts `INTERVAL '7' DAY` but not `INTERVAL 7 DAY`, and `0.1` but
//! not `1e-1`. It accepts a struct's field as `['a']` but not as `.a`.

use arrow::datatypes::IntervalMonthDayNano;
use datafusion::sql::sqlparser::ast::{
    AccessExpr, CastKind, DataType, ExactNumberInfo, Expr, Function, Interval, UnaryOperator, Value, WindowFrameBound,
    WindowType,
};

use crate::identifiers::normal;
use crate::pg_types::interval_text;

/// The number of digits of the widest decimal column.
pub(super) const DECIMAL_DIGITS: usize = 38;

pub(super) fn rewrite(expr: &mut Expr) {
    if let Expr::CompoundFieldAccess { root, access_chain } = expr {
        // `t.a[1]` belongs to a table.
        if matches!(root.as_ref(), Expr::Identifier(_) | Expr::CompoundIdentifier(_)) {
            return;
        }
        for access in access_chain {
            if let AccessExpr::Dot(field) = access
                && let Expr::Identifier(name) = field
            {
                *field = Expr::Value(Value::SingleQuotedString(normal(name)).into());
            }
        }
        return;
    }
    // DataFusion prepends the minus to the string, where it applies to the first number only.
    if let Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } = expr
        && let Expr::Interval(interval) = inner.as_mut()
        && turn(interval)
    {
        *expr = std::mem::replace(inner.as_mut(), Expr::Value(Value::Null.into()));
        return;
    }
    if let Expr::Interval(interval) = expr {
        if let Expr::Value(value) = interval.value.as_mut()
            && let Value::Number(number, _) = &value.value
        {
            value.value = Value::SingleQuotedString(number.clone());
        }
        spell_out(interval);
        return;
    }
    if let Expr::Function(Function { over: Some(WindowType::WindowSpec(window)), .. }) = expr
        && let Some(frame) = &mut window.window_frame
    {
        let end = frame.end_bound.as_mut();
        for bound in [Some(&mut frame.start_bound), end].into_iter().flatten() {
            write_offset(bound);
        }
        return;
    }
    let Expr::Value(value) = expr else { return };
    let Value::Number(number, _) = &mut value.value else { return };
    number.retain(|c| c != '_');
    let is_scientific = number.contains(['e', 'E']);
    let digits = number.trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
    let places = number.split_once('.').map_or(0, |(_, places)| places.len());
    if is_scientific || digits.max(places) > DECIMAL_DIGITS {
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(Expr::Value(Value::SingleQuotedString(number.clone()).into())),
            data_type: DataType::Double(ExactNumberInfo::None),
            array: false,
            format: None,
        };
    }
}

/// Turns an offset that became a DOUBLE back into a number without an exponent. DataFusion accepts
/// no other.
fn write_offset(bound: &mut WindowFrameBound) {
    let (WindowFrameBound::Preceding(Some(offset)) | WindowFrameBound::Following(Some(offset))) = bound else { return };
    if let Expr::Cast { expr, data_type: DataType::Double(_), .. } = offset.as_ref()
        && let Expr::Value(value) = expr.as_ref()
        && let Value::SingleQuotedString(number) = &value.value
        && let Some(plain) = without_exponent(number)
    {
        **offset = Expr::Value(Value::Number(plain, false).into());
    }
}

/// Writes `1.5e-3` as `0.0015`.
fn without_exponent(number: &str) -> Option<String> {
    const MOST: i32 = 400;
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let exponent: i32 = exponent.parse().ok().filter(|exponent| (-MOST..=MOST).contains(exponent))?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let point = i32::try_from(whole.len()).ok()? + exponent;
    let digits = format!("{whole}{fraction}");
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    let length = i32::try_from(digits.len()).ok()?;
    Some(match usize::try_from(point) {
        Ok(0) | Err(_) => format!("0.{}{digits}", zeros(-point)),
        Ok(_) if point >= length => format!("{digits}{}", zeros(point - length)),
        Ok(point) => format!("{}.{}", digits.get(..point)?, digits.get(point..)?),
    })
}

/// Spells out an interval. DataFusion does not parse `1 day 02:03`, `1-2` or `P1D`.
fn spell_out(interval: &mut Interval) {
    if interval.leading_field.is_some() || interval.last_field.is_some() {
        return;
    }
    if let Expr::Value(value) = interval.value.as_mut()
        && let Value::SingleQuotedString(text) = &mut value.value
        && let Some(parsed) = interval_text::parse(text)
    {
        *text = spelled(parsed);
    }
}

fn spelled(interval: IntervalMonthDayNano) -> String {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    format!("{months} months {days} days {nanoseconds} nanoseconds")
}

/// Negates a literal and spells it out. Returns whether it did.
fn turn(interval: &mut Interval) -> bool {
    if interval.leading_field.is_some() || interval.last_field.is_some() {
        return false;
    }
    let Expr::Value(value) = interval.value.as_mut() else { return false };
    let Value::SingleQuotedString(text) = &mut value.value else { return false };
    let Some(IntervalMonthDayNano { months, days, nanoseconds }) = interval_text::parse(text) else { return false };
    let opposite = (months.checked_neg(), days.checked_neg(), nanoseconds.checked_neg());
    let (Some(months), Some(days), Some(nanoseconds)) = opposite else { return false };
    *text = spelled(IntervalMonthDayNano { months, days, nanoseconds });
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::without_exponent;
    use crate::planner::tests::{rewritten, rows};

    #[test]
    fn offsets_without_exponents() {
        for (number, expected) in [
            ("1e-1", "0.1"),
            ("1.5e-3", "0.0015"),
            ("12.5E1", "125"),
            ("12.5e0", "12.5"),
            ("12.5e+3", "12500"),
            ("1e2", "100"),
            (".5e1", "5"),
            ("12.75e1", "127.5"),
        ] {
            assert_eq!(without_exponent(number).as_deref(), Some(expected), "{number}");
        }
        assert_eq!(without_exponent("1e999"), None);
    }

    #[tokio::test]
    async fn fields_and_frames() {
        assert_eq!(rows("SELECT {'a': 1}.a, INTERVAL 7 DAYS = INTERVAL '7 days'").await, ["1 true"]);
        let days = "(VALUES (1, DATE '2020-01-01'), (2, DATE '2020-01-05'), (4, DATE '2020-01-12')) AS t(a, d)";
        let frame = "ORDER BY d RANGE BETWEEN INTERVAL 7 DAYS PRECEDING AND CURRENT ROW";
        assert_eq!(rows(&format!("SELECT sum(a) OVER ({frame}) FROM {days} ORDER BY d")).await, ["1", "3", "6"]);
    }

    #[test]
    fn only_what_decimals_cannot_hold_is_a_double() {
        let wide = "1234567890".repeat(4);
        for (number, meant) in [
            ("1", "1".to_string()),
            ("0.10", "0.10".to_string()),
            ("1e3", "CAST('1e3' AS DOUBLE)".to_string()),
            ("1.5E-300", "CAST('1.5E-300' AS DOUBLE)".to_string()),
            (&wide, format!("CAST('{wide}' AS DOUBLE)")),
            (&wide[..38], wide[..38].to_string()),
        ] {
            assert_eq!(
                rewritten(&format!("SELECT a FROM t WHERE x < {number}")),
                format!("SELECT a FROM t WHERE x < {meant}")
            );
        }
    }
}
