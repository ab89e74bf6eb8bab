//! Cache of compiled kernels, keyed by their kernel source: in memory and, if a directory is given,
//! in files.
//!
//! ```text
//! file   magic | version | CRC of all that follows the header
//!        | length of the identity | length of the image | identity | image
//! ```
//! The identity is everything that the image depends on: compiler, architecture, options, kernel
//! source. It is compared in full, so a collision of the hash in the file's name is harmless. A
//! file is written under a temporary name and renamed, so a reader sees all of it or nothing. Two
//! writers of one file write the same bytes. A file that fails verification is treated as absent
//! and is written again.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::codegen::{DEVICE, SHARED_BYTES};
use crate::{Context, Kernel, Nvrtc, Result};

const MAGIC: &[u8; 8] = b"ohkernel";
/// Version of the file format.
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// Compiler options. Products and sums are not contracted, so doubles have the same values as on
/// the CPU.
const OPTIONS: [&str; 4] =
    ["--std=c++17", "--fmad=false", "--device-as-default-execution-space", "--define-macro=ONEHOP_GENERATED=1"];

/// Compiles kernels for one device, each once.
#[derive(Debug)]
pub struct Compiler {
    context: Arc<Context>,
    nvrtc: Arc<Nvrtc>,
    folder: Option<PathBuf>,
    kernels: Mutex<HashMap<String, Kernel>>,
    counts: [AtomicU64; 4],
}

/// Origin of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// The cache in memory.
    Kept,
    /// A file.
    Stored,
    /// The compiler, with the time that it took.
    Anew(Duration),
}

/// Counters of a compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileCounts {
    /// Kernels found in memory.
    pub kept: u64,
    /// Kernels found in files.
    pub stored: u64,
    /// Kernels compiled.
    pub compiled: u64,
    /// Total time of compilation.
    pub elapsed: Duration,
}

impl Compiler {
    /// Creates a compiler for a device, with a directory for images. The directory is created when
    /// the first image is written.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>, folder: Option<PathBuf>) -> Self {
        let (context, nvrtc) = (Arc::clone(context), Arc::clone(nvrtc));
        Self { context, nvrtc, folder, kernels: Mutex::default(), counts: Default::default() }
    }

    /// Returns its counters.
    pub fn counts(&self) -> CompileCounts {
        let [kept, stored, compiled, nanos] = [0, 1, 2, 3].map(|n: usize| self.counts[n].load(Relaxed));
        CompileCounts { kept, stored, compiled, elapsed: Duration::from_nanos(nanos) }
    }

    /// Returns the kernel of a generated kernel source.
    ///
    /// # Errors
    /// Errors of the compiler and of the driver. A file that cannot be written is not an error.
    pub(crate) fn kernel(&self, text: &str) -> Result<(Kernel, Compiled)> {
        let known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(kernel) = known {
            self.counts[0].fetch_add(1, Relaxed);
            return Ok((kernel, Compiled::Kept));
        }
        let identity = self.identity(text);
        let path = self.folder.as_ref().map(|folder| folder.join(file_name(&identity)));
        let stored = path.as_deref().and_then(|path| stored(path, &identity));
        // An image that the driver rejects counts as absent.
        let stored = stored.and_then(|image| self.load(&image).ok());
        let (kernel, outcome) = match stored {
            Some(kernel) => {
                self.counts[1].fetch_add(1, Relaxed);
                (kernel, Compiled::Stored)
            }
            None => {
                let began = Instant::now();
                let image = compile(&self.nvrtc, self.context.device().compute, text)?;
                let elapsed = began.elapsed();
                self.counts[2].fetch_add(1, Relaxed);
                self.counts[3].fetch_add(elapsed.as_nanos() as u64, Relaxed);
                if let Some(path) = &path {
                    // Without the file, the next process compiles again.
                    let _ = store(path, &identity, &image);
                }
                (self.load(&image)?, Compiled::Anew(elapsed))
            }
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.insert(text.into(), kernel.clone());
        Ok((kernel, outcome))
    }

    fn load(&self, image: &[u8]) -> Result<Kernel> {
        Kernel::load(&self.context, image, c"run")?.with_shared(SHARED_BYTES as u32)
    }

    /// Returns everything that an image depends on.
    fn identity(&self, text: &str) -> String {
        let ((major, minor), (of, and)) = (self.nvrtc.version(), self.context.device().compute);
        format!("NVRTC {major}.{minor} sm_{of}{and} {}\n{DEVICE}{text}", OPTIONS.join(" "))
    }
}

/// Compiles a generated kernel source for devices of a compute capability.
///
/// # Errors
/// Errors of the compiler.
pub fn compile(nvrtc: &Nvrtc, compute: (i32, i32), text: &str) -> Result<Vec<u8>> {
    nvrtc.compile_with("pipeline.cu", &format!("{DEVICE}{text}"), compute, &OPTIONS)
}

/// Returns the FNV-1a hash of an identity as a file name.
fn file_name(identity: &str) -> String {
    let hash = identity.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}.kernel")
}

/// Reads the image from a file, if the file is complete and has this identity.
fn stored(path: &Path, identity: &str) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let image = rest.strip_prefix(identity.as_bytes())?;
    (header == self::header(identity, image, rest)).then(|| image.to_vec())
}

fn header(identity: &str, image: &[u8], both: &[u8]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend(crc32c::crc32c(both).to_le_bytes());
    header.extend((identity.len() as u64).to_le_bytes());
    header.extend((image.len() as u64).to_le_bytes());
    header
}

fn store(path: &Path, identity: &str, image: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let aside = path.with_extension(format!("{}-{number}.part", std::process::id()));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let both = [identity.as_bytes(), image].concat();
    let written = fs::File::create(&aside).and_then(|mut file| {
        file.write_all(&header(identity, image, &both))?;
        file.write_all(&both)
    });
    let outcome = written.and_then(|()| fs::rename(&aside, path));
    if outcome.is_err() {
        let _ = fs::remove_file(&aside);
    }
    outcome
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;

    const TEXT: &str = "struct Args { u64 n; };\nKERNEL(run, Args) { }\n";

    fn compiler(folder: &Path) -> Compiler {
        Compiler::new(&fake::context(), &fake::nvrtc(), Some(folder.into()))
    }

    fn only_file(folder: &Path) -> PathBuf {
        let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    #[test]
    fn a_text_is_compiled_once() {
        let folder = tempfile::tempdir().unwrap();
        let first = compiler(folder.path());
        assert!(matches!(first.kernel(TEXT).unwrap().1, Compiled::Anew(_)));
        assert_eq!(first.kernel(TEXT).unwrap().1, Compiled::Kept);
        // A second compiler stands for another process.
        let second = compiler(folder.path());
        assert_eq!(second.kernel(TEXT).unwrap().1, Compiled::Stored);
        let counts = second.counts();
        assert_eq!((counts.kept, counts.stored, counts.compiled), (0, 1, 0));
    }

    #[test]
    fn files_that_are_damaged_are_none() {
        let folder = tempfile::tempdir().unwrap();
        compiler(folder.path()).kernel(TEXT).unwrap();
        let path = only_file(folder.path());
        let whole = fs::read(&path).unwrap();
        let at = |part: usize| whole.len() * part / 16;
        let mut damaged: Vec<Vec<u8>> = (0..16).map(|part| whole[..at(part)].to_vec()).collect();
        damaged.extend((0..16).map(|part| {
            let mut bytes = whole.clone();
            bytes[at(part)] ^= 4;
            bytes
        }));
        damaged.push([whole.as_slice(), b"x"].concat());
        // A valid file of another kernel source.
        damaged.push({
            let both = [b"another".as_slice(), b"image"].concat();
            [header("another", b"image", &both), both].concat()
        });
        let identity = compiler(folder.path()).identity(TEXT);
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(stored(&path, &identity), None);
        }
        // The next compilation replaces the damaged file.
        assert!(matches!(compiler(folder.path()).kernel(TEXT).unwrap().1, Compiled::Anew(_)));
        assert_eq!(fs::read(only_file(folder.path())).unwrap().len(), whole.len());
    }

    #[test]
    fn two_may_write_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.kernel");
        let images = [vec![1u8; 100_000], vec![1u8; 100_000]];
        std::thread::scope(|scope| {
            for image in &images {
                let path = &path;
                scope.spawn(move || (0..50).for_each(|_| store(path, "identity", image).unwrap()));
            }
            for _ in 0..200 {
                if path.exists() {
                    assert_eq!(stored(&path, "identity").as_ref(), Some(&images[0]));
                }
            }
        });
        only_file(folder.path());
    }

    #[test]
    fn without_a_folder_that_can_be_written_it_compiles() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(compiler(&file).kernel(TEXT).unwrap().1, Compiled::Anew(_)));
    }
}
