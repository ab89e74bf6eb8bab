//! Blocks from storage to the device without the host looking at them: it has the footer, which says where they lie and what they
//! are; the bytes go by cuFile, or by pinned buffers that only pass them on.
//!
//! ```text
//!  footer      which blocks are integers as kernels read them (BlockPlace)       the others go through the host (staging)
//!                 │ plan: chunks that lie together are one read
//!                 ▼
//!  storage     ══ threads of the ring ══►  landing: memory of a slot
//!                 cuFileRead, or pread     │ copy stream: records, verify.cu, what it has found
//!                 and a copy (bounced)     ▼
//!  host                                    compares, and only then launches what reads the blocks
//! ```
//! [`crate::fused`] streams columns that way, [`crate::resident`] loads those that stay; both have the ring of
//! [`crate::staging`] make the reads, as items of its batches. An [`Origin`] is a file and who reads it, which only a
//! [`Passage`] decides.
//!
//! Invariants:
//! - No kernel reads a block before the host has seen that its checksums are right, that as many rows are NULL as the footer
//!   says, and that no value lies outside of its zone map or dictionary: what the CPU finds out when it reads.
//! - A block that is not right is read once more by the host, which says what is wrong, as the CPU would. If it finds nothing,
//!   that is an error of the device.
//! - Which way was asked for ([`DevicePath`](onehop_pipeline::backend::DevicePath)) and which the bytes took
//!   ([`Brought`](onehop_pipeline::backend::Brought)) are two types. The second is what cuFile has counted, or we where we read:
//!   what is not known is never *direct*.
//! - What memory of the host keeps, for whoever reads it next, is not bounced past it: it would never get there.
//! - Files are known as long as their segments are open, and forgotten when somebody looks for another.

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

/// With less to bring, nobody who did not ask for it looks whether there is a way past the host: to open cuFile takes longer, and so
/// does compiling the kernel that verifies blocks, if nobody has.
const WORTH_OPENING_BYTES: u64 = 64 << 20;

/// What a device has for reads past the host: cuFile, files, buffers, memory for what is read. All methods may be called from many
/// threads.
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

/// A device of the system.
type Disk = (u32, u32);

/// What became of segments' files.
#[derive(Default)]
struct Files {
    of: HashMap<SegmentKey, Known>,
    /// Those that cuFile does not read, if they can be read past the page cache.
    bounced: HashMap<SegmentKey, Option<Arc<Bounced>>>,
    /// Which way the first file on a disk went by cuFile.
    verdicts: HashMap<Disk, Verdict>,
    /// The buffers of each disk, and those for what is on nobody knows which.
    bounces: HashMap<Option<Disk>, Arc<Bounces>>,
}

/// A segment's file, for cuFile.
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
        Self { context: Arc::clone(context), worth_opening_bytes: WORTH_OPENING_BYTES, cufile, files, memory }
    }

    /// With a cuFile that somebody has opened, and any way worth it.
    #[cfg(any(test, feature = "fake"))]
    pub fn with(context: &Arc<Context>, cufile: &Arc<Cufile>) -> Self {
        Self { worth_opening_bytes: 0, cufile: OnceLock::from(Ok(Arc::clone(cufile))), ..Self::new(context) }
    }

    /// Lets go of memory that is kept for the next run.
    pub fn trim(&self) {
        self.memory.clear();
    }

    /// Forgets files of segments that nobody has open any more.
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

    /// A segment's file, registered if it has not been.
    fn file(&self, cufile: &Arc<Cufile>, segment: &Arc<Segment>) -> Known {
        let key = SegmentKey::of(segment);
        let mut files = self.files();
        if let Some(known) = files.of.get(&key) {
            return known.clone();
        }
        files.sweep();
        let mut known = files.registered(cufile, segment);
        if matches!(known, Known::Refused(_)) && files.forget_idle() {
            // It may have been one file too many.
            known = files.registered(cufile, segment);
        }
        files.of.insert(key, known.clone());
        known
    }

    /// A segment's file, to be read past the page cache by us; `None` where it cannot be.
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
    /// Forgets those of segments that nobody has open any more.
    fn sweep(&mut self) {
        self.of.retain(|segment, _| !segment.is_gone());
        self.bounced.retain(|segment, _| !segment.is_gone());
    }

    fn past_page_cache(&mut self, context: &Arc<Context>, segment: &Arc<Segment>) -> Option<Arc<Bounced>> {
        let file = segment.file_by(RequestedPath::HostDirect).ok()?;
        let hints = file.hints();
        // What is in memory, or on other machines, is of all paths.
        (hints.path == Path::HostDirect).then_some(())?;
        let disk = Arc::clone(&file).as_local().and_then(|file| CufileFile::device_number(&file));
        let bounces = self.bounces.entry(disk).or_insert_with(|| Arc::new(Bounces::new(context, &hints)));
        Some(Arc::new(Bounced::new(file, bounces)))
    }

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

/// Whether the system has anything that bytes could go straight by.
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
