//! Types on both sides: Arrow's, as the engine has them, and PostgreSQL's, as clients know them by number.
//!
//! What PostgreSQL has not is sent as the next larger that it has: unsigned integers as the next wider signed ones, 64 bits of
//! them as numeric. Nanoseconds are cut to microseconds. What has no counterpart at all, such as a struct, is sent as text.

use std::sync::Arc;

use onehop_engine::arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
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

/// PostgreSQL's type of a [`wire_type`].
pub fn pg_type(data_type: &DataType) -> Type {
    match data_type {
        DataType::Boolean => Type::BOOL,
        DataType::Int16 => Type::INT2,
        DataType::Int32 => Type::INT4,
        DataType::Int64 => Type::INT8,
        DataType::Float32 => Type::FLOAT4,
        DataType::Float64 => Type::FLOAT8,
        DataType::Decimal128(..) | DataType::Decimal256(..) => Type::NUMERIC,
        DataType::BinaryView => Type::BYTEA,
        DataType::Date32 => Type::DATE,
        DataType::Time64(_) => Type::TIME,
        DataType::Timestamp(_, None) => Type::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => Type::TIMESTAMPTZ,
        DataType::Interval(_) => Type::INTERVAL,
        DataType::List(item) => array_of(&pg_type(item.data_type())),
        _ => Type::TEXT,
    }
}

fn array_of(item: &Type) -> Type {
    match *item {
        Type::BOOL => Type::BOOL_ARRAY,
        Type::INT2 => Type::INT2_ARRAY,
        Type::INT4 => Type::INT4_ARRAY,
        Type::INT8 => Type::INT8_ARRAY,
        Type::FLOAT4 => Type::FLOAT4_ARRAY,
        Type::FLOAT8 => Type::FLOAT8_ARRAY,
        Type::NUMERIC => Type::NUMERIC_ARRAY,
        Type::BYTEA => Type::BYTEA_ARRAY,
        Type::DATE => Type::DATE_ARRAY,
        Type::TIME => Type::TIME_ARRAY,
        Type::TIMESTAMP => Type::TIMESTAMP_ARRAY,
        Type::TIMESTAMPTZ => Type::TIMESTAMPTZ_ARRAY,
        Type::INTERVAL => Type::INTERVAL_ARRAY,
        // Lists of lists are arrays of the innermost type.
        ref list if list.name().starts_with('_') => list.clone(),
        _ => Type::TEXT_ARRAY,
    }
}

/// Bytes of a value; -1 where they differ from one to the next.
fn size(pg_type: &Type) -> i16 {
    match *pg_type {
        Type::BOOL => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::DATE => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ => 8,
        Type::INTERVAL => 16,
        _ => -1,
    }
}

/// What PostgreSQL keeps of a type's arguments: precision and scale of a numeric.
fn modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            ((i32::from(*precision) << 16) | (i32::from(*scale) & 0x7ff)) + 4
        }
        _ => -1,
    }
}

/// A column of rows, as clients are told of it.
pub fn description(field: &Field, format: i16) -> FieldDescription {
    let wire = wire_type(field.data_type());
    let pg_type = pg_type(&wire);
    FieldDescription::new(field.name().clone(), 0, 0, pg_type.oid(), size(&pg_type), modifier(&wire), format)
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
