//! Reads blocks from storage to the device without the host reading them. The host has the footer,
//! with the place and encoding of each block. The bytes move by cuFile, or through pinned buffers
//! that only pass them on.
//!
//! ```text
//!  footer    selects blocks of integers in the layout of kernels (BlockPlace);
//!               │          the other blocks go through the host (staging)
//!               │ plan: adjacent chunks are one read
//!               ▼
//!  storage   ══ threads of the ring ══►  landing: memory of a slot
//!               cuFileRead, or pread     │ copy stream: records, verify.cu, findings
//!               and a copy (bounced)     ▼
//!  host                                  compares, and only then launches kernels over the blocks
//! ```
//! [`crate::fused`] streams columns that way, and [`crate::resident`] loads columns that stay. For
//! both, the ring of [`crate::staging`] executes the reads, as items of its batches. An [`Origin`]
//! is a file with its reader. Only a [`Passage`] selects the reader.
//!
//! Invariants:
//! - No kernel reads a block before the host has checked the findings. The checksums must match,
//!   the number of NULLs must be that of the footer, and no value may lie outside of its zone map
//!   or dictionary. The CPU checks the same when it reads.
//! - The host reads a wrong block once more, and reports the error as the CPU would. If it finds
//!   none, that is an error of the device.
//! - The requested way ([`DevicePath`](onehop_pipeline::backend::DevicePath)) and the observed way
//!   ([`Brought`](onehop_pipeline::backend::Brought)) are two types. The second is derived from the
//!   counters of cuFile, or of this module for its own reads. An unknown way is never *direct*.
//! - Blocks that host memory caches for later readers are not bounced: they would never enter the
//!   cache.
//! - Entries of files live as long as their segments are open, and are swept when a lookup misses.

mod bounced;
mod landing;
mod origin;
mod passage;
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

use bounced::{Bounced, Bounces};
use onehop_io::{LocalFile, Path, ReadAt, RequestedPath};
use onehop_pipeline::backend::SegmentKey;
use onehop_segment::Segment;

pub use landing::{Landing, doubtful};
pub use passage::Passage;
pub use plan::{Plan, Read, Wanted};
pub use verify::Planes;

use crate::cufile::Counting;
use crate::fused::Error;
use crate::staging::{KEPT_BYTES, Pool};
use crate::{Context, Cufile, CufileFile, DeviceBuf, Verdict};

/// Least size in bytes for which a run that does not insist on cuFile searches for a way past the
/// host. Below it, opening cuFile takes longer than the transfer, and so does compiling the kernel
/// that verifies blocks, if it is not compiled yet.
const WORTH_OPENING_BYTES: u64 = 64 << 20;

/// State of one device for reads past the host: cuFile, files, buffers, destination memory. All
/// methods are thread-safe.
pub struct Direct {
    context: Arc<Context>,
    worth_opening_bytes: u64,
    cufile: OnceLock<std::result::Result<Arc<Cufile>, String>>,
    files: Mutex<Files>,
    memory: Pool<DeviceBuf>,
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("cufile", &self.cufile.get()).finish_non_exhaustive()
    }
}

/// Device number of a disk.
type Disk = (u32, u32);

/// Files of segments, and the result of opening each.
#[derive(Default)]
struct Files {
    of: HashMap<SegmentKey, Known>,
    /// Files that cuFile does not read; `None` if they cannot be read past the page cache.
    bounced: HashMap<SegmentKey, Option<Arc<Bounced>>>,
    /// Observed way of cuFile for the first file on a disk.
    verdicts: HashMap<Disk, Verdict>,
    /// Buffers of each disk, and those for files on an unknown disk.
    bounces: HashMap<Option<Disk>, Arc<Bounces>>,
}

/// File of a segment, for cuFile.
#[derive(Clone)]
enum Known {
    /// Registered, with the page cache mode of its reads.
    Open(Arc<CufileFile>, IsPast),
    /// Not a file that cuFile could read.
    Elsewhere(String),
    /// cuFile refuses the file.
    Refused(String),
}

/// Page cache mode of a file: `Yes` if reads bypass the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsPast {
    Yes,
    No,
}

impl Direct {
    /// Returns the state for a device. Nothing is opened before it is needed.
    pub fn new(context: &Arc<Context>) -> Self {
        let (cufile, files, memory) = (OnceLock::new(), Mutex::default(), Pool::new(KEPT_BYTES));
        Self { context: Arc::clone(context), worth_opening_bytes: WORTH_OPENING_BYTES, cufile, files, memory }
    }

    /// Returns a state with a cuFile that is open already, without a minimum size.
    #[cfg(any(test, feature = "fake"))]
    pub fn with(context: &Arc<Context>, cufile: &Arc<Cufile>) -> Self {
        Self { worth_opening_bytes: 0, cufile: OnceLock::from(Ok(Arc::clone(cufile))), ..Self::new(context) }
    }

    /// Frees memory that is kept for the next run.
    pub fn trim(&self) {
        self.memory.clear();
    }

    /// Removes the files of segments that are no longer open.
    pub fn sweep(&self) {
        self.files().sweep();
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

    /// Returns the file of a segment, and registers it if necessary.
    fn file(&self, cufile: &Arc<Cufile>, segment: &Arc<Segment>) -> Known {
        let key = SegmentKey::of(segment);
        let mut files = self.files();
        if let Some(known) = files.of.get(&key) {
            return known.clone();
        }
        files.sweep();
        let mut known = files.registered(cufile, segment);
        if matches!(known, Known::Refused(_)) && files.forget_idle() {
            // The limit on registered files may have been reached.
            known = files.registered(cufile, segment);
        }
        files.of.insert(key, known.clone());
        known
    }

    /// Returns a segment's file, for reads past the page cache without cuFile; `None` if it cannot
    /// be read that way.
    fn bounced(&self, segment: &Arc<Segment>) -> Option<Arc<Bounced>> {
        let key = SegmentKey::of(segment);
        let mut files = self.files();
        if let Some(known) = files.bounced.get(&key) {
            return known.clone();
        }
        files.sweep();
        let bounced = files.past_page_cache(&self.context, segment);
        files.bounced.insert(key, bounced.clone());
        bounced
    }
}

impl Files {
    /// Removes the files of segments that are no longer open.
    fn sweep(&mut self) {
        self.of.retain(|segment, _| !segment.is_gone());
        self.bounced.retain(|segment, _| !segment.is_gone());
    }

    fn past_page_cache(&mut self, context: &Arc<Context>, segment: &Arc<Segment>) -> Option<Arc<Bounced>> {
        let file = segment.file_by(RequestedPath::HostDirect).ok()?;
        let hints = file.hints();
        // Sources in memory, or on other machines, return the same reader for every path.
        (hints.path == Path::HostDirect).then_some(())?;
        let disk = Arc::clone(&file).as_local().and_then(|file| CufileFile::device_number(&file));
        let bounces = self.bounces.entry(disk).or_insert_with(|| Arc::new(Bounces::new(context, &hints)));
        Some(Arc::new(Bounced::new(file, bounces)))
    }

    /// Removes files that no run reads now, each of which takes descriptors. Returns true if there
    /// were any.
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
            // A query over rows that a commit has replaced still reads them.
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

/// Returns true if the system has a mechanism for direct transfers.
fn may_be_direct(root: &FsPath) -> bool {
    let has_p2p = || {
        let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
        devices.map(|device| device.path().join("p2pmem")).any(|memory| memory.is_dir())
    };
    root.join("sys/module/nvidia_fs").is_dir() || has_p2p()
}

fn failed(attempt: &str, what: String, reason: String) -> Error {
    Error::Device { attempt: attempt.into(), source: crate::Error::System { what, reason } }
}
