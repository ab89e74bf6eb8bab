//! Column types by their SQL names: in the catalog, in DESCRIBE, in messages.

use arrow::datatypes::{DataType, TimeUnit};
use onehop_segment::ColumnType;

use super::definition::quoted;
use crate::{Error, ErrorKind, Result};

const SIMPLE: [(&str, ColumnType); 13] = [
    ("BOOLEAN", ColumnType::Boolean),
    ("TINYINT", ColumnType::Int8),
    ("SMALLINT", ColumnType::Int16),
    ("INTEGER", ColumnType::Int32),
    ("BIGINT", ColumnType::Int64),
    ("TINYINT UNSIGNED", ColumnType::UInt8),
    ("SMALLINT UNSIGNED", ColumnType::UInt16),
    ("INTEGER UNSIGNED", ColumnType::UInt32),
    ("BIGINT UNSIGNED", ColumnType::UInt64),
    ("REAL", ColumnType::Float32),
    ("DOUBLE", ColumnType::Float64),
    ("DATE", ColumnType::Date),
    ("VARCHAR", ColumnType::Varchar),
];

fn unit_digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

/// A type's SQL name.
pub(crate) fn type_name(column_type: &ColumnType) -> String {
    match column_type {
        ColumnType::Decimal { precision, scale } => format!("DECIMAL({precision},{scale})"),
        ColumnType::Timestamp { unit, zone: None } => format!("TIMESTAMP({})", unit_digits(*unit)),
        ColumnType::Timestamp { unit, zone: Some(zone) } => {
            format!("TIMESTAMP({}) WITH TIME ZONE '{zone}'", unit_digits(*unit))
        }
        simple => SIMPLE.iter().find(|(_, t)| t == simple).map_or_else(String::new, |(name, _)| (*name).to_string()),
    }
}

/// A name of [`type_name`] as it is written in a statement: SQL has no place for a zone, and that is UTC.
pub(crate) fn written(type_name: &str) -> &str {
    type_name.strip_suffix(" 'UTC'").unwrap_or(type_name)
}

/// The SQL name of any Arrow type, as near as there is one: of a list `BIGINT[]`, of a row
/// `STRUCT(a BIGINT, b VARCHAR)`.
pub fn sql_name(data_type: &DataType) -> String {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => format!("{}[]", sql_name(item.data_type())),
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| format!("{} {}", quoted(field.name()), sql_name(field.data_type())));
            format!("STRUCT({})", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let of = fields.iter().map(|field| sql_name(field.data_type()));
                format!("MAP({})", of.collect::<Vec<_>>().join(", "))
            }
            other => other.to_string(),
        },
        DataType::Time32(_) | DataType::Time64(_) => "TIME".into(),
        DataType::Interval(_) | DataType::Duration(_) => "INTERVAL".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "BYTEA".into()
        }
        DataType::Null => "NULL".into(),
        other => match ColumnType::of("", other) {
            Ok(column_type) => type_name(&column_type),
            Err(_) => other.to_string(),
        },
    }
}

/// The type of a SQL name that [`type_name`] wrote.
pub(crate) fn parse_type(name: &str) -> Result<ColumnType> {
    let unknown = || Error::new(ErrorKind::Corrupt, format!("the catalog names a type \"{name}\" that does not exist"));
    if let Some((_, simple)) = SIMPLE.iter().find(|(known, _)| *known == name) {
        return Ok(simple.clone());
    }
    if let Some(arguments) = name.strip_prefix("DECIMAL(").and_then(|rest| rest.strip_suffix(')')) {
        let (precision, scale) = arguments.split_once(',').ok_or_else(unknown)?;
        let (precision, scale) = (precision.parse().map_err(|_| unknown())?, scale.parse().map_err(|_| unknown())?);
        return Ok(ColumnType::Decimal { precision, scale });
    }
    let rest = name.strip_prefix("TIMESTAMP(").ok_or_else(unknown)?;
    let (digits, rest) = rest.split_once(')').ok_or_else(unknown)?;
    let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    let unit = units.into_iter().find(|unit| unit_digits(*unit).to_string() == digits).ok_or_else(unknown)?;
    let zone = match rest {
        "" => None,
        rest => {
            let zone = rest.strip_prefix(" WITH TIME ZONE '").and_then(|rest| rest.strip_suffix('\''));
            Some(zone.ok_or_else(unknown)?.into())
        }
    };
    Ok(ColumnType::Timestamp { unit, zone })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn names_come_back() {
        let mut types: Vec<ColumnType> = SIMPLE.into_iter().map(|(_, t)| t).collect();
        types.push(ColumnType::Decimal { precision: 15, scale: 2 });
        types.push(ColumnType::Decimal { precision: 38, scale: -3 });
        for unit in [TimeUnit::Second, TimeUnit::Nanosecond] {
            types.push(ColumnType::Timestamp { unit, zone: None });
            types.push(ColumnType::Timestamp { unit, zone: Some("+09:00".into()) });
        }
        for t in types {
            assert_eq!(parse_type(&type_name(&t)).unwrap(), t);
        }
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let fields = vec![
            Field::new("a", DataType::List(Arc::clone(&item)), true),
            Field::new("B c", DataType::Time64(TimeUnit::Microsecond), true),
        ];
        assert_eq!(sql_name(&DataType::LargeList(item)), "BIGINT[]");
        assert_eq!(sql_name(&DataType::Struct(fields.into())), "STRUCT(a BIGINT[], \"B c\" TIME)");
        assert!(parse_type("DECIMAL(x,2)").is_err());
        assert!(parse_type("GEOMETRY").is_err());
    }
}
