//! The native part of the Python package `onehop`: connections, results as they stream, and Arrow's C interfaces.
//!
//! What people call is written in Python, beside this in `onehop/`; here is what needs the engine.
//!
//! - Whoever waits for the engine does so without the interpreter's lock, and looks for Ctrl-C meanwhile ([`wait`]).
//! - Nothing here is copied between Arrow and Python but values that become Python objects.
//! - What a process has opened is that process's: a forked child is told so ([`process::OfProcess`]).

mod array;
mod command;
mod connection;
mod dense;
mod device;
mod dlpack;
mod error;
mod exit;
mod functions;
mod home;
mod params;
mod process;
mod progress;
mod register;
mod rows;
mod shared;
mod statement;
mod table;
mod value;
mod wait;

use pyo3::prelude::*;

#[pymodule]
mod _onehop {
    #[pymodule_export]
    use super::array::NumpyView;
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::connection::Connection;
    #[pymodule_export]
    use super::dense::Array;
    #[pymodule_export]
    use super::device::arrow_c_device_array;
    #[pymodule_export]
    use super::exit::{finish, forked};
    #[pymodule_export]
    use super::functions::run_functions;
    #[pymodule_export]
    use super::rows::Rows;
    #[pymodule_export]
    use super::table::Table;
}
