//! NVRTC, NVIDIA's compiler as a library: CUDA C++ source in, an image for one kind of device out.
//!
//! It needs no GPU and no driver. It is part of the CUDA toolkit's libraries and of the Python
//! package `nvidia-cuda-nvrtc`. `ONEHOP_NVRTC` names the file if it is elsewhere.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::library::{Library, functions};
use crate::{Error, Result};

const CURE: &str = "install the CUDA toolkit's package cuda-nvrtc, or `pip install nvidia-cuda-nvrtc`, or name the file \
                    in ONEHOP_NVRTC";

/// Environment variable that names the library's file. It replaces the search.
const VARIABLE: &str = "ONEHOP_NVRTC";

type RawProgram = *mut c_void;

functions! {
    /// `libnvrtc`.
    #[allow(missing_docs, reason = "named like the functions they are")]
    Api {
        fn version = c"nvrtcVersion"(*mut c_int, *mut c_int) -> c_int;
        fn text = c"nvrtcGetErrorString"(c_int) -> *const c_char;
        fn new = c"nvrtcCreateProgram"(
            *mut RawProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> c_int;
        fn free = c"nvrtcDestroyProgram"(*mut RawProgram) -> c_int;
        fn compile = c"nvrtcCompileProgram"(RawProgram, c_int, *const *const c_char) -> c_int;
        fn log_bytes = c"nvrtcGetProgramLogSize"(RawProgram, *mut usize) -> c_int;
        fn log = c"nvrtcGetProgramLog"(RawProgram, *mut c_char) -> c_int;
        fn image_bytes = c"nvrtcGetCUBINSize"(RawProgram, *mut usize) -> c_int;
        fn image = c"nvrtcGetCUBIN"(RawProgram, *mut c_char) -> c_int;
    }
}

/// The loaded compiler.
pub struct Nvrtc {
    api: Api,
    version: (i32, i32),
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Nvrtc {
    /// Loads the compiler.
    ///
    /// # Errors
    /// Returns an error if the library is not found, or is too old to make images.
    pub fn load() -> Result<Arc<Self>> {
        let files = match std::env::var(VARIABLE) {
            // A file that the user names is not replaced by another.
            Ok(file) if !file.is_empty() => vec![file],
            _ => files(),
        };
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        Self::with(Api::find(&Library::open("libnvrtc", &files, CURE)?)?)
    }

    pub(crate) fn with(api: Api) -> Result<Arc<Self>> {
        let mut nvrtc = Self { api, version: (0, 0) };
        let (major, minor) = (&raw mut nvrtc.version.0, &raw mut nvrtc.version.1);
        // SAFETY: writes two numbers.
        nvrtc.check("nvrtcVersion", unsafe { (api.version)(major, minor) })?;
        Ok(Arc::new(nvrtc))
    }

    /// Returns the major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles a source for devices of a compute capability, with macros defined. `name` is for
    /// messages.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the output of the compiler.
    pub fn compile(&self, name: &str, text: &str, compute: (i32, i32), macros: &[(&str, String)]) -> Result<Vec<u8>> {
        let macros: Vec<String> = macros.iter().map(|(name, value)| format!("--define-macro={name}={value}")).collect();
        let macros: Vec<&str> = macros.iter().map(String::as_str).collect();
        self.compile_with(name, text, compute, &macros)
    }

    /// Compiles as [`Nvrtc::compile`] does, with further compiler options.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`].
    pub fn compile_with(&self, name: &str, text: &str, compute: (i32, i32), more: &[&str]) -> Result<Vec<u8>> {
        let (major, minor) = compute;
        let mut options = vec![format!("--gpu-architecture=sm_{major}{minor}"), "--device-int128".into()];
        options.extend(more.iter().map(|option| (*option).into()));
        let ended = |text: &str| {
            CString::new(text).map_err(|_| Error::Compile { name: name.into(), log: "it has a zero byte".into() })
        };
        let options = options.iter().map(|option| ended(option)).collect::<Result<Vec<_>>>()?;
        let (text, file) = (ended(text)?, ended(name)?);
        let mut raw = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: both strings are terminated and copied; writes one pointer, destroyed by
        // `Program`.
        let code = unsafe { (self.api.new)(&raw mut raw, text.as_ptr(), file.as_ptr(), 0, none, none) };
        self.check("nvrtcCreateProgram", code)?;
        let program = Program { api: &self.api, raw };
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the count is the number of strings, and each is terminated.
        let code = unsafe { (self.api.compile)(program.raw, pointers.len() as c_int, pointers.as_ptr()) };
        if code != 0 {
            let log = program.log().unwrap_or_else(|| self.text_of(code));
            return Err(Error::Compile { name: name.into(), log });
        }
        let mut bytes = 0;
        // SAFETY: writes one number.
        self.check("nvrtcGetCUBINSize", unsafe { (self.api.image_bytes)(program.raw, &raw mut bytes) })?;
        let mut image = vec![0u8; bytes];
        // SAFETY: writes `bytes` bytes.
        self.check("nvrtcGetCUBIN", unsafe { (self.api.image)(program.raw, image.as_mut_ptr().cast()) })?;
        Ok(image)
    }

    /// Returns the include folders of the first known CUDA toolkit that has this header. Since
    /// version 13 the headers of C++ itself lie in a folder of their own.
    pub fn folders_of(header: &str) -> Option<Vec<PathBuf>> {
        let of_variable = |name| std::env::var_os(name).map(PathBuf::from);
        let toolkits =
            [of_variable("CUDA_PATH"), of_variable("CUDA_HOME"), Some("/usr/local/cuda".into()), Some("/usr".into())];
        // Python packages have a folder each, or one for all, beside their libraries.
        let library = of_variable(VARIABLE).and_then(|file| Some(file.parent()?.parent()?.to_path_buf()));
        let packages =
            roots().flat_map(|root| python_folders(&root)).filter_map(|lib| Some(lib.parent()?.to_path_buf()));
        let all = library.into_iter().chain(toolkits.into_iter().flatten()).chain(packages);
        all.map(|root| ["include", "include/cccl"].map(|name| root.join(name)))
            .find(|folders| folders.iter().any(|folder| folder.join(header).is_file()))
            .map(|folders| folders.into_iter().filter(|folder| folder.is_dir()).collect())
    }

    fn text_of(&self, code: c_int) -> String {
        // SAFETY: returns a constant string of the library for any number.
        let text = unsafe { crate::driver::text_at((self.api.text)(code)) };
        text.unwrap_or_else(|| format!("error {code}"))
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            _ => Err(Error::Compile { name: call.into(), log: self.text_of(code) }),
        }
    }
}

struct Program<'a> {
    api: &'a Api,
    raw: RawProgram,
}

impl Program<'_> {
    /// Returns the compiler's output, if any.
    fn log(&self) -> Option<String> {
        let mut bytes = 0;
        // SAFETY: writes one number.
        if unsafe { (self.api.log_bytes)(self.raw, &raw mut bytes) } != 0 || bytes <= 1 {
            return None;
        }
        let mut log = vec![0u8; bytes];
        // SAFETY: writes `bytes` bytes, the last of them zero.
        let code = unsafe { (self.api.log)(self.raw, log.as_mut_ptr().cast()) };
        log.pop();
        (code == 0).then(|| String::from_utf8_lossy(&log).trim_end().to_string())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created once by `compile`, destroyed only here.
        unsafe { (self.api.free)(&raw mut self.raw) };
    }
}

/// Lists candidate files: names that the loader may know, then the toolkit's folder, then Python
/// environments.
fn files() -> Vec<String> {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
    let mut files: Vec<String> = names.map(String::from).to_vec();
    let folders = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"].map(PathBuf::from);
    let packages = roots().flat_map(|root| python_folders(&root));
    for folder in folders.into_iter().chain(packages) {
        let in_folder = names.map(|name| folder.join(name));
        files.extend(in_folder.iter().filter(|file| file.exists()).map(|file| file.display().to_string()));
    }
    files
}

/// Returns the prefixes of possible Python installations.
fn roots() -> impl Iterator<Item = PathBuf> {
    let of_variable = |name| std::env::var_os(name).map(PathBuf::from);
    let roots = [
        of_variable("VIRTUAL_ENV"),
        of_variable("CONDA_PREFIX"),
        of_variable("HOME").map(|home| home.join(".local")),
        Some("/usr/local".into()),
        Some("/usr".into()),
    ];
    roots.into_iter().flatten()
}

/// Returns the package's library folders in the Python installations under a root, by the folder
/// names of its versions.
fn python_folders(root: &Path) -> Vec<PathBuf> {
    let lib = fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    let pythons =
        lib.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3")).map(|entry| entry.path());
    let packages = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    packages
        .flat_map(|folder| ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"].map(|name| folder.join(name)))
        .filter(|folder| folder.is_dir())
        .collect()
}
