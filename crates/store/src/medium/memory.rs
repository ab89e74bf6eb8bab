//! Bytes of the process, which are lost with it: for `:memory:` stores and tests.

use std::sync::{PoisonError, RwLock};

use super::{Domain, Granularity, Medium};
use crate::{Error, Result};

/// The memory of this process as a medium of either granularity: flushes and fences do nothing.
#[derive(Debug)]
pub struct Memory {
    granularity: Granularity,
    bytes: RwLock<Vec<u8>>,
}

impl Memory {
    /// Creates empty memory that behaves as a medium of `granularity`.
    #[must_use]
    pub fn new(granularity: Granularity) -> Self {
        Self::with_bytes(granularity, Vec::new())
    }

    /// Creates memory that holds `bytes` already.
    #[must_use]
    pub fn with_bytes(granularity: Granularity, bytes: Vec<u8>) -> Self {
        Self { granularity, bytes: RwLock::new(bytes) }
    }

    /// Returns a copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Medium for Memory {
    fn name(&self) -> &str {
        ":memory:"
    }

    fn granularity(&self) -> Granularity {
        self.granularity
    }

    fn domain(&self) -> Domain {
        Domain::Process
    }

    fn len(&self) -> u64 {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn grow(&self, len: u64) -> Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let full = || Error::Full { object: self.name().into(), reason: format!("there is no memory for {len} bytes") };
        let len = usize::try_from(len).map_err(|_| full())?;
        let more = len.saturating_sub(bytes.len());
        bytes.try_reserve(more).map_err(|_| full())?;
        let new_len = bytes.len() + more;
        bytes.resize(new_len, 0);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let from = super::range(self.name(), at, into.len(), bytes.len())?;
        into.copy_from_slice(&bytes[from]);
        Ok(())
    }

    fn write(&self, at: u64, new: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let to = super::range(self.name(), at, new.len(), bytes.len())?;
        bytes[to].copy_from_slice(new);
        Ok(())
    }

    fn flush(&self, _at: u64, _len: usize) -> Result<()> {
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::conformance;

    #[test]
    fn memory_conforms_at_both_granularities() {
        for granularity in [Granularity::Line, Granularity::Page] {
            conformance::check(&Memory::new(granularity));
        }
    }

    #[test]
    fn more_than_there_is_memory_is_full() {
        let memory = Memory::new(Granularity::Line);
        assert!(matches!(memory.grow(u64::MAX), Err(Error::Full { .. })));
        assert_eq!(memory.len(), 0);
    }
}
