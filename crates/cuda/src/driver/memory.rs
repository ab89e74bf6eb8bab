//! Device memory, and host memory that the device can access.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use onehop_io::HostBuffer;

use super::{Context, sys};
use crate::Result;
use crate::cufile::Registration;

/// Bytes on the device, in one allocation.
///
/// The host cannot read them directly: they are copied, or moved by a queue that owns the buffer
/// meanwhile.
pub struct DeviceBuf {
    /// Declared before the memory, so that it is dropped first: freed memory must not be
    /// registered.
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
    /// Allocates `len` bytes, at least one, with undefined content.
    ///
    /// # Errors
    /// Returns an error if the device has no memory left.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self> {
        context.bind()?;
        let mut address = 0;
        // SAFETY: writes one address; freed once, when this is dropped.
        context.check("cuMemAlloc", unsafe { (context.api().alloc)(&raw mut address, len.max(1)) })?;
        Ok(Self { registration: None, context: Arc::clone(context), address, len })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the context that the buffer belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Copies from host memory to the bytes from `at` on, and waits.
    ///
    /// # Errors
    /// Returns the error of the driver.
    ///
    /// # Panics
    /// Panics if the range is not in the buffer.
    pub fn copy_from(&mut self, at: usize, from: &[u8]) -> Result<()> {
        let to = self.address_of(&(at..at + from.len()));
        self.context.bind()?;
        let api = self.context.api();
        // SAFETY: the range lies in the allocation, `from` has the same length, and the call
        // returns after it has been read.
        self.context.check("cuMemcpyHtoD", unsafe { (api.to_device)(to, from.as_ptr().cast(), from.len()) })?;
        self.settle()
    }

    /// Copies the bytes from `at` on to host memory, and waits.
    ///
    /// # Errors
    /// Returns the error of the driver.
    ///
    /// # Panics
    /// Panics if the range is not in the buffer.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> Result<()> {
        let from = self.address_of(&(at..at + to.len()));
        self.context.bind()?;
        let api = self.context.api();
        // SAFETY: the range lies in the allocation, `to` has the same length, and the call returns
        // after it has been written.
        self.context.check("cuMemcpyDtoH", unsafe { (api.to_host)(to.as_mut_ptr().cast(), from, to.len()) })
    }

    /// Sets all bytes to one value.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.context.bind()?;
        // SAFETY: `len` bytes were allocated at `address`.
        self.context.check("cuMemsetD8", unsafe { (self.context.api().fill)(self.address, byte, self.len) })?;
        self.settle()
    }

    /// Waits for the default stream. Copies from pageable memory return once they have been staged,
    /// and fills return at once. Streams of this crate do not wait for the default stream.
    fn settle(&self) -> Result<()> {
        // SAFETY: null is the default stream of the bound context.
        self.context.check("cuStreamSynchronize", unsafe { (self.context.api().stream_wait)(std::ptr::null_mut()) })
    }

    /// Returns the address of a range.
    ///
    /// # Panics
    /// Panics if the range is not in the buffer.
    pub(crate) fn address_of(&self, range: &Range<usize>) -> sys::Address {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes on the device", self.len);
        self.address + range.start as u64
    }
}

impl Drop for DeviceBuf {
    fn drop(&mut self) {
        drop(self.registration.take());
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `new`, freed only here. A queue owns buffers in flight, so that
            // they are not dropped.
            unsafe { (self.context.api().free)(self.address) };
        }
    }
}

/// Page-locked host memory. The device copies from and to it at full speed, concurrently with the
/// host.
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
    /// Allocates `len` zero bytes, at least one, on pages of their own.
    ///
    /// # Errors
    /// Returns an error if no memory can be locked.
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
        // SAFETY: `len` bytes were allocated. The driver does not guarantee that they are zero.
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

/// Host memory of another owner that is page-locked while this value lives.
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
    /// Page-locks whole pages of mapped memory.
    ///
    /// # Safety
    /// The memory stays mapped while the value lives, and no other registration covers any of it.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the process's limit of locked memory, or if the driver
    /// refuses it.
    pub unsafe fn new(context: &Arc<Context>, addresses: Range<usize>) -> Result<Self> {
        context.bind()?;
        let start = addresses.start as *mut c_void;
        // SAFETY: the caller guarantees that the memory is mapped; unregistered once, when this is
        // dropped.
        let code = unsafe { (context.api().register_host)(start, addresses.len(), sys::REGISTER_PORTABLE) };
        context.check("cuMemHostRegister", code)?;
        Ok(Self { context: Arc::clone(context), addresses })
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: registered by `new`, unregistered only here, while it is still mapped.
            unsafe { (self.context.api().unregister_host)(self.addresses.start as *mut c_void) };
        }
    }
}
