//! Types on both sides: Arrow's, as the engine has them, and PostgreSQL's, as clients know them by
//! OID.
//!
//! A type that PostgreSQL lacks is sent as its next larger one: unsigned integers as the next wider
//! signed ones, and 64-bit ones as numeric. Nanoseconds are truncated to microseconds. A type
//! without a counterpart, such as a struct, is sent as text.

use std::sync::Arc;

use onehop_engine::arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use onehop_engine::{postgres_type, postgres_type_of};
use pgwire::api::Type;
use pgwire::messages::data::FieldDescription;
use postgres_types::Kind;

/// Returns the Arrow type that values are converted to before they are sent: one that
/// [`encode`](crate::encode) supports.
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

/// Returns the PostgreSQL type that values of a type are sent as.
pub fn pg_type(data_type: &DataType) -> Type {
    u32::try_from(postgres_type_of(data_type).0).ok().and_then(Type::from_oid).unwrap_or(Type::TEXT)
}

/// Returns true if clients see two types as the same.
pub fn is_same(one: &DataType, other: &DataType) -> bool {
    let (one, other) = (wire_type(one), wire_type(other));
    one == other || postgres_type_of(&one) == postgres_type_of(&other)
}

/// Returns the description of a column for clients.
pub fn description(field: &Field, format: i16) -> FieldDescription {
    let wire = wire_type(field.data_type());
    let (oid, modifier) = postgres_type_of(&wire);
    let size = postgres_type(oid).map_or(-1, |known| known.size);
    FieldDescription::new(field.name().clone(), 0, 0, pg_type(&wire).oid(), size, modifier, format)
}

/// Returns the type of a parameter by the OID that a client gives, or `None` if any type is
/// permitted.
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
        // A parameter keeps the scale of its value. Such a column is announced as numeric, and
        // values are sent with their own scale.
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

/// Returns the OID of a parameter's type: the client's declaration, or else the inferred type.
pub fn parameter(declared: u32, inferred: Option<&DataType>) -> u32 {
    let unknown = declared == 0 || declared == Type::UNKNOWN.oid();
    match inferred {
        _ if !unknown => declared,
        Some(data_type) => pg_type(&wire_type(data_type)).oid(),
        None => Type::TEXT.oid(),
    }
}
