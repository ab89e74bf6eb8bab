//! Memory shared with other processes: a copy as of the time of sharing, in an unnamed file that
//! the handle locates. Shared memory is not written to any more.
//!
//! Errors are those of the real driver: a malformed handle is an invalid value, and a handle of the
//! same device in the same process is an invalid context.

use std::ffi::{c_int, c_uint, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use super::{Machine, current, lock};
use crate::driver::sys::RawShared;

const INVALID_VALUE: c_int = 1;
const INVALID_CONTEXT: c_int = 201;
const MAGIC: u64 = 0x6661_6b65_6d65_6d31;

/// Words of a handle: magic, process, descriptor, bytes, machine, and a checksum of them.
fn words(handle: &RawShared) -> [u64; 6] {
    let word = |n: usize| u64::from_ne_bytes(*handle.0[n * 8..].first_chunk().unwrap());
    std::array::from_fn(word)
}

fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(7, |sum: u64, word| sum.wrapping_mul(31).wrapping_add(*word))
}

fn name_of(machine: &Machine) -> u64 {
    std::ptr::from_ref(machine) as u64
}

pub unsafe extern "C" fn extent(start: *mut u64, len: *mut usize, of: u64) -> c_int {
    let memory = lock(&current().memory);
    let of = of as usize;
    let allocated = memory.allocations.iter().map(|(start, len)| (*start, *len));
    let opened = memory.opened.iter().map(|(start, len)| (*start, *len));
    match allocated.chain(opened).find(|(start, len)| (*start..*start + (*len).max(1)).contains(&of)) {
        Some(found) => {
            unsafe { (*start, *len) = (found.0 as u64, found.1) };
            0
        }
        None => INVALID_VALUE,
    }
}

pub unsafe extern "C" fn share(out: *mut RawShared, of: u64) -> c_int {
    let machine = current();
    let mut memory = lock(&machine.memory);
    let Some(len) = memory.allocations.get(&(of as usize)).copied() else { return INVALID_VALUE };
    let file = memory.shared.entry(of as usize).or_insert_with(|| {
        let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"fake".as_ptr(), libc::MFD_CLOEXEC)) };
        file.write_all(unsafe { std::slice::from_raw_parts(of as *const u8, len) }).unwrap();
        file
    });
    let fields = [MAGIC, std::process::id().into(), file.as_raw_fd() as u64, len as u64, name_of(machine)];
    let mut handle = [0; 64];
    for (n, word) in fields.iter().chain([&checksum(&fields)]).enumerate() {
        handle[n * 8..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    unsafe { *out = RawShared(handle) };
    0
}

pub unsafe extern "C" fn open_shared(out: *mut u64, handle: RawShared, _: c_uint) -> c_int {
    let machine = current();
    let fields = words(&handle);
    let [magic, process, descriptor, len, name, sum] = fields;
    if magic != MAGIC || sum != checksum(&fields[..5]) {
        return INVALID_VALUE;
    }
    if process == u64::from(std::process::id()) && name == name_of(machine) {
        return INVALID_CONTEXT;
    }
    let Ok(file) = std::fs::File::open(format!("/proc/{process}/fd/{descriptor}")) else { return INVALID_VALUE };
    let (len, fd) = (len as usize, file.as_raw_fd());
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED {
        return INVALID_VALUE;
    }
    machine.born("shared memory", at as usize);
    lock(&machine.memory).opened.insert(at as usize, len);
    unsafe { *out = at as u64 };
    0
}

pub unsafe extern "C" fn close_shared(at: u64) -> c_int {
    let machine = current();
    let Some(len) = lock(&machine.memory).opened.remove(&(at as usize)) else { return INVALID_VALUE };
    machine.gone("shared memory", at as usize);
    unsafe { libc::munmap(at as *mut c_void, len) }
}
