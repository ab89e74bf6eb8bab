//! Conversion of fields to Arrow columns: a chunk's records are divided once, then each column is
//! converted separately.
//!
//! Invariant: a value is read exactly in its column's type, or refused with its position. A column
//! with an inferred type accepts only the forms from which it was inferred ([`forms`]): `007` is
//! not a BIGINT, and a time is not a DATE. A declared column accepts the forms of `CAST` and
//! `INSERT`: [`ColumnParser`].

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Decimal128Array, LargeStringBuilder, NullBufferBuilder, PrimitiveArray,
    RecordBatch, RecordBatchOptions, StringBuilder, StringViewBuilder, new_null_array,
};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float64Type, Int64Type, SchemaRef, TimeUnit,
    TimestampMicrosecondType, TimestampNanosecondType,
};

use super::fault::Fault;
use super::fields::{self, Ends, FieldForm, field};
use super::forms::{self, Order, trimmed};
use super::records::{Chunk, lines};
use super::{Dialect, Types};
use crate::convert::{ColumnParser, Misfit};
use crate::files::{number, utf8};
use crate::pg_types::zone::Zone;

/// The position of a field's value, in the chunk or among the unescaped values.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    len: u32,
}

const NULL: Span = Span { start: u32::MAX, len: 0 };
/// A flag in the length of an unescaped value.
const UNESCAPED: u32 = 1 << 31;

/// The strings that stand for NULL.
#[derive(Clone, Debug, Default)]
pub(super) struct NullText {
    /// The string for NULL, in addition to the empty string.
    pub text: Option<Vec<u8>>,
    /// True if quoted values are never NULL, as in PostgreSQL. Otherwise they are treated like
    /// others, as in DuckDB.
    pub is_plain: bool,
}

/// The permitted deviation of records from the table's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Exact,
    /// Missing fields are NULL.
    Padded,
    /// There is one additional field, which is empty.
    Trailing,
}

/// A wanted column.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The place of the column in a record; `None` if the file lacks it.
    pub place: Option<usize>,
    /// The order of its dates.
    pub order: Order,
}

/// The conversion of a file's records to batches.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub dialect: Dialect,
    pub has_header: bool,
    pub width: Width,
    pub null: NullText,
    /// The names of a record's fields.
    pub names: Arc<[String]>,
    pub wanted: Vec<Wanted>,
    /// The schema of the wanted columns.
    pub schema: SchemaRef,
    pub batch_rows: usize,
    pub types: Types,
    /// The zone of moments without an offset.
    pub zone: Zone,
}

impl Reader {
    /// Returns the rows of a chunk.
    pub fn read(&self, chunk: &Chunk) -> Result<Vec<RecordBatch>, Fault> {
        let text = utf8(&chunk.bytes).map_err(|valid| self.not_utf8(chunk, valid))?;
        let mut rows = Rows::new(self, chunk, text);
        let mut batches = Vec::new();
        loop {
            rows.fill(self.batch_rows)?;
            if rows.starts.is_empty() {
                return Ok(batches);
            }
            batches.push(rows.batch()?);
        }
    }

    fn not_utf8(&self, chunk: &Chunk, place: usize) -> Fault {
        let (mut at, mut record, mut column) = (0, 0, 0);
        while at < chunk.bytes.len() {
            if column == 0 {
                at = fields::next_record(&chunk.bytes, at, &self.dialect, self.names.len() == 1);
                record = at;
            }
            let field = field(&chunk.bytes, at.min(chunk.bytes.len()), &self.dialect);
            if field.next > place || field.next >= chunk.bytes.len() {
                break;
            }
            at = field.next;
            column = if field.ends == Ends::Field { column + 1 } else { 0 };
        }
        let column = self.names.get(column).cloned().unwrap_or_else(|| format!("column{column}"));
        Fault::NotUtf8 { line: line_of(chunk, record, self.dialect.line_end), column }
    }
}

fn line_of(chunk: &Chunk, place: usize, line_end: u8) -> u64 {
    chunk.first_line + lines(&chunk.bytes[..place], line_end)
}

/// The records of a chunk, one batch at a time.
struct Rows<'a> {
    reader: &'a Reader,
    chunk: &'a Chunk,
    /// The chunk's bytes.
    text: &'a str,
    at: usize,
    /// The wanted column of each field of a record.
    slots: Vec<u32>,
    /// The wanted fields of the batch, row by row.
    spans: Vec<Span>,
    unescaped: Vec<u8>,
    /// The start of each row of the batch.
    starts: Vec<u32>,
}

const UNWANTED: u32 = u32::MAX;

impl<'a> Rows<'a> {
    fn new(reader: &'a Reader, chunk: &'a Chunk, text: &'a str) -> Self {
        let mut slots = vec![UNWANTED; reader.names.len()];
        for (slot, wanted) in reader.wanted.iter().enumerate() {
            if let Some(place) = wanted.place.and_then(|place| slots.get_mut(place)) {
                *place = slot as u32;
            }
        }
        let mut rows =
            Self { reader, chunk, text, at: 0, slots, spans: Vec::new(), unescaped: Vec::new(), starts: Vec::new() };
        if chunk.is_first && reader.has_header {
            rows.next();
            rows.at = rows.skip_record(rows.at);
        }
        rows
    }

    /// Moves to the start of the next record.
    fn next(&mut self) {
        let is_single = self.slots.len() == 1;
        self.at = fields::next_record(&self.chunk.bytes, self.at, &self.reader.dialect, is_single);
    }

    fn skip_record(&self, mut at: usize) -> usize {
        while at < self.chunk.bytes.len() {
            let field = field(&self.chunk.bytes, at, &self.reader.dialect);
            at = field.next;
            if field.ends != Ends::Field {
                break;
            }
        }
        at
    }

    fn line(&self, place: usize) -> u64 {
        line_of(self.chunk, place, self.reader.dialect.line_end)
    }

    /// Divides up to `most` records into fields.
    fn fill(&mut self, most: usize) -> Result<(), Fault> {
        self.spans.clear();
        self.unescaped.clear();
        self.starts.clear();
        while self.starts.len() < most {
            self.next();
            if self.at >= self.chunk.bytes.len() {
                return Ok(());
            }
            self.starts.push(self.at as u32);
            self.record()?;
        }
        Ok(())
    }

    fn record(&mut self) -> Result<(), Fault> {
        let start = self.at;
        let (bytes, dialect) = (&self.chunk.bytes, &self.reader.dialect);
        let base = self.spans.len();
        self.spans.resize(base + self.reader.wanted.len(), NULL);
        let columns = self.slots.len();
        let mut column = 0;
        loop {
            let field = field(bytes, self.at, dialect);
            if field.ends == Ends::Broken {
                return Err(Fault::BrokenQuote { line: self.line(start), column: self.name(column) });
            }
            self.at = field.next;
            match self.slots.get(column) {
                Some(&UNWANTED) => {}
                Some(&slot) => self.spans[base + slot as usize] = self.span(&field),
                None if column == columns && self.reader.width == Width::Trailing && field.end > field.start => {
                    let text = String::from_utf8_lossy(&bytes[field.start..field.end]).into_owned();
                    return Err(Fault::Trailing { line: self.line(start), text });
                }
                None => {}
            }
            column += 1;
            if field.ends == Ends::Record {
                break;
            }
        }
        let expected = columns + usize::from(self.reader.width == Width::Trailing);
        if column == expected || (self.reader.width == Width::Padded && column < expected) {
            return Ok(());
        }
        Err(self.uneven(start, column))
    }

    fn name(&self, column: usize) -> String {
        self.reader.names.get(column).cloned().unwrap_or_else(|| format!("column{column}"))
    }

    #[cold]
    fn uneven(&self, start: usize, found: usize) -> Fault {
        let (line, expected) = (self.line(start), self.slots.len());
        if self.reader.width == Width::Trailing {
            return match found == expected {
                true => Fault::NoTrailing { line },
                false => Fault::Fields { line, found: found - 1, expected, separator: None },
            };
        }
        let record = &self.chunk.bytes[start..self.at];
        let separator = [',', ';', '\t', '|'].into_iter().find(|mark| found == 1 && record.contains(&(*mark as u8)));
        Fault::Fields { line, found, expected, separator }
    }

    #[inline]
    fn span(&mut self, field: &fields::Field) -> Span {
        let null = &self.reader.null;
        let text = &self.chunk.bytes[field.start..field.end];
        let may_be_null = field.form == FieldForm::Plain || !null.is_plain;
        if may_be_null && (text.is_empty() || null.text.as_deref() == Some(text)) {
            return NULL;
        }
        if field.form != FieldForm::Escaped {
            return Span { start: field.start as u32, len: (field.end - field.start) as u32 };
        }
        let start = self.unescaped.len();
        fields::unescape(text, &self.reader.dialect, &mut self.unescaped);
        Span { start: start as u32, len: (self.unescaped.len() - start) as u32 | UNESCAPED }
    }

    fn batch(&self) -> Result<RecordBatch, Fault> {
        let rows = self.starts.len();
        let mut columns = Vec::with_capacity(self.reader.wanted.len());
        for (slot, wanted) in self.reader.wanted.iter().enumerate() {
            let data_type = self.reader.schema.field(slot).data_type();
            if wanted.place.is_none() {
                columns.push(new_null_array(data_type, rows));
                continue;
            }
            let cells = Cells { rows: self, slot, stride: self.reader.wanted.len(), order: wanted.order };
            let column = cells.column(data_type).map_err(|refused| self.refused(&refused, slot, data_type))?;
            columns.push(column);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.reader.schema), columns, &options);
        batch.map_err(|reason| Fault::Other { line: self.line(self.start_of(0)), reason })
    }

    fn start_of(&self, row: usize) -> usize {
        self.starts.get(row).map_or(0, |start| *start as usize)
    }

    #[cold]
    fn refused(&self, refused: &Refused, slot: usize, data_type: &DataType) -> Fault {
        let (wanted, row) = (self.reader.wanted.len(), refused.row);
        let span = self.spans.get(row * wanted + slot).copied().unwrap_or(NULL);
        Fault::Value {
            line: self.line(self.start_of(row)),
            column: self.reader.schema.field(slot).name().clone(),
            data_type: data_type.clone(),
            text: String::from_utf8_lossy(self.text(span).unwrap_or_default()).into_owned(),
            misfit: refused.misfit,
        }
    }

    #[inline]
    fn text(&self, span: Span) -> Option<&[u8]> {
        if span.start == u32::MAX {
            return None;
        }
        let (start, len) = (span.start as usize, (span.len & !UNESCAPED) as usize);
        let from: &[u8] = if span.len & UNESCAPED == 0 { &self.chunk.bytes } else { &self.unescaped };
        Some(&from[start..start + len])
    }

    /// Returns the text as a string. A range between ASCII bytes of valid UTF-8 is valid UTF-8.
    #[inline]
    fn string(&self, span: Span) -> Option<&str> {
        if span.start == u32::MAX || span.len & UNESCAPED != 0 {
            return self.text(span).map(|text| std::str::from_utf8(text).unwrap_or_default());
        }
        let (start, len) = (span.start as usize, span.len as usize);
        Some(self.text.get(start..start + len).unwrap_or_default())
    }
}

/// A column of a batch.
struct Cells<'a> {
    rows: &'a Rows<'a>,
    slot: usize,
    stride: usize,
    order: Order,
}

/// A refused value, and the reason.
struct Refused {
    row: usize,
    misfit: Misfit,
}

impl Cells<'_> {
    fn spans(&self) -> impl Iterator<Item = Span> {
        self.rows.spans.iter().skip(self.slot).step_by(self.stride).copied()
    }

    fn texts(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.spans().map(move |span| self.rows.text(span))
    }

    fn column(&self, data_type: &DataType) -> Result<ArrayRef, Refused> {
        Ok(match data_type {
            DataType::LargeUtf8 => {
                let mut builder = LargeStringBuilder::new();
                self.spans().for_each(|span| builder.append_option(self.rows.string(span)));
                Arc::new(builder.finish())
            }
            DataType::Utf8View => {
                let mut builder = StringViewBuilder::with_capacity(self.rows.starts.len());
                self.spans().for_each(|span| builder.append_option(self.rows.string(span)));
                Arc::new(builder.finish())
            }
            DataType::Utf8 => self.strings(),
            other if self.rows.reader.types == Types::Declared => self.declared(other)?,
            other => self.guessed(other)?,
        })
    }

    fn declared(&self, data_type: &DataType) -> Result<ArrayRef, Refused> {
        let parser = ColumnParser::new(data_type, self.rows.reader.zone, self.rows.starts.len());
        let mut parser = parser.ok_or(Refused { row: 0, misfit: Misfit::Form })?;
        for (row, text) in self.texts().enumerate() {
            // An empty quoted value is an empty string, and not a value of any other type.
            match text.filter(|text| !text.is_empty()) {
                Some(text) => parser.push(text).map_err(|misfit| Refused { row, misfit })?,
                None => parser.push_null(),
            }
        }
        Ok(parser.finish())
    }

    fn guessed(&self, data_type: &DataType) -> Result<ArrayRef, Refused> {
        let order = self.order;
        Ok(match data_type {
            DataType::Boolean => self.booleans()?,
            DataType::Int64 => self.values::<Int64Type>(guessed_integer)?,
            DataType::Float64 => self.values::<Float64Type>(guessed_double)?,
            DataType::Decimal128(precision, 0) => {
                let values = self.values::<Decimal128Type>(guessed_huge)?;
                let values: &Decimal128Array = values.as_primitive();
                let values = values.clone().with_precision_and_scale(*precision, 0);
                Arc::new(values.map_err(|_| Refused { row: 0, misfit: Misfit::Range })?)
            }
            DataType::Date32 => self.values::<Date32Type>(|text| {
                forms::moment(text, order).filter(|moment| moment.time.is_none()).map(|moment| moment.days)
            })?,
            DataType::Timestamp(unit, zone) => {
                let has_zone = zone.is_some();
                let read = |text: &[u8]| guessed_moment(text, order, *unit, has_zone);
                match unit {
                    TimeUnit::Nanosecond => {
                        let values = self.values::<TimestampNanosecondType>(read)?;
                        let values = values.as_primitive::<TimestampNanosecondType>().clone();
                        Arc::new(values.with_timezone_opt(zone.clone()))
                    }
                    _ => {
                        let values = self.values::<TimestampMicrosecondType>(read)?;
                        let values = values.as_primitive::<TimestampMicrosecondType>().clone();
                        Arc::new(values.with_timezone_opt(zone.clone()))
                    }
                }
            }
            _ => return Err(Refused { row: 0, misfit: Misfit::Form }),
        })
    }

    fn strings(&self) -> ArrayRef {
        let bytes = self.spans().map(|span| (span.len & !UNESCAPED) as usize).sum();
        let mut builder = StringBuilder::with_capacity(self.rows.starts.len(), bytes);
        self.spans().for_each(|span| builder.append_option(self.rows.string(span)));
        Arc::new(builder.finish())
    }

    fn booleans(&self) -> Result<ArrayRef, Refused> {
        let mut values = Vec::with_capacity(self.rows.starts.len());
        for (row, text) in self.texts().enumerate() {
            let text = text.filter(|text| !text.is_empty());
            let value = text.map(|text| forms::boolean(trimmed(text)).ok_or(Refused { row, misfit: Misfit::Form }));
            values.push(value.transpose()?);
        }
        Ok(Arc::new(BooleanArray::from(values)))
    }

    /// Returns values of a type. Surrounding blanks are ignored, and an empty value is NULL, also
    /// in quotes.
    #[inline]
    fn values<T: ArrowPrimitiveType>(&self, read: impl Fn(&[u8]) -> Option<T::Native>) -> Result<ArrayRef, Refused> {
        let mut values: Vec<T::Native> = Vec::with_capacity(self.rows.starts.len());
        let mut nulls = NullBufferBuilder::new(self.rows.starts.len());
        for (row, text) in self.texts().enumerate() {
            match text.filter(|text| !text.is_empty()) {
                Some(text) => {
                    values.push(read(trimmed(text)).ok_or(Refused { row, misfit: Misfit::Form })?);
                    nulls.append_non_null();
                }
                None => {
                    values.push(T::Native::default());
                    nulls.append_null();
                }
            }
        }
        Ok(Arc::new(PrimitiveArray::<T>::new(values.into(), nulls.finish())))
    }
}

#[inline]
fn guessed_integer(text: &[u8]) -> Option<i64> {
    match text {
        [b'+', ..] | [b'0', _, ..] | [b'-', b'0', _, ..] => None,
        _ => forms::integer(text),
    }
}

fn guessed_huge(text: &[u8]) -> Option<i128> {
    match text {
        [b'+', ..] | [b'0', _, ..] | [b'-', b'0', _, ..] => None,
        _ if text.len() <= 39 => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

#[inline]
fn guessed_double(text: &[u8]) -> Option<f64> {
    match text {
        [b'0', b'0'..=b'9', ..] | [b'-', b'0', b'0'..=b'9', ..] => None,
        _ => match number::double(text, 0) {
            Some((value, end)) if end == text.len() => Some(value),
            _ => forms::double(text),
        },
    }
}

/// Returns microseconds or nanoseconds since 1970, in UTC if the text has an offset. `None` unless
/// it has one exactly if its type has a zone.
fn guessed_moment(text: &[u8], order: Order, unit: TimeUnit, has_zone: bool) -> Option<i64> {
    let moment = forms::moment(text, order)?;
    if moment.offset.is_some() != has_zone {
        return None;
    }
    let nanos = i128::from(moment.days) * 86_400_000_000_000 + i128::from(moment.time.unwrap_or(0))
        - i128::from(moment.offset.unwrap_or(0)) * 1_000_000_000;
    let in_unit = match unit {
        TimeUnit::Nanosecond => nanos,
        _ if nanos % 1000 == 0 => nanos / 1000,
        _ => return None,
    };
    i64::try_from(in_unit).ok()
}
