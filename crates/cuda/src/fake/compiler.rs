//! The compiler: the system's, for C++. Kernels become shared libraries, and a launch is a call.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::nvrtc::Api;

/// A kernel, compiled for the host: blocks, threads, parameters.
pub type Launch = unsafe extern "C" fn(c_uint, c_uint, *mut *mut c_void);

/// What is copied of a kernel's argument: more than any has. Arguments lie in [`crate::kernels`]'s own structures, which
/// are padded to it.
pub const ARGUMENT_WORDS: usize = crate::kernels::ARGUMENT_WORDS;

/// A program of the fake compiler's.
#[derive(Default)]
struct Program {
    text: Vec<u8>,
    log: Vec<u8>,
    image: Vec<u8>,
}

/// Where images are: until the process ends.
fn folder() -> &'static std::path::Path {
    /// What is static is never dropped.
    extern "C" fn remove() {
        let _ = std::fs::remove_dir_all(folder());
    }
    static FOLDER: std::sync::LazyLock<std::path::PathBuf> = std::sync::LazyLock::new(|| {
        // SAFETY: the function is there for as long as the process.
        unsafe { libc::atexit(remove) };
        tempfile::tempdir().unwrap().keep()
    });
    &FOLDER
}

fn compile(program: &mut Program, options: &[String]) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let path = |suffix: &str, n: u64| folder().join(format!("k{n}{suffix}"));
    let n = NUMBER.fetch_add(1, Relaxed);
    let (header, text, image) = (path(".h", n), path(".cpp", n), path(".so", n));
    // Generated kernels have threads that wait for each other, and take longer to start.
    let is_generated = options.iter().any(|option| option == "--define-macro=ONEHOP_GENERATED=1");
    let host = if is_generated { include_str!("../fused/host.h") } else { include_str!("../kernels/host.h") };
    std::fs::write(&header, host).unwrap();
    std::fs::write(&text, &program.text).unwrap();
    let macros = options.iter().filter_map(|option| option.strip_prefix("--define-macro="));
    let outcome = std::process::Command::new(std::env::var_os("CXX").unwrap_or("c++".into()))
        .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Werror", "-Wno-unknown-pragmas"])
        // What is undefined ends the test, without a library for it. Reads of fewer bytes than their type has are such.
        .args(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-include"])
        .arg(&header)
        // What a compiler finds odd about a text that nobody wrote is no fault of it.
        .args(is_generated.then_some("-Wno-error"))
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

pub fn api() -> Api {
    unsafe fn of<'a>(program: *mut c_void) -> &'a mut Program {
        unsafe { &mut *program.cast::<Program>() }
    }
    Api {
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
