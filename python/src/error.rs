//! Errors as exceptions. Their classes are written in Python (`onehop/errors.py`), one for each kind of the engine's.

use onehop_engine::Error;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// An error of the engine as the exception of its kind.
pub fn engine(py: Python<'_>, error: &Error) -> PyErr {
    let module = py.import(intern!(py, "onehop.errors"));
    let made = module.and_then(|errors| {
        errors.call_method1(intern!(py, "of_kind"), (error.kind().name(), error.message(), error.hint()))
    });
    made.map_or_else(|e| e, PyErr::from_value)
}

/// Something was asked of an object that it cannot do as it is: it is closed, read, or another process's.
pub fn interface(py: Python<'_>, message: impl AsRef<str>, hint: &str) -> PyErr {
    of_class(py, "InterfaceError", message.as_ref(), hint)
}

/// A value that Python has no room for.
pub fn data(py: Python<'_>, message: impl AsRef<str>, hint: &str) -> PyErr {
    of_class(py, "DataError", message.as_ref(), hint)
}

fn of_class(py: Python<'_>, class: &str, message: &str, hint: &str) -> PyErr {
    let module = py.import(intern!(py, "onehop.errors"));
    let made = module.and_then(|errors| errors.getattr(PyString::new(py, class))?.call1((message, hint)));
    made.map_or_else(|e| e, PyErr::from_value)
}
