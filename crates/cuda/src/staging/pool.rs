//! Pool of idle buffers for reuse.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fused::Result;
use crate::{DeviceBuf, PinnedBuf};

/// A buffer with a length.
pub(crate) trait Buffer {
    fn bytes(&self) -> usize;
}

impl Buffer for PinnedBuf {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Buffer for DeviceBuf {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Idle buffers, up to a limit in bytes.
pub(crate) struct Pool<B> {
    idle: Mutex<Vec<B>>,
    limit: usize,
}

impl<B> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<B: Buffer> Pool<B> {
    pub fn new(limit: usize) -> Self {
        Self { idle: Mutex::default(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<B>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the smallest buffer of at least `bytes` bytes, or makes a new one. If that fails, the
    /// kept buffers are freed, and it is tried once more.
    pub fn take(&self, bytes: usize, mut new: impl FnMut() -> crate::Result<B>) -> Result<B> {
        let mut idle = self.lock();
        let fitting = idle.iter().enumerate().filter(|(_, buffer)| buffer.bytes() >= bytes);
        if let Some((at, _)) = fitting.min_by_key(|(_, buffer)| buffer.bytes()) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        match new() {
            Ok(buffer) => Ok(buffer),
            Err(_) if self.clear() > 0 => Ok(new()?),
            Err(e) => Err(e.into()),
        }
    }

    /// Keeps a buffer, and frees the smallest ones above the limit.
    pub fn give(&self, buffer: B) {
        let mut gone = Vec::new();
        let mut idle = self.lock();
        idle.push(buffer);
        idle.sort_by_key(Buffer::bytes);
        let mut bytes: usize = idle.iter().map(Buffer::bytes).sum();
        while bytes > self.limit && !idle.is_empty() {
            let smallest = idle.remove(0);
            bytes -= smallest.bytes();
            gone.push(smallest);
        }
        drop(idle);
        // Freed without the lock: freeing may wait for the device.
        drop(gone);
    }

    /// Frees all buffers, and returns their number.
    pub fn clear(&self) -> usize {
        let all = std::mem::take(&mut *self.lock());
        all.len()
    }
}
