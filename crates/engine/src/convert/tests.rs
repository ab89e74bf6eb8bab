//! Results equal those of PostgreSQL 15.18, unless a case says otherwise.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, DictionaryArray, Int32Array, StringArray, StringViewArray};
use arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::*;
use crate::pg_types::zone::Zone;

fn shown_value(text: &str, target: &DataType, zone: Zone) -> String {
    match parse_value(text, target, zone) {
        Ok(value) => {
            let array = value.to_array().unwrap();
            ArrayFormatter::try_new(&array, &FormatOptions::default()).unwrap().value(0).to_string()
        }
        Err(error) => error.rule().map_or_else(|| error.to_string(), |rule| format!("{rule:?}")),
    }
}

#[test]
fn numbers_and_truths() {
    let decimal = DataType::Decimal128(10, 2);
    for (text, target, expected) in [
        ("tr", DataType::Boolean, "true"),
        (" OFF ", DataType::Boolean, "false"),
        ("o", DataType::Boolean, "Form"),
        ("2", DataType::Boolean, "Form"),
        (" +1\n", DataType::Int32, "1"),
        ("-2147483648", DataType::Int32, "-2147483648"),
        ("2147483648", DataType::Int32, "Range"),
        ("1.0", DataType::Int32, "Form"),
        ("0x10", DataType::Int32, "Form"),
        ("18446744073709551615", DataType::UInt64, "18446744073709551615"),
        ("000000000000000000000000000000000000000001", DataType::Int8, "1"),
        ("1e400", DataType::Float64, "Range"),
        ("1e-400", DataType::Float64, "Range"),
        ("0e-400", DataType::Float64, "0.0"),
        ("-inf", DataType::Float64, "-inf"),
        ("3.14159265358979323846", DataType::Float64, "3.141592653589793"),
        ("1e39", DataType::Float32, "Range"),
        ("1.005", decimal.clone(), "1.01"),
        ("-1.005", decimal.clone(), "-1.01"),
        ("1.00499999999999999999999999999999999999999999999999", decimal.clone(), "1.00"),
        ("1e3", decimal.clone(), "1000.00"),
        ("1E-10", decimal.clone(), "0.00"),
        ("5e-3", decimal.clone(), "0.01"),
        ("0.0005e1", decimal.clone(), "0.01"),
        ("99999999.995", decimal.clone(), "Range"),
        ("0e1000", decimal.clone(), "0.00"),
        ("1e1000", decimal.clone(), "Range"),
        ("1e99999999999999999999", decimal.clone(), "Range"),
        (".", decimal.clone(), "Form"),
        ("5.", decimal.clone(), "5.00"),
        ("NaN", decimal, "Form"),
    ] {
        assert_eq!(shown_value(text, &target, Zone::Utc), expected, "{text} as {target}");
    }
}

#[test]
fn dates_and_times() {
    let time = DataType::Time64(TimeUnit::Nanosecond);
    for (text, target, expected) in [
        ("2024-2-3", DataType::Date32, "2024-02-03"),
        ("2024/02/03", DataType::Date32, "2024-02-03"),
        ("20240203", DataType::Date32, "2024-02-03"),
        (" 2024-02-03 10:00+02 ", DataType::Date32, "2024-02-03"),
        ("2024-02-30", DataType::Date32, "Moment"),
        ("2024-02-03+02", DataType::Date32, "2024-02-03"),
        ("2024-02-03-02", DataType::Date32, "Moment"),
        ("20240203-0530", DataType::Date32, "Moment"),
        ("2024/02/03-12:30", DataType::Date32, "2024-02-03"),
        ("0000-01-01", DataType::Date32, "Moment"),
        ("44-03-15", DataType::Date32, "Moment"),
        ("2024-02-03x", DataType::Date32, "Moment"),
        ("2024-2/3", DataType::Date32, "Moment"),
        ("11", time.clone(), "Moment"),
        ("1:2:3", time.clone(), "01:02:03"),
        ("112233", time.clone(), "11:22:33"),
        ("11:22:33.9999999", time.clone(), "11:22:34"),
        ("11:22 PM", time.clone(), "23:22:00"),
        ("11:22 PM+02", time.clone(), "23:22:00"),
        ("12:00 am+0530", time.clone(), "00:00:00"),
        ("11:22 PM-02", time.clone(), "Moment"),
        ("2024-01-01 11:22:33-05", time.clone(), "11:22:33"),
        ("24:00:01", time.clone(), "Moment"),
        ("23:59:60.5", time.clone(), "Moment"),
        ("11:22:33,5", time, "Moment"),
    ] {
        assert_eq!(shown_value(text, &target, Zone::Utc), expected, "{text} as {target}");
    }
}

#[test]
fn timestamps_and_zones() {
    let plain = |unit| DataType::Timestamp(unit, None);
    let moment = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let micro = plain(TimeUnit::Microsecond);
    for (text, target, expected) in [
        ("2024-02-03 10:11", &micro, "2024-02-03T10:11:00"),
        ("2024-02-03 10:11:12+02", &micro, "2024-02-03T10:11:12"),
        ("2024-02-03 10:11:12 America/New_York", &micro, "2024-02-03T10:11:12"),
        ("2024-02-03 10:11:12 Mars/Olympus", &micro, "Moment"),
        ("2024-02-03 24:00", &micro, "2024-02-04T00:00:00"),
        ("2024-02-03 10:11:12.9999999", &micro, "2024-02-03T10:11:13"),
        ("2024-02-03 10:11:12.1234567", &plain(TimeUnit::Nanosecond), "2024-02-03T10:11:12.123456700"),
        ("2024-01-01 10:00:00.9999", &plain(TimeUnit::Millisecond), "2024-01-01T10:00:01"),
        ("1999-12-31 23:59:58.5", &plain(TimeUnit::Second), "1999-12-31T23:59:58"),
        ("2000-01-01 00:00:00.5", &plain(TimeUnit::Second), "2000-01-01T00:00:01"),
        ("294248-01-01", &micro, "Moment"),
        ("20240203T101112", &micro, "2024-02-03T10:11:12"),
        ("2024-07-03 12:00", &moment, "2024-07-03T10:00:00Z"),
        ("2024-01-03 12:00", &moment, "2024-01-03T11:00:00Z"),
        ("2124-07-03 12:00", &moment, "2124-07-03T10:00:00Z"),
        ("2026-10-25 02:30", &moment, "2026-10-25T01:30:00Z"),
        ("2026-03-29 02:30", &moment, "2026-03-29T01:30:00Z"),
        ("2024-02-03 10:11:12 -02:30", &moment, "2024-02-03T12:41:12Z"),
        ("2024-07-03 10:11:12 EST", &moment, "2024-07-03T15:11:12Z"),
        ("2024-02-03 10:11:12 UTC+2", &moment, "2024-02-03T12:11:12Z"),
        ("2024-02-03+02", &moment, "2024-02-02T22:00:00Z"),
        ("2024-02-03-0530", &moment, "Moment"),
        ("2024-02-03 11:30 PM+02", &moment, "2024-02-03T21:30:00Z"),
        ("2024-02-03 10:11:12z", &moment, "2024-02-03T10:11:12Z"),
        ("2024-02-03 10:11:12+16", &moment, "Moment"),
    ] {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(shown_value(text, target, berlin), expected, "{text} as {target}");
    }
}

#[test]
fn columns_of_all_kinds_of_strings() {
    let texts = [Some("1"), None, Some("x"), Some("3")];
    let arrays: [ArrayRef; 3] = [
        Arc::new(StringArray::from(texts.to_vec())),
        Arc::new(StringViewArray::from(texts.to_vec())),
        Arc::new(texts.into_iter().collect::<DictionaryArray<arrow::datatypes::Int8Type>>()),
    ];
    for strings in arrays {
        let parsed = parse_column(&strings, &DataType::Int32, Zone::Utc, OnError::Null).unwrap();
        assert_eq!(parsed.as_ref(), &Int32Array::from(vec![Some(1), None, None, Some(3)]) as &dyn Array);
        let error = parse_column(&strings, &DataType::Int32, Zone::Utc, OnError::Fail).unwrap_err();
        assert!(error.to_string().contains("'x' is no INTEGER"), "{error}");
    }
    let interval = DataType::Interval(IntervalUnit::MonthDayNano);
    assert_eq!(shown_value("5 bananas", &interval, Zone::Utc), "Moment");
}
