//! Builders for the columns of a COPY: texts, which are cast in batches, or PostgreSQL's binary
//! values, for all types of tables.

use std::sync::Arc;

use onehop_engine::arrow::array::{
    ArrayRef, BooleanBuilder, Date32Builder, Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder,
    StringBuilder, TimestampMicrosecondBuilder,
};
use onehop_engine::arrow::datatypes::{DataType, Field};

use crate::binary::{EPOCH_DAYS, EPOCH_MICROS, read_numeric};
use crate::problem::{Problem, code};
use crate::types::{pg_type, wire_type};

/// A column under construction. The result is cast to the type of the table's column.
#[derive(Debug)]
pub enum Column {
    Text(StringBuilder),
    Boolean(BooleanBuilder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    /// Digits. The scale differs from value to value.
    Numeric(StringBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
}

fn word<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

impl Column {
    /// Creates a builder of texts.
    pub fn of_texts() -> Self {
        Self::Text(StringBuilder::new())
    }

    /// Creates a builder of binary values for a table's column.
    ///
    /// # Errors
    /// Fails if the type has no binary form.
    pub fn of_binary(field: &Field) -> Result<Self, Problem> {
        let wire = wire_type(field.data_type());
        Ok(match &wire {
            DataType::Boolean => Self::Boolean(BooleanBuilder::new()),
            DataType::Int16 => Self::Int16(Int16Builder::new()),
            DataType::Int32 => Self::Int32(Int32Builder::new()),
            DataType::Int64 => Self::Int64(Int64Builder::new()),
            DataType::Float32 => Self::Float32(Float32Builder::new()),
            DataType::Float64 => Self::Float64(Float64Builder::new()),
            DataType::Decimal128(..) | DataType::Decimal256(..) => Self::Numeric(StringBuilder::new()),
            DataType::Utf8View => Self::of_texts(),
            DataType::Date32 => Self::Date(Date32Builder::new()),
            // Any zone of the type denotes the same moment.
            DataType::Timestamp(..) => Self::Timestamp(TimestampMicrosecondBuilder::new().with_data_type(wire.clone())),
            _ => {
                let (name, pg_type) = (field.name(), pg_type(&wire));
                let message = format!("column \"{name}\" cannot be copied in binary: it is of type {}", pg_type.name());
                return Err(Problem::error(code::FEATURE_NOT_SUPPORTED, message).with_hint("FORMAT text and csv can"));
            }
        })
    }

    /// Appends a text.
    pub fn push_text(&mut self, value: Option<String>) {
        if let Self::Text(builder) = self {
            builder.append_option(value);
        }
    }

    /// Appends a binary value or NULL. Returns `None` if the bytes are not a value of the type.
    pub fn push(&mut self, value: Option<&[u8]>) -> Option<()> {
        let Some(bytes) = value else {
            self.push_null();
            return Some(());
        };
        match self {
            Self::Text(builder) => builder.append_value(std::str::from_utf8(bytes).ok()?),
            Self::Boolean(builder) => builder.append_value(word::<1>(bytes)? != [0]),
            Self::Int16(builder) => builder.append_value(i16::from_be_bytes(word(bytes)?)),
            Self::Int32(builder) => builder.append_value(i32::from_be_bytes(word(bytes)?)),
            Self::Int64(builder) => builder.append_value(i64::from_be_bytes(word(bytes)?)),
            Self::Float32(builder) => builder.append_value(f32::from_be_bytes(word(bytes)?)),
            Self::Float64(builder) => builder.append_value(f64::from_be_bytes(word(bytes)?)),
            Self::Numeric(builder) => builder.append_value(read_numeric(bytes)?),
            Self::Date(builder) => builder.append_value(i32::from_be_bytes(word(bytes)?).checked_add(EPOCH_DAYS)?),
            Self::Timestamp(builder) => {
                builder.append_value(i64::from_be_bytes(word(bytes)?).checked_add(EPOCH_MICROS)?);
            }
        }
        Some(())
    }

    fn push_null(&mut self) {
        match self {
            Self::Text(builder) | Self::Numeric(builder) => builder.append_null(),
            Self::Boolean(builder) => builder.append_null(),
            Self::Int16(builder) => builder.append_null(),
            Self::Int32(builder) => builder.append_null(),
            Self::Int64(builder) => builder.append_null(),
            Self::Float32(builder) => builder.append_null(),
            Self::Float64(builder) => builder.append_null(),
            Self::Date(builder) => builder.append_null(),
            Self::Timestamp(builder) => builder.append_null(),
        }
    }

    /// Returns the column and starts a new one.
    pub fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Text(builder) | Self::Numeric(builder) => Arc::new(builder.finish()),
            Self::Boolean(builder) => Arc::new(builder.finish()),
            Self::Int16(builder) => Arc::new(builder.finish()),
            Self::Int32(builder) => Arc::new(builder.finish()),
            Self::Int64(builder) => Arc::new(builder.finish()),
            Self::Float32(builder) => Arc::new(builder.finish()),
            Self::Float64(builder) => Arc::new(builder.finish()),
            Self::Date(builder) => Arc::new(builder.finish()),
            Self::Timestamp(builder) => Arc::new(builder.finish()),
        }
    }
}
