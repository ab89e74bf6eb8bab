//! SQL names of types: in the catalog, in DESCRIBE, in messages.

use arrow::datatypes::{DataType, TimeUnit};
use onehop_segment::ColumnType;

use crate::identifiers::quoted;

/// Types whose names have no arguments.
pub(crate) const SIMPLE: [(&str, ColumnType); 13] = [
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

/// Digits of a unit's fraction of a second.
pub(crate) fn unit_digits(unit: TimeUnit) -> u8 {
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
