//! The `onehop` command, which comes with the wheel.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Does what was typed, the command's name first; the exit code.
#[pyfunction]
pub fn run_command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| onehop::command(words))
}
