//! The `onehop` command: what was typed ([`args`]) becomes something to do ([`run`]), which ends in an exit code
//! ([`exit`]). Results go to standard output; everything said about them goes to standard error.
//!
//! A library, so that the command can come along with what is loaded anyway: the wheel of the Python package has no other
//! binary.

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

/// Does what was typed, the command's name first, and says how that ended: the exit code.
pub fn command(words: impl IntoIterator<Item = OsString>) -> u8 {
    raise_open_files();
    outlive_limits_of_files();
    let exit = match args::parse(words) {
        Ok(args) => run::run(args),
        Err(exit) => exit,
    };
    // What cannot be written now was reported when it was written, or is nobody's any more.
    let _ = std::io::stdout().flush();
    exit as u8
}

/// Lets this process have as many open files as the system allows it: a table of billions of rows has hundreds of segments, each of
/// which is a file or two (and one more of cuFile's), and a server has a socket for every client.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused it stays as it was, and whoever opens one file too many says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A write beyond the length that the process may give a file (`ulimit -f`) is an error, as on a full disk, and not the end.
fn outlive_limits_of_files() {
    // SAFETY: nothing handles the signal, and nobody else sets what becomes of it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends the process as it is, without exit handlers: those of a GPU's driver may never return beside a thread that is in the driver, and
/// such a thread is there when a query was done before the GPUs that it could have used were looked at.
pub fn leave(code: u8) -> ! {
    // SAFETY: nothing of this process is used any more.
    unsafe { libc::_exit(code.into()) }
}

/// The GPUs of this machine, which are looked for when a query is worth one.
pub fn devices() -> Arc<CudaDevices> {
    gpu::devices()
}
