//! Buffers of any length, bounded in sum: for who keeps what was read.
//!
//! Invariant: the bytes of all [`LentBuf`]s of an [`Allowance`] are within its limit, but for a single one that is larger
//! than all of it: it gets the whole allowance to itself, so that what is wanted can always be read.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::AlignedBuf;

/// Bytes that may be lent.
#[derive(Clone, Debug)]
pub struct Allowance {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    /// Bytes that nobody has.
    left: usize,
    /// Who waits for some: to wake nobody is a call of the system's as well.
    waiting: usize,
}

impl Allowance {
    /// So many bytes.
    pub fn new(limit: usize) -> Self {
        let state = Mutex::new(State { left: limit, waiting: 0 });
        Self { shared: Arc::new(Shared { limit, state, returned: Condvar::new() }) }
    }

    /// A buffer, if that leaves the sum within the limit. Its contents are what its last owner left, or zeroes.
    pub fn take(&self, bytes: usize) -> Option<LentBuf> {
        let credit = bytes.min(self.shared.limit);
        {
            let mut state = self.shared.lock();
            state.left = state.left.checked_sub(credit)?;
        }
        // If this ends the process, nobody asks any more.
        Some(LentBuf {
            buffer: AlignedBuf::uncleared(bytes),
            credit: Credit { bytes: credit, of: Arc::clone(&self.shared) },
        })
    }

    /// Waits until so many bytes are left, or it is over.
    pub fn wait_for(&self, bytes: usize, is_over: &AtomicBool) {
        let credit = bytes.min(self.shared.limit);
        let mut state = self.shared.lock();
        state.waiting += 1;
        while state.left < credit && !is_over.load(Acquire) {
            state = self.shared.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }

    /// Has everybody who waits look whether it is over.
    pub fn wake(&self) {
        let _state = self.shared.lock();
        self.shared.returned.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that counts towards its [`Allowance`] until it is dropped or taken out.
#[derive(Debug)]
pub struct LentBuf {
    buffer: AlignedBuf,
    credit: Credit,
}

impl LentBuf {
    /// The buffer alone: from now on it is the caller's to account for.
    pub fn into_inner(self) -> AlignedBuf {
        drop(self.credit);
        self.buffer
    }

    /// As [`AlignedBuf::split_off`]: each part counts for itself.
    pub(crate) fn split_off(&mut self, at: usize) -> Option<Self> {
        let buffer = self.buffer.split_off(at)?;
        let behind = self.credit.bytes.saturating_sub(at);
        self.credit.bytes -= behind;
        Some(Self { buffer, credit: Credit { bytes: behind, of: Arc::clone(&self.credit.of) } })
    }
}

impl Deref for LentBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for LentBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

#[derive(Debug)]
struct Credit {
    bytes: usize,
    of: Arc<Shared>,
}

impl Drop for Credit {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.left += self.bytes;
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.of.returned.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_bounded() {
        let allowance = Allowance::new(10_000);
        let a = allowance.take(6_000).unwrap();
        assert!(allowance.take(5_000).is_none());
        let b = allowance.take(4_000).unwrap();
        drop(a);
        let kept = b.into_inner();
        assert_eq!(kept.len(), 4_000);
        // More than all of it: alone.
        let large = allowance.take(1 << 20).unwrap();
        assert!(allowance.take(1).is_none());
        drop(large);
        assert!(allowance.take(1).is_some());
    }
}
