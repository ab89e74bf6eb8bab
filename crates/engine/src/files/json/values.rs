//! Rows as JSON objects, with exact values, for `COPY .. TO` and for clients that show rows.
//!
//! - NULL is `null`, with its name: a column without values stays a column, and a map keeps its
//!   keys.
//! - Numbers have all their digits. NaN and the infinities are written according to [`NonFinite`].
//! - Bytes and intervals are the strings that a cast to VARCHAR writes. A map is an object,
//!   whatever its keys are.
//! - A value that has no text is an error.
//!
//! arrow-json 59.3 writes `null` for NaN (apache/arrow-rs#3731), omits a map's keys whose value is
//! NULL, and refuses maps whose keys are not strings. It writes an error message in place of a date
//! that is out of its calendar.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MapArray, PrimitiveArray, StringArray, make_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, FieldRef, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, NullableEncoder, make_encoder};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::pg_types::column_text::texts_of_any;

/// The representation of NaN and the infinities, which are not JSON numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NonFinite {
    /// `NaN`, `Infinity`, `-Infinity`: the words that Python and DuckDB write, and that are read as
    /// numbers.
    Words,
    /// The strings that PostgreSQL writes, in quotes, which every JSON reader accepts.
    Texts,
}

/// Returns a writer of rows that every JSON reader accepts.
pub fn writer() -> WriterBuilder {
    writer_with(NonFinite::Texts)
}

/// Returns a writer of rows.
pub(super) fn writer_with(non_finite: NonFinite) -> WriterBuilder {
    WriterBuilder::new().with_explicit_nulls(true).with_encoder_factory(Arc::new(Values { non_finite }))
}

#[derive(Debug)]
struct Values {
    non_finite: NonFinite,
}

impl EncoderFactory for Values {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        use DataType as T;
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            T::Float16 => Box::new(Floats(array.as_primitive::<Float16Type>(), self.non_finite)),
            T::Float32 => Box::new(Floats(array.as_primitive::<Float32Type>(), self.non_finite)),
            T::Float64 => Box::new(Floats(array.as_primitive::<Float64Type>(), self.non_finite)),
            T::Interval(_) | T::Duration(_) => Box::new(Texts(written(array)?)),
            T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => Box::new(Texts(written(array)?)),
            data_type if data_type.is_temporal() => Box::new(Texts(formatted(array)?)),
            T::Map(..) => Box::new(Maps::new(field, array.as_map(), options)?),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

struct Floats<'a, T: ArrowPrimitiveType>(&'a PrimitiveArray<T>, NonFinite);

impl<T: ArrowPrimitiveType<Native: Into<f64> + std::fmt::Debug>> Encoder for Floats<'_, T> {
    fn encode(&mut self, idx: usize, out: &mut Vec<u8>) {
        let value = self.0.value(idx);
        let wide: f64 = value.into();
        let word = match wide {
            wide if wide.is_nan() => "NaN",
            f64::INFINITY => "Infinity",
            f64::NEG_INFINITY => "-Infinity",
            // The shortest digits that round-trip, with a fraction or an exponent to distinguish
            // the value from an integer.
            _ => return put(out, format_args!("{value:?}")),
        };
        match self.1 {
            NonFinite::Words => out.extend_from_slice(word.as_bytes()),
            NonFinite::Texts => put_text(word, out),
        }
    }
}

/// A write to a buffer in memory cannot fail.
fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

struct Texts(StringArray);

impl Encoder for Texts {
    fn encode(&mut self, idx: usize, out: &mut Vec<u8>) {
        put_text(self.0.value(idx), out);
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, text);
}

/// Returns the strings that a cast to VARCHAR writes.
fn written(array: &dyn Array) -> Result<StringArray, ArrowError> {
    let array: ArrayRef = make_array(array.to_data());
    let texts = texts_of_any(&array, None).map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
    let texts = arrow::compute::cast(&texts, &DataType::Utf8)?;
    Ok(texts.as_string::<i32>().clone())
}

/// Returns the ISO 8601 forms.
fn formatted(array: &dyn Array) -> Result<StringArray, ArrowError> {
    let options = FormatOptions::new().with_display_error(false);
    let formatter = ArrayFormatter::try_new(array, &options)?;
    let text = |row: usize| array.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose();
    (0..array.len()).map(text).collect()
}

struct Maps<'a> {
    offsets: &'a OffsetBuffer<i32>,
    keys: StringArray,
    values: NullableEncoder<'a>,
}

impl<'a> Maps<'a> {
    fn new(field: &'a FieldRef, maps: &'a MapArray, options: &'a EncoderOptions) -> Result<Self, ArrowError> {
        let values = make_encoder(field, maps.values(), options)?;
        Ok(Self { offsets: maps.offsets(), keys: written(maps.keys())?, values })
    }
}

impl Encoder for Maps<'_> {
    fn encode(&mut self, idx: usize, out: &mut Vec<u8>) {
        let (from, to) = (self.offsets[idx] as usize, self.offsets[idx + 1] as usize);
        out.push(b'{');
        for at in from..to {
            if at > from {
                out.push(b',');
            }
            put_text(self.keys.value(at), out);
            out.push(b':');
            match self.values.is_null(at) {
                true => out.extend_from_slice(b"null"),
                false => self.values.encode(at, out),
            }
        }
        out.push(b'}');
    }
}
