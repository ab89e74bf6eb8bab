//! Buffers that are kept for whoever needs some next.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fused::Result;
use crate::{DeviceBuf, PinnedBuf};

/// Something with a length.
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

/// Idle buffers, up to so many bytes of them.
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

    /// The smallest that has so many bytes, or a new one. If there is no memory for that, those that are kept are let go, and
    /// it is tried once more.
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

    /// Keeps a buffer, if need be in the place of smaller ones.
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
        // Freed without the lock: it may wait for the device.
        drop(gone);
    }

    /// Lets go of all; how many there were.
    pub fn clear(&self) -> usize {
        let all = std::mem::take(&mut *self.lock());
        all.len()
    }
}
