//! A medium that runs out of space, and whose fences fail, on a test's request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{Domain, Granularity, Medium, Memory};
use crate::{Error, Result};

/// Memory with limits.
#[derive(Debug)]
pub(crate) struct Limited {
    memory: Memory,
    /// The maximum number of bytes.
    pub(crate) room: AtomicU64,
    /// The number of growths until one fails and the next, which may request less, as well,
    /// regardless of the space.
    pub(crate) growths: AtomicU64,
    /// The number of fences until they begin to fail.
    pub(crate) fences: AtomicU64,
}

impl Limited {
    /// Creates a medium that does not fail yet.
    pub(crate) fn new(granularity: Granularity) -> Arc<Self> {
        let unlimited = || AtomicU64::new(u64::MAX);
        Arc::new(Self {
            memory: Memory::new(granularity),
            room: unlimited(),
            growths: unlimited(),
            fences: unlimited(),
        })
    }

    /// Limits further growth to this number of bytes.
    pub(crate) fn limit(&self, bytes: u64) {
        self.room.store(self.len().saturating_add(bytes), SeqCst);
    }
}

impl Medium for Limited {
    fn name(&self) -> &str {
        "limited"
    }

    fn granularity(&self) -> Granularity {
        self.memory.granularity()
    }

    fn domain(&self) -> Domain {
        Domain::Process
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.room.load(SeqCst) || (1..=2).contains(&self.growths.fetch_sub(1, SeqCst)) {
            return Err(Error::Full { object: self.name().into(), reason: "it was told to be full".into() });
        }
        self.memory.grow(len)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.memory.read(at, into)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write(at, bytes)
    }

    fn flush(&self, at: u64, len: usize) -> Result<()> {
        self.memory.flush(at, len)
    }

    fn fence(&self) -> Result<()> {
        let left = self.fences.fetch_update(SeqCst, SeqCst, |fences| fences.checked_sub(1));
        left.map(drop).map_err(|_| Error::io("sync", self.name(), std::io::Error::other("it was told to fail")))
    }
}
