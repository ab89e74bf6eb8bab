//! The `onehop` command: the command line ([`args`]) becomes an action ([`run`]), which ends in an
//! exit code ([`exit`]). Results go to standard output, and all messages to standard error.
//!
//! It is a library, so that a package that loads it anyway can provide the command: the wheel of
//! the Python package has no other binary.

mod args;
mod backup;
mod check;
mod client;
mod doctor;
mod exit;
mod explain;
mod footer;
mod format;
pub mod functions;
mod gpu;
mod interrupt;
mod lab;
mod message;
pub mod pipe;
pub mod progress;
mod rados;
mod run;
mod script;
mod serve;
mod settings;
mod shell;
mod source;
mod statement;
mod store;
mod terminal;
mod user;
mod version;
mod view;

use std::ffi::OsString;
use std::io::Write as _;
use std::sync::Arc;

use onehop_cuda::CudaDevices;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs a command line, which begins with the command's name. Returns the exit code.
pub fn command(words: impl IntoIterator<Item = OsString>) -> u8 {
    raise_open_files();
    outlive_limits_of_files();
    let exit = match args::parse(words) {
        Ok(args) => run::run(args),
        Err(exit) => exit,
    };
    // A failed write has already been reported, or its reader is gone.
    let _ = std::io::stdout().flush();
    exit as u8
}

/// Raises the limit on open files to the system's maximum. A table of billions of rows has hundreds
/// of segments, each of which is a file or two (and one more of cuFile's), and a server has a
/// socket for every client.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If that is refused, the limit stays, and an operation that opens one file too many reports
    // it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Turns a write beyond the process's file size limit (`ulimit -f`) into an error, as on a full
/// disk. By default it would end the process.
fn outlive_limits_of_files() {
    // SAFETY: nothing handles the signal, and no other code sets its disposition.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends the process without exit handlers. Those of a GPU's driver may never return while another
/// thread is in the driver. Such a thread exists if a query completes before the GPUs that it could
/// have used were examined.
pub fn leave(code: u8) -> ! {
    // SAFETY: nothing of this process is used any more.
    unsafe { libc::_exit(code.into()) }
}

/// Returns the GPUs of this machine, which are opened when a query is worth one.
pub fn devices() -> Arc<CudaDevices> {
    gpu::devices()
}
