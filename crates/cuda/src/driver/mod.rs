//! The CUDA driver: devices, their primary contexts, memory, streams and events.
//!
//! A context is *current* for a thread. Every call of this module first makes its own context
//! current. Values may therefore be used from any thread, and contexts of other libraries in the
//! process do not interfere.

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

/// Remedy if there is no driver.
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
    /// Returns an error if there is no library, the library is too old, or there is no device.
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

    /// Returns the newest CUDA version that the driver supports: 13000 is 13.0.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Returns all devices that this process may use.
    ///
    /// # Errors
    /// Returns the error of the driver.
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
        // SAFETY: writes one pointer, which is null or points to a constant of the library.
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

/// Returns a copy of a C string, or `None` for null.
///
/// # Safety
/// `text` is null, or the start of a terminated string.
pub(crate) unsafe fn text_at(text: *const c_char) -> Option<String> {
    // SAFETY: the caller guarantees it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Arc<Driver>,
    raw: sys::RawDevice,
    /// Ordinal in this process.
    pub ordinal: i32,
    /// Product name.
    pub name: String,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Major and minor compute capability.
    pub compute: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// PCI bus address.
    pub pci: String,
    /// Unique identifier.
    pub uuid: [u8; 16],
}

impl Device {
    fn new(driver: &Arc<Driver>, ordinal: i32) -> Result<Self> {
        let api = &driver.api;
        let (mut raw, mut memory, mut uuid) = (0, 0, [0; 16]);
        let (mut name, mut pci) = ([0 as c_char; 128], [0 as c_char; 32]);
        let (mut compute, mut multiprocessors) = ((0, 0), 0);
        // SAFETY: every call writes one value of the given type, or at most the given number of
        // characters.
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
        // SAFETY: the last character of each was excluded from the calls: both strings are
        // terminated.
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

    /// Returns the newest CUDA version that the driver supports: 13000 is 13.0.
    pub fn driver_version(&self) -> i32 {
        self.driver.version()
    }

    /// Returns the primary context, which all users of the device in this process share.
    ///
    /// # Errors
    /// Returns the error of the driver: the device is in exclusive use, or has no memory left.
    pub fn context(&self) -> Result<Arc<Context>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer; released once, by `Context`.
        self.driver.check("cuDevicePrimaryCtxRetain", unsafe { (self.driver.api.retain)(&raw mut raw, self.raw) })?;
        Ok(Arc::new(Context { device: self.clone(), raw }))
    }
}

/// Primary context of a device, retained while this value lives.
pub struct Context {
    device: Device,
    raw: sys::RawContext,
}

// SAFETY: a context may be used from any thread that makes it current, and every call does so.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's calls are thread-safe.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device.pci).finish_non_exhaustive()
    }
}

impl Context {
    /// Returns the device of this context.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes the context current for this thread.
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
        // SAFETY: retained once, by `Device::context`. If this fails, the context lives until the
        // process ends.
        unsafe { (self.api().release)(self.device.raw) };
    }
}
