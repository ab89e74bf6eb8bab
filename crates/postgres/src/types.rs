//! The Arrow type that holds all values of a PostgreSQL type, and the conversion.

use arrow_schema::{DataType, IntervalUnit, TimeUnit};

/// The digits behind the point of a number whose type does not specify them.
const FREE_SCALE: i8 = 18;
/// The digits of a decimal of 128 bits, and of 256.
const MOST_DIGITS: i32 = 38;
const MOST_WIDE_DIGITS: i32 = 76;

/// The conversion of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The Arrow type of its values.
    pub data_type: DataType,
    /// The type that it is cast to in the query, if any.
    pub cast: Option<&'static str>,
}

fn as_it_is(data_type: DataType) -> Option<Reading> {
    Some(Reading { data_type, cast: None })
}

/// Returns the conversion of a column, by its type's number, its modifier and its category. Returns
/// `None` for unsupported types: arrays.
pub(crate) fn reading(oid: u32, modifier: i32, category: &str) -> Option<Reading> {
    match oid {
        16 => as_it_is(DataType::Boolean),
        21 => as_it_is(DataType::Int16),
        23 => as_it_is(DataType::Int32),
        20 => as_it_is(DataType::Int64),
        26 => Some(Reading { data_type: DataType::Int64, cast: Some("pg_catalog.int8") }),
        700 => as_it_is(DataType::Float32),
        701 => as_it_is(DataType::Float64),
        1700 => as_it_is(numeric(modifier)),
        // Also json, which is kept as it was written.
        25 | 1043 | 114 => as_it_is(DataType::Utf8View),
        17 => as_it_is(DataType::Binary),
        1082 => as_it_is(DataType::Date32),
        1083 => as_it_is(DataType::Time64(TimeUnit::Microsecond)),
        1114 => as_it_is(DataType::Timestamp(TimeUnit::Microsecond, None)),
        1184 => as_it_is(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        1186 => as_it_is(DataType::Interval(IntervalUnit::MonthDayNano)),
        _ if category == "A" => None,
        // Fixed-length strings lose their insignificant blanks; jsonb, uuid, enumerations and all
        // others are in PostgreSQL's text form.
        _ => Some(Reading { data_type: DataType::Utf8View, cast: Some("pg_catalog.text") }),
    }
}

/// Returns the type of a number with the digits of its modifier, or the largest one.
fn numeric(modifier: i32) -> DataType {
    if modifier < 4 {
        return DataType::Decimal128(38, FREE_SCALE);
    }
    let (precision, scale) = ((modifier - 4) >> 16, (((modifier - 4) & 0x7ff) ^ 1024) - 1024);
    // Zeros before the point that the type does not keep, or digits behind it that are always
    // zeros.
    let (precision, scale) = match scale {
        ..0 => (precision - scale, 0),
        _ => (precision.max(scale), scale),
    };
    match precision {
        ..=MOST_DIGITS => DataType::Decimal128(precision as u8, scale as i8),
        _ if precision <= MOST_WIDE_DIGITS => DataType::Decimal256(precision as u8, scale as i8),
        _ => DataType::Decimal256(76, scale.min(MOST_DIGITS) as i8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modifier(precision: i32, scale: i32) -> i32 {
        ((precision << 16) | (scale & 0x7ff)) + 4
    }

    #[test]
    fn numbers_have_room_for_all_that_their_types_allow() {
        for ((precision, scale), expected) in [
            ((15, 2), DataType::Decimal128(15, 2)),
            ((38, 38), DataType::Decimal128(38, 38)),
            ((39, 0), DataType::Decimal256(39, 0)),
            ((5, -2), DataType::Decimal128(7, 0)),
            ((3, 5), DataType::Decimal128(5, 5)),
            ((1000, 100), DataType::Decimal256(76, 38)),
        ] {
            assert_eq!(numeric(modifier(precision, scale)), expected, "numeric({precision}, {scale})");
        }
        assert_eq!(numeric(-1), DataType::Decimal128(38, 18));
    }

    #[test]
    fn arrays_are_refused_and_what_nobody_knows_is_text() {
        assert_eq!(reading(1007, -1, "A"), None);
        assert_eq!(reading(2950, -1, "U").and_then(|reading| reading.cast), Some("pg_catalog.text"));
        assert_eq!(reading(999_999, -1, "E").map(|reading| reading.data_type), Some(DataType::Utf8View));
    }
}
