//! Host memory that a queue may own while bytes move into it or out of it.

use std::ops::{DerefMut, Range};
use std::sync::Arc;

use crate::{AlignedBuf, LentBuf, Pool, PoolBuf};

/// Bytes that stay where they are.
///
/// # Safety
/// The bytes lie in memory of their own: at the same address, and initialised, from the first call of `deref_mut` until
/// the value is dropped, however it is moved. Two values share no byte.
pub unsafe trait HostBuffer: DerefMut<Target = [u8]> + Send {
    /// The pool and the number, for a buffer of one.
    fn of_pool(&self) -> Option<(&Arc<Pool>, usize)> {
        None
    }

    /// Where a part of the bytes lies.
    fn address(&mut self, range: &Range<usize>) -> *mut u8 {
        self[range.clone()].as_mut_ptr()
    }
}

// SAFETY: an allocation of its own, freed when it is dropped.
unsafe impl HostBuffer for AlignedBuf {}

// SAFETY: a part of the pool's allocation that no other one has, while this value lives.
unsafe impl HostBuffer for PoolBuf {
    fn of_pool(&self) -> Option<(&Arc<Pool>, usize)> {
        Some((self.pool(), self.number()))
    }
}

// SAFETY: as of the `AlignedBuf` in it.
unsafe impl HostBuffer for LentBuf {}
