//! Translation of conditions to PostgreSQL. A translated condition has the same result there, or
//! accepts more rows.
//!
//! - Integers, decimals, dates, timestamps and booleans compare identically. Doubles do not:
//!   comparisons below zero, and the equality of zeros, differ.
//! - Strings are equal if their bytes are, except under nondeterministic collations. Their order is
//!   that of their bytes only under `COLLATE "C"`.
//! - A condition with any other element is not translated. The other parts of a conjunction are.

use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, DecimalType};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList, Like};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use onehop_postgres::Table;

/// Translates a condition. PostgreSQL may accept more rows than the condition does. `None` if no
/// part can be translated.
pub(super) fn sql(expr: &Expr, table: &Table) -> Option<String> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            match (sql(left, table), sql(right, table)) {
                (Some(left), Some(right)) => Some(format!("({left} AND {right})")),
                (left, right) => left.or(right),
            }
        }
        other => exact(other, table),
    }
}

/// Translates a condition that PostgreSQL evaluates exactly as Onehop does. A negated condition
/// must not accept more rows.
fn exact(expr: &Expr, table: &Table) -> Option<String> {
    Some(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            format!("({} {op} {})", exact(left, table)?, exact(right, table)?)
        }
        Expr::Not(inner) => format!("(NOT {})", exact(inner, table)?),
        Expr::IsNull(inner) => format!("({} IS NULL)", Operand::of(inner, table)?.sql),
        Expr::IsNotNull(inner) => format!("({} IS NOT NULL)", Operand::of(inner, table)?.sql),
        Expr::Column(_) => {
            let operand = Operand::of(expr, table)?;
            (operand.kind == Kind::Truth).then_some(operand.sql)?
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match Operand::of(left, table) {
            Some(operand) => operand.compared(*op, right)?,
            None => Operand::of(right, table)?.compared(op.swap()?, left)?,
        },
        Expr::Between(Between { expr, negated, low, high }) => {
            let operand = Operand::of(expr, table)?;
            let (low, high) = (operand.compared(Operator::GtEq, low)?, operand.compared(Operator::LtEq, high)?);
            format!("({}({low} AND {high}))", if *negated { "NOT " } else { "" })
        }
        Expr::InList(InList { expr, list, negated }) => {
            let operand = Operand::of(expr, table)?;
            operand.may_equal()?;
            let items = list.iter().map(|item| operand.literal(item)).collect::<Option<Vec<_>>>()?;
            if items.is_empty() {
                return None;
            }
            format!("({}{} IN ({}))", operand.sql, if *negated { " NOT" } else { "" }, items.join(", "))
        }
        Expr::Like(Like { negated, expr, pattern, escape_char: None, case_insensitive: false }) => {
            let operand = Operand::of(expr, table)?;
            let is_text = operand.kind == Kind::Text;
            // Engines disagree on a backslash before other characters than these.
            let pattern = operand.literal(pattern).filter(|pattern| is_text && !pattern.contains('\\'))?;
            format!("({} COLLATE \"C\"{} LIKE {pattern})", operand.sql, if *negated { " NOT" } else { "" })
        }
        _ => return None,
    })
}

/// The kind of literals that a column is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Truth,
    Number,
    Date,
    Timestamp,
    TimestampTz,
    Text,
    /// A type that cannot be compared.
    Other,
}

/// A column.
struct Operand {
    sql: String,
    kind: Kind,
    is_deterministic: bool,
}

impl Operand {
    fn of(expr: &Expr, table: &Table) -> Option<Self> {
        let Expr::Column(Column { name, .. }) = expr else { return None };
        let (at, field) = table.arrow_schema().column_with_name(name)?;
        let kind = match field.data_type() {
            DataType::Boolean => Kind::Truth,
            DataType::Int16 | DataType::Int32 | DataType::Int64 => Kind::Number,
            DataType::Decimal128(..) | DataType::Decimal256(..) => Kind::Number,
            DataType::Date32 => Kind::Date,
            DataType::Timestamp(_, None) => Kind::Timestamp,
            DataType::Timestamp(_, Some(_)) => Kind::TimestampTz,
            DataType::Utf8View => Kind::Text,
            _ => Kind::Other,
        };
        Some(Self { sql: table.sql_of(at).ok()?, kind, is_deterministic: table.columns[at].is_deterministic })
    }

    /// Returns `Some` if equality is the same here and in PostgreSQL.
    fn may_equal(&self) -> Option<()> {
        (self.kind != Kind::Other && (self.kind != Kind::Text || self.is_deterministic)).then_some(())
    }

    fn compared(&self, op: Operator, with: &Expr) -> Option<String> {
        let literal = self.literal(with)?;
        let is_order = matches!(op, Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq);
        let sql = &self.sql;
        match (op, self.kind) {
            (Operator::Eq | Operator::NotEq, _) => {
                self.may_equal()?;
                Some(format!("({sql} {op} {literal})").replace("!=", "<>"))
            }
            (_, Kind::Text) if is_order => Some(format!("({sql} COLLATE \"C\" {op} {literal})")),
            (_, Kind::Number | Kind::Date | Kind::Timestamp | Kind::TimestampTz) if is_order => {
                Some(format!("({sql} {op} {literal})"))
            }
            _ => None,
        }
    }

    /// Translates a literal of the column's kind.
    fn literal(&self, expr: &Expr) -> Option<String> {
        let Expr::Literal(value, _) = expr else { return None };
        if value.is_null() {
            return None;
        }
        match self.kind {
            Kind::Truth => match value {
                ScalarValue::Boolean(Some(value)) => Some(value.to_string()),
                _ => None,
            },
            Kind::Number => number(value),
            Kind::Date => match value {
                ScalarValue::Date32(Some(day)) => Some(format!("'{}'::pg_catalog.date", date(*day)?)),
                _ => None,
            },
            Kind::Timestamp => Some(format!("'{}'::pg_catalog.timestamp", moment(value, false)?)),
            Kind::TimestampTz => Some(format!("'{}+00'::pg_catalog.timestamptz", moment(value, true)?)),
            Kind::Text => match value {
                ScalarValue::Utf8(Some(text))
                | ScalarValue::Utf8View(Some(text))
                | ScalarValue::LargeUtf8(Some(text)) => quoted(text),
                _ => None,
            },
            Kind::Other => None,
        }
    }
}

/// Returns a string as a literal, independent of `standard_conforming_strings`. `None` if it has a
/// zero byte, which PostgreSQL does not support.
fn quoted(text: &str) -> Option<String> {
    if text.contains('\0') {
        return None;
    }
    let escaped = text.replace('\'', "''");
    Some(match text.contains('\\') {
        true => format!("E'{}'", escaped.replace('\\', "\\\\")),
        false => format!("'{escaped}'"),
    })
}

fn number(value: &ScalarValue) -> Option<String> {
    let text = match value {
        ScalarValue::Int8(Some(n)) => n.to_string(),
        ScalarValue::Int16(Some(n)) => n.to_string(),
        ScalarValue::Int32(Some(n)) => n.to_string(),
        ScalarValue::Int64(Some(n)) => n.to_string(),
        ScalarValue::UInt8(Some(n)) => n.to_string(),
        ScalarValue::UInt16(Some(n)) => n.to_string(),
        ScalarValue::UInt32(Some(n)) => n.to_string(),
        ScalarValue::UInt64(Some(n)) => n.to_string(),
        ScalarValue::Decimal128(Some(n), precision, scale) => Decimal128Type::format_decimal(*n, *precision, *scale),
        ScalarValue::Decimal256(Some(n), precision, scale) => Decimal256Type::format_decimal(*n, *precision, *scale),
        _ => return None,
    };
    // In PostgreSQL the sign is not part of a number, and binds weaker than a cast.
    Some(if text.starts_with('-') { format!("({text})") } else { text })
}

/// Returns a day of the years 1 to 9999, whose notation is unambiguous.
fn date(day: i32) -> Option<String> {
    let (year, month, day) = onehop_pipeline::bind::civil(day.into());
    (1..=9999).contains(&year).then(|| format!("{year:04}-{month:02}-{day:02}"))
}

/// Returns a moment in whole microseconds.
fn moment(value: &ScalarValue, has_zone: bool) -> Option<String> {
    const DAY: i64 = 86_400_000_000;
    let (micros, zone) = match value {
        ScalarValue::TimestampSecond(Some(n), zone) => (n.checked_mul(1_000_000)?, zone),
        ScalarValue::TimestampMillisecond(Some(n), zone) => (n.checked_mul(1000)?, zone),
        ScalarValue::TimestampMicrosecond(Some(n), zone) => (*n, zone),
        ScalarValue::TimestampNanosecond(Some(n), zone) if n % 1000 == 0 => (n / 1000, zone),
        _ => return None,
    };
    // For a value with a zone, this is the time in UTC.
    if zone.is_some() != has_zone {
        return None;
    }
    let (day, rest) = (i32::try_from(micros.div_euclid(DAY)).ok()?, micros.rem_euclid(DAY));
    let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    Some(format!("{} {hour:02}:{minute:02}:{second:02}.{micros:06}", date(day)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_what_they_were() {
        assert_eq!(quoted("it's"), Some("'it''s'".into()));
        assert_eq!(quoted("a\\b"), Some("E'a\\\\b'".into()));
        assert_eq!(quoted("\0"), None);
        assert_eq!(number(&ScalarValue::Decimal128(Some(-5), 9, 2)).as_deref(), Some("(-0.05)"));
        assert_eq!(number(&ScalarValue::Float64(Some(1.0))), None);
        assert_eq!(date(0).as_deref(), Some("1970-01-01"));
        assert_eq!(date(-800_000), None);
        let nanos = |n| moment(&ScalarValue::TimestampNanosecond(Some(n), None), false);
        assert_eq!(nanos(-1000).as_deref(), Some("1969-12-31 23:59:59.999999"));
        assert_eq!(nanos(-1), None);
    }
}
