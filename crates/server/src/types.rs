//! Types on both sides: Arrow's, as the engine has them, and PostgreSQL's, as clients know them by number.
//!
//! What PostgreSQL has not is sent as the next larger that it has: unsigned integers as the next wider signed ones, 64 bits of
//! them as numeric. Nanoseconds are cut to microseconds. What has no counterpart at all, such as a struct, is sent as text.

use std::sync::Arc;

use onehop_engine::arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use onehop_engine::{postgres_type, postgres_type_of};
use pgwire::api::Type;
use pgwire::messages::data::FieldDescription;
use postgres_types::Kind;

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

/// Whether clients are told the same of two types.
pub fn is_same(one: &DataType, other: &DataType) -> bool {
    let (one, other) = (wire_type(one), wire_type(other));
    one == other || postgres_type_of(&one) == postgres_type_of(&other)
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
    declared_of(&Type::from_oid(oid)?)
}

fn declared_of(pg_type: &Type) -> Option<DataType> {
    Some(match *pg_type {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 => DataType::Int32,
        Type::INT8 | Type::OID => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        // Its digits are its value's. What is told of such a column is that it is numeric: values are sent with those they have.
        Type::NUMERIC => DataType::Decimal128(18, 6),
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Microsecond),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
        Type::INTERVAL => DataType::Interval(IntervalUnit::MonthDayNano),
        Type::BYTEA => DataType::Binary,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME => DataType::Utf8,
        _ => match pg_type.kind() {
            Kind::Array(item) => DataType::List(Arc::new(Field::new("item", declared_of(item)?, true))),
            _ => return None,
        },
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
