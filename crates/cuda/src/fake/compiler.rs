//! Fake NVRTC that uses the system's C++ compiler. Kernels become shared libraries, and a launch is
//! a call.
//!
//! Kernel tests spend most of their time in this compiler, and several lanes of tests compile the
//! same sources. Images are therefore cached across processes, in the folder of
//! `ONEHOP_EMULATED_KERNELS`, or beside the test executables. The cache key is a hash of all
//! inputs: the compiler's version, its options, the header and the source.

use std::ffi::{OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::nvrtc::Api;

/// A kernel compiled for the host: blocks, threads, parameters.
pub type Launch = unsafe extern "C" fn(c_uint, c_uint, *mut *mut c_void);

/// Words that are copied of a kernel's argument: more than any has. The structures of
/// [`crate::kernels`] pad arguments to this length.
pub const ARGUMENT_WORDS: usize = crate::kernels::ARGUMENT_WORDS;

/// A program of the fake compiler.
#[derive(Default)]
struct Program {
    text: Vec<u8>,
    log: Vec<u8>,
    image: Vec<u8>,
}

/// Returns the folder of the images that this process loads, which is removed when the process
/// ends. Each image is loaded once: two programs of the same source must not share their variables.
fn folder() -> &'static Path {
    /// Statics are never dropped, so an exit handler removes the folder.
    extern "C" fn remove() {
        let _ = std::fs::remove_dir_all(folder());
    }
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        // SAFETY: the function lives as long as the process.
        unsafe { libc::atexit(remove) };
        tempfile::tempdir().unwrap().keep()
    });
    &FOLDER
}

/// Returns the folder of cached images, which is shared with other processes.
fn kept() -> &'static Path {
    static KEPT: LazyLock<PathBuf> = LazyLock::new(|| {
        let beside = || std::env::current_exe().unwrap().with_file_name("emulated-kernels");
        let kept = std::env::var_os("ONEHOP_EMULATED_KERNELS").map_or_else(beside, PathBuf::from);
        std::fs::create_dir_all(&kept).unwrap();
        kept
    });
    &KEPT
}

fn cxx() -> OsString {
    std::env::var_os("CXX").unwrap_or("c++".into())
}

fn run(command: &mut Command) -> std::process::Output {
    command.output().expect("the system has a C++ compiler (CXX, or c++)")
}

/// Returns the cache key of these inputs.
fn name(options: &[OsString], header: &str, text: &[u8]) -> String {
    static VERSION: LazyLock<Vec<u8>> = LazyLock::new(|| run(Command::new(cxx()).arg("--version")).stdout);
    // 64 bits may collide; 128 do not.
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &*VERSION, options, header, text).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}.so", hash(0), hash(1))
}

fn compile(program: &mut Program, options: &[String]) -> bool {
    // Generated kernels have threads that wait for each other, and take longer to start.
    let is_generated = options.iter().any(|option| option == "--define-macro=ONEHOP_GENERATED=1");
    let header = if is_generated { include_str!("../fused/host.h") } else { include_str!("../kernels/host.h") };
    let mut words = ["-std=c++17", "-fPIC", "-shared", "-Wall", "-Wno-unknown-pragmas"].map(OsString::from).to_vec();
    // Kernels need only <math.h> of C: parsing that of C++ takes as long as compiling a kernel.
    words.push("-nostdinc++".into());
    // Undefined behaviour traps and ends the test, without a runtime library. This includes reads
    // of fewer bytes than their type has.
    words.extend(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"].map(OsString::from));
    // Compiler warnings about generated source are not errors.
    words.extend(if is_generated { ["-Og", "-Wno-error"] } else { ["-O1", "-Werror"] }.map(OsString::from));
    let macros = options.iter().filter_map(|option| option.strip_prefix("--define-macro="));
    words.extend(macros.map(|text| format!("-D{text}").into()));

    let name = name(&words, header, &program.text);
    let image = match image(&kept().join(name), &words, header, &program.text) {
        Ok(image) => image,
        Err(log) => {
            program.log = log;
            program.log.push(0);
            return false;
        }
    };
    program.log = vec![0];
    program.image = [image.as_os_str().as_encoded_bytes(), &[0]].concat();
    true
}

/// Returns an image owned by this process, and compiles it if the cache has none. Returns the
/// compiler's output on failure.
fn image(kept: &Path, options: &[OsString], header: &str, text: &[u8]) -> Result<PathBuf, Vec<u8>> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let n = NUMBER.fetch_add(1, Relaxed);
    let path = |suffix: &str| folder().join(format!("k{n}{suffix}"));
    let (header_path, text_path, own) = (path(".h"), path(".cpp"), path(".so"));
    match std::fs::copy(kept, &own) {
        Ok(_) => return Ok(own),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => panic!("{}: {e}", kept.display()),
    }
    std::fs::write(&header_path, header).unwrap();
    std::fs::write(&text_path, text).unwrap();
    let words = [OsStr::new("-include"), header_path.as_ref(), "-o".as_ref(), own.as_ref(), text_path.as_ref()];
    let outcome = run(Command::new(cxx()).args(options).args(words));
    if !outcome.status.success() {
        return Err(outcome.stderr);
    }
    // Renames the image into place atomically: other processes may look it up or create it at the
    // same time.
    let new = kept.with_extension(format!("{}-{n}", std::process::id()));
    std::fs::copy(&own, &new).and_then(|_| std::fs::rename(&new, kept)).unwrap();
    Ok(own)
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
