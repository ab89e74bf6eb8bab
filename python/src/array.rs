//! Columns as NumPy's arrays, through NumPy's array interface: an address, a type and a length.
//!
//! Numbers, dates and timestamps of the same layout stay where they are: if the column is one chunk, or chunks that lie one
//! after the other, as those of a registered table do. Others are put together, which copies them once. What NumPy reads is
//! read-only, and kept for as long as an array is over it.

use onehop_engine::arrays::together;
use onehop_engine::arrow::array::{ArrayRef, AsArray, BooleanArray};
use onehop_engine::arrow::buffer::Buffer;
use onehop_engine::arrow::compute::cast;
use onehop_engine::arrow::datatypes::{DataType, Field, TimeUnit};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Values of one width, as NumPy's array interface describes them.
#[pyclass(frozen, module = "onehop._onehop")]
pub struct NumpyView {
    dtype: String,
    rows: usize,
    address: usize,
    /// Has the memory at `address`.
    _buffer: Buffer,
}

#[pymethods]
impl NumpyView {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", &self.dtype)?;
        interface.set_item("shape", (self.rows,))?;
        let is_read_only = true;
        interface.set_item("data", (self.address, is_read_only))?;
        Ok(interface)
    }
}

impl NumpyView {
    fn new(dtype: impl Into<String>, rows: usize, buffer: Buffer) -> Self {
        Self { dtype: dtype.into(), rows, address: buffer.as_ptr() as usize, _buffer: buffer }
    }
}

/// The values of a column, those that are NULL being anything, and which are NULL, if any are; `None` if NumPy has no type
/// for them.
pub fn views(field: &Field, chunks: &[ArrayRef]) -> PyResult<Option<(NumpyView, Option<NumpyView>)>> {
    let Some(dtype) = dtype(field.data_type()) else { return Ok(None) };
    let rows = chunks.iter().map(|chunk| chunk.len()).sum();
    let values = match field.data_type() {
        DataType::Boolean => Buffer::from_vec(chunks.iter().flat_map(truths).collect::<Vec<u8>>()),
        DataType::Date32 => {
            // NumPy counts days in 64 bits.
            let wide = chunks.iter().map(|chunk| cast(&cast(chunk, &DataType::Int32)?, &DataType::Int64));
            together(&wide.collect::<Result<Vec<_>, _>>().map_err(refused)?).map_err(refused)?
        }
        _ => together(chunks).map_err(refused)?,
    };
    Ok(Some((NumpyView::new(dtype, rows, values), nulls(chunks))))
}

/// Which values are NULL; `None` if none are.
pub fn nulls(chunks: &[ArrayRef]) -> Option<NumpyView> {
    let is_null = |chunk: &ArrayRef| {
        let nulls = chunk.logical_nulls();
        (0..chunk.len()).map(|row| u8::from(nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)))).collect::<Vec<_>>()
    };
    if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
        return None;
    }
    let mask: Vec<u8> = chunks.iter().flat_map(is_null).collect();
    Some(NumpyView::new("|b1", mask.len(), Buffer::from_vec(mask)))
}

fn truths(chunk: &ArrayRef) -> Vec<u8> {
    let truths: &BooleanArray = chunk.as_boolean();
    truths.values().iter().map(u8::from).collect()
}

/// NumPy's name of a type whose values have the layout of Arrow's, or are made to.
fn dtype(data_type: &DataType) -> Option<String> {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    Some(match data_type {
        DataType::Boolean => "|b1".into(),
        DataType::Int8 => "|i1".into(),
        DataType::UInt8 => "|u1".into(),
        DataType::Int16 => "<i2".into(),
        DataType::UInt16 => "<u2".into(),
        DataType::Int32 => "<i4".into(),
        DataType::UInt32 => "<u4".into(),
        DataType::Int64 => "<i8".into(),
        DataType::UInt64 => "<u8".into(),
        DataType::Float16 => "<f2".into(),
        DataType::Float32 => "<f4".into(),
        DataType::Float64 => "<f8".into(),
        DataType::Date32 => "<M8[D]".into(),
        DataType::Date64 => "<M8[ms]".into(),
        DataType::Timestamp(of, _) => format!("<M8[{}]", unit(of)),
        DataType::Duration(of) => format!("<m8[{}]", unit(of)),
        _ => return None,
    })
}

fn refused(e: onehop_engine::arrow::error::ArrowError) -> PyErr {
    PyValueError::new_err(e.to_string())
}
