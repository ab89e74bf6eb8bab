//! Values as text, the same in each textual format. Decimals have all their digits. Dates, times,
//! intervals, bytes, lists, structs and maps are written as `CAST(x AS VARCHAR)` writes them. An
//! inner NULL therefore differs from an empty string, and a load restores the same values. A value
//! without a textual form is an error of its statement.

use std::fmt::Write;

use onehop_engine::arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use onehop_engine::arrow::buffer::NullBuffer;
use onehop_engine::arrow::datatypes::{DataType, Field, TimeUnit};
use onehop_engine::arrow::util::display::{ArrayFormatter, FormatOptions};
use onehop_engine::value_texts;

use crate::exit::Stop;

const OPTIONS: FormatOptions<'static> = FormatOptions::new()
    .with_display_error(false)
    .with_datetime_format(Some("%Y-%m-%d %H:%M:%S%.f"))
    .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
    .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"));

/// One column of a batch.
pub struct Column<'a> {
    nulls: Option<NullBuffer>,
    texts: Texts<'a>,
}

enum Texts<'a> {
    /// Formatted by Arrow.
    Formatted(ArrayFormatter<'a>),
    /// Cast by the engine.
    Cast(StringArray),
}

/// Returns the columns of a batch.
pub fn columns(batch: &RecordBatch) -> Result<Vec<Column<'_>>, Stop> {
    batch.columns().iter().map(Column::new).collect()
}

impl<'a> Column<'a> {
    fn new(array: &'a ArrayRef) -> Result<Self, Stop> {
        let texts = match is_cast(array.data_type()) {
            true => Texts::Cast(value_texts(array)?),
            false => Texts::Formatted(ArrayFormatter::try_new(array, &OPTIONS)?),
        };
        Ok(Self { nulls: array.logical_nulls(), texts })
    }

    /// Replaces `text` with the value's text. Returns `false` if the value is NULL.
    pub fn read(&self, row: usize, text: &mut String) -> Result<bool, Stop> {
        text.clear();
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(false);
        }
        match &self.texts {
            Texts::Formatted(formatter) => formatter.value(row).write(text)?,
            Texts::Cast(texts) => text.push_str(texts.value(row)),
        }
        Ok(true)
    }
}

/// Returns true if the engine formats values of a type.
fn is_cast(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, value) => is_cast(value),
        DataType::RunEndEncoded(_, value) => is_cast(value.data_type()),
        DataType::Union(..) => false,
        kind => kind.is_nested() || kind.is_temporal() || is_binary(kind),
    }
}

fn is_binary(kind: &DataType) -> bool {
    matches!(kind, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

/// Returns true if values are numbers, which are right-aligned.
pub fn is_number(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, value) => is_number(value),
        other => other.is_numeric(),
    }
}

/// Returns the SQL name of a type.
pub fn sql_type(kind: &DataType) -> String {
    match kind {
        DataType::Null => "null".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Int8 => "tinyint".into(),
        DataType::Int16 => "smallint".into(),
        DataType::Int32 => "integer".into(),
        DataType::Int64 => "bigint".into(),
        DataType::UInt8 => "tinyint unsigned".into(),
        DataType::UInt16 => "smallint unsigned".into(),
        DataType::UInt32 => "integer unsigned".into(),
        DataType::UInt64 => "bigint unsigned".into(),
        DataType::Float16 | DataType::Float32 => "real".into(),
        DataType::Float64 => "double".into(),
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => format!("decimal({p},{s})"),
        DataType::Decimal128(p, s) | DataType::Decimal256(p, s) => format!("decimal({p},{s})"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "varchar".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "bytea".into()
        }
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Time32(_) | DataType::Time64(_) => "time".into(),
        DataType::Timestamp(unit, zone) => timestamp(*unit, zone.is_some()),
        DataType::Interval(_) | DataType::Duration(_) => "interval".into(),
        DataType::Dictionary(_, value) => sql_type(value),
        DataType::RunEndEncoded(_, value) => sql_type(value.data_type()),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => list(item),
        DataType::ListView(item) | DataType::LargeListView(item) => list(item),
        DataType::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|f| format!("{} {}", f.name(), sql_type(f.data_type()))).collect();
            format!("struct({})", fields.join(", "))
        }
        DataType::Map(..) => "map".into(),
        DataType::Union(..) => "union".into(),
    }
}

fn list(item: &Field) -> String {
    format!("{}[]", sql_type(item.data_type()))
}

fn timestamp(unit: TimeUnit, has_zone: bool) -> String {
    let digits = match unit {
        TimeUnit::Second => "(0)",
        TimeUnit::Millisecond => "(3)",
        TimeUnit::Microsecond => "",
        TimeUnit::Nanosecond => "(9)",
    };
    format!("timestamp{digits}{}", if has_zone { " with time zone" } else { "" })
}

/// Appends `text` with everything escaped that would move a cursor, ring a bell or change the
/// reading direction, so that data cannot imitate its surroundings. Stops once `limit` characters
/// are written.
pub fn escape(text: &str, limit: usize, out: &mut String) {
    let mut left = limit;
    for c in text.chars() {
        if left == 0 {
            return;
        }
        left -= 1;
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if turns_direction(c) => out.extend(c.escape_unicode()),
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

/// Returns true for Unicode's bidirectional controls and its line and paragraph separators.
fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
