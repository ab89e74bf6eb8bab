//! DLPack: an array as a C structure in a capsule, for PyTorch, CuPy, JAX, NumPy and all others that take one.
//!
//! - A capsule is taken once: whoever takes it renames it, and calls the deleter when it needs the array no more, on whatever
//!   thread, with the interpreter's lock or without. One that nobody has taken is deleted with its capsule.
//! - The structure keeps the array's memory, and nothing of Python's.
//! - Consumers that know versions get the one that says that nothing is to be written there.
//!
//! Structures are those of `dlpack.h`, version 1.0, and of the one before versions.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use onehop_engine::arrays::Array;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dense::{Place, kind_of};
use crate::process::OfProcess;

/// `DLPACK_MAJOR_VERSION`, `DLPACK_MINOR_VERSION`.
const VERSION: Version = Version { major: 1, minor: 0 };
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

/// A `DLDevice`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Device {
    kind: i32,
    ordinal: i32,
}

/// A `DLDataType`.
#[derive(Clone, Copy)]
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// A `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// A `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

const _: () = assert!(size_of::<Tensor>() == 48 && size_of::<Managed>() == 64 && size_of::<ManagedVersioned>() == 80);

/// What a structure points to; it is freed with it.
struct Owned {
    shape: [i64; 2],
    strides: [i64; 2],
    _array: Arc<OfProcess<Array>>,
}

/// What a consumer asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// That from before there were versions: it cannot say that an array is read-only.
    Unversioned,
    /// 1.0.
    Versioned,
}

/// Whether an array was made for its consumer alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Others have it as well.
    Shared,
    /// It may be written to.
    Copied,
}

/// The numbers that DLPack has for where an array is.
pub fn device_of(place: Place) -> (i32, i32) {
    match place {
        Place::Host => (1, 0),
        Place::Device(ordinal) => (2, ordinal),
    }
}

/// An array in a capsule.
pub fn capsule<'py>(
    py: Python<'py>,
    array: &Arc<OfProcess<Array>>,
    protocol: Protocol,
    ownership: Ownership,
) -> PyResult<Bound<'py, PyAny>> {
    let of = array.get(py)?;
    let (rows, columns) = (of.rows as i64, of.columns.map_or(1, |columns| columns as i64));
    let mut owned = Box::new(Owned {
        shape: [rows, columns],
        // In values: rows of a column are next to each other.
        strides: [1, rows],
        _array: Arc::clone(array),
    });
    let (kind, ordinal) = device_of(Place::of(of));
    let (code, bits) = kind_of(of.element);
    let tensor = Tensor {
        data: of.address() as *mut c_void,
        device: Device { kind, ordinal },
        dimensions: if of.columns.is_some() { 2 } else { 1 },
        dtype: DataType { code, bits, lanes: 1 },
        shape: owned.shape.as_mut_ptr(),
        strides: owned.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(owned).cast();
    match protocol {
        Protocol::Unversioned => {
            let managed = Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(delete) }));
            // SAFETY: made just now by `Box`, as the capsule's destructor expects, which gets it if nobody else does.
            unsafe { encapsulated(py, managed.cast(), NAME, drop_capsule) }.inspect_err(|_| {
                // SAFETY: nobody has it.
                unsafe { delete(managed) }
            })
        }
        Protocol::Versioned => {
            let flags = if ownership == Ownership::Copied { IS_COPIED } else { READ_ONLY };
            let managed = Box::new(ManagedVersioned {
                version: VERSION,
                context,
                deleter: Some(delete_versioned),
                flags,
                tensor,
            });
            let managed = Box::into_raw(managed);
            // SAFETY: as above.
            unsafe { encapsulated(py, managed.cast(), VERSIONED_NAME, drop_versioned_capsule) }.inspect_err(|_| {
                // SAFETY: nobody has it.
                unsafe { delete_versioned(managed) }
            })
        }
    }
}

/// # Safety
/// `pointer` is what `destructor` takes out of a capsule of that name.
unsafe fn encapsulated<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the pointer is none to nothing, the name lives for ever, and the interpreter's lock is held.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor))) }
}

/// # Safety
/// `context` was made by [`capsule`], and is given back once.
unsafe fn free(context: *mut c_void) {
    // SAFETY: made by `Box::into_raw`.
    drop(unsafe { Box::from_raw(context.cast::<Owned>()) });
}

/// The deleter. It has nothing that could panic, and needs no lock.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: consumers call it once, with what was in the capsule.
    unsafe {
        let managed = Box::from_raw(managed);
        free(managed.context);
    }
}

/// The deleter of the other.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe {
        let managed = Box::from_raw(managed);
        free(managed.context);
    }
}

/// What lies in a capsule that still has its first name: nobody has taken it. No exception that is on its way is lost.
///
/// # Safety
/// A capsule that is being destroyed, with the interpreter's lock.
unsafe fn untaken(capsule: *mut ffi::PyObject, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller's promise. Of a capsule with this name, getting the pointer raises nothing.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 0 {
            return None;
        }
        Some(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()))
    }
}

unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, of a capsule of ours.
    unsafe {
        if let Some(managed) = untaken(capsule, NAME) {
            delete(managed.cast());
        }
    }
}

unsafe extern "C" fn drop_versioned_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if let Some(managed) = untaken(capsule, VERSIONED_NAME) {
            delete_versioned(managed.cast());
        }
    }
}
