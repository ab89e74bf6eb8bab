//! cuFile, NVIDIA's library for transfers between files and device memory.
//!
//! If the machine has a direct path (nvidia-fs, or PCIe peer-to-peer), the bytes move from storage
//! to the device without the host. Otherwise cuFile reads into host buffers of its own and copies:
//! *compat mode*. A transfer call does not report its path. cuFile's counters show it afterwards
//! ([`Verdict`]).

mod batch;
mod file;
mod names;
mod stats;
pub(crate) mod sys;

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;

pub use batch::Batch;
pub use file::{CufileFile, udev_cure};
pub use stats::{Counts, Effective, Verdict};

use crate::library::Library;
use crate::{Context, DeviceBuf, Error, Result};

const CURE: &str =
    "install NVIDIA's GPUDirect Storage libraries (package nvidia-gds, or libcufile of the CUDA toolkit)";

/// File names of the library, including those of a CUDA toolkit that was unpacked outside of the
/// loader's folders.
const FILES: [&str; 4] = [
    "libcufile.so.0",
    "libcufile.so",
    "/usr/local/cuda/lib64/libcufile.so.0",
    "/usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.0",
];

/// Mode of cuFile's path counters, which cost a little for every transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Transfers are counted.
    On,
    /// Transfers are not counted, and no path is verified.
    Off,
}

/// The open library, for one context.
pub struct Cufile {
    api: sys::Api,
    context: Arc<Context>,
    version: i32,
    properties: sys::Properties,
    /// Reason why there are no counts.
    no_counts: Option<String>,
    closes: bool,
}

impl fmt::Debug for Cufile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cufile").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Cufile {
    /// Loads the library and opens its driver. A process has one driver; opening it again is
    /// allowed.
    ///
    /// # Errors
    /// Returns an error if there is no library, or it does not work here.
    pub fn open(context: &Arc<Context>, counting: Counting) -> Result<Arc<Self>> {
        let library = Library::open("libcufile", &FILES, CURE)?;
        Self::with(sys::Api::find(&library)?, context, counting)
    }

    pub(crate) fn with(api: sys::Api, context: &Arc<Context>, counting: Counting) -> Result<Arc<Self>> {
        context.bind()?;
        let (mut version, no_counts, properties) = (0, None, sys::Properties::default());
        if let Some(ask) = api.version {
            // SAFETY: writes one number; the returned status is not needed.
            unsafe { ask(&raw mut version) };
        }
        let context = Arc::clone(context);
        let mut cufile = Self { api, context, version, properties, no_counts, closes: false };
        cufile.keep_log_elsewhere();
        // Some versions accept the level before they are open, some after: one successful call
        // suffices.
        let early = cufile.set_level(counting);
        // SAFETY: the library is loaded; closed once, when this is dropped.
        match unsafe { (api.open)() } {
            sys::Status { code: sys::ALREADY_OPEN, .. } => {}
            status => {
                cufile.check("cuFileDriverOpen", status)?;
                cufile.closes = true;
            }
        }
        // SAFETY: writes one structure of the header's size.
        let status = unsafe { (api.properties)(&raw mut cufile.properties) };
        cufile.check("cuFileDriverGetProperties", status)?;
        cufile.no_counts = match counting {
            Counting::Off => Some("cuFile was not asked to count".into()),
            Counting::On => cufile.set_level(counting).or(early).and_then(|()| cufile.start_counting()).err(),
        };
        Ok(Arc::new(cufile))
    }

    /// Moves cuFile's log from the current directory, which may belong to another user, to the
    /// temporary directory. A log path in the environment takes precedence.
    fn keep_log_elsewhere(&self) {
        let named =
            std::env::var_os("CUFILE_LOGFILE_PATH").is_some() || std::env::var_os("CUFILE_ENV_PATH_JSON").is_some();
        let folder = CString::new(std::env::temp_dir().into_os_string().into_encoded_bytes());
        if let (false, Some(set), Ok(folder)) = (named, self.api.set_text, folder) {
            // SAFETY: a terminated string, which the library copies. If it refuses, the log stays
            // in its place.
            unsafe { set(sys::LOG_FOLDER, folder.as_ptr()) };
        }
    }

    fn set_level(&self, counting: Counting) -> std::result::Result<(), String> {
        let Some(set) = self.api.stats_level else { return Err("this version of cuFile keeps no statistics".into()) };
        let level = if counting == Counting::On { 3 } else { 0 };
        // SAFETY: passes a number.
        self.check("cuFileSetStatsLevel", unsafe { set(level) }).map_err(|e| e.to_string())
    }

    /// Starts counting, and never stops: cuFile 1.15 does not count again after a stop.
    fn start_counting(&self) -> std::result::Result<(), String> {
        let Some(start) = self.api.stats_start else { return Err("this version of cuFile keeps no statistics".into()) };
        // SAFETY: the driver is open.
        self.check("cuFileStatsStart", unsafe { start() }).map_err(|e| e.to_string())
    }

    /// Returns the version: 1150 is 1.15; 0 is a version that does not report itself.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Returns the context of this library.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns true if the machine has a mechanism for direct transfers: nvidia-fs, or PCIe
    /// peer-to-peer.
    pub fn can_be_direct(&self) -> bool {
        self.properties.nvfs_major > 0 || self.properties.supports != 0
    }

    /// Returns a one-line description of cuFile's properties.
    pub fn describe(&self) -> String {
        let p = &self.properties;
        let nvfs = match p.nvfs_major {
            0 => "no nvidia-fs".to_string(),
            major => format!("nvidia-fs {major}.{}", p.nvfs_minor),
        };
        let p2p = if p.supports & (1 << sys::NVME_P2P) != 0 { "peer-to-peer to NVMe" } else { "no peer-to-peer" };
        let compat = if p.control & (1 << sys::ALLOW_COMPAT) != 0 { "allowed" } else { "not allowed" };
        let (version, batch, direct) = (self.version, p.max_batch, p.max_direct_kib);
        let version = format!("{}.{}", version / 1000, version % 1000 / 10);
        format!("cuFile {version}, {nvfs}, {p2p}, compat mode {compat}, batches of {batch}, {direct} KiB at once")
    }

    /// Returns the maximum number of transfers in a batch.
    pub fn max_batch(&self) -> usize {
        match self.properties.max_batch {
            0 => 128,
            n => n as usize,
        }
    }

    /// Returns the current counters.
    ///
    /// # Errors
    /// Returns the reason if they are not available.
    pub fn counts(&self) -> std::result::Result<Counts, String> {
        if let Some(why) = &self.no_counts {
            return Err(why.clone());
        }
        let Some(get) = self.api.stats_3 else { return Err("this version of cuFile keeps no statistics".into()) };
        let mut words = Box::new([0; sys::STATS_WORDS]);
        // SAFETY: the buffer is six times as long as the structure of the known version.
        self.check("cuFileGetStatsL3", unsafe { get(words.as_mut_ptr()) }).map_err(|e| e.to_string())?;
        let unknown = || format!("the statistics of cuFile {} have no record of this GPU", self.version);
        Counts::read(&words, &self.context.device().uuid, self.version).ok_or_else(unknown)
    }

    /// Returns the transfer path since the counters were `before`.
    pub fn verdict(&self, before: &std::result::Result<Counts, String>) -> Verdict {
        let counted = match before {
            Ok(before) => self.counts().map(|now| now.since(before)),
            Err(why) => Err(why.clone()),
        };
        Verdict::of(counted, self.can_be_direct())
    }

    /// Registers a buffer. Without registration, cuFile moves its bytes through device buffers of
    /// its own.
    ///
    /// # Errors
    /// Returns the error of cuFile. The buffer remains usable.
    pub fn register(self: &Arc<Self>, buffer: &mut DeviceBuf) -> Result<()> {
        if buffer.registration.is_some() {
            return Ok(());
        }
        self.context.bind()?;
        let base = buffer.address() as *const c_void;
        // SAFETY: the buffer's own range; its registration is removed before it is freed.
        let status = unsafe { (self.api.register_buffer)(base, buffer.len(), 0) };
        self.check("cuFileBufRegister", status)?;
        buffer.registration = Some(Registration { cufile: Arc::clone(self), base: buffer.address() });
        Ok(())
    }

    pub(crate) fn api(&self) -> &sys::Api {
        &self.api
    }

    pub(crate) fn check(&self, call: &'static str, status: sys::Status) -> Result<()> {
        match status.code {
            0 => Ok(()),
            code => Err(self.error(call, code, status.cuda)),
        }
    }

    pub(crate) fn error(&self, call: &'static str, code: i32, cuda: i32) -> Error {
        let (name, meaning) = names::of(code);
        let text = match (code, cuda) {
            (sys::CUDA_ERROR, cuda) if cuda != 0 => format!("{meaning}: {}", self.context.driver().text_of(cuda)),
            _ => meaning.to_string(),
        };
        let cure = match code {
            5001 => {
                Some("allow compat mode: \"allow_compat_mode\": true in /etc/cufile.json, or load nvidia-fs".into())
            }
            sys::BATCH_FULL => {
                Some("fewer transfers at once, or a larger properties.io_batchsize in /etc/cufile.json".into())
            }
            _ => None,
        };
        Error::Cufile { call, code, name, text, cure }
    }
}

impl Drop for Cufile {
    fn drop(&mut self) {
        if self.closes && self.context.bind().is_ok() {
            // SAFETY: opened once, by `with`; files, buffers and batches hold this value and are
            // gone.
            unsafe { (self.api.close)() };
        }
    }
}

/// Registration of a buffer, while this value lives.
pub(crate) struct Registration {
    cufile: Arc<Cufile>,
    base: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.cufile.context.bind().is_ok() {
            // SAFETY: registered by `Cufile::register`; the memory is freed after this.
            unsafe { (self.cufile.api.forget_buffer)(self.base as *const c_void) };
        }
    }
}
