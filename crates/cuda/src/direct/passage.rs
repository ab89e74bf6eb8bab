//! Ways past the host for one run: the way of each block, and the statistics.
//!
//! | `gpu.path` | by cuFile | bounced |
//! |---|---|---|
//! | `auto` | if it is direct | the rest, if the host does not cache it |
//! | `staged` | | if the host does not cache it |
//! | `cufile`, `direct` | all files, or an error | |
//!
//! All other blocks go through the host.

use std::fmt;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onehop_pipeline::StoredPlace;
use onehop_pipeline::backend::{Brought, DevicePath, TakenPath};
use onehop_segment::Segment;

use super::origin::Origin;
use super::{Direct, IsPast, Known, failed, may_be_direct, verify};
use crate::cufile::{Counts, Effective};
use crate::fused::{Carried, Compiler, Error, Result};
use crate::{Context, Cufile, CufileFile, DeviceBuf, Kernel, Verdict};

/// Explanation for bytes that were bounced.
const BOUNCED: &str = "read past the page cache into pinned memory, verified on the GPU";

/// Ways past the host for one run. Thread-safe.
pub struct Passage<'a> {
    direct: &'a Direct,
    compiler: &'a Compiler,
    requested: DevicePath,
    /// `None` if no block goes by cuFile.
    cufile: Option<ByCufile>,
    may_bounce: bool,
    /// Set once a file needs it.
    kernel: OnceLock<Kernel>,
    /// Reason why a block was not read by cuFile, if it is worth reporting.
    why: Mutex<Option<String>>,
    /// Threads that keep the storage busy, if more than there are cores.
    readers: AtomicUsize,
    tally: Tally,
}

/// cuFile, and its counters before the run.
struct ByCufile {
    library: Arc<Cufile>,
    before: std::result::Result<Counts, String>,
}

/// Counters of the run.
#[derive(Default)]
struct Tally {
    cufile_bytes: AtomicU64,
    bounced_bytes: AtomicU64,
    reads: AtomicU64,
    needed_bytes: AtomicU64,
}

impl fmt::Debug for Passage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage").field("requested", &self.requested).finish_non_exhaustive()
    }
}

impl Direct {
    /// Selects the ways for a run of about `bytes` bytes: the requested ways, and, unless the
    /// request insists, only those that are available.
    ///
    /// # Errors
    /// Returns an error if the request insists on cuFile and it is not available.
    pub fn passage<'a>(&'a self, compiler: &'a Compiler, requested: DevicePath, bytes: u64) -> Result<Passage<'a>> {
        let (cufile, why) = match self.cufile_for(requested, bytes) {
            Ok(library) => (library.map(|library| ByCufile { before: library.counts(), library }), None),
            Err(why) if requested == DevicePath::Auto => (None, Some(why)),
            Err(why) => return Err(insisted(requested, why)),
        };
        let may_bounce = match requested {
            DevicePath::Auto | DevicePath::Staged => bytes >= self.worth_opening_bytes,
            DevicePath::Cufile | DevicePath::Direct => false,
        };
        Ok(Passage {
            direct: self,
            compiler,
            requested,
            cufile,
            may_bounce,
            kernel: OnceLock::new(),
            why: Mutex::new(why),
            readers: AtomicUsize::new(0),
            tally: Tally::default(),
        })
    }

    /// Returns cuFile if it is requested, or the reason why it is not available.
    fn cufile_for(&self, requested: DevicePath, bytes: u64) -> std::result::Result<Option<Arc<Cufile>>, String> {
        if requested == DevicePath::Staged {
            return Ok(None);
        }
        if requested == DevicePath::Auto && self.cufile.get().is_none() {
            if bytes < self.worth_opening_bytes {
                return Ok(None);
            }
            if !may_be_direct(FsPath::new("/")) {
                return Err("neither nvidia-fs nor PCI peer-to-peer (P2PDMA) is here".into());
            }
        }
        self.open().map(|library| Some(Arc::clone(library))).map_err(String::clone)
    }
}

impl Passage<'_> {
    /// Returns the context of the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.direct.context
    }

    /// Returns the kernel that verifies blocks; `None` before the first file.
    pub fn kernel(&self) -> Option<&Kernel> {
        self.kernel.get()
    }

    /// Returns the number of threads that keep the storage of the requested files busy; 0 if
    /// unknown.
    pub fn readers(&self) -> usize {
        self.readers.load(Relaxed)
    }

    /// Returns the origin of a block's file; `None` if the block goes through the host.
    ///
    /// # Errors
    /// Returns an error if the request forbids the host and there is no other way, or if the kernel
    /// that verifies blocks cannot be compiled.
    pub fn file(&self, stored: &StoredPlace<'_>) -> Result<Option<Origin>> {
        let by_cufile = self.by_cufile(stored.segment)?.map(Origin::Cufile);
        let bounced = || {
            let is_wanted = self.may_bounce && !stored.is_kept;
            is_wanted.then(|| self.direct.bounced(stored.segment)).flatten().map(Origin::Bounced)
        };
        let Some(file) = by_cufile.or_else(bounced) else { return Ok(None) };
        self.readers.fetch_max(file.readers(), Relaxed);
        if self.kernel.get().is_none() {
            // If another thread has set it first, its kernel is the same.
            let _ = self.kernel.set(verify::kernel(self.compiler)?);
        }
        Ok(Some(file))
    }

    fn by_cufile(&self, segment: &Arc<Segment>) -> Result<Option<Arc<CufileFile>>> {
        let Some(ByCufile { library, .. }) = &self.cufile else { return Ok(None) };
        let why = match (self.direct.file(library, segment), self.requested) {
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

    /// Allocates memory for reads, and registers it with cuFile if any go by it.
    pub fn memory(&self, bytes: usize) -> Result<DeviceBuf> {
        let mut memory = self.direct.memory.take(bytes, || DeviceBuf::new(&self.direct.context, bytes))?;
        if let Some(ByCufile { library, .. }) = &self.cufile {
            // Without registration, cuFile uses buffers of its own, and reports it.
            let _ = library.register(&mut memory);
        }
        Ok(memory)
    }

    /// Takes back memory that has no user any more.
    pub fn keep(&self, memory: DeviceBuf) {
        self.direct.memory.give(memory);
    }

    /// Counts the bytes of one read of a file.
    pub fn has_read(&self, file: &Origin, bytes: usize) {
        let counter = match file {
            Origin::Cufile(_) => &self.tally.cufile_bytes,
            Origin::Bounced(_) => &self.tally.bounced_bytes,
        };
        counter.fetch_add(bytes as u64, Relaxed);
        self.tally.reads.fetch_add(1, Relaxed);
    }

    /// Counts the bytes of chunks among those read.
    pub fn has_needed(&self, bytes: u64) {
        self.tally.needed_bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.tally.cufile_bytes.load(Relaxed) + self.tally.bounced_bytes.load(Relaxed)
    }

    /// Returns the counters of the run and `copied_bytes`, the bytes copied from host memory. The
    /// observed way is left out.
    pub fn carried(&self, copied_bytes: u64) -> Carried {
        let (reads, needed_bytes) = (self.tally.reads.load(Relaxed), self.tally.needed_bytes.load(Relaxed));
        Carried { copied_bytes, read_bytes: self.read_bytes(), reads, needed_bytes, brought: None }
    }

    /// Returns the observed way of the bytes so far; `None` if there is nothing to report.
    ///
    /// # Errors
    /// Returns an error if the bytes took another way than the request insists on.
    pub fn told(&self) -> Result<Option<Brought>> {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut told = self.told_by_cufile()?;
        let bytes = self.tally.bounced_bytes.load(Relaxed);
        if bytes > 0 {
            let because = match &why {
                Some(why) => format!("{BOUNCED}; {why}"),
                None => BOUNCED.into(),
            };
            let bounced = Brought { path: TakenPath::Bounced, bytes, because };
            match &mut told {
                Some(told) => told.add(&bounced),
                None => told = Some(bounced),
            }
        }
        Ok(told.or_else(|| why.map(|because| Brought { path: TakenPath::Staged, bytes: 0, because })))
    }

    fn told_by_cufile(&self) -> Result<Option<Brought>> {
        let bytes = self.tally.cufile_bytes.load(Relaxed);
        let Some(ByCufile { library, before }) = self.cufile.as_ref().filter(|_| bytes > 0) else { return Ok(None) };
        let Verdict { effective, because } = library.verdict(before);
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

fn insisted(requested: DevicePath, why: String) -> Error {
    let name = if requested == DevicePath::Direct { "direct" } else { "cufile" };
    failed("reading columns by cuFile", format!("gpu.path = '{name}'"), why)
}
