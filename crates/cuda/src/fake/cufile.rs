//! Fake cuFile: transfers by `pread` and `pwrite`, batches that complete the youngest transfer
//! first.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

use super::driver::{Op, Ops};
use super::{Answer, Call, Machine, current, lock};
use crate::cufile::sys as cu;

const FINE: cu::Status = cu::Status { code: 0, cuda: 0 };

/// `CUFILE_FAILED` and `CUFILE_CANCELED`.
const FAILED: c_uint = 0x40;
const CANCELLED: c_uint = 0x8;

/// Result of a transfer, before it is encoded for the call that started it.
enum Outcome {
    Moved(usize),
    System(c_int),
    Cufile(c_int),
    Cancelled,
}

fn transfer(machine: &Machine, write: bool, fd: c_int, place: usize, bytes: usize, at: i64) -> Outcome {
    let n = machine.transfers.fetch_add(1, SeqCst);
    let cut = (bytes / 2).next_multiple_of(4096);
    let bytes = if n % 3 == 2 && bytes > 4096 && cut < bytes { cut } else { bytes };
    let bytes = match machine.fault(Call::Transfer) {
        None => bytes,
        Some(Answer::Short(most)) => bytes.min(most),
        Some(Answer::End) => return Outcome::Moved(0),
        Some(Answer::System(code)) => return Outcome::System(code),
        Some(Answer::Code(code)) => return Outcome::Cufile(code),
        Some(Answer::Cancelled) => return Outcome::Cancelled,
    };
    match by_calls(write, fd, place as *mut c_void, bytes, at) {
        Ok(n) => Outcome::Moved(n),
        Err(e) => Outcome::System(e.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Transfers by `pread` and `pwrite`. As with cuFile, transfers that are not aligned for direct I/O
/// use the page cache.
fn by_calls(write: bool, fd: c_int, place: *mut c_void, bytes: usize, at: i64) -> io::Result<usize> {
    let is_aligned = [place as usize, bytes, at as usize].iter().all(|n| n.is_multiple_of(4096));
    let buffered = match is_aligned {
        true => None,
        false => Some(File::options().read(true).write(write).open(format!("/proc/self/fd/{fd}"))?),
    };
    let fd = buffered.as_ref().map_or(fd, File::as_raw_fd);
    let moved = match write {
        false => unsafe { libc::pread(fd, place, bytes, at) },
        true => unsafe { libc::pwrite(fd, place, bytes, at) },
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

fn fd(handle: *mut c_void) -> c_int {
    handle as c_int - 1
}

/// Executes a transfer with the blocking call.
fn at_once(write: bool, file: *mut c_void, base: *mut c_void, bytes: usize, at: i64, skip: i64) -> isize {
    let machine = current();
    let place = base as usize + skip as usize;
    machine.uses("a transfer", place, bytes);
    let touch = machine.begin(place, bytes);
    let outcome = transfer(machine, write, fd(file), place, bytes, at);
    machine.end(touch);
    match outcome {
        Outcome::Moved(n) => n as isize,
        Outcome::System(code) => {
            unsafe { *libc::__errno_location() = code };
            -1
        }
        Outcome::Cufile(code) => -(code as isize),
        Outcome::Cancelled => panic!("only what is in a batch is cancelled"),
    }
}

/// A transfer in a stream. Its parameters are read when it executes.
pub struct Io {
    write: bool,
    fd: c_int,
    base: usize,
    bytes: *const usize,
    at: *const i64,
    skip: *const i64,
    moved: *mut isize,
    touch: u64,
}

impl Io {
    /// Executes the transfer.
    pub unsafe fn run(self, machine: &Machine) {
        let (bytes, at, skip) = unsafe { (*self.bytes, *self.at, *self.skip) };
        let moved = match transfer(machine, self.write, self.fd, self.base + skip as usize, bytes, at) {
            // cuFile also fails transfers that the end of the file cuts short.
            Outcome::Moved(n) if !n.is_multiple_of(4096) => -(libc::EIO as isize),
            Outcome::Moved(n) => n as isize,
            Outcome::System(code) | Outcome::Cufile(code) => -(code as isize),
            Outcome::Cancelled => panic!("only what is in a batch is cancelled"),
        };
        unsafe { *self.moved = moved };
        machine.end(self.touch);
    }
}

struct Entries {
    capacity: usize,
    waiting: Vec<(cu::BatchEntry, u64)>,
}

type Batch = Mutex<Entries>;

pub fn api() -> cu::Api {
    unsafe extern "C" fn fine() -> cu::Status {
        FINE
    }
    unsafe extern "C" fn properties(out: *mut cu::Properties) -> cu::Status {
        unsafe { *out = cu::Properties { max_batch: 128, control: 2, ..cu::Properties::default() } };
        FINE
    }
    unsafe extern "C" fn register_file(out: *mut *mut c_void, of: *mut cu::Descriptor) -> cu::Status {
        let fd = unsafe { (*of).handle.fd };
        if unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK != 0 {
            // CU_FILE_INVALID_FILE_OPEN_FLAG, as in cuFile 1.15.
            return cu::Status { code: 5019, cuda: 0 };
        }
        if let Some(Answer::Code(code)) = current().fault(Call::Open) {
            return cu::Status { code, cuda: 0 };
        }
        // SAFETY: all zeros is a valid value, and the call writes one structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        if unsafe { libc::fstat(fd, &raw mut stat) } != 0 || stat.st_nlink == 0 {
            // CU_FILE_GETNEWFD_FAILED: cuFile opens the file once more, by its name.
            return cu::Status { code: 5031, cuda: 0 };
        }
        current().born("a file", fd as usize);
        unsafe { *out = (fd as usize + 1) as *mut c_void };
        FINE
    }
    unsafe extern "C" fn forget_file(file: *mut c_void) {
        current().gone("a file", fd(file) as usize);
    }
    unsafe extern "C" fn register_buffer(place: *const c_void, _: usize, _: c_int) -> cu::Status {
        current().born("a registered buffer", place as usize);
        FINE
    }
    unsafe extern "C" fn forget_buffer(place: *const c_void) -> cu::Status {
        current().uses("forgetting", place as usize, 1);
        current().gone("a registered buffer", place as usize);
        FINE
    }
    unsafe extern "C" fn read(file: *mut c_void, base: *mut c_void, bytes: usize, at: i64, skip: i64) -> isize {
        at_once(false, file, base, bytes, at, skip)
    }
    unsafe extern "C" fn write(file: *mut c_void, base: *const c_void, bytes: usize, at: i64, skip: i64) -> isize {
        at_once(true, file, base.cast_mut(), bytes, at, skip)
    }
    unsafe extern "C" fn batch_new(out: *mut *mut c_void, capacity: c_uint) -> cu::Status {
        let entries = Entries { capacity: capacity as usize, waiting: Vec::new() };
        let batch = Box::into_raw(Box::new(Batch::new(entries)));
        current().born("a batch", batch as usize);
        unsafe { *out = batch.cast() };
        FINE
    }
    unsafe extern "C" fn submit(raw: *mut c_void, n: c_uint, entries: *mut cu::BatchEntry, _: c_uint) -> cu::Status {
        let machine = current();
        let mut batch = lock(unsafe { &*raw.cast::<Batch>() });
        match machine.code(Call::Submit) {
            0 if batch.waiting.len() + n as usize > batch.capacity => cu::Status { code: cu::BATCH_FULL, cuda: 0 },
            0 => {
                for entry in unsafe { std::slice::from_raw_parts(entries, n as usize) } {
                    let touch = machine.begin(entry.base as usize + entry.buffer_offset as usize, entry.bytes);
                    batch.waiting.push((*entry, touch));
                }
                FINE
            }
            code => cu::Status { code, cuda: 0 },
        }
    }
    unsafe extern "C" fn status(
        raw: *mut c_void,
        least: c_uint,
        n: *mut c_uint,
        events: *mut cu::BatchEvent,
        _: *mut libc::timespec,
    ) -> cu::Status {
        let machine = current();
        let mut batch = lock(unsafe { &*raw.cast::<Batch>() });
        match machine.code(Call::Status) {
            0 => {}
            code => return cu::Status { code, cuda: 0 },
        }
        let most = (unsafe { *n } as usize).min(batch.waiting.len()).min((least as usize).max(1));
        for i in 0..most {
            // The youngest first.
            let Some((entry, touch)) = batch.waiting.pop() else { break };
            let place = entry.base as usize + entry.buffer_offset as usize;
            let writes = entry.op == cu::OP_WRITE;
            let (status, moved) = match transfer(machine, writes, fd(entry.file), place, entry.bytes, entry.file_offset)
            {
                Outcome::Moved(n) => (cu::COMPLETE, n as isize),
                Outcome::System(code) | Outcome::Cufile(code) => (FAILED, -(code as isize)),
                Outcome::Cancelled => (CANCELLED, 0),
            };
            machine.end(touch);
            unsafe { *events.add(i) = cu::BatchEvent { cookie: entry.cookie, status, moved } };
        }
        unsafe { *n = most as c_uint };
        FINE
    }
    unsafe extern "C" fn batch_free(raw: *mut c_void) {
        let machine = current();
        machine.gone("a batch", raw as usize);
        let batch = unsafe { Box::from_raw(raw.cast::<Batch>()) };
        if !lock(&batch).waiting.is_empty() {
            lock(&machine.problems).push("a batch destroyed with transfers in flight".into());
        }
    }
    unsafe fn start(io: Io, bytes: usize, stream: *mut c_void) -> cu::Status {
        let machine = current();
        match machine.code(Call::Start) {
            0 => {
                let touch = machine.begin(io.base + unsafe { *io.skip } as usize, bytes);
                lock(unsafe { &*stream.cast::<Ops>() }).push_back(Op::Io(Io { touch, ..io }));
                FINE
            }
            code => cu::Status { code, cuda: 0 },
        }
    }
    macro_rules! on_stream {
        ($name:ident, $write:literal) => {
            unsafe extern "C" fn $name(
                file: *mut c_void,
                base: *mut c_void,
                bytes: *mut usize,
                at: *mut i64,
                skip: *mut i64,
                moved: *mut isize,
                stream: *mut c_void,
            ) -> cu::Status {
                let (fd, base, touch) = (fd(file), base as usize, 0);
                unsafe { start(Io { write: $write, fd, base, bytes, at, skip, moved, touch }, *bytes, stream) }
            }
        };
    }
    on_stream!(read_later, false);
    on_stream!(write_later, true);
    unsafe extern "C" fn of_stream(_: *mut c_void, _: c_uint) -> cu::Status {
        FINE
    }
    unsafe extern "C" fn forget_stream(_: *mut c_void) -> cu::Status {
        FINE
    }
    unsafe extern "C" fn level(_: c_int) -> cu::Status {
        FINE
    }
    unsafe extern "C" fn stats(out: *mut u64) -> cu::Status {
        // One GPU, whose reads all took the same way: by POSIX calls, or by nvidia-fs.
        let words = unsafe { std::slice::from_raw_parts_mut(out, cu::STATS_WORDS) };
        words[128] = 1;
        words[129..131].fill(u64::from_ne_bytes([7; 8]));
        let way = if current().is_direct.load(SeqCst) { 8 } else { 9 };
        words[129 + way] = current().transfers.load(SeqCst);
        FINE
    }
    cu::Api {
        open: fine,
        close: fine,
        properties,
        register_file,
        forget_file,
        register_buffer,
        forget_buffer,
        read,
        write,
        version: None,
        set_text: None,
        batch_new: Some(batch_new),
        batch_submit: Some(submit),
        batch_status: Some(status),
        batch_free: Some(batch_free),
        stream_register: Some(of_stream),
        stream_forget: Some(forget_stream),
        read_async: Some(read_later),
        write_async: Some(write_later),
        stats_level: Some(level),
        stats_start: Some(fine),
        stats_3: Some(stats),
    }
}
