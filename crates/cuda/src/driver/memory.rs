//! Memory of the device, and host memory that it can reach.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use onehop_io::HostBuffer;

use super::{Context, sys};
use crate::Result;
use crate::cufile::Registration;

/// Bytes on the device, of one allocation.
///
/// The host cannot look at them: they are copied, or moved by a queue that owns the buffer meanwhile.
pub struct DeviceBuf {
    /// Before the memory: what is freed must not be registered.
    pub(crate) registration: Option<Registration>,
    context: Arc<Context>,
    address: sys::Address,
    len: usize,
}

impl fmt::Debug for DeviceBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_registered = self.registration.is_some();
        f.debug_struct("DeviceBuf")
            .field("len", &self.len)
            .field("is_registered", &is_registered)
            .finish_non_exhaustive()
    }
}

impl DeviceBuf {
    /// `len` bytes, at least one, of no known content.
    ///
    /// # Errors
    /// No memory left on the device.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self> {
        context.bind()?;
        let mut address = 0;
        // SAFETY: writes one address; freed once, when this is dropped.
        context.check("cuMemAlloc", unsafe { (context.api().alloc)(&raw mut address, len.max(1)) })?;
        Ok(Self { registration: None, context: Arc::clone(context), address, len })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are, on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The context that they belong to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Copies from host memory to the bytes from `at` on, and waits.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If they do not lie in the buffer.
    pub fn copy_from(&mut self, at: usize, from: &[u8]) -> Result<()> {
        let to = self.address_of(&(at..at + from.len()));
        self.context.bind()?;
        let api = self.context.api();
        // SAFETY: the range lies in the allocation, `from` is as long, and the call returns when it has been read.
        self.context.check("cuMemcpyHtoD", unsafe { (api.to_device)(to, from.as_ptr().cast(), from.len()) })?;
        self.settle()
    }

    /// Copies the bytes from `at` on to host memory, and waits.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If they do not lie in the buffer.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> Result<()> {
        let from = self.address_of(&(at..at + to.len()));
        self.context.bind()?;
        let api = self.context.api();
        // SAFETY: the range lies in the allocation, `to` is as long, and the call returns when it has been written.
        self.context.check("cuMemcpyDtoH", unsafe { (api.to_host)(to.as_mut_ptr().cast(), from, to.len()) })
    }

    /// Makes all bytes the same.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.context.bind()?;
        // SAFETY: `len` bytes were allocated at `address`.
        self.context.check("cuMemsetD8", unsafe { (self.context.api().fill)(self.address, byte, self.len) })?;
        self.settle()
    }

    /// Waits for the default stream. Copies from memory that is not page-locked return when they have been staged, fills at
    /// once; and streams of our own do not wait for it.
    fn settle(&self) -> Result<()> {
        // SAFETY: the default stream of the context that is bound.
        self.context.check("cuStreamSynchronize", unsafe { (self.context.api().stream_wait)(std::ptr::null_mut()) })
    }

    /// Where a part of them is.
    ///
    /// # Panics
    /// If it does not lie in the buffer.
    pub(crate) fn address_of(&self, range: &Range<usize>) -> sys::Address {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes on the device", self.len);
        self.address + range.start as u64
    }
}

impl Drop for DeviceBuf {
    fn drop(&mut self) {
        drop(self.registration.take());
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `new`, freed here only. What is in flight is owned by a queue and not dropped.
            unsafe { (self.context.api().free)(self.address) };
        }
    }
}

/// Page-locked host memory: the device copies from and to it at full speed, while the host does something else.
pub struct PinnedBuf {
    context: Arc<Context>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its allocation, like a Vec<u8>.
unsafe impl Send for PinnedBuf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for PinnedBuf {}

impl fmt::Debug for PinnedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

impl PinnedBuf {
    /// `len` zero bytes, at least one, on pages of their own.
    ///
    /// # Errors
    /// No memory that could be locked.
    pub fn zeroed(context: &Arc<Context>, len: usize) -> Result<Self> {
        context.bind()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        let len = len.max(1);
        // SAFETY: writes one address; freed once, when this is dropped.
        let code = unsafe { (context.api().alloc_host)(&raw mut start, len, sys::HOST_PORTABLE) };
        context.check("cuMemHostAlloc", code)?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(crate::Error::System { what: "cuMemHostAlloc".into(), reason: "returned nothing".into() });
        };
        // SAFETY: `len` bytes were allocated. The driver does not promise that they are zero.
        unsafe { start.as_ptr().write_bytes(0, len) };
        Ok(Self { context: Arc::clone(context), start, len })
    }
}

impl Deref for PinnedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes lie at `start`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PinnedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: an allocation of its own, freed when it is dropped.
unsafe impl HostBuffer for PinnedBuf {}

impl Drop for PinnedBuf {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `zeroed`, freed here only.
            unsafe { (self.context.api().free_host)(self.start.as_ptr().cast()) };
        }
    }
}

/// Host memory of somebody else's that is page-locked as long as this is there.
pub struct RegisteredMemory {
    context: Arc<Context>,
    addresses: Range<usize>,
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory").field("len", &self.addresses.len()).finish_non_exhaustive()
    }
}

impl RegisteredMemory {
    /// Whole pages of memory that is mapped.
    ///
    /// # Safety
    /// The memory stays mapped as long as this is there, and nobody else registers any of it.
    ///
    /// # Errors
    /// More than the system locks for a process, or than the driver takes.
    pub unsafe fn new(context: &Arc<Context>, addresses: Range<usize>) -> Result<Self> {
        context.bind()?;
        let start = addresses.start as *mut c_void;
        // SAFETY: the memory is mapped, as the caller promises; unregistered once, when this is dropped.
        let code = unsafe { (context.api().register_host)(start, addresses.len(), sys::REGISTER_PORTABLE) };
        context.check("cuMemHostRegister", code)?;
        Ok(Self { context: Arc::clone(context), addresses })
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: registered by `new`, unregistered here only, while it is mapped.
            unsafe { (self.context.api().unregister_host)(self.addresses.start as *mut c_void) };
        }
    }
}
