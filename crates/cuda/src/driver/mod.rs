//! The CUDA driver: devices, their primary contexts, memory, streams and events.
//!
//! A context is *current* for a thread. Every call here makes its own context current first, so that values may be used
//! from any thread, and contexts of other libraries in the process do not get in the way.

mod memory;
mod module;
mod shared;
mod stream;
pub(crate) mod sys;

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

pub(crate) use memory::RegisteredMemory;
pub use memory::{DeviceBuf, PinnedBuf};
pub use module::{Grid, Kernel};
pub(crate) use shared::PAGE_BYTES;
pub use shared::SharedMemory;
pub use stream::{Event, Stream};

use crate::library::Library;
use crate::{Error, Result};

/// What helps where there is no driver.
const CURE: &str = "install NVIDIA's driver; in a container, start it with --gpus all";

/// The loaded driver.
pub struct Driver {
    api: sys::Api,
    version: i32,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Driver {
    /// Loads and initialises the driver. Takes a second on machines with many GPUs.
    ///
    /// # Errors
    /// No library, a library that is too old, or no device.
    pub fn load() -> Result<Arc<Self>> {
        let library = Library::open("libcuda", &["libcuda.so.1", "libcuda.so"], CURE)?;
        Self::with(sys::Api::find(&library)?)
    }

    pub(crate) fn with(api: sys::Api) -> Result<Arc<Self>> {
        let mut driver = Self { api, version: 0 };
        // SAFETY: no flags are defined.
        driver.check("cuInit", unsafe { (api.init)(0) })?;
        // SAFETY: writes one number.
        let code = unsafe { (api.version)(&raw mut driver.version) };
        driver.check("cuDriverGetVersion", code)?;
        Ok(Arc::new(driver))
    }

    /// The newest CUDA that it can serve: 13000 is 13.0.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// All devices that this process may use.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<Device>> {
        let mut count = 0;
        // SAFETY: writes one number.
        self.check("cuDeviceGetCount", unsafe { (self.api.device_count)(&raw mut count) })?;
        (0..count).map(|ordinal| Device::new(self, ordinal)).collect()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            code => Err(Error::Cuda { call, code, name: self.name_of(code), text: self.text_of(code) }),
        }
    }

    fn name_of(&self, code: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: writes one pointer, to a constant of the library's or nothing.
        unsafe {
            (self.api.error_name)(code, &raw mut text);
            text_at(text).unwrap_or_else(|| "unknown".into())
        }
    }

    pub(crate) fn text_of(&self, code: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: as in `name_of`.
        unsafe {
            (self.api.error_text)(code, &raw mut text);
            text_at(text).unwrap_or_else(|| "no description".into())
        }
    }
}

/// A copy of a C string.
///
/// # Safety
/// `text` is nothing, or the start of a string that ends.
pub(crate) unsafe fn text_at(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Arc<Driver>,
    raw: sys::RawDevice,
    /// Its number in this process.
    pub ordinal: i32,
    /// What it is.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Major and minor compute capability.
    pub compute: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Where it is on the bus.
    pub pci: String,
    /// What tells it from all others.
    pub uuid: [u8; 16],
}

impl Device {
    fn new(driver: &Arc<Driver>, ordinal: i32) -> Result<Self> {
        let api = &driver.api;
        let (mut raw, mut memory, mut uuid) = (0, 0, [0; 16]);
        let (mut name, mut pci) = ([0 as c_char; 128], [0 as c_char; 32]);
        let (mut compute, mut multiprocessors) = ((0, 0), 0);
        // SAFETY: every call writes one value of the type it is given, or at most as many characters as it is told.
        unsafe {
            driver.check("cuDeviceGet", (api.device)(&raw mut raw, ordinal))?;
            driver.check("cuDeviceGetName", (api.device_name)(name.as_mut_ptr(), 127, raw))?;
            driver.check("cuDeviceTotalMem", (api.device_memory)(&raw mut memory, raw))?;
            driver.check("cuDeviceGetPCIBusId", (api.device_pci)(pci.as_mut_ptr(), 31, raw))?;
            driver.check("cuDeviceGetUuid", (api.device_uuid)(uuid.as_mut_ptr(), raw))?;
            for (attribute, value) in [
                (sys::COMPUTE_MAJOR, &mut compute.0),
                (sys::COMPUTE_MINOR, &mut compute.1),
                (sys::MULTIPROCESSORS, &mut multiprocessors),
            ] {
                driver.check("cuDeviceGetAttribute", (api.device_attribute)(value, attribute, raw))?;
            }
        }
        // SAFETY: the last character was never given away: both end.
        let (name, pci) = unsafe { (text_at(name.as_ptr()), text_at(pci.as_ptr())) };
        Ok(Self {
            driver: Arc::clone(driver),
            raw,
            ordinal,
            name: name.unwrap_or_default(),
            memory_bytes: memory as u64,
            compute,
            multiprocessors: multiprocessors.max(1) as u32,
            pci: pci.unwrap_or_default().to_lowercase(),
            uuid,
        })
    }

    /// The newest CUDA that its driver can serve: 13000 is 13.0.
    pub fn driver_version(&self) -> i32 {
        self.driver.version()
    }

    /// The context that everybody in this process shares.
    ///
    /// # Errors
    /// Those of the driver: a device in exclusive use, no memory left on it.
    pub fn context(&self) -> Result<Arc<Context>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; released once, by `Context`.
        self.driver.check("cuDevicePrimaryCtxRetain", unsafe { (self.driver.api.retain)(&raw mut raw, self.raw) })?;
        Ok(Arc::new(Context { device: self.clone(), raw }))
    }
}

/// A device's primary context, kept while this lives.
pub struct Context {
    device: Device,
    raw: sys::RawContext,
}

// SAFETY: a context may be used from any thread that makes it current, and every call does.
unsafe impl Send for Context {}
// SAFETY: as above: the driver's calls are safe to make at once.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device.pci).finish_non_exhaustive()
    }
}

impl Context {
    /// The device that it is of.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes it current for this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained while `self` lives.
        self.check("cuCtxSetCurrent", unsafe { (self.api().set_current)(self.raw) })
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.device.driver
    }

    fn api(&self) -> &sys::Api {
        &self.device.driver.api
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        self.device.driver.check(call, code)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, by `Device::context`. A failure leaves a context that ends with the process.
        unsafe { (self.api().release)(self.device.raw) };
    }
}
