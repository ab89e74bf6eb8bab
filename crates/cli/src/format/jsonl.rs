//! An object to a line (NDJSON), with the values of [`json`](super::json).

use onehop_engine::arrow::json::writer::LineDelimited;

use super::json::JsonRows;

/// The writer.
pub type JsonLines = JsonRows<LineDelimited>;
