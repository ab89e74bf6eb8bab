//! Buffers of their own allocation, bounded in sum: for who keeps what was read.
//!
//! Invariant: the bytes of all [`LentBuf`]s of an [`Allowance`] are within its limit, but for a single one that is larger
//! than all of it: it gets the whole allowance to itself, so that what is wanted can always be read. Memory of buffers that
//! were dropped is kept beside that, and taken first.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::AlignedBuf;
use crate::spares::Spares;

/// Of the limit, so much is kept of buffers that were dropped, for who asks next.
const SPARE_SHARE: usize = 2;

/// Bytes that may be lent.
#[derive(Clone, Debug)]
pub struct Allowance {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    left: Mutex<usize>,
    returned: Condvar,
    spares: Arc<Spares>,
}

impl Allowance {
    /// So many bytes.
    pub fn new(limit: usize) -> Self {
        let spares = Arc::new(Spares::new(limit / SPARE_SHARE));
        Self { shared: Arc::new(Shared { limit, left: Mutex::new(limit), returned: Condvar::new(), spares }) }
    }

    /// A buffer, if that leaves the sum within the limit. Its contents are what its last owner left, or zeroes.
    pub fn take(&self, bytes: usize) -> Option<LentBuf> {
        let credit = bytes.min(self.shared.limit);
        {
            let mut left = self.shared.left.lock().unwrap_or_else(PoisonError::into_inner);
            *left = left.checked_sub(credit)?;
        }
        // If this ends the process, nobody asks any more.
        Some(LentBuf {
            buffer: AlignedBuf::of_spares(&self.shared.spares, bytes),
            credit: Credit { bytes: credit, of: Arc::clone(&self.shared) },
        })
    }

    /// Waits until so many bytes are left, or it is over.
    pub fn wait_for(&self, bytes: usize, is_over: &AtomicBool) {
        let credit = bytes.min(self.shared.limit);
        let mut left = self.shared.left.lock().unwrap_or_else(PoisonError::into_inner);
        while *left < credit && !is_over.load(Acquire) {
            left = self.shared.returned.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has everybody who waits look whether it is over.
    pub fn wake(&self) {
        let _left = self.shared.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.returned.notify_all();
    }
}

/// A buffer that counts towards its [`Allowance`] until it is dropped or taken out.
#[derive(Debug)]
pub struct LentBuf {
    buffer: AlignedBuf,
    credit: Credit,
}

impl LentBuf {
    /// The buffer alone: from now on it is the caller's to account for. Its memory comes back all the same.
    pub fn into_inner(self) -> AlignedBuf {
        drop(self.credit);
        self.buffer
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
        *self.of.left.lock().unwrap_or_else(PoisonError::into_inner) += self.bytes;
        self.of.returned.notify_all();
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

    #[test]
    fn memory_comes_back() {
        let allowance = Allowance::new(100_000);
        let mut first = allowance.take(8192).unwrap().into_inner();
        first.fill(7);
        let at = first.as_ptr();
        drop(first);
        // Of the same number of pages, however many bytes are asked for.
        let again = allowance.take(5000).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (at, 5000));
        let other = allowance.take(4096).unwrap();
        assert_ne!(other.as_ptr(), at);
        drop((again, other));
        // More than is kept goes, and makes room.
        let large: Vec<_> = (0..6).map(|_| allowance.take(16_384).unwrap().into_inner()).collect();
        drop(large);
        let kept = allowance.shared.spares.kept_bytes();
        assert!(kept > 0 && kept <= 50_000, "{kept}");
        // Nobody is left to keep it.
        let last = allowance.take(8192).unwrap().into_inner();
        drop(allowance);
        drop(last);
    }
}
