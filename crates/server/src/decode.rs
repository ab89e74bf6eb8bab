//! Decodes parameter values of a client, text or binary, into the engine's.
//!
//! A type with many notations in PostgreSQL, such as a date, goes to the engine as text, because
//! the engine parses them. This module checks only input that the engine would misinterpret.

use bytes::{Buf, BytesMut};
use onehop_engine::arrow::array::{ArrayRef, AsArray};
use onehop_engine::arrow::compute::cast;
use onehop_engine::arrow::datatypes::{DataType, Float64Type, Int64Type, IntervalMonthDayNano};
use onehop_engine::{ColumnParser, Temporal, Value, array_items, bytea_bytes};
use pgwire::api::Type;

use crate::binary::{EPOCH_DAYS, EPOCH_MICROS, read_numeric};
use crate::encode::Format;
use crate::problem::{Problem, code};
use onehop_engine::postgres_text::{self as text, Zone};

/// The maximum number of items of an array parameter.
const MOST_ITEMS: usize = 1 << 20;

/// Decodes a parameter's value. `number` identifies it in error messages.
pub fn value(number: usize, oid: u32, format: Format, bytes: Option<&[u8]>) -> Result<Value, Problem> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    let pg_type = Type::from_oid(oid).unwrap_or(Type::TEXT);
    let value = match format {
        Format::Text => std::str::from_utf8(bytes).ok().and_then(|text| of_text(&pg_type, text)),
        Format::Binary => of_binary(&pg_type, bytes),
    };
    value.ok_or_else(|| {
        let (code, what) = match format {
            Format::Text => (code::INVALID_TEXT, "the text"),
            Format::Binary => (code::INVALID_BINARY, "what was sent in binary"),
        };
        Problem::error(code, format!("{what} for parameter ${number} is no value of type {}", pg_type.name()))
    })
}

fn of_text(pg_type: &Type, text: &str) -> Option<Value> {
    let trimmed = text.trim();
    Some(match *pg_type {
        Type::BOOL => Value::Boolean(converted(trimmed, &DataType::Boolean)?.as_boolean().value(0)),
        Type::INT2 => integer(trimmed, &DataType::Int16)?,
        Type::INT4 => integer(trimmed, &DataType::Int32)?,
        Type::INT8 => integer(trimmed, &DataType::Int64)?,
        Type::OID => integer(trimmed, &DataType::UInt32)?,
        Type::FLOAT4 | Type::FLOAT8 => {
            Value::Double(converted(trimmed, &DataType::Float64)?.as_primitive::<Float64Type>().value(0))
        }
        Type::NUMERIC => number(trimmed)?,
        Type::DATE => Value::Temporal(Temporal::Date, date_of(trimmed).into()),
        Type::TIME => Value::Temporal(Temporal::Time, without_zone(trimmed).into()),
        Type::TIMESTAMP => Value::Temporal(Temporal::Timestamp, timestamp_of(trimmed).into()),
        Type::TIMESTAMPTZ => Value::Temporal(Temporal::TimestampTz, trimmed.into()),
        Type::INTERVAL => Value::Temporal(Temporal::Interval, trimmed.into()),
        Type::BYTEA => Value::Binary(bytea_bytes(text)?),
        _ => match item_type(pg_type) {
            Some(item) => Value::List(items(&item, text)?),
            None => Value::Text(text.into()),
        },
    })
}

/// Strips the time and the zone that some drivers append to a date.
fn date_of(text: &str) -> &str {
    let is_date = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && text.matches('-').count() == 2;
    match text.split_once([' ', 'T']) {
        Some((date, rest)) if is_date(date) && !rest.contains("BC") => date,
        _ => text,
    }
}

/// Strips the zone. PostgreSQL ignores it for types without one.
fn without_zone(time: &str) -> &str {
    time.split(['+', '-', 'Z', 'z']).next().map_or(time, str::trim_end)
}

fn timestamp_of(text: &str) -> &str {
    match text.find([' ', 'T']) {
        Some(at) if !text.contains("BC") => &text[..at + without_zone(&text[at..]).len()],
        _ => text,
    }
}

/// Converts a text by the engine's conversion.
fn converted(text: &str, data_type: &DataType) -> Option<ArrayRef> {
    let mut parser = ColumnParser::new(data_type, Zone::Utc, 1)?;
    parser.push(text.as_bytes()).ok()?;
    Some(parser.finish())
}

fn integer(text: &str, data_type: &DataType) -> Option<Value> {
    let value = cast(&converted(text, data_type)?, &DataType::Int64).ok()?;
    Some(Value::Integer(value.as_primitive::<Int64Type>().value(0)))
}

/// Returns a number's digits, with an exponent applied.
fn number(text: &str) -> Option<Value> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok().filter(|e| e.abs() < 1000)?),
        None => (text, 0),
    };
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let point = whole.len() as i32 + exponent;
    let text = match point {
        _ if exponent == 0 => format!("{sign}{digits}"),
        point if point <= 0 => format!("{sign}0.{}{all}", "0".repeat(point.unsigned_abs() as usize)),
        point if point as usize >= all.len() => format!("{sign}{all}{}", "0".repeat(point as usize - all.len())),
        point => format!("{sign}{}.{}", &all[..point as usize], &all[point as usize..]),
    };
    Some(Value::Decimal(text))
}

/// Returns the item type of an array.
fn item_type(pg_type: &Type) -> Option<Type> {
    match pg_type.kind() {
        postgres_types::Kind::Array(item) => Some(item.clone()),
        _ => None,
    }
}

/// Parses an array such as `{1,2,NULL,"a b"}`.
fn items(item: &Type, text: &str) -> Option<Vec<Value>> {
    let items = array_items(text, false).filter(|items| items.len() <= MOST_ITEMS)?;
    items.into_iter().map(|text| text.map_or(Some(Value::Null), |text| of_text(item, &text))).collect()
}

fn of_binary(pg_type: &Type, bytes: &[u8]) -> Option<Value> {
    let temporal = |what, write: &dyn Fn(&mut BytesMut)| {
        let mut out = BytesMut::new();
        write(&mut out);
        Some(Value::Temporal(what, String::from_utf8(out.to_vec()).ok()?))
    };
    match *pg_type {
        Type::BOOL => match bytes {
            [byte] => Some(Value::Boolean(*byte != 0)),
            _ => None,
        },
        Type::INT2 => Some(Value::Integer(i16::from_be_bytes(bytes.try_into().ok()?).into())),
        Type::INT4 => Some(Value::Integer(i32::from_be_bytes(bytes.try_into().ok()?).into())),
        Type::INT8 => Some(Value::Integer(i64::from_be_bytes(bytes.try_into().ok()?))),
        Type::OID => Some(Value::Integer(u32::from_be_bytes(bytes.try_into().ok()?).into())),
        Type::FLOAT4 => Some(Value::Double(f32::from_be_bytes(bytes.try_into().ok()?).into())),
        Type::FLOAT8 => Some(Value::Double(f64::from_be_bytes(bytes.try_into().ok()?))),
        Type::NUMERIC => read_numeric(bytes).map(Value::Decimal),
        Type::BYTEA => Some(Value::Binary(bytes.to_vec())),
        Type::DATE => {
            let day = i32::from_be_bytes(bytes.try_into().ok()?).checked_add(EPOCH_DAYS)?;
            temporal(Temporal::Date, &|out| text::date(day, out))
        }
        Type::TIME => {
            let micros = i64::from_be_bytes(bytes.try_into().ok()?);
            temporal(Temporal::Time, &|out| text::time(micros, out))
        }
        Type::TIMESTAMP => {
            let micros = i64::from_be_bytes(bytes.try_into().ok()?).checked_add(EPOCH_MICROS)?;
            temporal(Temporal::Timestamp, &|out| text::timestamp(micros, out))
        }
        Type::TIMESTAMPTZ => {
            let micros = i64::from_be_bytes(bytes.try_into().ok()?).checked_add(EPOCH_MICROS)?;
            temporal(Temporal::TimestampTz, &|out| text::timestamp_tz(micros, &Zone::default(), out))
        }
        Type::INTERVAL => {
            let mut rest: &[u8] = bytes;
            if rest.len() != 16 {
                return None;
            }
            let (micros, days, months) = (rest.get_i64(), rest.get_i32(), rest.get_i32());
            let nanoseconds = micros.checked_mul(1000)?;
            temporal(Temporal::Interval, &|out| text::interval(IntervalMonthDayNano { months, days, nanoseconds }, out))
        }
        Type::UUID => {
            let bytes: [u8; 16] = bytes.try_into().ok()?;
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
            Some(Value::Text(parts.join("-")))
        }
        _ => match item_type(pg_type) {
            Some(item) => list(&item, bytes).map(Value::List),
            None => std::str::from_utf8(bytes).ok().map(|text| Value::Text(text.into())),
        },
    }
}

/// Decodes an array of one dimension, or an empty one.
fn list(item: &Type, mut rest: &[u8]) -> Option<Vec<Value>> {
    let word = |rest: &mut &[u8]| (rest.len() >= 4).then(|| rest.get_i32());
    let (dimensions, _, oid) = (word(&mut rest)?, word(&mut rest)?, word(&mut rest)? as u32);
    if dimensions == 0 {
        return rest.is_empty().then(Vec::new);
    }
    let (length, _) = (word(&mut rest)?, word(&mut rest)?);
    let length = usize::try_from(length).ok().filter(|length| *length <= MOST_ITEMS)?;
    if dimensions != 1 || oid != item.oid() {
        return None;
    }
    let mut values = Vec::new();
    for _ in 0..length {
        let bytes = word(&mut rest)?;
        match usize::try_from(bytes) {
            Err(_) => values.push(Value::Null),
            Ok(bytes) => {
                let one = rest.get(..bytes)?;
                rest = &rest[bytes..];
                values.push(of_binary(item, one)?);
            }
        }
    }
    rest.is_empty().then_some(values)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(pg_type: Type, text: &str) -> Option<Value> {
        value(1, pg_type.oid(), Format::Text, Some(text.as_bytes())).ok()
    }

    #[test]
    fn texts_are_read_as_their_types_are_written() {
        assert_eq!(text(Type::INT4, " 7"), Some(Value::Integer(7)));
        assert_eq!(text(Type::INT2, "70000"), None);
        assert_eq!(text(Type::BOOL, "Off"), Some(Value::Boolean(false)));
        assert_eq!(text(Type::FLOAT8, "-1.5e3"), Some(Value::Double(-1500.0)));
        assert_eq!(text(Type::FLOAT8, "0x10"), None);
        assert_eq!(text(Type::NUMERIC, "-1.25e3"), Some(Value::Decimal("-1250".into())));
        assert_eq!(text(Type::NUMERIC, "1.25e-3"), Some(Value::Decimal("0.00125".into())));
        assert_eq!(text(Type::NUMERIC, "12.50"), Some(Value::Decimal("12.50".into())));
        assert_eq!(text(Type::NUMERIC, "NaN"), None);
        assert_eq!(text(Type::BYTEA, "\\x0aFf"), Some(Value::Binary(vec![10, 255])));
        assert_eq!(text(Type::BYTEA, "a\\\\b\\001"), Some(Value::Binary(vec![b'a', b'\\', b'b', 1])));
        assert_eq!(text(Type::BYTEA, "\\x0"), None);
        assert_eq!(text(Type::TEXT, " it's "), Some(Value::Text(" it's ".into())));
    }

    /// pgjdbc sends these, and PostgreSQL accepts them.
    #[test]
    fn zones_say_nothing_where_there_is_none() {
        let temporal = |what, text: &str| Some(Value::Temporal(what, text.into()));
        assert_eq!(text(Type::DATE, "2024-02-29 +00"), temporal(Temporal::Date, "2024-02-29"));
        assert_eq!(text(Type::DATE, "29.2.2024"), temporal(Temporal::Date, "29.2.2024"));
        let noon = temporal(Temporal::Timestamp, "2024-02-29 12:00:00.5");
        assert_eq!(text(Type::TIMESTAMP, "2024-02-29 12:00:00.5+01"), noon);
        assert_eq!(text(Type::TIMESTAMP, "2024-02-29 12:00:00.5"), noon);
        assert_eq!(text(Type::TIMESTAMP, "2024-02-29"), temporal(Temporal::Timestamp, "2024-02-29"));
        assert_eq!(text(Type::TIME, "12:00:00-05:30"), temporal(Temporal::Time, "12:00:00"));
        assert_eq!(
            text(Type::TIMESTAMPTZ, "2024-02-29 12:00:00+01"),
            temporal(Temporal::TimestampTz, "2024-02-29 12:00:00+01")
        );
    }

    #[test]
    fn arrays_are_read_with_their_quotes() {
        let all = |values: Vec<Value>| Some(Value::List(values));
        assert_eq!(text(Type::INT4_ARRAY, "{1, 2,NULL}"), all(vec![1.into(), 2.into(), Value::Null]));
        assert_eq!(
            text(Type::TEXT_ARRAY, r#"{a,"b, \"c","NULL",""}"#),
            all(vec!["a".into(), "b, \"c".into(), "NULL".into(), "".into()])
        );
        assert_eq!(text(Type::TEXT_ARRAY, "{}"), all(vec![]));
        for wrong in ["", "{", "{1", "{1,}", "{{1},{2}}", "{\"a}", "{a}b}"] {
            assert_eq!(text(Type::TEXT_ARRAY, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn binary_values_of_another_length_are_none() {
        for pg_type in
            [Type::INT2, Type::INT4, Type::INT8, Type::FLOAT8, Type::DATE, Type::INTERVAL, Type::INT4_ARRAY, Type::BOOL]
        {
            for bytes in [&[][..], &[1, 2, 3], &[0; 17]] {
                assert!(value(1, pg_type.oid(), Format::Binary, Some(bytes)).is_err(), "{pg_type} {bytes:?}");
            }
        }
        assert_eq!(value(1, 25, Format::Binary, None).ok(), Some(Value::Null));
    }
}
