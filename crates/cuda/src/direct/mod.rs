//! Blocks straight from storage to the device, by cuFile: the host has the footer, which says where they lie and what they are;
//! the bytes it never sees.
//!
//! ```text
//!  footer      which blocks are integers as kernels read them (BlockPlace)       the others go through the host (staging)
//!                 │ plan: chunks that lie together are one read
//!                 ▼
//!  storage     ══ cuFileRead, by the threads of the ring ══►  landing: memory of a slot, registered with cuFile
//!                                                                │ copy stream: records, verify.cu, what it has found
//!                                                                ▼
//!  host                                                       compares, and only then launches what reads the blocks
//! ```
//! [`crate::fused`] streams columns that way, [`crate::resident`] loads those that stay; both have the ring of
//! [`crate::staging`] make the reads, as items of its batches.
//!
//! Invariants:
//! - No kernel reads a block before the host has seen that its checksums are right, that as many rows are NULL as the footer
//!   says, and that no value lies outside of its zone map or dictionary: what the CPU finds out when it reads.
//! - A block that is not right is read once more by the host, which says what is wrong, as the CPU would. If it finds nothing,
//!   that is an error of the device.
//! - Which way was asked for ([`DevicePath`]) and which the bytes took ([`Brought`]) are two types. The second is what cuFile
//!   has counted: what is not known is never *direct*.
//! - Files are known as long as their segments are open, and forgotten when somebody looks for another.

mod landing;
mod plan;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod verify;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path as FsPath;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use onehop_io::{LocalFile, ReadAt, RequestedPath};
use onehop_pipeline::backend::{Brought, DevicePath, SegmentKey, TakenPath};
use onehop_segment::Segment;

pub use landing::{Landing, doubtful};
pub use plan::{Plan, Read, Wanted};
pub use verify::Planes;

use crate::cufile::{Counting, Counts, Effective};
use crate::fused::{Compiler, Error, Result};
use crate::staging::{KEPT_BYTES, Pool};
use crate::{Context, Cufile, CufileFile, DeviceBuf, Kernel, Verdict};

/// With less to bring, nobody who did not ask for it looks whether it could go straight: to open cuFile takes longer.
const WORTH_OPENING_BYTES: u64 = 64 << 20;

/// What a device has with cuFile: the library, files, memory for what is read. All methods may be called from many threads.
pub struct Direct {
    context: Arc<Context>,
    cufile: OnceLock<std::result::Result<Arc<Cufile>, String>>,
    files: Mutex<Files>,
    memory: Pool<DeviceBuf>,
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("cufile", &self.cufile.get()).finish_non_exhaustive()
    }
}

/// What became of segments' files.
#[derive(Default)]
struct Files {
    of: HashMap<SegmentKey, Known>,
    /// Which way the first file on a device of the system went.
    verdicts: HashMap<(u32, u32), Verdict>,
}

/// A segment's file.
#[derive(Clone)]
enum Known {
    /// Registered; whether reads pass the page cache.
    Open(Arc<CufileFile>, IsPast),
    /// It is none that cuFile could read.
    Elsewhere(String),
    /// cuFile does not take it.
    Refused(String),
}

/// Whether a file is read past the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsPast {
    Yes,
    No,
}

impl Direct {
    /// For a device. Nothing is opened before it is needed.
    pub fn new(context: &Arc<Context>) -> Self {
        let (cufile, files, memory) = (OnceLock::new(), Mutex::default(), Pool::new(KEPT_BYTES));
        Self { context: Arc::clone(context), cufile, files, memory }
    }

    /// With a cuFile that somebody has opened.
    #[cfg(any(test, feature = "fake"))]
    pub fn with(context: &Arc<Context>, cufile: &Arc<Cufile>) -> Self {
        Self { cufile: OnceLock::from(Ok(Arc::clone(cufile))), ..Self::new(context) }
    }

    /// Lets go of memory that is kept for the next run.
    pub fn trim(&self) {
        self.memory.clear();
    }

    /// Forgets files of segments that nobody has open any more.
    pub fn sweep(&self) {
        self.files().of.retain(|segment, _| !segment.is_gone());
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> std::result::Result<&Arc<Cufile>, &String> {
        let said = |e: crate::Error| match e.cure() {
            Some(cure) => format!("{e}; {cure}"),
            None => e.to_string(),
        };
        self.cufile.get_or_init(|| Cufile::open(&self.context, Counting::On).map_err(said)).as_ref()
    }

    /// A way for about so many bytes of one run, which is closed where it is not wanted, or, if nobody insists on it, is not
    /// to be had.
    ///
    /// # Errors
    /// Where somebody insists: no cuFile, or nothing that could verify what it reads.
    pub fn passage(&self, compiler: &Compiler, requested: DevicePath, bytes: u64) -> Result<Passage<'_>> {
        let closed = |why: Option<String>| {
            let (why, no_file) = (Mutex::new(why), Err("nothing was read".to_string()));
            Passage { direct: self, requested, cufile: None, kernel: None, before: no_file, why }
        };
        if requested == DevicePath::Staged {
            return Ok(closed(None));
        }
        if requested == DevicePath::Auto && self.cufile.get().is_none() {
            if bytes < WORTH_OPENING_BYTES {
                return Ok(closed(None));
            }
            if !may_be_direct(FsPath::new("/")) {
                return Ok(closed(Some("neither nvidia-fs nor PCI peer-to-peer (P2PDMA) is here".into())));
            }
        }
        let cufile = match self.open() {
            Ok(cufile) => cufile,
            Err(why) if requested == DevicePath::Auto => return Ok(closed(Some(why.clone()))),
            Err(why) => return Err(insisted(requested, why.clone())),
        };
        let kernel = verify::kernel(compiler)?;
        let (cufile, before) = (Some(Arc::clone(cufile)), cufile.counts());
        Ok(Passage { direct: self, requested, cufile, kernel: Some(kernel), before, why: Mutex::default() })
    }

    /// A segment's file, registered if it has not been.
    fn file(&self, cufile: &Arc<Cufile>, segment: &Arc<Segment>) -> Known {
        let key = SegmentKey::of(segment);
        let mut files = self.files();
        if let Some(known) = files.of.get(&key) {
            return known.clone();
        }
        files.of.retain(|segment, _| !segment.is_gone());
        let mut known = files.registered(cufile, segment);
        if matches!(known, Known::Refused(_)) && files.forget_idle() {
            // It may have been one file too many.
            known = files.registered(cufile, segment);
        }
        files.of.insert(key, known.clone());
        known
    }
}

impl Files {
    /// Forgets files that no run reads now, each of which takes descriptors; whether there were any.
    fn forget_idle(&mut self) -> bool {
        let before = self.of.len();
        self.of.retain(|_, known| !matches!(known, Known::Open(file, _) if Arc::strong_count(file) == 1));
        self.of.len() < before
    }

    fn registered(&mut self, cufile: &Arc<Cufile>, segment: &Arc<Segment>) -> Known {
        let local = |requested| segment.file_by(requested).ok().and_then(ReadAt::as_local);
        let (file, is_past): (Arc<LocalFile>, IsPast) = match local(RequestedPath::HostDirect) {
            Some(file) => (file, IsPast::Yes),
            None => match local(RequestedPath::Buffered) {
                Some(file) => (file, IsPast::No),
                None => return Known::Elsewhere(format!("{} is no file of this machine", segment.file().name())),
            },
        };
        if !file.has_name() {
            // A query over rows that a commit has replaced reads them all the same.
            let name = segment.file().name();
            return Known::Elsewhere(format!("{name} was removed meanwhile, and cuFile opens files by their names"));
        }
        let device = CufileFile::device_number(&file);
        let known = device.and_then(|device| self.verdicts.get(&device)).filter(|_| is_past == IsPast::Yes);
        let opened = match known {
            Some(verdict) => CufileFile::beside(cufile, file, verdict),
            None => CufileFile::new(cufile, file),
        };
        match opened {
            Ok(file) => {
                if let Some(device) = device.filter(|_| is_past == IsPast::Yes) {
                    self.verdicts.entry(device).or_insert_with(|| file.verdict().clone());
                }
                Known::Open(Arc::new(file), is_past)
            }
            Err(e) => Known::Refused(e.cure().map_or(e.to_string(), |cure| format!("{e}; {cure}"))),
        }
    }
}

/// A run's way straight to a device. May be used from many threads.
pub struct Passage<'a> {
    direct: &'a Direct,
    requested: DevicePath,
    /// `None`: it is closed.
    cufile: Option<Arc<Cufile>>,
    kernel: Option<Kernel>,
    before: std::result::Result<Counts, String>,
    /// Why something was not read that way, if that is worth telling.
    why: Mutex<Option<String>>,
}

impl fmt::Debug for Passage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage").field("requested", &self.requested).finish_non_exhaustive()
    }
}

impl Passage<'_> {
    /// The device's context.
    pub fn context(&self) -> &Arc<Context> {
        &self.direct.context
    }

    fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// A segment's file, if its blocks are to be read by cuFile.
    ///
    /// # Errors
    /// Where it has to be, and cannot.
    pub fn file(&self, segment: &Arc<Segment>) -> Result<Option<Arc<CufileFile>>> {
        let Some(cufile) = &self.cufile else { return Ok(None) };
        let why = match (self.direct.file(cufile, segment), self.requested) {
            (Known::Open(file, _), DevicePath::Cufile) => return Ok(Some(file)),
            (Known::Open(file, IsPast::Yes), _) if file.verdict().effective == Effective::Direct => {
                return Ok(Some(file));
            }
            (Known::Open(file, IsPast::Yes), _) => format!("cuFile is not direct here: {}", file.verdict()),
            (Known::Open(..), _) => format!("{} cannot be read past the page cache", segment.file().name()),
            (Known::Elsewhere(why), _) => why,
            (Known::Refused(why), DevicePath::Cufile) => return Err(insisted(self.requested, why)),
            (Known::Refused(why), _) => why,
        };
        if self.requested == DevicePath::Direct {
            return Err(insisted(self.requested, why));
        }
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        Ok(None)
    }

    /// Memory for reads, registered with cuFile if it takes it.
    fn memory(&self, bytes: usize) -> Result<DeviceBuf> {
        self.direct.memory.take(bytes, || {
            let mut buffer = DeviceBuf::new(&self.direct.context, bytes)?;
            if let Some(cufile) = &self.cufile {
                // Without it cuFile goes through buffers of its own, and says so.
                let _ = cufile.register(&mut buffer);
            }
            Ok(buffer)
        })
    }

    fn keep(&self, memory: DeviceBuf) {
        self.direct.memory.give(memory);
    }

    /// How so many bytes came, all of which were read by now; `None` if there is nothing to tell.
    ///
    /// # Errors
    /// They had to come another way.
    pub fn told(&self, bytes: u64) -> Result<Option<Brought>> {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let cufile = self.cufile.as_ref().filter(|_| bytes > 0);
        let Some(cufile) = cufile else {
            return Ok(why.map(|because| Brought { path: TakenPath::Staged, bytes: 0, because }));
        };
        let Verdict { effective, because } = cufile.verdict(&self.before);
        let path = match effective {
            Effective::Direct => TakenPath::Direct,
            Effective::Compat => TakenPath::Compat,
            Effective::Mixed => TakenPath::Mixed,
            Effective::Staged | Effective::NotVerified => TakenPath::NotVerified,
        };
        if self.requested == DevicePath::Direct && path != TakenPath::Direct {
            return Err(insisted(self.requested, format!("the bytes took another way: {effective} ({because})")));
        }
        Ok(Some(Brought { path, bytes, because }))
    }
}

/// Whether the system has anything that bytes could go straight by.
fn may_be_direct(root: &FsPath) -> bool {
    let has_p2p = || {
        let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
        devices.map(|device| device.path().join("p2pmem")).any(|memory| memory.is_dir())
    };
    root.join("sys/module/nvidia_fs").is_dir() || has_p2p()
}

fn insisted(requested: DevicePath, why: String) -> Error {
    let name = if requested == DevicePath::Direct { "direct" } else { "cufile" };
    failed("reading columns by cuFile", format!("gpu.path = '{name}'"), why)
}

fn failed(attempt: &str, what: String, reason: String) -> Error {
    Error::Device { attempt: attempt.into(), source: crate::Error::System { what, reason } }
}
