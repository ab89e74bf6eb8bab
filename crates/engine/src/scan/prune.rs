//! Converts SQL filters to zone predicates.
//!
//! An expression without a counterpart becomes [`Predicate::Unknown`], which excludes nothing.
//! Under AND the other operands still count; under OR the whole is unknown. NOT is not converted: a
//! negated predicate is not the negation of its zone test.

use arrow::datatypes::Schema;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList, Like};
use datafusion::logical_expr::{Expr, Operator};
use onehop_segment::types::{f32_key, f64_key, u64_key};
use onehop_segment::{ColumnType, Comparison, Predicate, Value};

/// Converts all filters to one predicate.
pub(crate) fn predicate(filters: &[Expr], schema: &Schema) -> Predicate {
    and(filters.iter().map(|filter| convert(filter, schema)).collect())
}

fn and(parts: Vec<Predicate>) -> Predicate {
    let mut known: Vec<Predicate> = parts.into_iter().filter(|part| *part != Predicate::Unknown).collect();
    match known.len() {
        0 => Predicate::Unknown,
        1 => known.swap_remove(0),
        _ => Predicate::And(known),
    }
}

fn or(parts: Vec<Predicate>) -> Predicate {
    if parts.contains(&Predicate::Unknown) { Predicate::Unknown } else { Predicate::Or(parts) }
}

fn convert(filter: &Expr, schema: &Schema) -> Predicate {
    match filter {
        Expr::BinaryExpr(binary) => convert_binary(binary, schema),
        Expr::Between(Between { expr, negated: false, low, high }) => and(vec![
            compare(expr, Comparison::GreaterOrEqual, low, schema),
            compare(expr, Comparison::LessOrEqual, high, schema),
        ]),
        Expr::InList(InList { expr, list, negated: false }) => convert_in(expr, list, schema),
        Expr::IsNull(expr) => {
            column(expr, schema).map_or(Predicate::Unknown, |(column, _)| Predicate::IsNull { column })
        }
        Expr::IsNotNull(expr) => {
            column(expr, schema).map_or(Predicate::Unknown, |(column, _)| Predicate::IsNotNull { column })
        }
        Expr::Like(like) => convert_like(like, schema),
        Expr::Alias(alias) => convert(&alias.expr, schema),
        Expr::Literal(ScalarValue::Boolean(Some(true)), _) => Predicate::Unknown,
        Expr::Literal(ScalarValue::Boolean(_), _) => Predicate::Never,
        // A boolean column by itself, or negated.
        Expr::Column(_) => boolean(filter, true, schema),
        Expr::Not(inner) if matches!(**inner, Expr::Column(_)) => boolean(inner, false, schema),
        _ => Predicate::Unknown,
    }
}

fn boolean(expr: &Expr, wanted: bool, schema: &Schema) -> Predicate {
    match column(expr, schema) {
        Some((column, ColumnType::Boolean)) => {
            Predicate::Compare { column, op: Comparison::Equal, value: Value::Key(wanted.into()) }
        }
        _ => Predicate::Unknown,
    }
}

fn convert_binary(binary: &BinaryExpr, schema: &Schema) -> Predicate {
    let BinaryExpr { left, op, right } = binary;
    let comparison = match op {
        Operator::And => return and(vec![convert(left, schema), convert(right, schema)]),
        Operator::Or => return or(vec![convert(left, schema), convert(right, schema)]),
        Operator::Eq => Comparison::Equal,
        Operator::NotEq => Comparison::NotEqual,
        Operator::Lt => Comparison::Less,
        Operator::LtEq => Comparison::LessOrEqual,
        Operator::Gt => Comparison::Greater,
        Operator::GtEq => Comparison::GreaterOrEqual,
        _ => return Predicate::Unknown,
    };
    if matches!(**left, Expr::Literal(..)) {
        compare(right, mirrored(comparison), left, schema)
    } else {
        compare(left, comparison, right, schema)
    }
}

fn mirrored(op: Comparison) -> Comparison {
    match op {
        Comparison::Less => Comparison::Greater,
        Comparison::LessOrEqual => Comparison::GreaterOrEqual,
        Comparison::Greater => Comparison::Less,
        Comparison::GreaterOrEqual => Comparison::LessOrEqual,
        same => same,
    }
}

fn compare(expr: &Expr, op: Comparison, literal: &Expr, schema: &Schema) -> Predicate {
    let (Some((column, column_type)), Expr::Literal(scalar, _)) = (column(expr, schema), literal) else {
        return Predicate::Unknown;
    };
    if scalar.is_null() {
        return Predicate::Never;
    }
    match value_of(&column_type, scalar) {
        Some(value) => Predicate::Compare { column, op, value },
        None => Predicate::Unknown,
    }
}

fn convert_in(expr: &Expr, list: &[Expr], schema: &Schema) -> Predicate {
    let Some((column, column_type)) = column(expr, schema) else { return Predicate::Unknown };
    let mut values = Vec::with_capacity(list.len());
    for item in list {
        match item {
            // NULL in the list makes no row match.
            Expr::Literal(scalar, _) if scalar.is_null() => {}
            Expr::Literal(scalar, _) => match value_of(&column_type, scalar) {
                Some(value) => values.push(value),
                None => return Predicate::Unknown,
            },
            _ => return Predicate::Unknown,
        }
    }
    Predicate::In { column, values }
}

fn convert_like(like: &Like, schema: &Schema) -> Predicate {
    let Like { negated: false, expr, pattern, escape_char: None, case_insensitive: false } = like else {
        return Predicate::Unknown;
    };
    let (Some((column, ColumnType::Varchar)), Expr::Literal(scalar, _)) = (column(expr, schema), &**pattern) else {
        return Predicate::Unknown;
    };
    let Some(Some(pattern)) = scalar.try_as_str() else { return Predicate::Unknown };
    // A backslash escapes the next letter. The characters before the first special one are literal
    // in any case.
    let prefix: String = pattern.chars().take_while(|c| !matches!(c, '%' | '_' | '\\')).collect();
    if prefix.is_empty() { Predicate::Unknown } else { Predicate::StartsWith { column, prefix } }
}

fn column(expr: &Expr, schema: &Schema) -> Option<(usize, ColumnType)> {
    let Expr::Column(column) = expr else { return None };
    let (index, field) = schema.column_with_name(&column.name)?;
    Some((index, ColumnType::of(field.name(), field.data_type()).ok()?))
}

/// Returns the key or string of a literal, if it has exactly the column's type.
pub(crate) fn value_of(column_type: &ColumnType, scalar: &ScalarValue) -> Option<Value> {
    use ColumnType as T;
    use ScalarValue as S;
    let key = |key: i64| Some(Value::Key(key.into()));
    match (column_type, scalar) {
        (T::Boolean, S::Boolean(Some(v))) => key((*v).into()),
        (T::Int8, S::Int8(Some(v))) => key((*v).into()),
        (T::Int16, S::Int16(Some(v))) => key((*v).into()),
        (T::Int32, S::Int32(Some(v))) => key((*v).into()),
        (T::Int64, S::Int64(Some(v))) => key(*v),
        (T::UInt8, S::UInt8(Some(v))) => key((*v).into()),
        (T::UInt16, S::UInt16(Some(v))) => key((*v).into()),
        (T::UInt32, S::UInt32(Some(v))) => key((*v).into()),
        (T::UInt64, S::UInt64(Some(v))) => key(u64_key(*v)),
        (T::Float32, S::Float32(Some(v))) => key(f32_key(*v)),
        (T::Float64, S::Float64(Some(v))) => key(f64_key(*v)),
        (T::Date, S::Date32(Some(v))) => key((*v).into()),
        (T::Decimal { precision, scale }, S::Decimal128(Some(v), p, s)) if (precision, scale) == (p, s) => {
            Some(Value::Key(*v))
        }
        (T::Timestamp { .. }, scalar) if scalar.data_type() == column_type.arrow() => match scalar {
            S::TimestampSecond(Some(v), _)
            | S::TimestampMillisecond(Some(v), _)
            | S::TimestampMicrosecond(Some(v), _)
            | S::TimestampNanosecond(Some(v), _) => key(*v),
            _ => None,
        },
        (T::Varchar, scalar) => scalar.try_as_str().flatten().map(|text| Value::Text(text.to_string())),
        _ => None,
    }
}

/// Returns the value of a key, for types whose zones are exact and whose keys are their values.
pub(crate) fn scalar_of_key(column_type: &ColumnType, key: i128) -> Option<ScalarValue> {
    use ColumnType as T;
    use ScalarValue as S;
    let narrow = i64::try_from(key).ok();
    Some(match column_type {
        T::Int8 => S::Int8(Some(narrow? as i8)),
        T::Int16 => S::Int16(Some(narrow? as i16)),
        T::Int32 => S::Int32(Some(narrow? as i32)),
        T::Int64 => S::Int64(Some(narrow?)),
        T::UInt8 => S::UInt8(Some(narrow? as u8)),
        T::UInt16 => S::UInt16(Some(narrow? as u16)),
        T::UInt32 => S::UInt32(Some(narrow? as u32)),
        T::Date => S::Date32(Some(narrow? as i32)),
        T::Decimal { precision, scale } => S::Decimal128(Some(key), *precision, *scale),
        _ => return None,
    })
}
