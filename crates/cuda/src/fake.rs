//! A CUDA driver and a cuFile of the process's own memory, for tests without a GPU.
//!
//! Device memory is host memory. Streams do nothing by themselves: what is put into them is done, one piece at a time, when
//! their events are asked for or waited for, so that a buffer that is used too early is seen to have the wrong bytes.
//! cuFile's transfers are `pread` and `pwrite` of the same descriptor; every third is cut short, and batches finish in
//! another order. The compiler is the system's, for C++: kernels become shared libraries, and a launch is a call.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::cufile::{Counting, Cufile, sys as cu};
use crate::driver::sys;
use crate::nvrtc::{Api as NvrtcApi, Nvrtc};
use crate::{Context, Driver};

/// A device.
pub fn context() -> Arc<Context> {
    let driver = Driver::with(driver()).unwrap();
    driver.devices().unwrap()[0].context().unwrap()
}

/// cuFile over it.
pub fn open_cufile(context: &Arc<Context>) -> Arc<Cufile> {
    Cufile::with(cufile(), context, Counting::On).unwrap()
}

/// The system's compiler in NVRTC's place.
pub fn nvrtc() -> Arc<Nvrtc> {
    Nvrtc::with(compiler()).unwrap()
}

/// A kernel, compiled for the host: blocks, threads, parameters.
type Launch = unsafe extern "C" fn(c_uint, c_uint, *mut *mut c_void);

enum Op {
    Launch {
        kernel: Launch,
        blocks: c_uint,
        threads: c_uint,
        /// A copy: the caller's is gone when the stream comes to it.
        argument: Box<[u64]>,
    },
    Copy {
        to: *mut u8,
        from: *const u8,
        len: usize,
    },
    Mark(*const Mark),
    Io {
        write: bool,
        fd: c_int,
        base: *mut u8,
        bytes: *const usize,
        at: *const i64,
        skip: *const i64,
        moved: *mut isize,
    },
}

type Ops = Mutex<VecDeque<Op>>;

#[derive(Default)]
struct Mark {
    done: AtomicU64,
    stream: Mutex<Option<*const Ops>>,
}

unsafe fn step(stream: *const Ops) -> bool {
    // In the default stream there is never anything: what goes into it is done at once.
    let Some(stream) = (unsafe { stream.as_ref() }) else { return false };
    let Some(op) = stream.lock().unwrap().pop_front() else { return false };
    match op {
        Op::Launch { kernel, blocks, threads, mut argument } => {
            let mut parameters = [argument.as_mut_ptr().cast::<c_void>()];
            unsafe { kernel(blocks, threads, parameters.as_mut_ptr()) };
        }
        Op::Copy { to, from, len } => unsafe { to.copy_from_nonoverlapping(from, len) },
        Op::Mark(mark) => unsafe { &*mark }.done.store(1, Relaxed),
        Op::Io { write, fd, base, bytes, at, skip, moved } => unsafe {
            *moved = transfer(write, fd, base, *bytes, *at, *skip)
        },
    }
    true
}

static TRANSFERS: AtomicU64 = AtomicU64::new(0);

fn transfer(write: bool, fd: c_int, base: *mut u8, bytes: usize, at: i64, skip: i64) -> isize {
    let n = TRANSFERS.fetch_add(1, Relaxed);
    let cut = (bytes / 2).next_multiple_of(4096);
    let bytes = if n % 3 == 2 && bytes > 4096 && cut < bytes { cut } else { bytes };
    let place = unsafe { base.offset(skip as isize) }.cast::<c_void>();
    match write {
        false => unsafe { libc::pread(fd, place, bytes, at) },
        true => unsafe { libc::pwrite(fd, place, bytes, at) },
    }
}

fn driver() -> sys::Api {
    unsafe extern "C" fn one(n: *mut c_int) -> c_int {
        unsafe { *n = 1 };
        0
    }
    unsafe extern "C" fn version(n: *mut c_int) -> c_int {
        unsafe { *n = 13000 };
        0
    }
    unsafe extern "C" fn text(code: c_int, out: *mut *const c_char) -> c_int {
        unsafe { *out = if code == 2 { c"CUDA_ERROR_OUT_OF_MEMORY".as_ptr() } else { std::ptr::null() } };
        0
    }
    unsafe extern "C" fn name(out: *mut c_char, _: c_int, _: c_int) -> c_int {
        unsafe { out.copy_from(c"Fake".as_ptr(), 5) };
        0
    }
    unsafe extern "C" fn alloc(out: *mut u64, len: usize) -> c_int {
        if len > 1 << 40 {
            return 2;
        }
        let mut place = std::ptr::null_mut();
        unsafe { host(&raw mut place, len, 0) };
        unsafe { *out = place as u64 };
        0
    }
    unsafe extern "C" fn host(out: *mut *mut c_void, len: usize, _: c_uint) -> c_int {
        unsafe { libc::posix_memalign(out, 4096, len) }
    }
    unsafe extern "C" fn copy_in(to: u64, from: *const c_void, len: usize) -> c_int {
        unsafe { (to as *mut u8).copy_from(from.cast(), len) };
        0
    }
    unsafe extern "C" fn copy_out(to: *mut c_void, from: u64, len: usize) -> c_int {
        unsafe { to.cast::<u8>().copy_from(from as *const u8, len) };
        0
    }
    unsafe fn put(stream: *mut c_void, op: Op) -> c_int {
        unsafe { &*stream.cast::<Ops>() }.lock().unwrap().push_back(op);
        0
    }
    unsafe extern "C" fn later_in(to: u64, from: *const c_void, len: usize, stream: *mut c_void) -> c_int {
        unsafe { put(stream, Op::Copy { to: to as *mut u8, from: from.cast(), len }) }
    }
    unsafe extern "C" fn later_out(to: *mut c_void, from: u64, len: usize, stream: *mut c_void) -> c_int {
        unsafe { put(stream, Op::Copy { to: to.cast(), from: from as *const u8, len }) }
    }
    unsafe extern "C" fn fill(to: u64, byte: u8, len: usize) -> c_int {
        unsafe { (to as *mut u8).write_bytes(byte, len) };
        0
    }
    unsafe extern "C" fn stream(out: *mut *mut c_void, _: c_uint) -> c_int {
        unsafe { *out = Box::into_raw(Box::<Ops>::default()).cast() };
        0
    }
    unsafe extern "C" fn stream_free(stream: *mut c_void) -> c_int {
        unsafe { drain(stream) };
        drop(unsafe { Box::from_raw(stream.cast::<Ops>()) });
        0
    }
    unsafe extern "C" fn drain(stream: *mut c_void) -> c_int {
        while unsafe { step(stream.cast()) } {}
        0
    }
    unsafe extern "C" fn event(out: *mut *mut c_void, _: c_uint) -> c_int {
        unsafe { *out = Box::into_raw(Box::<Mark>::default()).cast() };
        0
    }
    unsafe extern "C" fn event_free(event: *mut c_void) -> c_int {
        drop(unsafe { Box::from_raw(event.cast::<Mark>()) });
        0
    }
    unsafe extern "C" fn record(event: *mut c_void, stream: *mut c_void) -> c_int {
        let mark = unsafe { &*event.cast::<Mark>() };
        mark.done.store(0, Relaxed);
        *mark.stream.lock().unwrap() = Some(stream.cast());
        unsafe { put(stream, Op::Mark(mark)) }
    }
    unsafe extern "C" fn query(event: *mut c_void) -> c_int {
        let mark = unsafe { &*event.cast::<Mark>() };
        if mark.done.load(Relaxed) == 0 {
            let stream = *mark.stream.lock().unwrap();
            stream.map(|stream| unsafe { step(stream) });
            return sys::NOT_READY;
        }
        0
    }
    unsafe extern "C" fn wait(event: *mut c_void) -> c_int {
        while unsafe { query(event) } != 0 {}
        0
    }
    unsafe extern "C" fn launch(
        kernel: *mut c_void,
        blocks: c_uint,
        _: c_uint,
        _: c_uint,
        threads: c_uint,
        _: c_uint,
        _: c_uint,
        _: c_uint,
        stream: *mut c_void,
        parameters: *mut *mut c_void,
        _: *mut *mut c_void,
    ) -> c_int {
        let argument = unsafe { std::slice::from_raw_parts((*parameters).cast::<u64>(), ARGUMENT_WORDS) };
        let kernel = unsafe { std::mem::transmute::<*mut c_void, Launch>(kernel) };
        unsafe { put(stream, Op::Launch { kernel, blocks, threads, argument: argument.into() }) }
    }
    sys::Api {
        module_load: {
            unsafe extern "C" fn f(out: *mut *mut c_void, image: *const c_void) -> c_int {
                // The image is the name of the library.
                unsafe { *out = libc::dlopen(image.cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if unsafe { (*out).is_null() } { 200 } else { 0 }
            }
            f
        },
        module_free: {
            unsafe extern "C" fn f(module: *mut c_void) -> c_int {
                unsafe { libc::dlclose(module) }
            }
            f
        },
        module_function: {
            unsafe extern "C" fn f(out: *mut *mut c_void, module: *mut c_void, name: *const c_char) -> c_int {
                unsafe { *out = libc::dlsym(module, name) };
                if unsafe { (*out).is_null() } { 500 } else { 0 }
            }
            f
        },
        launch,
        init: {
            unsafe extern "C" fn f(_: c_uint) -> c_int {
                0
            }
            f
        },
        version,
        error_name: text,
        error_text: text,
        device_count: one,
        device: {
            unsafe extern "C" fn f(n: *mut c_int, ordinal: c_int) -> c_int {
                unsafe { *n = ordinal };
                0
            }
            f
        },
        device_name: name,
        device_memory: {
            unsafe extern "C" fn f(n: *mut usize, _: c_int) -> c_int {
                unsafe { *n = 1 << 40 };
                0
            }
            f
        },
        device_attribute: {
            unsafe extern "C" fn f(n: *mut c_int, _: c_int, _: c_int) -> c_int {
                unsafe { *n = 9 };
                0
            }
            f
        },
        device_pci: name,
        device_uuid: {
            unsafe extern "C" fn f(out: *mut u8, _: c_int) -> c_int {
                unsafe { out.write_bytes(7, 16) };
                0
            }
            f
        },
        retain: {
            unsafe extern "C" fn f(out: *mut *mut c_void, _: c_int) -> c_int {
                unsafe { *out = std::ptr::null_mut() };
                0
            }
            f
        },
        release: {
            unsafe extern "C" fn f(_: c_int) -> c_int {
                0
            }
            f
        },
        set_current: {
            unsafe extern "C" fn f(_: *mut c_void) -> c_int {
                0
            }
            f
        },
        alloc,
        free: {
            unsafe extern "C" fn f(at: u64) -> c_int {
                unsafe { libc::free(at as *mut c_void) };
                0
            }
            f
        },
        alloc_host: host,
        free_host: {
            unsafe extern "C" fn f(at: *mut c_void) -> c_int {
                unsafe { libc::free(at) };
                0
            }
            f
        },
        to_device: copy_in,
        to_host: copy_out,
        to_device_async: later_in,
        to_host_async: later_out,
        fill,
        fill_async: {
            unsafe extern "C" fn f(to: u64, byte: u8, len: usize, _: *mut c_void) -> c_int {
                unsafe { fill(to, byte, len) }
            }
            f
        },
        stream,
        stream_free,
        stream_wait: drain,
        stream_after: {
            unsafe extern "C" fn f(_: *mut c_void, _: *mut c_void, _: c_uint) -> c_int {
                0
            }
            f
        },
        event,
        event_free,
        event_record: record,
        event_query: query,
        event_wait: wait,
        event_elapsed: {
            unsafe extern "C" fn f(ms: *mut f32, _: *mut c_void, _: *mut c_void) -> c_int {
                unsafe { *ms = 1.0 };
                0
            }
            f
        },
    }
}

const FINE: cu::Status = cu::Status { code: 0, cuda: 0 };

fn cufile() -> cu::Api {
    unsafe extern "C" fn fine() -> cu::Status {
        FINE
    }
    unsafe extern "C" fn properties(out: *mut cu::Properties) -> cu::Status {
        unsafe { *out = cu::Properties { max_batch: 128, control: 2, ..cu::Properties::default() } };
        FINE
    }
    unsafe extern "C" fn register_file(out: *mut *mut c_void, of: *mut cu::Descriptor) -> cu::Status {
        let fd = unsafe { (*of).handle.fd };
        unsafe { *out = (fd as usize + 1) as *mut c_void };
        FINE
    }
    unsafe extern "C" fn register_buffer(_: *const c_void, _: usize, _: c_int) -> cu::Status {
        FINE
    }
    fn fd(handle: *mut c_void) -> c_int {
        handle as c_int - 1
    }
    unsafe extern "C" fn read(file: *mut c_void, base: *mut c_void, bytes: usize, at: i64, skip: i64) -> isize {
        transfer(false, fd(file), base.cast(), bytes, at, skip)
    }
    unsafe extern "C" fn write(file: *mut c_void, base: *const c_void, bytes: usize, at: i64, skip: i64) -> isize {
        transfer(true, fd(file), base.cast_mut().cast(), bytes, at, skip)
    }
    type Batch = Mutex<(usize, Vec<cu::BatchEntry>)>;
    unsafe extern "C" fn batch_new(out: *mut *mut c_void, capacity: c_uint) -> cu::Status {
        unsafe { *out = Box::into_raw(Box::new(Batch::new((capacity as usize, Vec::new())))).cast() };
        FINE
    }
    unsafe extern "C" fn submit(raw: *mut c_void, n: c_uint, entries: *mut cu::BatchEntry, _: c_uint) -> cu::Status {
        let mut batch = unsafe { &*raw.cast::<Batch>() }.lock().unwrap();
        if batch.1.len() + n as usize > batch.0 {
            return cu::Status { code: cu::BATCH_FULL, cuda: 0 };
        }
        batch.1.extend_from_slice(unsafe { std::slice::from_raw_parts(entries, n as usize) });
        FINE
    }
    unsafe extern "C" fn status(
        raw: *mut c_void,
        least: c_uint,
        n: *mut c_uint,
        events: *mut cu::BatchEvent,
        _: *mut libc::timespec,
    ) -> cu::Status {
        let mut batch = unsafe { &*raw.cast::<Batch>() }.lock().unwrap();
        let most = (unsafe { *n } as usize).min(batch.1.len()).min((least as usize).max(1));
        for i in 0..most {
            // The youngest first.
            let Some(entry) = batch.1.pop() else { break };
            let op = entry.op == cu::OP_WRITE;
            let moved =
                transfer(op, fd(entry.file), entry.base.cast(), entry.bytes, entry.file_offset, entry.buffer_offset);
            unsafe { *events.add(i) = cu::BatchEvent { cookie: entry.cookie, status: cu::COMPLETE, moved } };
        }
        unsafe { *n = most as c_uint };
        FINE
    }
    unsafe extern "C" fn batch_free(raw: *mut c_void) {
        let batch = unsafe { Box::from_raw(raw.cast::<Batch>()) };
        assert!(batch.lock().unwrap().1.is_empty(), "destroyed with transfers in flight");
    }
    macro_rules! on_stream {
        ($write:literal) => {{
            unsafe extern "C" fn f(
                file: *mut c_void,
                base: *mut c_void,
                bytes: *mut usize,
                at: *mut i64,
                skip: *mut i64,
                moved: *mut isize,
                stream: *mut c_void,
            ) -> cu::Status {
                let op = Op::Io { write: $write, fd: fd(file), base: base.cast(), bytes, at, skip, moved };
                unsafe { &*stream.cast::<Ops>() }.lock().unwrap().push_back(op);
                FINE
            }
            f
        }};
    }
    unsafe extern "C" fn stats(out: *mut u64) -> cu::Status {
        // One GPU, whose reads all took the way by POSIX calls.
        let words = unsafe { std::slice::from_raw_parts_mut(out, cu::STATS_WORDS) };
        words[128] = 1;
        words[129..131].fill(u64::from_ne_bytes([7; 8]));
        words[129 + 9] = TRANSFERS.load(Relaxed);
        FINE
    }
    cu::Api {
        open: fine,
        close: fine,
        properties,
        register_file,
        forget_file: {
            unsafe extern "C" fn f(_: *mut c_void) {}
            f
        },
        register_buffer,
        forget_buffer: {
            unsafe extern "C" fn f(_: *const c_void) -> cu::Status {
                FINE
            }
            f
        },
        read,
        write,
        version: None,
        set_text: None,
        batch_new: Some(batch_new),
        batch_submit: Some(submit),
        batch_status: Some(status),
        batch_free: Some(batch_free),
        stream_register: Some({
            unsafe extern "C" fn f(_: *mut c_void, _: c_uint) -> cu::Status {
                FINE
            }
            f
        }),
        stream_forget: Some({
            unsafe extern "C" fn f(_: *mut c_void) -> cu::Status {
                FINE
            }
            f
        }),
        read_async: Some(on_stream!(false)),
        write_async: Some(on_stream!(true)),
        stats_level: Some({
            unsafe extern "C" fn f(_: c_int) -> cu::Status {
                FINE
            }
            f
        }),
        stats_start: Some(fine),
        stats_3: Some(stats),
    }
}

/// What is copied of a kernel's argument: more than any has. Arguments lie in [`crate::kernels`]'s own structures, which
/// are padded to it.
const ARGUMENT_WORDS: usize = crate::kernels::ARGUMENT_WORDS;

/// A program of the fake compiler's.
#[derive(Default)]
struct Program {
    text: Vec<u8>,
    log: Vec<u8>,
    image: Vec<u8>,
}

/// Where images are: until the process ends.
fn folder() -> &'static std::path::Path {
    static FOLDER: std::sync::LazyLock<tempfile::TempDir> = std::sync::LazyLock::new(|| tempfile::tempdir().unwrap());
    FOLDER.path()
}

fn compile(program: &mut Program, options: &[String]) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let path = |suffix: &str, n: u64| folder().join(format!("k{n}{suffix}"));
    let n = NUMBER.fetch_add(1, Relaxed);
    let (header, text, image) = (path(".h", n), path(".cpp", n), path(".so", n));
    std::fs::write(&header, include_str!("kernels/host.h")).unwrap();
    std::fs::write(&text, &program.text).unwrap();
    let macros = options.iter().filter_map(|option| option.strip_prefix("--define-macro="));
    let outcome = std::process::Command::new(std::env::var_os("CXX").unwrap_or("c++".into()))
        .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Werror", "-Wno-unknown-pragmas"])
        // What is undefined ends the test, without a library for it. Reads of fewer bytes than their type has are such.
        .args(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-include"])
        .arg(&header)
        .args(macros.map(|text| format!("-D{text}")))
        .arg("-o")
        .arg(&image)
        .arg(&text)
        .output()
        .expect("the system has a C++ compiler (CXX, or c++)");
    program.log = outcome.stderr;
    program.log.push(0);
    program.image = [image.as_os_str().as_encoded_bytes(), &[0]].concat();
    outcome.status.success()
}

fn compiler() -> NvrtcApi {
    unsafe fn of<'a>(program: *mut c_void) -> &'a mut Program {
        unsafe { &mut *program.cast::<Program>() }
    }
    NvrtcApi {
        version: {
            unsafe extern "C" fn f(major: *mut c_int, minor: *mut c_int) -> c_int {
                unsafe { (*major, *minor) = (13, 0) };
                0
            }
            f
        },
        text: {
            unsafe extern "C" fn f(_: c_int) -> *const c_char {
                c"FAKE_ERROR".as_ptr()
            }
            f
        },
        new: {
            unsafe extern "C" fn f(
                out: *mut *mut c_void,
                text: *const c_char,
                _: *const c_char,
                _: c_int,
                _: *const *const c_char,
                _: *const *const c_char,
            ) -> c_int {
                let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes().to_vec();
                unsafe { *out = Box::into_raw(Box::new(Program { text, ..Program::default() })).cast() };
                0
            }
            f
        },
        free: {
            unsafe extern "C" fn f(program: *mut *mut c_void) -> c_int {
                drop(unsafe { Box::from_raw((*program).cast::<Program>()) });
                0
            }
            f
        },
        compile: {
            unsafe extern "C" fn f(program: *mut c_void, n: c_int, options: *const *const c_char) -> c_int {
                let options = unsafe { std::slice::from_raw_parts(options, n as usize) };
                let text =
                    |option: &*const c_char| unsafe { std::ffi::CStr::from_ptr(*option) }.to_str().unwrap().into();
                let options: Vec<String> = options.iter().map(text).collect();
                if compile(unsafe { of(program) }, &options) { 0 } else { 6 }
            }
            f
        },
        log_bytes: {
            unsafe extern "C" fn f(program: *mut c_void, out: *mut usize) -> c_int {
                unsafe { *out = of(program).log.len() };
                0
            }
            f
        },
        log: {
            unsafe extern "C" fn f(program: *mut c_void, out: *mut c_char) -> c_int {
                let log = unsafe { &of(program).log };
                unsafe { out.copy_from(log.as_ptr().cast(), log.len()) };
                0
            }
            f
        },
        image_bytes: {
            unsafe extern "C" fn f(program: *mut c_void, out: *mut usize) -> c_int {
                unsafe { *out = of(program).image.len() };
                0
            }
            f
        },
        image: {
            unsafe extern "C" fn f(program: *mut c_void, out: *mut c_char) -> c_int {
                let image = unsafe { &of(program).image };
                unsafe { out.copy_from(image.as_ptr().cast(), image.len()) };
                0
            }
            f
        },
    }
}
