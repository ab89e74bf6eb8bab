//! Types of JSON values, for columns and for values nested in them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};

use crate::pg_types::zone::Zone;

/// The maximum number of digits of a DECIMAL.
pub(super) const MOST_DIGITS: u8 = 38;

/// The type as which the values of a column are parsed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Boolean,
    Integer,
    /// Integers beyond BIGINT.
    LongInteger,
    Double,
    Date,
    /// Strings with timestamps. Those with an offset from UTC are moments.
    Timestamp {
        unit: TimeUnit,
        has_zone: bool,
    },
    /// Strings, and other values as JSON text.
    Text,
    /// The JSON text of values of several types. Strings have their quotes.
    Json,
    List(Box<Kind>),
    Struct(Vec<(String, Kind)>),
    /// Objects whose keys are values.
    Map(Box<Kind>),
    /// A type that the statement declares, in a session of this zone.
    Declared(DataType, Zone),
}

impl Kind {
    /// Returns the type of its columns.
    pub fn data_type(&self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::Integer => DataType::Int64,
            Self::LongInteger => DataType::Decimal128(MOST_DIGITS, 0),
            Self::Double => DataType::Float64,
            Self::Date => DataType::Date32,
            Self::Timestamp { unit, has_zone } => DataType::Timestamp(*unit, has_zone.then(|| "UTC".into())),
            Self::Text | Self::Json => DataType::Utf8,
            Self::List(element) => DataType::List(element_field(element)),
            Self::Struct(fields) => DataType::Struct(struct_fields(fields)),
            Self::Map(value) => DataType::Map(entries_field(value), false),
            Self::Declared(data_type, _) => data_type.clone(),
        }
    }
}

pub(super) fn element_field(element: &Kind) -> Arc<Field> {
    Arc::new(Field::new_list_field(element.data_type(), true))
}

pub(super) fn struct_fields(fields: &[(String, Kind)]) -> Fields {
    fields.iter().map(|(name, kind)| Field::new(name, kind.data_type(), true)).collect()
}

/// Returns the entries of a map, with the names that Arrow's builders use.
pub(super) fn entries_field(value: &Kind) -> Arc<Field> {
    let fields =
        Fields::from(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", value.data_type(), true)]);
    Arc::new(Field::new("entries", DataType::Struct(fields), false))
}
