//! `1e3` is a double, and so is a number with more digits than a decimal holds.
//!
//! With decimal literals (see `configure`) DataFusion makes every number a decimal that is no integer: `1e300` would
//! be refused, and 50 digits be of a type that nothing can store.

use datafusion::sql::sqlparser::ast::{CastKind, DataType, ExactNumberInfo, Expr, Value};

/// Digits of the widest decimal that columns can have.
const DECIMAL_DIGITS: usize = 38;

pub(super) fn rewrite(expr: &mut Expr) {
    let Expr::Value(value) = &*expr else { return };
    let Value::Number(number, _) = &value.value else { return };
    let is_scientific = number.contains(['e', 'E']);
    let digits = number.trim_start_matches(['0', '.', '_']).chars().filter(char::is_ascii_digit).count();
    let places = number.split_once('.').map_or(0, |(_, places)| places.len());
    if is_scientific || digits.max(places) > DECIMAL_DIGITS {
        *expr = Expr::Cast {
            kind: CastKind::Cast,
            expr: Box::new(Expr::Value(Value::SingleQuotedString(number.replace('_', "")).into())),
            data_type: DataType::Double(ExactNumberInfo::None),
            array: false,
            format: None,
        };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rewritten;

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
