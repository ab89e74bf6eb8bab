//! Buffers that nobody has any more, to be had again.
//!
//! A scan that goes through more than memory holds needs a new buffer for every one that it drops. From the system each
//! would come cleared, page by page, which costs more than checking and decoding what is read into it; in a virtual
//! machine whose host takes back what is freed it costs ten times that.
//!
//! Invariants:
//! - What is kept is within a limit. Buffers of lengths that nobody asks for any more make room for others.
//! - The memory is initialised: with what its last owner left.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::AlignedBuf;

/// Buffers to be had again.
#[derive(Debug)]
pub(crate) struct Spares {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    by_capacity: HashMap<usize, Vec<AlignedBuf>>,
}

impl Spares {
    /// With up to so many bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// A buffer of exactly this capacity, if there is one.
    pub fn take(&self, capacity: usize) -> Option<AlignedBuf> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = state.by_capacity.get_mut(&capacity)?.pop()?;
        state.bytes -= capacity;
        Some(buffer)
    }

    /// Keeps a buffer that does not come back here when it is dropped.
    pub fn keep(&self, buffer: AlignedBuf) {
        let capacity = buffer.capacity();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut freed = HashMap::new();
        if state.bytes + capacity > self.limit {
            freed = std::mem::take(&mut state.by_capacity);
            state.bytes = 0;
        }
        if capacity <= self.limit {
            state.by_capacity.entry(capacity).or_default().push(buffer);
            state.bytes += capacity;
        }
        drop(state);
        // Where nobody waits for it.
        drop(freed);
    }

    /// What is kept.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = state.by_capacity.values().flatten().map(AlignedBuf::capacity).sum();
        assert_eq!(state.bytes, bytes);
        bytes
    }
}
