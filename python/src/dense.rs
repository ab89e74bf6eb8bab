//! Arrays as Python's libraries take them: DLPack, Arrow's C device interface, NumPy's array interface in host memory, CUDA's on a
//! device.
//!
//! An object of these keeps its memory, and so does whatever a library has made of it. What is on a device is whole before its
//! address is told, so that no stream has to wait for another. Nothing is to be written there: other arrays may be of the same
//! memory. DLPack and NumPy say so to whoever takes it; CUDA's interface cannot, for PyTorch takes nothing then.

use std::sync::Arc;

use onehop_engine::Element;
use onehop_engine::arrays::{Array as EngineArray, Arrays, Layout, Memory, Nulls, Target, Wanted};
use onehop_engine::arrow::buffer::Buffer;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::device;
use crate::dlpack::{self, Ownership, Protocol};
use crate::process::OfProcess;

/// Where an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In host memory.
    Host,
    /// On a GPU of this number.
    Device(i32),
}

impl Place {
    /// Of an array.
    pub fn of(array: &EngineArray) -> Self {
        match &array.memory {
            Memory::Host(_) => Self::Host,
            Memory::Device(memory) => Self::Device(memory.ordinal()),
        }
    }
}

/// DLPack's code for a type, and its bits.
pub fn kind_of(element: Element) -> (u8, u8) {
    let code = match element {
        Element::Bool => 6,
        Element::Int8 | Element::Int16 | Element::Int32 | Element::Int64 => 0,
        Element::UInt8 | Element::UInt16 | Element::UInt32 | Element::UInt64 => 1,
        Element::Float16 | Element::Float32 | Element::Float64 => 2,
    };
    (code, 8 * element.bytes() as u8)
}

/// NumPy's name of a type.
fn typestr(element: Element) -> String {
    let letter = match kind_of(element).0 {
        0 => 'i',
        1 => 'u',
        2 => 'f',
        _ => 'b',
    };
    let order = if element.bytes() == 1 { '|' } else { '<' };
    format!("{order}{letter}{}", element.bytes())
}

/// A column, or a column-major matrix.
#[pyclass(frozen, module = "onehop._onehop")]
pub struct Array {
    array: Arc<OfProcess<EngineArray>>,
}

/// Arrays with the names of their columns; a matrix has none.
pub type Named = Vec<(String, Array)>;

/// What the engine has made.
pub fn named(arrays: Arrays) -> Named {
    let names = arrays.columns.into_iter().chain(std::iter::repeat(String::new()));
    let arrays = arrays.arrays.into_iter();
    names.zip(arrays).map(|(name, array)| (name, Array { array: Arc::new(OfProcess::new(array)) })).collect()
}

/// What is wanted, in Python's words.
pub fn wanted(columns: Vec<String>, device: Option<&str>, nulls: &str, matrix: bool) -> PyResult<Wanted> {
    let target = match device {
        None => Target::Auto,
        Some("cpu") => Target::Host,
        Some("cuda") => Target::Device("cuda:0".into()),
        Some(name) => Target::Device(name.into()),
    };
    let nulls = match nulls {
        "error" => Nulls::Refused,
        "nan" => Nulls::NaN,
        other => return Err(PyValueError::new_err(format!("nulls is 'error' or 'nan', and not {other:?}"))),
    };
    let layout = if matrix { Layout::Matrix } else { Layout::Columns };
    Ok(Wanted { columns, target, nulls, layout })
}

impl Array {
    /// Its memory, for others to keep.
    pub fn shared(&self) -> &Arc<OfProcess<EngineArray>> {
        &self.array
    }

    fn of(&self, py: Python<'_>) -> PyResult<&EngineArray> {
        self.array.get(py)
    }

    /// What both interfaces of arrays say.
    fn interface<'py>(py: Python<'py>, array: &EngineArray, is_read_only: bool) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr(array.element))?;
        interface.set_item("shape", shape(py, array)?)?;
        interface.set_item("strides", strides(py, array)?)?;
        interface.set_item("data", (array.address(), is_read_only))?;
        Ok(interface)
    }
}

fn shape<'py>(py: Python<'py>, array: &EngineArray) -> PyResult<Bound<'py, PyTuple>> {
    match array.columns {
        Some(columns) => (array.rows, columns).into_pyobject(py),
        None => (array.rows,).into_pyobject(py),
    }
}

/// In bytes.
fn strides<'py>(py: Python<'py>, array: &EngineArray) -> PyResult<Bound<'py, PyTuple>> {
    let bytes = array.element.bytes();
    match array.columns {
        Some(_) => (bytes, array.rows * bytes).into_pyobject(py),
        None => (bytes,).into_pyobject(py),
    }
}

#[pymethods]
impl Array {
    /// The type of its values, as NumPy calls it.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.of(py)?.element.name())
    }

    /// Rows, and columns if it is a matrix.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape(py, self.of(py)?)
    }

    /// Where it is: `cpu`, or `cuda:0`.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match Place::of(self.of(py)?) {
            Place::Host => "cpu".into(),
            Place::Device(ordinal) => format!("cuda:{ordinal}"),
        })
    }

    /// The address of its first value.
    #[getter]
    fn ptr(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.of(py)?.address())
    }

    /// Bytes of all values.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.of(py)?.bytes())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.of(py)?.rows)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let array = self.of(py)?;
        let shape = shape(py, array)?.repr()?;
        Ok(format!("<onehop.Array: {} {shape} on {}>", array.element, self.device(py)?))
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(dlpack::device_of(Place::of(self.of(py)?)))
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // It is whole: no stream has to wait.
        let _ = stream;
        let place = Place::of(self.of(py)?);
        if dl_device.is_some_and(|wanted| wanted != dlpack::device_of(place)) {
            let message = format!("the array is on {}: ask for it with device=...", self.device(py)?);
            return Err(PyBufferError::new_err(message));
        }
        let protocol =
            if max_version.is_some_and(|(major, _)| major >= 1) { Protocol::Versioned } else { Protocol::Unversioned };
        match (copy == Some(true), place) {
            (true, Place::Host) => dlpack::capsule(py, &self.copied(py)?, protocol, Ownership::Copied),
            (true, Place::Device(_)) => Err(PyBufferError::new_err(
                "arrays on a GPU are copied by the library that takes them: cupy.array(x, copy=True)",
            )),
            (false, Place::Host) if protocol == Protocol::Unversioned => Err(PyBufferError::new_err(
                "the array is read-only, which DLPack can say from version 1.0 on only: ask for max_version=(1, 0), or copy=True",
            )),
            (false, _) => dlpack::capsule(py, &self.array, protocol, Ownership::Shared),
        }
    }

    /// As a column of Arrow's C device interface, which has no name. Other options than the schema are for versions to come.
    #[pyo3(signature = (requested_schema=None, **options))]
    fn __arrow_c_device_array__<'py>(
        slf: PyRef<'py, Self>,
        requested_schema: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyAny>)> {
        // It is what it is, as the interface allows.
        let _ = requested_schema;
        device::column(slf.py(), &slf, options)
    }

    /// Of host memory alone.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let array = self.of(py)?;
        match Place::of(array) {
            Place::Host => Self::interface(py, array, true),
            Place::Device(_) => {
                Err(PyAttributeError::new_err("the array is on a GPU: it has __cuda_array_interface__"))
            }
        }
    }

    /// Of a GPU's memory alone.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let array = self.of(py)?;
        match Place::of(array) {
            Place::Host => Err(PyAttributeError::new_err("the array is in host memory: it has __array_interface__")),
            Place::Device(_) => {
                let interface = Self::interface(py, array, false)?;
                // It is whole.
                interface.set_item("stream", py.None())?;
                Ok(interface)
            }
        }
    }

    /// For NumPy, which asks after all else: an array on a GPU is none of its own.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__(&self, py: Python<'_>, dtype: Option<&Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<Py<PyAny>> {
        let _ = (dtype, copy);
        let message =
            format!("the array is on {}: cupy() or torch() have it there, device='cpu' has it here", self.device(py)?);
        Err(PyTypeError::new_err(message))
    }
}

impl Array {
    /// A copy in host memory, of its own.
    fn copied(&self, py: Python<'_>) -> PyResult<Arc<OfProcess<EngineArray>>> {
        let array = self.of(py)?;
        let Memory::Host(buffer) = &array.memory else { return Ok(Arc::clone(&self.array)) };
        let bytes = &buffer.as_slice()[..array.bytes().min(buffer.len())];
        let memory = Memory::Host(Buffer::from(bytes));
        Ok(Arc::new(OfProcess::new(EngineArray { memory, ..array.clone() })))
    }
}
