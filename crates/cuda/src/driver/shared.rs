//! Memory of a device that several processes have: the one that allocated it gives out a handle, the others open it.
//!
//! - A handle is to an allocation as a whole, of `cuMemAlloc`: memory of pools has none.
//! - Allocations that are smaller than a page of the device's, 2 MiB, may share one, and a handle opens that page: what is
//!   to be shared is allocated in whole ones, so that nobody sees what is beside it.
//! - Whoever allocated it must not free it while it is open elsewhere. Nothing here keeps anybody from that: a lease does.

use std::fmt;
use std::sync::Arc;

use super::{Context, DeviceBuf, sys};
use crate::{Error, Result};

/// Bytes that an allocation has a multiple of, if it is to be shared.
pub const PAGE_BYTES: usize = 2 << 20;

impl DeviceBuf {
    /// A handle for other processes.
    ///
    /// # Errors
    /// Those of the driver, which shares no memory on some systems.
    pub fn share(&self) -> Result<[u8; 64]> {
        let context = self.context();
        context.bind()?;
        let mut raw = sys::RawShared([0; 64]);
        // SAFETY: the allocation lives; writes one handle.
        context.check("cuIpcGetMemHandle", unsafe { (context.api().share)(&raw mut raw, self.address()) })?;
        Ok(raw.0)
    }
}

/// Memory of another process's.
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
    /// Opens a handle, to at least so many bytes.
    ///
    /// # Errors
    /// Those of the driver: a handle to memory that is gone, of another device, or of this very process. Less than was
    /// wanted.
    pub fn open(context: &Arc<Context>, handle: [u8; 64], wanted: usize) -> Result<Self> {
        context.bind()?;
        let api = context.api();
        let mut address = 0;
        // SAFETY: the driver looks at the handle before it believes it; writes one address, closed once, when this is dropped.
        let code = unsafe { (api.open_shared)(&raw mut address, sys::RawShared(handle), sys::SHARED_WITH_PEERS) };
        context.check("cuIpcOpenMemHandle", code)?;
        let mut shared = Self { context: Arc::clone(context), address, len: 0 };
        let mut start = 0;
        // SAFETY: memory that is open; writes an address and a number.
        let code = unsafe { (api.extent)(&raw mut start, &raw mut shared.len, address) };
        context.check("cuMemGetAddressRange", code)?;
        // What lies before it is the page's.
        shared.len = shared.len.saturating_sub(address.saturating_sub(start) as usize);
        if shared.len < wanted {
            let reason = format!("{} bytes are there, and {wanted} were to be", shared.len);
            return Err(Error::System { what: "opening memory of another process".into(), reason });
        }
        Ok(shared)
    }

    /// Where it is, on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The context that it was opened in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: opened once, closed here only.
            unsafe { (self.context.api().close_shared)(self.address) };
        }
    }
}
