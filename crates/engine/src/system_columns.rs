//! Columns of system tables, of values in the order of their rows.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray};

/// A column of strings.
pub(crate) fn text<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// A column of strings, some of which are NULL.
pub(crate) fn optional_text(values: impl IntoIterator<Item = Option<String>>) -> ArrayRef {
    Arc::new(StringArray::from_iter(values))
}

/// A column of counts.
pub(crate) fn numbers(values: impl IntoIterator<Item = u64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values.into_iter().map(|n| n as i64)))
}

/// A column of points in time. Those before 1970 become 1970-01-01.
pub(crate) fn moments(values: impl IntoIterator<Item = Option<SystemTime>>) -> ArrayRef {
    let micros = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
    let times = values.into_iter().map(|time| time.map(micros));
    Arc::new(TimestampMicrosecondArray::from_iter(times).with_timezone("UTC"))
}
