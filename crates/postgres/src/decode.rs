//! Decodes rows of a binary COPY as columns.
//!
//! ```text
//! PGCOPY \n \xff \r \n \0   flags (i32)   length of an extension (i32)   extension
//! a row:   number of fields (i16)   for each: its length (i32), -1 for NULL, and its bytes
//! the end: -1 (i16)
//! ```
//! PostgreSQL sends a row in a message of its own: nearly all are decoded in place, and only the
//! incomplete rest of a message is kept until the next.

use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Decimal256Builder, Float32Builder, Float64Builder,
    Int16Builder, Int32Builder, Int64Builder, IntervalMonthDayNanoBuilder, StringViewBuilder, Time64MicrosecondBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::{IntervalMonthDayNano, i256};
use arrow_schema::{DataType, SchemaRef};

use crate::{Error, Result};

const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
/// The days from 1970 to 2000.
const EPOCH_DAYS: i32 = 10_957;
/// The microseconds from 1970 to 2000.
const EPOCH_MICROS: i64 = 10_957 * 86_400 * 1_000_000;
/// The microseconds of a day: midnight at its end is a valid time.
const DAY_MICROS: i64 = 86_400 * 1_000_000;
/// The decimal digits in one group of a number.
const GROUP: i32 = 4;

/// The reason why a value cannot be read.
type Refused = &'static str;

const WRONG_LENGTH: Refused = "it has a length that values of its type do not have";
const INFINITE: Refused = "infinity";
const FAR: Refused = "a time so far away that no TIMESTAMP here holds it";
const NO_TIME: Refused = "a time that no day has";
const TOO_MANY_DIGITS: Refused = "a number with more digits than fit; read it by a view that casts or rounds it";
const NO_NUMBER: Refused =
    "NaN or an infinite number, which decimals have not; read it by a view that casts it to double precision";

/// A column under construction.
enum Column {
    Boolean(BooleanBuilder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal128(Decimal128Builder, u8, i8),
    Decimal256(Decimal256Builder, u8, i8),
    Text(StringViewBuilder),
    Binary(BinaryBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder),
    Interval(IntervalMonthDayNanoBuilder),
}

fn word<const N: usize>(bytes: &[u8]) -> std::result::Result<[u8; N], Refused> {
    bytes.try_into().map_err(|_| WRONG_LENGTH)
}

impl Column {
    fn new(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Boolean(BooleanBuilder::new()),
            DataType::Int16 => Self::Int16(Int16Builder::new()),
            DataType::Int32 => Self::Int32(Int32Builder::new()),
            DataType::Int64 => Self::Int64(Int64Builder::new()),
            DataType::Float32 => Self::Float32(Float32Builder::new()),
            DataType::Float64 => Self::Float64(Float64Builder::new()),
            DataType::Decimal128(precision, scale) => {
                let builder = Decimal128Builder::new().with_data_type(data_type.clone());
                Self::Decimal128(builder, *precision, *scale)
            }
            DataType::Decimal256(precision, scale) => {
                let builder = Decimal256Builder::new().with_data_type(data_type.clone());
                Self::Decimal256(builder, *precision, *scale)
            }
            DataType::Binary => Self::Binary(BinaryBuilder::new()),
            DataType::Date32 => Self::Date(Date32Builder::new()),
            DataType::Time64(_) => Self::Time(Time64MicrosecondBuilder::new()),
            DataType::Timestamp(..) => {
                Self::Timestamp(TimestampMicrosecondBuilder::new().with_data_type(data_type.clone()))
            }
            DataType::Interval(_) => Self::Interval(IntervalMonthDayNanoBuilder::new()),
            _ => Self::Text(StringViewBuilder::new()),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> std::result::Result<(), Refused> {
        match self {
            Self::Boolean(builder) => builder.append_value(word::<1>(bytes)? != [0]),
            Self::Int16(builder) => builder.append_value(i16::from_be_bytes(word(bytes)?)),
            Self::Int32(builder) => builder.append_value(i32::from_be_bytes(word(bytes)?)),
            Self::Int64(builder) => builder.append_value(i64::from_be_bytes(word(bytes)?)),
            Self::Float32(builder) => builder.append_value(f32::from_be_bytes(word(bytes)?)),
            Self::Float64(builder) => builder.append_value(f64::from_be_bytes(word(bytes)?)),
            Self::Decimal128(builder, precision, scale) => builder.append_value(decimal(bytes, *precision, *scale)?),
            Self::Decimal256(builder, precision, scale) => {
                builder.append_value(decimal(bytes, *precision, *scale)?);
            }
            Self::Text(builder) => {
                builder.append_value(std::str::from_utf8(bytes).map_err(|_| "a text that is not UTF-8")?);
            }
            Self::Binary(builder) => builder.append_value(bytes),
            Self::Date(builder) => {
                let day = i32::from_be_bytes(word(bytes)?);
                if matches!(day, i32::MIN | i32::MAX) {
                    return Err(INFINITE);
                }
                builder.append_value(day.checked_add(EPOCH_DAYS).ok_or(FAR)?);
            }
            Self::Time(builder) => match i64::from_be_bytes(word(bytes)?) {
                micros @ 0..=DAY_MICROS => builder.append_value(micros),
                _ => return Err(NO_TIME),
            },
            Self::Timestamp(builder) => {
                let micros = i64::from_be_bytes(word(bytes)?);
                if matches!(micros, i64::MIN | i64::MAX) {
                    return Err(INFINITE);
                }
                builder.append_value(micros.checked_add(EPOCH_MICROS).ok_or(FAR)?);
            }
            Self::Interval(builder) => {
                let bytes: [u8; 16] = word(bytes)?;
                let micros = i64::from_be_bytes(word(&bytes[..8])?);
                let (days, months) =
                    (i32::from_be_bytes(word(&bytes[8..12])?), i32::from_be_bytes(word(&bytes[12..])?));
                let nanos = micros.checked_mul(1000).ok_or("an interval of more than 292 years of time")?;
                builder.append_value(IntervalMonthDayNano::new(months, days, nanos));
            }
        }
        Ok(())
    }

    fn push_null(&mut self) {
        match self {
            Self::Boolean(builder) => builder.append_null(),
            Self::Int16(builder) => builder.append_null(),
            Self::Int32(builder) => builder.append_null(),
            Self::Int64(builder) => builder.append_null(),
            Self::Float32(builder) => builder.append_null(),
            Self::Float64(builder) => builder.append_null(),
            Self::Decimal128(builder, ..) => builder.append_null(),
            Self::Decimal256(builder, ..) => builder.append_null(),
            Self::Text(builder) => builder.append_null(),
            Self::Binary(builder) => builder.append_null(),
            Self::Date(builder) => builder.append_null(),
            Self::Time(builder) => builder.append_null(),
            Self::Timestamp(builder) => builder.append_null(),
            Self::Interval(builder) => builder.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Boolean(builder) => Arc::new(builder.finish()),
            Self::Int16(builder) => Arc::new(builder.finish()),
            Self::Int32(builder) => Arc::new(builder.finish()),
            Self::Int64(builder) => Arc::new(builder.finish()),
            Self::Float32(builder) => Arc::new(builder.finish()),
            Self::Float64(builder) => Arc::new(builder.finish()),
            Self::Decimal128(builder, ..) => Arc::new(builder.finish()),
            Self::Decimal256(builder, ..) => Arc::new(builder.finish()),
            Self::Text(builder) => Arc::new(builder.finish()),
            Self::Binary(builder) => Arc::new(builder.finish()),
            Self::Date(builder) => Arc::new(builder.finish()),
            Self::Time(builder) => Arc::new(builder.finish()),
            Self::Timestamp(builder) => Arc::new(builder.finish()),
            Self::Interval(builder) => Arc::new(builder.finish()),
        }
    }
}

/// A number in groups of four digits: their count, the weight of the first, a sign, and a display
/// scale, which is ignored.
struct Numeric<'a> {
    groups: &'a [u8],
    weight: i32,
    is_negative: bool,
}

impl<'a> Numeric<'a> {
    fn of(bytes: &'a [u8]) -> std::result::Result<Self, Refused> {
        let at = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]])).ok_or(WRONG_LENGTH);
        let (count, weight, sign) = (at(0)?, at(2)? as i16, at(4)?);
        let groups = bytes.get(8..).filter(|groups| groups.len() == 2 * usize::from(count)).ok_or(WRONG_LENGTH)?;
        match sign {
            0 | 0x4000 => Ok(Self { groups, weight: weight.into(), is_negative: sign != 0 }),
            _ => Err(NO_NUMBER),
        }
    }

    fn groups(&self) -> impl Iterator<Item = u16> {
        self.groups.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]))
    }

    /// Returns the power of ten by which the number of all groups must be multiplied to have
    /// `scale` digits behind the point.
    fn exponent(&self, scale: i8) -> i32 {
        GROUP * (self.weight + 1 - (self.groups.len() / 2) as i32) + i32::from(scale)
    }
}

/// The common operations of numbers of 128 and of 256 bits.
trait Whole: Copy + PartialOrd {
    const ZERO: Self;

    fn small(n: u16) -> Self;
    fn times(self, other: Self) -> Option<Self>;
    fn plus(self, other: Self) -> Option<Self>;
    fn negated(self) -> Self;
    fn power_of_ten(n: u32) -> Option<Self>;
}

impl Whole for i128 {
    const ZERO: Self = 0;

    fn small(n: u16) -> Self {
        n.into()
    }

    fn times(self, other: Self) -> Option<Self> {
        self.checked_mul(other)
    }

    fn plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }

    fn negated(self) -> Self {
        -self
    }

    fn power_of_ten(n: u32) -> Option<Self> {
        10_i128.checked_pow(n)
    }
}

impl Whole for i256 {
    const ZERO: Self = i256::ZERO;

    fn small(n: u16) -> Self {
        i256::from_i128(n.into())
    }

    fn times(self, other: Self) -> Option<Self> {
        self.checked_mul(other)
    }

    fn plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }

    fn negated(self) -> Self {
        self.wrapping_neg()
    }

    fn power_of_ten(n: u32) -> Option<Self> {
        i256::from_i128(10).checked_pow(n)
    }
}

/// Returns a number's digits with `scale` of them behind the point. Fails if a digit would be lost.
fn decimal<T: Whole>(bytes: &[u8], precision: u8, scale: i8) -> std::result::Result<T, Refused> {
    let numeric = Numeric::of(bytes)?;
    let exponent = numeric.exponent(scale);
    let last = (numeric.groups.len() / 2).wrapping_sub(1);
    let mut value = T::ZERO;
    for (place, group) in numeric.groups().enumerate() {
        // Digits of the last group beyond the scale must be zeros.
        let (digits, group) = match exponent {
            ..0 if place == last => {
                let excess = 10_u16.checked_pow(exponent.unsigned_abs()).filter(|_| exponent > -GROUP);
                let excess = excess.filter(|excess| group % excess == 0).ok_or(TOO_MANY_DIGITS)?;
                (10_000 / excess, group / excess)
            }
            _ => (10_000, group),
        };
        value = value.times(T::small(digits)).and_then(|v| v.plus(T::small(group))).ok_or(TOO_MANY_DIGITS)?;
    }
    if exponent > 0 && value > T::ZERO {
        let power = T::power_of_ten(exponent.unsigned_abs());
        value = power.and_then(|power| value.times(power)).ok_or(TOO_MANY_DIGITS)?;
    }
    // A precision beyond any power of ten is no limit.
    if T::power_of_ten(precision.into()).is_some_and(|limit| value >= limit) {
        return Err(TOO_MANY_DIGITS);
    }
    Ok(if numeric.is_negative { value.negated() } else { value })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Rows,
    Ended,
}

/// Reads rows.
pub struct Rows {
    schema: SchemaRef,
    columns: Vec<Column>,
    state: State,
    /// The incomplete rest of a message.
    rest: Vec<u8>,
    rows: usize,
    bytes: usize,
    /// The server, for error messages.
    place: String,
    table: String,
}

/// An error in the bytes, without its location.
enum Wrong {
    Format(&'static str),
    Value(usize, Refused),
}

impl Rows {
    /// Creates a reader without rows of a table in this schema. Its types are those chosen for
    /// PostgreSQL's types.
    pub fn new(schema: SchemaRef, place: &str, table: String) -> Self {
        let columns = schema.fields().iter().map(|field| Column::new(field.data_type())).collect();
        let (state, rest) = (State::Head, Vec::new());
        Self { schema, columns, state, rest, rows: 0, bytes: 0, place: place.into(), table }
    }

    /// Begins another COPY.
    pub fn restart(&mut self) {
        self.state = State::Head;
        self.rest.clear();
    }

    /// Returns the number of rows that wait to be taken.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes of these rows.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Error::Format`] if the bytes are not a COPY, [`Error::Value`] if a value cannot be read.
    pub fn read(&mut self, message: &[u8]) -> Result<()> {
        self.bytes += message.len();
        let read = match self.rest.is_empty() {
            true => self.rows_of(message).map(|used| self.rest.extend_from_slice(&message[used..])),
            false => {
                let mut rest = std::mem::take(&mut self.rest);
                rest.extend_from_slice(message);
                let read = self.rows_of(&rest);
                read.map(|used| {
                    rest.drain(..used);
                    self.rest = rest;
                })
            }
        };
        read.map_err(|wrong| self.error(wrong))
    }

    /// Ends this COPY. Fails if it is incomplete.
    pub fn end(&mut self) -> Result<()> {
        match self.state == State::Ended && self.rest.is_empty() {
            true => Ok(()),
            false => Err(self.error(Wrong::Format("it ends within"))),
        }
    }

    /// Takes the rows so far.
    pub fn take(&mut self) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let columns = self.columns.iter_mut().map(Column::finish).collect();
        (self.rows, self.bytes) = (0, 0);
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }

    fn error(&self, wrong: Wrong) -> Error {
        match wrong {
            Wrong::Format(what) => Error::Format { place: self.place.clone(), table: self.table.clone(), what },
            Wrong::Value(column, what) => {
                Error::Value { table: self.table.clone(), column: self.schema.field(column).name().clone(), what }
            }
        }
    }

    /// Reads whole rows. Returns the number of their bytes.
    fn rows_of(&mut self, bytes: &[u8]) -> std::result::Result<usize, Wrong> {
        let mut at = 0;
        if self.state == State::Head {
            match head(bytes)? {
                Some(length) => (at, self.state) = (length, State::Rows),
                None => return Ok(0),
            }
        }
        while self.state == State::Rows {
            let Some(length) = self.row(&bytes[at..])? else { return Ok(at) };
            at += length;
        }
        match at == bytes.len() {
            true => Ok(at),
            false => Err(Wrong::Format("there is more behind its end")),
        }
    }

    /// Reads a row, if it is complete. Returns its length.
    fn row(&mut self, bytes: &[u8]) -> std::result::Result<Option<usize>, Wrong> {
        let Some(count) = bytes.get(..2) else { return Ok(None) };
        let count = i16::from_be_bytes([count[0], count[1]]);
        if count == -1 {
            self.state = State::Ended;
            return Ok(Some(2));
        }
        if usize::try_from(count) != Ok(self.columns.len()) {
            return Err(Wrong::Format("a row has another number of columns"));
        }
        // Checked as a whole, before any column has a part of it.
        let mut end = 2;
        for _ in 0..self.columns.len() {
            let Some(length) = number(bytes, end) else { return Ok(None) };
            end += 4 + usize::try_from(length).unwrap_or(0);
        }
        if end > bytes.len() {
            return Ok(None);
        }
        let mut at = 2;
        for (place, column) in self.columns.iter_mut().enumerate() {
            let length = number(bytes, at).unwrap_or(-1);
            at += 4;
            match usize::try_from(length) {
                Ok(length) => {
                    column.push(&bytes[at..at + length]).map_err(|what| Wrong::Value(place, what))?;
                    at += length;
                }
                Err(_) if length == -1 => column.push_null(),
                Err(_) => return Err(Wrong::Format("a field has no length")),
            }
        }
        self.rows += 1;
        Ok(Some(end))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the length of the part before the rows, if it is complete.
fn head(bytes: &[u8]) -> std::result::Result<Option<usize>, Wrong> {
    let there = bytes.len().min(SIGNATURE.len());
    if bytes[..there] != SIGNATURE[..there] {
        return Err(Wrong::Format("it does not begin as a binary COPY does"));
    }
    let Some(extension) = number(bytes, SIGNATURE.len() + 4) else { return Ok(None) };
    let extension = usize::try_from(extension).map_err(|_| Wrong::Format("its head has no length"))?;
    let length = SIGNATURE.len() + 8 + extension;
    Ok((length <= bytes.len()).then_some(length))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int32Type;
    use arrow_schema::{Field, Schema};

    use super::*;

    /// `COPY (VALUES (1, 'a'), (NULL, '')) TO STDOUT (FORMAT binary)` of PostgreSQL 15.
    const BYTES: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\
        \0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x01a\0\x02\xff\xff\xff\xff\0\0\0\0\xff\xff";

    fn rows() -> Rows {
        let fields = [Field::new("n", DataType::Int32, true), Field::new("t", DataType::Utf8View, true)];
        Rows::new(Arc::new(Schema::new(fields.to_vec())), "here", "t".into())
    }

    #[test]
    fn rows_are_the_same_in_messages_of_any_size() {
        for size in 1..=BYTES.len() {
            let mut rows = rows();
            BYTES.chunks(size).for_each(|message| rows.read(message).unwrap());
            rows.end().unwrap();
            let batch = rows.take().unwrap();
            assert_eq!(batch.num_rows(), 2);
            let numbers = batch.column(0).as_primitive::<Int32Type>();
            assert_eq!((numbers.value(0), numbers.is_null(1)), (1, true));
            let texts = batch.column(1).as_string_view();
            assert_eq!((texts.value(0), texts.value(1)), ("a", ""));
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_no_rows() {
        for cut in 0..BYTES.len() {
            let mut rows = rows();
            assert!(rows.read(&BYTES[..cut]).and_then(|()| rows.end()).is_err(), "{cut}");
        }
        for (at, byte) in [(0, b'Q'), (15, 0xff), (20, 3), (24, 9)] {
            let (mut rows, mut bytes) = (rows(), BYTES.to_vec());
            bytes[at] = byte;
            assert!(rows.read(&bytes).and_then(|()| rows.end()).is_err(), "{at}");
        }
        let mut more = rows();
        assert!(more.read(&[BYTES, b"\0"].concat()).is_err());
    }

    /// The bytes that PostgreSQL 15's numeric_send returns.
    #[test]
    fn numbers_are_whole_or_refused() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        for (hex, scale, expected) in [
            ("0000000000000000", 0, 0),
            ("00010000000000000001", 0, 1),
            ("00010000000000000001", 3, 1000),
            ("000200010000000004d2162e", 0, 12_345_678),
            ("0003000100000002000109291a2c", 2, 1_234_567),
            ("0001ffff4000000201f4", 2, -5),
            ("00010001000000000001", 0, 10_000),
            ("0001fffe000000080001", 8, 1),
        ] {
            assert_eq!(decimal::<i128>(&bytes(hex), 38, scale), Ok(expected), "{hex}");
            assert_eq!(decimal(&bytes(hex), 76, scale), Ok(i256::from_i128(expected)), "{hex}");
        }
        // 12345678 in seven digits, 0.0500 with one behind the point, NaN, and truncated bytes.
        assert_eq!(decimal::<i128>(&bytes("000200010000000004d2162e"), 7, 0), Err(TOO_MANY_DIGITS));
        assert_eq!(decimal::<i128>(&bytes("0001ffff0000000201f4"), 38, 1), Err(TOO_MANY_DIGITS));
        assert_eq!(decimal::<i128>(&bytes("00000000c0000000"), 38, 2), Err(NO_NUMBER));
        assert_eq!(decimal::<i128>(&bytes("0002000100000000"), 38, 2), Err(WRONG_LENGTH));
        assert_eq!(decimal::<i256>(&bytes("0001ffff0000000201f4"), 76, 1), Err(TOO_MANY_DIGITS));
    }
}
