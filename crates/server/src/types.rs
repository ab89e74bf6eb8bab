//! Types on both sides: Arrow's, as the engine has them, and PostgreSQL's, as clients know them by number.
//!
//! What PostgreSQL has not is sent as the next larger that it has: unsigned integers as the next wider signed ones, 64 bits of
//! them as numeric. Nanoseconds are cut to microseconds. What has no counterpart at all, such as a struct, is sent as text.

use std::sync::Arc;

use onehop_engine::arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use onehop_engine::{postgres_type, postgres_type_of};
use pgwire::api::Type;
use pgwire::messages::data::FieldDescription;

/// The Arrow type that values are brought into before they are sent: one that [`encode`](crate::encode) knows.
pub fn wire_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 => DataType::Float32,
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => DataType::Decimal128(*p, *s),
        DataType::Date64 => DataType::Date32,
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Interval(_) | DataType::Duration(_) => DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Dictionary(_, values) => wire_type(values),
        DataType::RunEndEncoded(_, values) => wire_type(values.data_type()),
        DataType::LargeUtf8 | DataType::Utf8 => DataType::Utf8View,
        DataType::LargeBinary | DataType::Binary | DataType::FixedSizeBinary(_) => DataType::BinaryView,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let inner = wire_type(item.data_type());
            DataType::List(Arc::new(Field::new("item", inner, true)))
        }
        other => other.clone(),
    }
}

/// The type of PostgreSQL's that values of such a type are sent as.
pub fn pg_type(data_type: &DataType) -> Type {
    u32::try_from(postgres_type_of(data_type).0).ok().and_then(Type::from_oid).unwrap_or(Type::TEXT)
}

/// A column of rows, as clients are told of it.
pub fn description(field: &Field, format: i16) -> FieldDescription {
    let wire = wire_type(field.data_type());
    let (oid, modifier) = postgres_type_of(&wire);
    let size = postgres_type(oid).map_or(-1, |known| known.size);
    FieldDescription::new(field.name().clone(), 0, 0, pg_type(&wire).oid(), size, modifier, format)
}

/// The type of a parameter, by the number of PostgreSQL's that a client gives; `None` if it may be of any.
pub fn declared(oid: u32) -> Option<DataType> {
    let of = |pg_type: &Type| pg_type.oid() == oid;
    let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
    Some(match oid {
        _ if of(&Type::BOOL) => DataType::Boolean,
        _ if of(&Type::INT2) => DataType::Int16,
        _ if of(&Type::INT4) => DataType::Int32,
        _ if of(&Type::INT8) || of(&Type::OID) => DataType::Int64,
        _ if of(&Type::FLOAT4) => DataType::Float32,
        _ if of(&Type::FLOAT8) => DataType::Float64,
        _ if of(&Type::DATE) => DataType::Date32,
        _ if of(&Type::TIME) => DataType::Time64(TimeUnit::Microsecond),
        _ if of(&Type::TIMESTAMP) => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ if of(&Type::TIMESTAMPTZ) => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        _ if of(&Type::INTERVAL) => DataType::Interval(IntervalUnit::MonthDayNano),
        _ if of(&Type::BYTEA) => DataType::Binary,
        _ if of(&Type::TEXT) || of(&Type::VARCHAR) || of(&Type::BPCHAR) || of(&Type::NAME) => DataType::Utf8,
        _ if of(&Type::INT2_ARRAY) => list(DataType::Int16),
        _ if of(&Type::INT4_ARRAY) => list(DataType::Int32),
        _ if of(&Type::INT8_ARRAY) => list(DataType::Int64),
        _ if of(&Type::FLOAT8_ARRAY) => list(DataType::Float64),
        _ if of(&Type::TEXT_ARRAY) || of(&Type::VARCHAR_ARRAY) => list(DataType::Utf8),
        // A numeric's scale is its value's.
        _ => return None,
    })
}

/// The number of a parameter's type: what the client has said, or what the statement says.
pub fn parameter(declared: u32, inferred: Option<&DataType>) -> u32 {
    let unknown = declared == 0 || declared == Type::UNKNOWN.oid();
    match inferred {
        _ if !unknown => declared,
        Some(data_type) => pg_type(&wire_type(data_type)).oid(),
        None => Type::TEXT.oid(),
    }
}
