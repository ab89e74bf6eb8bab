//! cuFile, NVIDIA's library for transfers between files and device memory.
//!
//! Where the machine has a way for it (nvidia-fs, or PCIe peer-to-peer), the bytes go straight from storage to the
//! device. Where it has none, cuFile reads into host buffers of its own and copies: *compat mode*. It does not say which
//! when it is asked to transfer; what it *counted* says it afterwards ([`Verdict`]).

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

/// Under which names the library goes. Where CUDA was unpacked beside the loader's folders, it is looked for there.
const FILES: [&str; 4] = [
    "libcufile.so.0",
    "libcufile.so",
    "/usr/local/cuda/lib64/libcufile.so.0",
    "/usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.0",
];

/// Whether cuFile counts the ways that it takes, which costs a little for every transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// It does.
    On,
    /// It does not, and no way is verified.
    Off,
}

/// The open library, for one context.
pub struct Cufile {
    api: sys::Api,
    context: Arc<Context>,
    version: i32,
    properties: sys::Properties,
    /// Why there are no counts.
    no_counts: Option<String>,
    closes: bool,
}

impl fmt::Debug for Cufile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cufile").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Cufile {
    /// Loads the library and opens its driver. There is one in a process; opening it again is allowed.
    ///
    /// # Errors
    /// No library, or one that does not work here.
    pub fn open(context: &Arc<Context>, counting: Counting) -> Result<Arc<Self>> {
        let library = Library::open("libcufile", &FILES, CURE)?;
        Self::with(sys::Api::find(&library)?, context, counting)
    }

    pub(crate) fn with(api: sys::Api, context: &Arc<Context>, counting: Counting) -> Result<Arc<Self>> {
        context.bind()?;
        let (mut version, no_counts, properties) = (0, None, sys::Properties::default());
        if let Some(ask) = api.version {
            // SAFETY: writes one number; the answer is not needed.
            unsafe { ask(&raw mut version) };
        }
        let context = Arc::clone(context);
        let mut cufile = Self { api, context, version, properties, no_counts, closes: false };
        cufile.keep_log_elsewhere();
        // Some versions take the level before they are open, some after: both is allowed.
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

    /// cuFile writes its log into the current directory, which may be anybody's. Who names a place for it has it there.
    fn keep_log_elsewhere(&self) {
        let named =
            std::env::var_os("CUFILE_LOGFILE_PATH").is_some() || std::env::var_os("CUFILE_ENV_PATH_JSON").is_some();
        let folder = CString::new(std::env::temp_dir().into_os_string().into_encoded_bytes());
        if let (false, Some(set), Ok(folder)) = (named, self.api.set_text, folder) {
            // SAFETY: a string that ends, which the library copies. Where it will not have it, the log is where it was.
            unsafe { set(sys::LOG_FOLDER, folder.as_ptr()) };
        }
    }

    fn set_level(&self, counting: Counting) -> std::result::Result<(), String> {
        let Some(set) = self.api.stats_level else { return Err("this version of cuFile keeps no statistics".into()) };
        let level = if counting == Counting::On { 3 } else { 0 };
        // SAFETY: a number.
        self.check("cuFileSetStatsLevel", unsafe { set(level) }).map_err(|e| e.to_string())
    }

    /// For good: cuFile 1.15, once stopped, counts no more.
    fn start_counting(&self) -> std::result::Result<(), String> {
        let Some(start) = self.api.stats_start else { return Err("this version of cuFile keeps no statistics".into()) };
        // SAFETY: the driver is open.
        self.check("cuFileStatsStart", unsafe { start() }).map_err(|e| e.to_string())
    }

    /// 1150 is 1.15; 0 is a version that does not say.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The context that it is for.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether the machine has anything to go direct by: nvidia-fs, or PCIe peer-to-peer.
    pub fn can_be_direct(&self) -> bool {
        self.properties.nvfs_major > 0 || self.properties.supports != 0
    }

    /// What cuFile says about itself, in a line.
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

    /// Transfers in a batch, at most.
    pub fn max_batch(&self) -> usize {
        match self.properties.max_batch {
            0 => 128,
            n => n as usize,
        }
    }

    /// What it has counted.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn counts(&self) -> std::result::Result<Counts, String> {
        if let Some(why) = &self.no_counts {
            return Err(why.clone());
        }
        let Some(get) = self.api.stats_3 else { return Err("this version of cuFile keeps no statistics".into()) };
        let mut words = Box::new([0; sys::STATS_WORDS]);
        // SAFETY: six times as long as the structure of the version that we know.
        self.check("cuFileGetStatsL3", unsafe { get(words.as_mut_ptr()) }).map_err(|e| e.to_string())?;
        let unknown = || format!("the statistics of cuFile {} have no record of this GPU", self.version);
        Counts::read(&words, &self.context.device().uuid, self.version).ok_or_else(unknown)
    }

    /// Which way the bytes took since `before` was counted.
    pub fn verdict(&self, before: &std::result::Result<Counts, String>) -> Verdict {
        let counted = match before {
            Ok(before) => self.counts().map(|now| now.since(before)),
            Err(why) => Err(why.clone()),
        };
        Verdict::of(counted, self.can_be_direct())
    }

    /// Registers a buffer: without that, cuFile moves its bytes through device buffers of its own.
    ///
    /// # Errors
    /// What cuFile says. The buffer can be used all the same.
    pub fn register(self: &Arc<Self>, buffer: &mut DeviceBuf) -> Result<()> {
        if buffer.registration.is_some() {
            return Ok(());
        }
        self.context.bind()?;
        let base = buffer.address() as *const c_void;
        // SAFETY: the buffer's own range; forgotten before it is freed, by the registration in it.
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
            // SAFETY: opened once, by `with`; files, buffers and batches hold this value and are gone.
            unsafe { (self.api.close)() };
        }
    }
}

/// That a buffer is registered, as long as this lives.
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
