//! Compiled kernels, kept in memory and, if a folder is given, in files, by the text that they were compiled from.
//!
//! ```text
//! file   magic | version | length of the identity | length of the image | CRC of all that follows | identity | image
//! ```
//! The identity is everything that the image depends on: compiler, architecture, options, text. It is compared whole, so
//! that the hash in the file's name need not be a good one. A file is written beside its place and renamed, so that who
//! reads it sees all of it or nothing; two who write the same have the same to write. What does not check is as if it
//! were not there, and is written anew.

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
/// Of the files' format.
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// What kernels are compiled with. Products and sums are not put together: a double is what the CPU makes of it.
const OPTIONS: [&str; 4] =
    ["--std=c++17", "--fmad=false", "--device-as-default-execution-space", "--define-macro=ONEHOP_GENERATED=1"];

/// Compiles kernels for one device, once.
#[derive(Debug)]
pub struct Compiler {
    context: Arc<Context>,
    nvrtc: Arc<Nvrtc>,
    folder: Option<PathBuf>,
    kernels: Mutex<HashMap<String, Kernel>>,
    counts: [AtomicU64; 4],
}

/// Where a kernel came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// Memory.
    Kept,
    /// A file.
    Stored,
    /// The compiler, which took so long.
    Anew(Duration),
}

/// What a compiler has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileCounts {
    /// Kernels found in memory.
    pub kept: u64,
    /// Found in files.
    pub stored: u64,
    /// Compiled.
    pub compiled: u64,
    /// How long that took.
    pub elapsed: Duration,
}

impl Compiler {
    /// For a device, with a folder for images, which is made when there is something to put into it.
    pub fn new(context: &Arc<Context>, nvrtc: &Arc<Nvrtc>, folder: Option<PathBuf>) -> Self {
        let (context, nvrtc) = (Arc::clone(context), Arc::clone(nvrtc));
        Self { context, nvrtc, folder, kernels: Mutex::default(), counts: Default::default() }
    }

    /// What it has done so far.
    pub fn counts(&self) -> CompileCounts {
        let [kept, stored, compiled, nanos] = [0, 1, 2, 3].map(|n: usize| self.counts[n].load(Relaxed));
        CompileCounts { kept, stored, compiled, elapsed: Duration::from_nanos(nanos) }
    }

    /// The kernel of a generated text.
    ///
    /// # Errors
    /// Those of the compiler and of the driver. That a file cannot be written is none.
    pub(crate) fn kernel(&self, text: &str) -> Result<(Kernel, Compiled)> {
        let known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(kernel) = known {
            self.counts[0].fetch_add(1, Relaxed);
            return Ok((kernel, Compiled::Kept));
        }
        let identity = self.identity(text);
        let path = self.folder.as_ref().map(|folder| folder.join(file_name(&identity)));
        let stored = path.as_deref().and_then(|path| stored(path, &identity));
        // An image that the driver does not take is none, either.
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
                    // Without it the next process compiles again, which is all.
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

    /// Everything that an image depends on.
    fn identity(&self, text: &str) -> String {
        let ((major, minor), (of, and)) = (self.nvrtc.version(), self.context.device().compute);
        format!("NVRTC {major}.{minor} sm_{of}{and} {}\n{DEVICE}{text}", OPTIONS.join(" "))
    }
}

/// Compiles a generated text for devices of a compute capability.
///
/// # Errors
/// Those of the compiler.
pub fn compile(nvrtc: &Nvrtc, compute: (i32, i32), text: &str) -> Result<Vec<u8>> {
    nvrtc.compile_with("pipeline.cu", &format!("{DEVICE}{text}"), compute, &OPTIONS)
}

/// FNV-1a.
fn file_name(identity: &str) -> String {
    let hash = identity.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}.kernel")
}

/// The image in a file, if it is whole and of this identity.
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
        // Another process.
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
        // A whole file of another text.
        damaged.push({
            let both = [b"another".as_slice(), b"image"].concat();
            [header("another", b"image", &both), both].concat()
        });
        let identity = compiler(folder.path()).identity(TEXT);
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(stored(&path, &identity), None);
        }
        // It is made good.
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
