//! Device memory that several processes share: the allocating process exports a handle, the others
//! open it.
//!
//! - A handle refers to a whole allocation of `cuMemAlloc`. Memory of pools has no handles.
//! - Allocations smaller than a device page, 2 MiB, may share one, and a handle opens the whole
//!   page. Shared memory is therefore allocated in whole pages, so that no process sees its
//!   neighbours.
//! - The allocating process must not free memory that is open elsewhere. This module does not
//!   enforce it: a lease does.

use std::fmt;
use std::sync::Arc;

use super::{Context, DeviceBuf, sys};
use crate::{Error, Result};

/// Granularity in bytes of allocations that are shared.
pub const PAGE_BYTES: usize = 2 << 20;

impl DeviceBuf {
    /// Returns a handle for other processes.
    ///
    /// # Errors
    /// Returns the error of the driver, which supports no sharing on some systems.
    pub fn share(&self) -> Result<[u8; 64]> {
        let context = self.context();
        context.bind()?;
        let mut raw = sys::RawShared([0; 64]);
        // SAFETY: the allocation lives; writes one handle.
        context.check("cuIpcGetMemHandle", unsafe { (context.api().share)(&raw mut raw, self.address()) })?;
        Ok(raw.0)
    }
}

/// Memory of another process.
pub struct SharedMemory {
    context: Arc<Context>,
    address: sys::Address,
    len: usize,
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl SharedMemory {
    /// Opens a handle to at least `wanted` bytes.
    ///
    /// # Errors
    /// Returns the error of the driver if the memory is gone, or belongs to another device or to
    /// this very process. Returns an error if fewer than `wanted` bytes are there.
    pub fn open(context: &Arc<Context>, handle: [u8; 64], wanted: usize) -> Result<Self> {
        context.bind()?;
        let api = context.api();
        let mut address = 0;
        // SAFETY: the driver validates the handle; writes one address, closed once, when this is
        // dropped.
        let code = unsafe { (api.open_shared)(&raw mut address, sys::RawShared(handle), sys::SHARED_WITH_PEERS) };
        context.check("cuIpcOpenMemHandle", code)?;
        let mut shared = Self { context: Arc::clone(context), address, len: 0 };
        let mut start = 0;
        // SAFETY: the memory is open; writes an address and a number.
        let code = unsafe { (api.extent)(&raw mut start, &raw mut shared.len, address) };
        context.check("cuMemGetAddressRange", code)?;
        // The bytes before the address belong to the rest of the page.
        shared.len = shared.len.saturating_sub(address.saturating_sub(start) as usize);
        if shared.len < wanted {
            let reason = format!("{} bytes are there, and {wanted} were to be", shared.len);
            return Err(Error::System { what: "opening memory of another process".into(), reason });
        }
        Ok(shared)
    }

    /// Returns the address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the context in which the handle was opened.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: opened once, closed only here.
            unsafe { (self.context.api().close_shared)(self.address) };
        }
    }
}
