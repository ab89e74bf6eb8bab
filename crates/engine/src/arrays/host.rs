//! Columns of batches as dense buffers. A column of one chunk, or of chunks that are adjacent in
//! memory, is not copied.

use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type, Int64Type, SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use onehop_pipeline::arrays::Element;

use super::{Nulls, Wanted};
use crate::error::nearest;
use crate::type_names::sql_name;
use crate::{Error, ErrorKind, Result};

/// A column in which every row has a value.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub name: String,
    pub element: Element,
    pub rows: usize,
    pub values: Buffer,
}

/// Returns the array type of a column type; `None` if arrays have no such type.
pub(crate) fn element_of(data_type: &DataType) -> Option<Element> {
    Some(match data_type {
        DataType::Boolean => Element::Bool,
        DataType::Int8 => Element::Int8,
        DataType::Int16 => Element::Int16,
        DataType::Int32 => Element::Int32,
        DataType::Int64 => Element::Int64,
        DataType::UInt8 => Element::UInt8,
        DataType::UInt16 => Element::UInt16,
        DataType::UInt32 => Element::UInt32,
        DataType::UInt64 => Element::UInt64,
        DataType::Float16 => Element::Float16,
        DataType::Float32 => Element::Float32,
        DataType::Float64 => Element::Float64,
        _ => return None,
    })
}

/// Returns the array type of a column.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a type that arrays do not have.
pub(crate) fn need_element(field: &Field) -> Result<Element> {
    element_of(field.data_type()).ok_or_else(|| {
        let name = field.name();
        let message = format!("column \"{name}\" is {}, which arrays have no type for", sql_name(field.data_type()));
        let hint = match field.data_type() {
            DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
                format!("CAST(\"{name}\" AS DOUBLE) is a number, rounded")
            }
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
                format!("date_part('epoch', \"{name}\") is a number of seconds; numpy() has dates and timestamps")
            }
            _ => "leave it out; numpy() has it as Python's objects".into(),
        };
        Error::new(ErrorKind::Invalid, message).with_hint(hint)
    })
}

/// Returns the array type of a column with `count` NULLs.
///
/// # Errors
/// [`ErrorKind::Data`] if NULLs are refused.
pub(crate) fn with_nulls(name: &str, element: Element, count: u64, nulls: Nulls) -> Result<Element> {
    match nulls {
        _ if count == 0 => Ok(element),
        Nulls::NaN if element.is_float() => Ok(element),
        Nulls::NaN => Ok(Element::Float64),
        Nulls::Refused => {
            let plural = if count == 1 { "NULL" } else { "NULLs" };
            let message = format!("column \"{name}\" has {count} {plural}, and arrays have none");
            let hint = format!(
                "nulls='nan' makes them NaN; COALESCE(\"{name}\", 0) or WHERE \"{name}\" IS NOT NULL does without"
            );
            Err(Error::new(ErrorKind::Data, message).with_hint(hint))
        }
    }
}

/// Returns the requested columns, in order.
pub(super) fn columns(schema: &SchemaRef, batches: &[RecordBatch], wanted: &Wanted) -> Result<Vec<Column>> {
    let column = |place: usize| {
        let chunks: Vec<ArrayRef> = batches.iter().map(|batch| Arc::clone(batch.column(place))).collect();
        dense(schema.field(place), &chunks, wanted.nulls)
    };
    places(schema, &wanted.columns)?.into_iter().map(column).collect()
}

/// Returns the places of columns by name; without names, of all columns.
///
/// # Errors
/// [`ErrorKind::NotFound`] for an unknown name; [`ErrorKind::Invalid`] for an ambiguous name.
pub(crate) fn places(schema: &SchemaRef, names: &[String]) -> Result<Vec<usize>> {
    let fields = schema.fields();
    let all: Vec<usize> = (0..fields.len()).collect();
    let found = |name: &String| {
        let mut of_name = all.iter().filter(|place| fields[**place].name() == name);
        match (of_name.next(), of_name.next()) {
            (Some(place), None) => Ok(*place),
            (Some(_), Some(_)) => Err(twice(name)),
            (None, _) => {
                let error = Error::new(ErrorKind::NotFound, format!("there is no column \"{name}\""));
                Err(match nearest(name, fields.iter().map(|field| field.name().as_str())) {
                    Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                    None => error,
                })
            }
        }
    };
    let wanted = if names.is_empty() { all.clone() } else { names.iter().map(found).collect::<Result<Vec<_>>>()? };
    let repeated = wanted
        .iter()
        .enumerate()
        .find(|(at, place)| wanted[..*at].iter().any(|before| fields[*before].name() == fields[**place].name()));
    match repeated {
        Some((_, place)) => Err(twice(fields[*place].name())),
        None => Ok(wanted),
    }
}

fn twice(name: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("several columns are named \"{name}\""))
        .with_hint("tell them apart: SELECT ... AS name")
}

/// Checks that columns can form one matrix.
///
/// # Errors
/// [`ErrorKind::Invalid`] if their types differ.
pub(super) fn check_agree(columns: &[Column]) -> Result<()> {
    agree(columns.iter().map(|column| (column.name.as_str(), column.element))).map(drop)
}

/// Returns the type of a matrix of columns.
///
/// # Errors
/// As [`check_agree`].
pub(crate) fn agree<'a>(mut columns: impl Iterator<Item = (&'a str, Element)>) -> Result<Option<Element>> {
    let Some((first, element)) = columns.next() else { return Ok(None) };
    match columns.find(|(_, other)| *other != element) {
        None => Ok(Some(element)),
        Some((name, other)) => {
            let message = format!("a matrix has one type, and \"{first}\" is {element} where \"{name}\" is {other}");
            Err(Error::new(ErrorKind::Invalid, message)
                .with_hint(format!("CAST(\"{name}\" AS ...), or ask for columns")))
        }
    }
}

/// Joins columns, one behind the other.
pub(super) fn joined(columns: &[&Column]) -> Buffer {
    if let [one] = columns {
        return one.values.clone();
    }
    let mut all = MutableBuffer::new(columns.iter().map(|column| column.values.len()).sum());
    columns.iter().for_each(|column| all.extend_from_slice(column.values.as_slice()));
    all.into()
}

fn dense(field: &Field, chunks: &[ArrayRef], nulls: Nulls) -> Result<Column> {
    let own = need_element(field)?;
    let count = chunks.iter().map(|chunk| chunk.logical_null_count() as u64).sum();
    let element = with_nulls(field.name(), own, count, nulls)?;
    let values = match (count, own) {
        (0, Element::Bool) => Buffer::from_vec(chunks.iter().flat_map(truths).collect::<Vec<u8>>()),
        (0, _) => together(chunks)?,
        (_, own) => with_nan(field.name(), own, chunks)?,
    };
    let rows = chunks.iter().map(|chunk| chunk.len()).sum();
    Ok(Column { name: field.name().clone(), element, rows, values })
}

fn truths(chunk: &ArrayRef) -> Vec<u8> {
    chunk.as_boolean().values().iter().map(u8::from).collect()
}

/// Replaces NULL by NaN. Floats keep their type; all others become doubles.
fn with_nan(name: &str, element: Element, chunks: &[ArrayRef]) -> Result<Buffer> {
    fn filled<T: arrow::array::ArrowPrimitiveType>(chunks: &[ArrayRef], nan: T::Native) -> Buffer {
        let values = chunks.iter().flat_map(|chunk| chunk.as_primitive::<T>().iter());
        Buffer::from_vec(values.map(|value| value.unwrap_or(nan)).collect::<Vec<T::Native>>())
    }
    Ok(match element {
        Element::Float16 => {
            let nan = cast(&Float64Array::from(vec![f64::NAN]), &DataType::Float16)?;
            filled::<Float16Type>(chunks, nan.as_primitive::<Float16Type>().value(0))
        }
        Element::Float32 => filled::<Float32Type>(chunks, f32::NAN),
        Element::Float64 => filled::<Float64Type>(chunks, f64::NAN),
        _ => {
            let doubles = chunks
                .iter()
                .map(|chunk| cast(chunk, &DataType::Float64))
                .collect::<std::result::Result<Vec<_>, _>>()?;
            check_exact(name, chunks, &doubles)?;
            filled::<Float64Type>(&doubles, f64::NAN)
        }
    })
}

/// Checks that the conversion to doubles preserved all integers. Beyond 2^53 not every integer is a
/// double.
fn check_exact(name: &str, chunks: &[ArrayRef], doubles: &[ArrayRef]) -> Result<()> {
    for (chunk, doubles) in chunks.iter().zip(doubles) {
        let doubles = doubles.as_primitive::<Float64Type>().iter().flatten();
        let inexact = match chunk.data_type() {
            DataType::Int64 => {
                let values = chunk.as_primitive::<Int64Type>().iter().flatten();
                values.zip(doubles).filter(|(n, double)| i128::from(*n) != *double as i128).count()
            }
            DataType::UInt64 => {
                let values = chunk.as_primitive::<UInt64Type>().iter().flatten();
                values.zip(doubles).filter(|(n, double)| i128::from(*n) != *double as i128).count()
            }
            _ => 0,
        };
        if inexact > 0 {
            let message = format!("NULLs cannot be NaN here: \"{name}\" has integers that no float64 is equal to");
            return Err(Error::new(ErrorKind::Data, message).with_hint("COALESCE(column, 0) keeps it an integer"));
        }
    }
    Ok(())
}

/// Joins the values of chunks of one fixed width. The result shares their memory if they are
/// adjacent.
///
/// # Errors
/// The total exceeds the maximum number of values.
pub fn together(chunks: &[ArrayRef]) -> std::result::Result<Buffer, ArrowError> {
    let buffers: Vec<Buffer> = chunks.iter().filter(|chunk| !chunk.is_empty()).map(values).collect();
    match buffers.as_slice() {
        [] => Ok(Buffer::from_vec(vec![0u64])),
        [first, rest @ ..] if are_neighbours(first, rest) => {
            let bytes = buffers.iter().map(Buffer::len).sum();
            Ok(spanning(first, bytes))
        }
        _ => {
            let chunks: Vec<&dyn Array> = chunks.iter().map(|chunk| chunk.as_ref()).collect();
            Ok(values(&concat(&chunks)?))
        }
    }
}

/// Returns the values of an array of one fixed width, as bytes.
fn values(chunk: &ArrayRef) -> Buffer {
    let data = chunk.to_data();
    let width = data.data_type().primitive_width().unwrap_or(1);
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

/// Returns whether each buffer begins at the end of the previous one, in the same allocation.
fn are_neighbours(first: &Buffer, rest: &[Buffer]) -> bool {
    let mut end = first.as_ptr() as usize + first.len();
    rest.iter().all(|next| {
        let is_next = next.data_ptr() == first.data_ptr() && next.as_ptr() as usize == end;
        end += next.len();
        is_next
    })
}

/// Returns a buffer of `bytes` bytes that begins at the start of `first`.
fn spanning(first: &Buffer, bytes: usize) -> Buffer {
    if bytes == first.len() {
        return first.clone();
    }
    let owner = Arc::new(first.clone());
    // SAFETY: the neighbours of the buffer extend to this length. All are in the same allocation,
    // which the buffer keeps alive.
    unsafe { Buffer::from_custom_allocation(NonNull::from(first.as_slice()).cast(), bytes, owner) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{BooleanArray, Int64Array, StringArray};

    use super::*;

    fn chunks(arrays: Vec<Int64Array>) -> Vec<ArrayRef> {
        arrays.into_iter().map(|array| Arc::new(array) as ArrayRef).collect()
    }

    fn field(data_type: DataType) -> Field {
        Field::new("x", data_type, true)
    }

    #[test]
    fn chunks_that_are_neighbours_stay_where_they_are() {
        let all: Int64Array = (0..100).collect();
        let parts = [(0, 10), (10, 0), (10, 89), (99, 1)].map(|(from, rows)| all.slice(from, rows));
        let values = together(&chunks(parts.to_vec())).unwrap();
        assert_eq!((values.as_ptr(), values.len()), (all.values().inner().as_ptr(), 800));
        let swapped = together(&chunks(vec![all.slice(50, 50), all.slice(0, 50)])).unwrap();
        assert!(swapped.as_ptr() != all.values().inner().as_ptr() && swapped.len() == 800);
        assert_eq!(swapped.typed_data::<i64>()[..2], [50, 51]);
        assert_eq!(together(&chunks(vec![all.slice(7, 3)])).unwrap().typed_data::<i64>(), [7, 8, 9]);
        assert!((together(&[]).unwrap().as_ptr() as usize).is_multiple_of(8));
    }

    #[test]
    fn nulls_are_refused_or_nan() {
        let array: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let refused = dense(&field(DataType::Int64), &[Arc::clone(&array)], Nulls::Refused).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Data);
        assert!(refused.message().contains("\"x\" has 1 NULL,") && refused.hint().unwrap().contains("nulls='nan'"));
        let column = dense(&field(DataType::Int64), &[Arc::clone(&array)], Nulls::NaN).unwrap();
        let values = column.values.typed_data::<f64>();
        assert!(column.element == Element::Float64 && values[0] == 1.0 && values[1].is_nan() && values[2] == 3.0);
        // A column without NULLs is unchanged.
        let column = dense(&field(DataType::Int64), &[array.slice(0, 1)], Nulls::NaN).unwrap();
        assert_eq!((column.element, column.rows), (Element::Int64, 1));
        let large: ArrayRef = Arc::new(Int64Array::from(vec![Some(i64::MAX), None]));
        let inexact = dense(&field(DataType::Int64), &[large], Nulls::NaN).unwrap_err();
        assert_eq!(inexact.kind(), ErrorKind::Data);
        let truths: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
        let column = dense(&field(DataType::Boolean), &[Arc::clone(&truths)], Nulls::NaN).unwrap();
        assert!(column.values.typed_data::<f64>()[1].is_nan() && column.values.typed_data::<f64>()[0] == 1.0);
        assert_eq!(
            dense(&field(DataType::Boolean), &[truths.slice(2, 1)], Nulls::Refused).unwrap().values.as_slice(),
            [0]
        );
    }

    #[test]
    fn other_types_are_named() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        for (data_type, hint) in [
            (DataType::Utf8, "leave it out"),
            (DataType::Decimal128(10, 2), "AS DOUBLE"),
            (DataType::Date32, "date_part('epoch', \"x\")"),
        ] {
            let refused = dense(&field(data_type), &[Arc::clone(&texts)], Nulls::NaN).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(refused.message().contains("\"x\"") && refused.hint().unwrap().contains(hint), "{refused:?}");
        }
    }
}
