//! Arrow's C device data interface: columns as an array of structures, in host memory or on a GPU, for cuDF, PyArrow and
//! whatever else takes one.
//!
//! ```text
//! DeviceArray ── array: the structures ─┬─ children[0]: values of the first column, where they are
//!                                       └─ children[1]: ...
//! ```
//! - No row is NULL: arrays have no place for it. What is told has no bitmaps of validity, then.
//! - Whoever takes an array may move a child out of it, and keep that alone: each has its own hold on its memory, and gives it
//!   back when its `release` is called, on whatever thread, with the interpreter's lock or without.
//! - What is on a device is whole before its address is told: there is no event to wait for.
//!
//! Structures are those of the specification, as of Arrow 12.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use onehop_engine::Element;
use onehop_engine::arrays::Array as EngineArray;
use onehop_engine::arrow::datatypes::{DataType, Field, Schema};
use pyo3::exceptions::{PyBufferError, PyNotImplementedError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::dense::{Array, Place};
use crate::dlpack;
use crate::process::OfProcess;

const NAME: &CStr = c"arrow_device_array";

/// An `ArrowArray`.
#[repr(C)]
struct CArray {
    length: i64,
    null_count: i64,
    offset: i64,
    buffer_count: i64,
    child_count: i64,
    buffers: *mut *const c_void,
    children: *mut *mut CArray,
    dictionary: *mut CArray,
    release: Option<unsafe extern "C" fn(*mut CArray)>,
    private: *mut c_void,
}

/// An `ArrowDeviceArray`.
#[repr(C)]
struct DeviceArray {
    array: CArray,
    device_id: i64,
    device_kind: i32,
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

const _: () = assert!(size_of::<CArray>() == 80 && size_of::<DeviceArray>() == 128);

/// What a structure points to; it is freed by `release`.
struct Owned {
    /// Validity, of which there is none, and values.
    buffers: Vec<*const c_void>,
    children: Vec<*mut CArray>,
    _array: Option<Arc<OfProcess<EngineArray>>>,
}

impl CArray {
    fn new(
        length: usize,
        buffers: Vec<*const c_void>,
        children: Vec<Self>,
        array: Option<Arc<OfProcess<EngineArray>>>,
    ) -> Self {
        let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
        let mut owned = Box::new(Owned { buffers, children, _array: array });
        Self {
            length: length as i64,
            null_count: 0,
            offset: 0,
            buffer_count: owned.buffers.len() as i64,
            child_count: owned.children.len() as i64,
            buffers: owned.buffers.as_mut_ptr(),
            children: owned.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release),
            private: Box::into_raw(owned).cast(),
        }
    }

    fn of_column(array: &EngineArray, shared: &Arc<OfProcess<EngineArray>>) -> Self {
        let buffers = vec![ptr::null(), array.address() as *const c_void];
        Self::new(array.rows, buffers, Vec::new(), Some(Arc::clone(shared)))
    }
}

/// As the specification has it: frees what the structure points to, and marks it as released. It has nothing that could panic,
/// and needs no lock.
unsafe extern "C" fn release(array: *mut CArray) {
    // SAFETY: called once, with a structure that [`CArray::new`] has made or a bitwise copy of it: `private` is its own. A
    // child that was moved has no `release` any more, and the box that it was in is ours in either case.
    unsafe {
        let owned = Box::from_raw((*array).private.cast::<Owned>());
        for child in &owned.children {
            let mut child = Box::from_raw(*child);
            if let Some(release) = child.release {
                release(&raw mut *child);
            }
        }
        (*array).release = None;
    }
}

/// What the array is called in Arrow.
fn type_of(element: Element) -> Option<DataType> {
    Some(match element {
        // A byte each, where Arrow has bits.
        Element::Bool => return None,
        Element::Int8 => DataType::Int8,
        Element::Int16 => DataType::Int16,
        Element::Int32 => DataType::Int32,
        Element::Int64 => DataType::Int64,
        Element::UInt8 => DataType::UInt8,
        Element::UInt16 => DataType::UInt16,
        Element::UInt32 => DataType::UInt32,
        Element::UInt64 => DataType::UInt64,
        Element::Float16 => DataType::Float16,
        Element::Float32 => DataType::Float32,
        Element::Float64 => DataType::Float64,
    })
}

/// Schema and array.
type Capsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyAny>);

/// An array by itself.
///
/// # Errors
/// `BufferError` for what Arrow has not: a matrix, truth values in bytes. `NotImplementedError` for options that are not known.
pub fn column<'py>(py: Python<'py>, column: &Array, options: Option<&Bound<'py, PyDict>>) -> PyResult<Capsules<'py>> {
    refuse(options)?;
    let shared = column.shared();
    let array = shared.get(py)?;
    let schema = pyo3_arrow::ffi::to_schema_pycapsule(py, field_of("", array)?)?;
    Ok((schema, capsule(py, CArray::of_column(array, shared), Place::of(array))?))
}

/// Columns of one table as an array of structures. They are all on one device, and of one length.
///
/// # Errors
/// As those of [`column`]; `BufferError` for columns that are not together.
#[pyfunction]
pub fn arrow_c_device_array<'py>(
    py: Python<'py>,
    columns: Vec<(String, PyRef<'py, Array>)>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Capsules<'py>> {
    refuse(options)?;
    let (mut fields, mut children, mut first) = (Vec::new(), Vec::new(), None);
    for (name, column) in &columns {
        let shared = column.shared();
        let array = shared.get(py)?;
        let is = (array.rows, Place::of(array));
        if *first.get_or_insert(is) != is {
            return Err(PyBufferError::new_err("the columns are not of one table, or not on one device"));
        }
        fields.push(field_of(name, array)?);
        children.push((array, shared));
    }
    let schema = pyo3_arrow::ffi::to_schema_pycapsule(py, Schema::new(fields))?;
    let (rows, place) = first.unwrap_or((0, Place::Host));
    let children = children.into_iter().map(|(array, shared)| CArray::of_column(array, shared)).collect();
    Ok((schema, capsule(py, CArray::new(rows, vec![ptr::null()], children, None), place)?))
}

/// Options are for versions of the interface to come, which say that nothing is meant by `None`.
fn refuse(options: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    for (name, value) in options.into_iter().flatten() {
        if !value.is_none() {
            return Err(PyNotImplementedError::new_err(format!("{name} is no option that is known here")));
        }
    }
    Ok(())
}

fn field_of(name: &str, array: &EngineArray) -> PyResult<Field> {
    if array.columns.is_some() {
        return Err(PyBufferError::new_err("Arrow has no arrays of two dimensions: ask for columns with arrays()"));
    }
    match type_of(array.element) {
        Some(data_type) => Ok(Field::new(name, data_type, false)),
        None => Err(PyBufferError::new_err(format!(
            "an array of truth values has a byte for each, where Arrow has a bit: CAST(\"{name}\" AS TINYINT) makes numbers of them"
        ))),
    }
}

fn capsule<'py>(py: Python<'py>, array: CArray, place: Place) -> PyResult<Bound<'py, PyAny>> {
    let (device_kind, ordinal) = dlpack::device_of(place);
    // Host memory has no number in Arrow.
    let device_id = if place == Place::Host { -1 } else { i64::from(ordinal) };
    let device = DeviceArray { array, device_id, device_kind, sync_event: ptr::null_mut(), reserved: [0; 3] };
    let device = Box::into_raw(Box::new(device));
    // SAFETY: made by `Box`, as the capsule's destructor expects; the name lives for ever, and the interpreter's lock is held.
    let capsule = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(device.cast(), NAME.as_ptr(), Some(drop_capsule)))
    };
    capsule.inspect_err(|_| {
        // SAFETY: nobody has it.
        unsafe { free(device) }
    })
}

/// # Safety
/// Made by [`capsule`], and given back once.
unsafe fn free(device: *mut DeviceArray) {
    // SAFETY: the caller's promise. Who has taken the array has left no `release` there.
    unsafe {
        let mut device = Box::from_raw(device);
        if let Some(release) = device.array.release {
            release(&raw mut device.array);
        }
    }
}

unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, of a capsule of ours, whose name nobody changes. No exception that is on its way is
    // lost: getting the pointer raises nothing then.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            free(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
