//! The stored form of rows. No other module knows their bytes.
//!
//! ```text
//! row     = version (1 byte: 1), NULL bits, values
//! NULL bits: bit i % 8 of byte i / 8 is set if column i is NULL; ceil(columns / 8) bytes
//! values  of the columns that are not NULL, in the columns' order:
//!   boolean, 8-bit integers          1 byte
//!   other signed integers, dates,
//!   timestamps, decimals             zigzag, then LEB128
//!   other unsigned integers          LEB128
//!   float, double                    4, 8 bytes, little-endian
//!   string                           its length as LEB128, then UTF-8
//! ```
//! A row is decoded with the columns of its table. No statement changes them, so they are the
//! columns with which it was written. An inconsistent row is corrupt, never a wrong value. Examples
//! are a row that ends early or has trailing bytes, and a string that is not UTF-8.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBuilder, Decimal128Builder, PrimitiveBuilder, RecordBatch, StringViewBuilder,
};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::{Error, ErrorKind, Result};

const VERSION: u8 = 1;

/// Encoded rows, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRows {
    bytes: Vec<u8>,
    /// The end of each row.
    ends: Vec<usize>,
}

impl EncodedRows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the size of all rows, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of each row.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    /// Returns the first `rows` rows, or all.
    #[must_use]
    pub fn first(&self, rows: usize) -> Self {
        let ends = &self.ends[..rows.min(self.ends.len())];
        Self { bytes: self.bytes[..ends.last().copied().unwrap_or(0)].to_vec(), ends: ends.to_vec() }
    }

    /// Appends other rows.
    pub fn extend(&mut self, others: &Self) {
        let before = self.bytes.len();
        self.bytes.extend_from_slice(&others.bytes);
        self.ends.extend(others.ends.iter().map(|end| before + end));
    }

    /// Reserves space for more rows.
    pub fn reserve(&mut self, rows: usize, bytes: usize) {
        self.ends.reserve_exact(rows);
        self.bytes.reserve_exact(bytes);
    }

    /// Appends a row. `value` returns the value of each column; `None` is NULL.
    ///
    /// # Errors
    /// The first error of `value`. The row is not appended then.
    pub fn push<'a, E>(
        &mut self,
        columns: usize,
        mut value: impl FnMut(usize) -> std::result::Result<Option<Cell<'a>>, E>,
    ) -> std::result::Result<(), E> {
        let start = self.bytes.len();
        self.bytes.push(VERSION);
        let nulls = self.bytes.len();
        self.bytes.resize(nulls + columns.div_ceil(8), 0);
        for column in 0..columns {
            match value(column) {
                Ok(Some(cell)) => cell.append(&mut self.bytes),
                Ok(None) => self.bytes[nulls + column / 8] |= 1 << (column % 8),
                Err(e) => {
                    self.bytes.truncate(start);
                    return Err(e);
                }
            }
        }
        self.ends.push(self.bytes.len());
        Ok(())
    }
}

#[cfg(test)]
impl From<&[&[u8]]> for EncodedRows {
    fn from(rows: &[&[u8]]) -> Self {
        let mut all = Self::default();
        for row in rows {
            all.bytes.extend_from_slice(row);
            all.ends.push(all.bytes.len());
        }
        all
    }
}

/// A value in its encoded form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// A boolean, or an integer of 8 bits.
    Byte(u8),
    /// Other signed integers, and types that are represented by them.
    Signed(i128),
    /// Other unsigned integers.
    Unsigned(u128),
    /// A float.
    Float(f32),
    /// A double.
    Double(f64),
    /// A string.
    Text(&'a str),
}

impl Cell<'_> {
    fn append(self, row: &mut Vec<u8>) {
        match self {
            Self::Byte(value) => row.push(value),
            Self::Signed(value) => put_signed(row, value),
            Self::Unsigned(value) => put_unsigned(row, value),
            Self::Float(value) => row.extend_from_slice(&value.to_le_bytes()),
            Self::Double(value) => row.extend_from_slice(&value.to_le_bytes()),
            Self::Text(text) => {
                put_unsigned(row, text.len() as u128);
                row.extend_from_slice(text.as_bytes());
            }
        }
    }
}

/// Encodes every row of a batch.
///
/// # Errors
/// [`ErrorKind::Data`] for a NULL in a column that admits none, [`ErrorKind::Internal`] for a type
/// that no table has.
pub(crate) fn encode(batch: &RecordBatch, schema: &Schema) -> Result<EncodedRows> {
    refuse_nulls(batch, schema)?;
    let mut rows = EncodedRows::default();
    rows.ends.reserve_exact(batch.num_rows());
    for number in 0..batch.num_rows() {
        rows.push(batch.num_columns(), |column| {
            let array = batch.column(column);
            if array.is_null(number) { Ok(None) } else { cell(array, number).map(Some) }
        })?;
    }
    Ok(rows)
}

/// Checks that columns which admit no NULL have none.
///
/// # Errors
/// [`ErrorKind::Data`] for such a NULL, with the message of a segment's writer.
pub(crate) fn refuse_nulls(batch: &RecordBatch, schema: &Schema) -> Result<()> {
    let mut columns = batch.columns().iter().zip(schema.fields());
    match columns.find(|(array, field)| array.null_count() > 0 && !field.is_nullable()) {
        None => Ok(()),
        Some((_, field)) => Err(onehop_segment::Error::Null { column: field.name().clone() }.into()),
    }
}

/// Returns a value of a column that is not NULL.
fn cell(array: &dyn Array, at: usize) -> Result<Cell<'_>> {
    fn native<T: ArrowPrimitiveType>(array: &dyn Array, at: usize) -> T::Native {
        array.as_primitive::<T>().value(at)
    }
    Ok(match array.data_type() {
        DataType::Boolean => Cell::Byte(array.as_boolean().value(at).into()),
        DataType::Int8 => Cell::Byte(native::<Int8Type>(array, at) as u8),
        DataType::Int16 => Cell::Signed(native::<Int16Type>(array, at).into()),
        DataType::Int32 => Cell::Signed(native::<Int32Type>(array, at).into()),
        DataType::Int64 => Cell::Signed(native::<Int64Type>(array, at).into()),
        DataType::UInt8 => Cell::Byte(native::<UInt8Type>(array, at)),
        DataType::UInt16 => Cell::Unsigned(native::<UInt16Type>(array, at).into()),
        DataType::UInt32 => Cell::Unsigned(native::<UInt32Type>(array, at).into()),
        DataType::UInt64 => Cell::Unsigned(native::<UInt64Type>(array, at).into()),
        DataType::Float32 => Cell::Float(native::<Float32Type>(array, at)),
        DataType::Float64 => Cell::Double(native::<Float64Type>(array, at)),
        DataType::Decimal128(..) => Cell::Signed(native::<Decimal128Type>(array, at)),
        DataType::Date32 => Cell::Signed(native::<Date32Type>(array, at).into()),
        DataType::Timestamp(unit, _) => Cell::Signed(i128::from(match unit {
            TimeUnit::Second => native::<TimestampSecondType>(array, at),
            TimeUnit::Millisecond => native::<TimestampMillisecondType>(array, at),
            TimeUnit::Microsecond => native::<TimestampMicrosecondType>(array, at),
            TimeUnit::Nanosecond => native::<TimestampNanosecondType>(array, at),
        })),
        DataType::Utf8View => Cell::Text(array.as_string_view().value(at)),
        other => return Err(no_such_type(other)),
    })
}

fn no_such_type(data_type: &DataType) -> Error {
    Error::new(ErrorKind::Internal, format!("no table has columns of type {data_type}"))
}

/// Builds batches of decoded rows.
#[derive(Debug)]
pub(crate) struct Decoder {
    schema: SchemaRef,
    columns: Vec<Column>,
}

#[derive(Debug)]
enum Column {
    Boolean(BooleanBuilder),
    Int8(PrimitiveBuilder<Int8Type>),
    Int16(PrimitiveBuilder<Int16Type>),
    Int32(PrimitiveBuilder<Int32Type>),
    Int64(PrimitiveBuilder<Int64Type>),
    UInt8(PrimitiveBuilder<UInt8Type>),
    UInt16(PrimitiveBuilder<UInt16Type>),
    UInt32(PrimitiveBuilder<UInt32Type>),
    UInt64(PrimitiveBuilder<UInt64Type>),
    Float32(PrimitiveBuilder<Float32Type>),
    Float64(PrimitiveBuilder<Float64Type>),
    Decimal(Decimal128Builder),
    Date(PrimitiveBuilder<Date32Type>),
    /// Timestamps of any unit. The type of the array determines the unit.
    Timestamp(PrimitiveBuilder<Int64Type>),
    Text(StringViewBuilder),
}

impl Decoder {
    /// Creates a decoder for rows of these columns.
    pub fn new(schema: &SchemaRef) -> Result<Self> {
        let columns = schema.fields().iter().map(|field| Column::new(field.data_type())).collect::<Result<_>>()?;
        Ok(Self { schema: Arc::clone(schema), columns })
    }

    /// Decodes a row. After an error the decoder must not be used any more.
    ///
    /// # Errors
    /// A message that says what is wrong with the bytes. The caller knows the row and its table.
    pub fn push(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        let mut rest = Bytes(bytes);
        match rest.byte()? {
            VERSION => {}
            version => return Err(format!("it has version {version}, and this build knows version {VERSION}")),
        }
        let nulls = rest.take(self.columns.len().div_ceil(8))?;
        for (index, (column, field)) in self.columns.iter_mut().zip(self.schema.fields()).enumerate() {
            let is_null = nulls.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0);
            match (is_null, field.is_nullable()) {
                (true, false) => return Err(format!("column \"{}\" is NOT NULL, and NULL is stored", field.name())),
                (true, true) => column.push_null(),
                (false, _) => column.push(&mut rest).map_err(|e| format!("column \"{}\": {e}", field.name()))?,
            }
        }
        if !rest.0.is_empty() {
            return Err(format!("{} bytes follow the last column", rest.0.len()));
        }
        Ok(())
    }

    /// Returns the rows decoded so far.
    pub fn finish(&mut self) -> Result<RecordBatch> {
        let fields = self.columns.iter_mut().zip(self.schema.fields());
        let columns: Vec<ArrayRef> = fields.map(|(column, field)| column.finish(field.data_type())).collect();
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

impl Column {
    fn new(data_type: &DataType) -> Result<Self> {
        Ok(match data_type {
            DataType::Boolean => Self::Boolean(BooleanBuilder::new()),
            DataType::Int8 => Self::Int8(PrimitiveBuilder::new()),
            DataType::Int16 => Self::Int16(PrimitiveBuilder::new()),
            DataType::Int32 => Self::Int32(PrimitiveBuilder::new()),
            DataType::Int64 => Self::Int64(PrimitiveBuilder::new()),
            DataType::UInt8 => Self::UInt8(PrimitiveBuilder::new()),
            DataType::UInt16 => Self::UInt16(PrimitiveBuilder::new()),
            DataType::UInt32 => Self::UInt32(PrimitiveBuilder::new()),
            DataType::UInt64 => Self::UInt64(PrimitiveBuilder::new()),
            DataType::Float32 => Self::Float32(PrimitiveBuilder::new()),
            DataType::Float64 => Self::Float64(PrimitiveBuilder::new()),
            DataType::Decimal128(precision, scale) => {
                let builder = Decimal128Builder::new().with_precision_and_scale(*precision, *scale);
                Self::Decimal(builder?)
            }
            DataType::Date32 => Self::Date(PrimitiveBuilder::new()),
            DataType::Timestamp(..) => Self::Timestamp(PrimitiveBuilder::new()),
            DataType::Utf8View => Self::Text(StringViewBuilder::new()),
            other => return Err(no_such_type(other)),
        })
    }

    fn push_null(&mut self) {
        match self {
            Self::Boolean(b) => b.append_null(),
            Self::Int8(b) => b.append_null(),
            Self::Int16(b) => b.append_null(),
            Self::Int32(b) => b.append_null(),
            Self::Int64(b) | Self::Timestamp(b) => b.append_null(),
            Self::UInt8(b) => b.append_null(),
            Self::UInt16(b) => b.append_null(),
            Self::UInt32(b) => b.append_null(),
            Self::UInt64(b) => b.append_null(),
            Self::Float32(b) => b.append_null(),
            Self::Float64(b) => b.append_null(),
            Self::Decimal(b) => b.append_null(),
            Self::Date(b) => b.append_null(),
            Self::Text(b) => b.append_null(),
        }
    }

    fn push(&mut self, bytes: &mut Bytes<'_>) -> std::result::Result<(), String> {
        match self {
            Self::Boolean(b) => match bytes.byte()? {
                0 => b.append_value(false),
                1 => b.append_value(true),
                other => return Err(format!("{other} is no boolean")),
            },
            Self::Int8(b) => b.append_value(bytes.byte()? as i8),
            Self::Int16(b) => b.append_value(bytes.signed()?),
            Self::Int32(b) => b.append_value(bytes.signed()?),
            Self::Int64(b) | Self::Timestamp(b) => b.append_value(bytes.signed()?),
            Self::UInt8(b) => b.append_value(bytes.byte()?),
            Self::UInt16(b) => b.append_value(bytes.unsigned()?),
            Self::UInt32(b) => b.append_value(bytes.unsigned()?),
            Self::UInt64(b) => b.append_value(bytes.unsigned()?),
            Self::Float32(b) => b.append_value(f32::from_le_bytes(bytes.array()?)),
            Self::Float64(b) => b.append_value(f64::from_le_bytes(bytes.array()?)),
            Self::Decimal(b) => b.append_value(bytes.signed()?),
            Self::Date(b) => b.append_value(bytes.signed()?),
            Self::Text(b) => {
                let length = bytes.unsigned()?;
                b.append_value(std::str::from_utf8(bytes.take(length)?).map_err(|_| "its text is not UTF-8")?);
            }
        }
        Ok(())
    }

    fn finish(&mut self, data_type: &DataType) -> ArrayRef {
        match self {
            Self::Boolean(b) => Arc::new(b.finish()),
            Self::Int8(b) => Arc::new(b.finish()),
            Self::Int16(b) => Arc::new(b.finish()),
            Self::Int32(b) => Arc::new(b.finish()),
            Self::Int64(b) => Arc::new(b.finish()),
            Self::UInt8(b) => Arc::new(b.finish()),
            Self::UInt16(b) => Arc::new(b.finish()),
            Self::UInt32(b) => Arc::new(b.finish()),
            Self::UInt64(b) => Arc::new(b.finish()),
            Self::Float32(b) => Arc::new(b.finish()),
            Self::Float64(b) => Arc::new(b.finish()),
            Self::Decimal(b) => Arc::new(b.finish()),
            Self::Date(b) => Arc::new(b.finish()),
            Self::Timestamp(b) => {
                let values = b.finish();
                match data_type {
                    DataType::Timestamp(TimeUnit::Second, zone) => {
                        Arc::new(values.reinterpret_cast::<TimestampSecondType>().with_timezone_opt(zone.clone()))
                    }
                    DataType::Timestamp(TimeUnit::Millisecond, zone) => {
                        Arc::new(values.reinterpret_cast::<TimestampMillisecondType>().with_timezone_opt(zone.clone()))
                    }
                    DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                        Arc::new(values.reinterpret_cast::<TimestampMicrosecondType>().with_timezone_opt(zone.clone()))
                    }
                    DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
                        Arc::new(values.reinterpret_cast::<TimestampNanosecondType>().with_timezone_opt(zone.clone()))
                    }
                    // `Column::new` creates this builder for timestamps alone.
                    _ => Arc::new(values),
                }
            }
            Self::Text(b) => Arc::new(b.finish()),
        }
    }
}

fn put_signed(row: &mut Vec<u8>, value: i128) {
    put_unsigned(row, ((value << 1) ^ (value >> 127)) as u128);
}

/// Appends a number as LEB128: seven bits a byte, the lowest first; the top bit says that more
/// follow.
fn put_unsigned(row: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        row.push(value as u8 | 0x80);
        value >>= 7;
    }
    row.push(value as u8);
}

/// The rest of an encoded row.
struct Bytes<'a>(&'a [u8]);

const ENDS_EARLY: &str = "it ends too early";
const TOO_LARGE: &str = "a number is too large for its type";

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> std::result::Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> std::result::Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> std::result::Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| ENDS_EARLY.into())
    }

    fn leb128(&mut self) -> std::result::Result<u128, String> {
        let mut value = 0u128;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            // The last byte of 128 bits has two of them.
            if shift == 126 && bits > 3 {
                return Err(TOO_LARGE.into());
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(TOO_LARGE.into())
    }

    fn unsigned<T: TryFrom<u128>>(&mut self) -> std::result::Result<T, String> {
        self.leb128()?.try_into().map_err(|_| TOO_LARGE.into())
    }

    fn signed<T: TryFrom<i128>>(&mut self) -> std::result::Result<T, String> {
        let zigzag = self.leb128()?;
        let value = (zigzag >> 1) as i128 ^ -((zigzag & 1) as i128);
        value.try_into().map_err(|_| TOO_LARGE.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{
        BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
        Int64Array, StringViewArray, TimestampMicrosecondArray, TimestampNanosecondArray, UInt8Array, UInt64Array,
    };
    use arrow::datatypes::Field;

    use super::*;

    fn batch() -> RecordBatch {
        let most = 10i128.pow(38) - 1;
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("b", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
            ("i8", Arc::new(Int8Array::from(vec![Some(i8::MIN), Some(-1), None]))),
            ("i16", Arc::new(Int16Array::from(vec![None, Some(i16::MAX), Some(i16::MIN)]))),
            ("i32", Arc::new(Int32Array::from(vec![Some(i32::MIN), Some(0), None]))),
            ("i64", Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(i64::MAX), Some(63)]))),
            ("u8", Arc::new(UInt8Array::from(vec![Some(255), None, Some(0)]))),
            ("u64", Arc::new(UInt64Array::from(vec![Some(u64::MAX), Some(127), Some(128)]))),
            ("f32", Arc::new(Float32Array::from(vec![Some(-0.0), Some(f32::INFINITY), None]))),
            ("f64", Arc::new(Float64Array::from(vec![Some(f64::MIN_POSITIVE), None, Some(1e300)]))),
            (
                "wide",
                Arc::new(
                    Decimal128Array::from(vec![Some(most), Some(-most), None]).with_precision_and_scale(38, 2).unwrap(),
                ),
            ),
            ("day", Arc::new(Date32Array::from(vec![Some(-719_162), Some(19_000), None]))),
            ("ts", Arc::new(TimestampMicrosecondArray::from(vec![Some(i64::MIN), None, Some(1)]))),
            ("tz", Arc::new(TimestampNanosecondArray::from(vec![None, Some(i64::MAX), Some(-1)]).with_timezone("UTC"))),
            ("t", Arc::new(StringViewArray::from(vec![Some(""), None, Some("ein längerer Text als zwölf Bytes")]))),
        ];
        let fields: Vec<Field> =
            columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, array)| array).collect())
            .unwrap()
    }

    fn decode<'a>(schema: &SchemaRef, rows: impl IntoIterator<Item = &'a [u8]>) -> RecordBatch {
        let mut decoder = Decoder::new(schema).unwrap();
        rows.into_iter().for_each(|row| decoder.push(row).unwrap());
        decoder.finish().unwrap()
    }

    #[test]
    fn rows_of_every_type_come_back() {
        let batch = batch();
        let rows = encode(&batch, batch.schema_ref()).unwrap();
        assert_eq!(decode(batch.schema_ref(), rows.iter()), batch);
        // A slice encodes its own rows alone.
        let slice = batch.slice(1, 2);
        let of_slice = encode(&slice, batch.schema_ref()).unwrap();
        assert!(of_slice.iter().eq(rows.iter().skip(1)));
        // Rows that are joined or truncated equal the originals.
        let mut more = rows.first(1);
        assert_eq!(decode(batch.schema_ref(), more.iter()), batch.slice(0, 1));
        more.extend(&of_slice);
        assert_eq!((&more, more.len(), more.bytes()), (&rows, 3, rows.iter().map(<[u8]>::len).sum()));
        assert_eq!((rows.first(0).len(), rows.first(0).bytes(), rows.first(9)), (0, 0, rows));
    }

    #[test]
    fn a_row_that_has_no_value_for_a_column_is_not_added() {
        let mut rows = EncodedRows::default();
        rows.push(2, |_| Ok::<_, ()>(Some(Cell::Byte(7)))).unwrap();
        let before = rows.clone();
        let value = |column| if column == 0 { Ok(Some(Cell::Text("long"))) } else { Err("no value") };
        assert_eq!(rows.push(2, value), Err("no value"));
        assert_eq!(rows, before);
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int32, true),
            Field::new("b", DataType::Utf8View, true),
            Field::new("c", DataType::Boolean, true),
        ]));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![Some(-65), None])),
            Arc::new(StringViewArray::from(vec![Some("hi"), Some("")])),
            Arc::new(BooleanArray::from(vec![None, Some(true)])),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let rows = encode(&batch, &schema).unwrap();
        let expected: [&[u8]; 2] = [&[1, 0b100, 0x81, 0x01, 2, b'h', b'i'], &[1, 0b001, 0, 1]];
        assert!(rows.iter().eq(expected));
    }

    #[test]
    fn a_null_where_none_may_be_is_refused_on_both_ways() {
        let loose = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        let strict = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let batch = RecordBatch::try_new(Arc::clone(&loose), vec![Arc::new(Int64Array::from(vec![None]))]).unwrap();
        let error = encode(&batch, &strict).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.message().contains("NULL in a NOT NULL column"), "{error}");
        let rows = encode(&batch, &loose).unwrap();
        let row = rows.iter().next().unwrap();
        assert!(Decoder::new(&strict).unwrap().push(row).unwrap_err().contains("NOT NULL"));
    }

    #[test]
    fn damaged_rows_are_errors_or_other_rows_and_never_a_panic() {
        let batch = batch();
        for row in encode(&batch, batch.schema_ref()).unwrap().iter() {
            for cut in 0..row.len() {
                let mut decoder = Decoder::new(batch.schema_ref()).unwrap();
                assert!(decoder.push(&row[..cut]).is_err(), "cut at {cut}");
            }
            let longer: Vec<u8> = row.iter().copied().chain([0]).collect();
            assert!(Decoder::new(batch.schema_ref()).unwrap().push(&longer).is_err());
            for at in 0..row.len() {
                for bit in 0..8 {
                    let mut damaged = row.to_vec();
                    damaged[at] ^= 1 << bit;
                    let mut decoder = Decoder::new(batch.schema_ref()).unwrap();
                    if decoder.push(&damaged).is_ok() {
                        decoder.finish().unwrap();
                    }
                }
            }
        }
    }
}
