//! Column types, and the one integer domain in which fixed-width values are encoded.
//!
//! Every fixed-width value has a **key**, a signed integer in the same order as the values:
//!
//! | type | key |
//! |---|---|
//! | boolean | 0, 1 |
//! | signed integers, date, timestamp, decimal | the (unscaled) value |
//! | unsigned integers | the value; for 64 bits with the top bit flipped |
//! | float, double | the bits, all but the sign flipped if negative: IEEE 754's total order |
//!
//! Encodings, dictionaries and zone maps use keys only. Keys are 64-bit except for decimals that
//! need more.

use std::sync::Arc;

use arrow_schema::{DataType, TimeUnit};

use crate::Error;

/// The type of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// `BOOLEAN`
    Boolean,
    /// `TINYINT`
    Int8,
    /// `SMALLINT`
    Int16,
    /// `INTEGER`
    Int32,
    /// `BIGINT`
    Int64,
    /// `TINYINT UNSIGNED`
    UInt8,
    /// `SMALLINT UNSIGNED`
    UInt16,
    /// `INTEGER UNSIGNED`
    UInt32,
    /// `BIGINT UNSIGNED`
    UInt64,
    /// `REAL`
    Float32,
    /// `DOUBLE`
    Float64,
    /// `DECIMAL(precision, scale)`
    Decimal {
        /// The total number of digits, 1 to 38.
        precision: u8,
        /// The number of digits after the point.
        scale: i8,
    },
    /// `DATE`: days since 1970-01-01
    Date,
    /// `TIMESTAMP`: units since 1970-01-01T00:00:00, in UTC if there is a zone
    Timestamp {
        /// Seconds to nanoseconds.
        unit: TimeUnit,
        /// The zone in which it is shown.
        zone: Option<Arc<str>>,
    },
    /// `VARCHAR`: UTF-8
    Varchar,
}

impl ColumnType {
    /// Returns the type that stores an Arrow column.
    ///
    /// # Errors
    /// [`Error::Type`] for types that the format cannot store.
    pub fn of(column: &str, data_type: &DataType) -> Result<Self, Error> {
        Ok(match data_type {
            DataType::Boolean => Self::Boolean,
            DataType::Int8 => Self::Int8,
            DataType::Int16 => Self::Int16,
            DataType::Int32 => Self::Int32,
            DataType::Int64 => Self::Int64,
            DataType::UInt8 => Self::UInt8,
            DataType::UInt16 => Self::UInt16,
            DataType::UInt32 => Self::UInt32,
            DataType::UInt64 => Self::UInt64,
            DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            DataType::Decimal128(precision, scale) => Self::Decimal { precision: *precision, scale: *scale },
            DataType::Date32 => Self::Date,
            DataType::Timestamp(unit, zone) => Self::Timestamp { unit: *unit, zone: zone.clone() },
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Varchar,
            other => return Err(Error::Type { column: column.to_string(), data_type: other.clone() }),
        })
    }

    /// Returns the Arrow type that the reader returns.
    pub fn arrow(&self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt8 => DataType::UInt8,
            Self::UInt16 => DataType::UInt16,
            Self::UInt32 => DataType::UInt32,
            Self::UInt64 => DataType::UInt64,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
            Self::Decimal { precision, scale } => DataType::Decimal128(*precision, *scale),
            Self::Date => DataType::Date32,
            Self::Timestamp { unit, zone } => DataType::Timestamp(*unit, zone.clone()),
            Self::Varchar => DataType::Utf8View,
        }
    }

    /// Returns true if values are stored as UTF-8 bytes rather than keys.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Varchar)
    }

    /// Returns the bytes of a value stored plainly, for the types that support it.
    pub(crate) fn plain_bytes(&self) -> Option<usize> {
        match self {
            Self::Float32 => Some(4),
            Self::Float64 => Some(8),
            _ => None,
        }
    }
}

/// Returns the key of a double. Keys compare as IEEE 754's total order.
pub fn f64_key(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// Returns the double of a key.
pub fn f64_of_key(key: i64) -> f64 {
    f64::from_bits((key ^ (((key >> 63) as u64) >> 1) as i64) as u64)
}

/// Returns the key of a float.
pub fn f32_key(value: f32) -> i64 {
    let bits = value.to_bits() as i32;
    i64::from(bits ^ (((bits >> 31) as u32) >> 1) as i32)
}

/// Returns the float of a key.
pub fn f32_of_key(key: i64) -> f32 {
    let key = key as i32;
    f32::from_bits((key ^ (((key >> 31) as u32) >> 1) as i32) as u32)
}

/// Returns the key of an unsigned 64-bit integer.
pub fn u64_key(value: u64) -> i64 {
    (value ^ (1 << 63)) as i64
}

/// Returns the unsigned 64-bit integer of a key.
pub fn u64_of_key(key: i64) -> u64 {
    key as u64 ^ (1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_keep_values_and_order(a: u64, b: u64) {
            prop_assert_eq!(u64_of_key(u64_key(a)), a);
            prop_assert_eq!(u64_key(a).cmp(&u64_key(b)), a.cmp(&b));
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            prop_assert_eq!(f64_of_key(f64_key(x)).to_bits(), a);
            prop_assert_eq!(f64_key(x).cmp(&f64_key(y)), x.total_cmp(&y));
            let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            prop_assert_eq!(f32_of_key(f32_key(x)).to_bits(), a as u32);
            prop_assert_eq!(f32_key(x).cmp(&f32_key(y)), x.total_cmp(&y));
        }
    }
}
