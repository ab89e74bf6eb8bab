//! Functions in CUDA: what is started to run them is this Python once more, with this library and nothing else of the package.

use std::ffi::OsString;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// What it is told, besides where the library lies.
const PROGRAM: &str = "import sys; sys.path.insert(0, sys.argv[1]); import _onehop; _onehop.run_functions()";

/// The program and its words; `None` where Python does not know what it is itself, as where another program has it.
pub fn program(py: Python<'_>) -> Option<Vec<OsString>> {
    let python: OsString = py.import("sys").and_then(|sys| sys.getattr("executable")?.extract()).ok()?;
    let file: String = py.import("onehop._onehop").and_then(|own| own.getattr("__file__")?.extract()).ok()?;
    let folder = std::path::Path::new(&file).parent()?;
    (!python.is_empty()).then(|| vec![python, "-c".into(), PROGRAM.into(), folder.into()])
}

/// Runs functions for whoever has started this process, until that needs none any more, and ends the process: a GPU's driver may have
/// threads that no exit handler should meet.
#[pyfunction]
pub fn run_functions(py: Python<'_>) -> PyResult<()> {
    match py.detach(|| onehop::functions::serve(gpu)) {
        Ok(()) => onehop::leave(0),
        Err(e) => Err(PyOSError::new_err(format!("cannot talk to who wants functions run: {e}"))),
    }
}

#[cfg(not(feature = "fake"))]
fn gpu() -> Result<onehop::functions::Gpu, String> {
    onehop::functions::first_gpu()
}

/// A GPU that is none, for tests: as [`crate::home`] has it.
#[cfg(feature = "fake")]
fn gpu() -> Result<onehop::functions::Gpu, String> {
    match std::env::var("ONEHOP_TEST_DEVICE").as_deref() {
        Ok("fake") => Ok(onehop::functions::Gpu {
            context: onehop_cuda::fake::context(),
            nvrtc: onehop_cuda::fake::nvrtc(),
            devices: crate::home::devices(),
        }),
        _ => onehop::functions::first_gpu(),
    }
}
