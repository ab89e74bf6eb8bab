//! The kernel, and the availability of io_uring.

use std::fs;
use std::io;

use rustix::io_uring::{io_uring_params, io_uring_setup};

use super::Finding;

/// Probes the kernel.
pub fn probe() -> Vec<Finding> {
    vec![kernel(), io_uring()]
}

fn kernel() -> Finding {
    Finding::ok("kernel", name())
}

/// Returns kernel, release and architecture: `Linux 6.12.1 x86_64`.
pub fn name() -> String {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!("{} {} {}", text(name.sysname()), text(name.release()), text(name.machine()))
}

/// Checks io_uring by creating a ring, because sysctls, seccomp filters and old kernels refuse it
/// only there.
fn io_uring() -> Finding {
    match make_ring() {
        Ok(()) => Finding::ok("io_uring", "allowed"),
        Err(e) => {
            let (cause, fix) = reason(&e);
            Finding::info("io_uring", "not allowed: storage is read by threads instead").because(cause).fix(fix)
        }
    }
}

fn make_ring() -> io::Result<()> {
    let mut params = io_uring_params::default();
    // SAFETY: the kernel writes into `params`, which outlives the call, and nothing is submitted to
    // the ring: it has no pointers of ours, and ends when the descriptor is dropped here.
    unsafe { io_uring_setup(1, &mut params) }?;
    Ok(())
}

fn reason(e: &io::Error) -> (String, &'static str) {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match e.kind() {
        io::ErrorKind::Unsupported => ("this kernel does not have it (5.1 and later do)".into(), "update the kernel"),
        io::ErrorKind::PermissionDenied if ["1", "2"].contains(&disabled.trim()) => {
            (format!("kernel.io_uring_disabled = {}", disabled.trim()), "sysctl kernel.io_uring_disabled=0")
        }
        io::ErrorKind::PermissionDenied => (
            "a seccomp filter refuses it, as containers' default profiles do".into(),
            "run the container with a profile that allows io_uring",
        ),
        _ => (e.to_string(), "see the cause"),
    }
}
