//! The bytes of a chunk as they were read: a whole buffer, or a part of one that also holds
//! neighbours.
//!
//! Invariant: they start on a page of the buffer, as they do in the file, so that they can be read
//! as words. The buffer is not written any more.

use std::ops::{Deref, Range};
use std::sync::Arc;

use onehop_io::{AlignedBuf, PAGE_BYTES};

/// Bytes that keep their buffer alive.
#[derive(Clone, Debug)]
pub(crate) struct StoredBytes {
    buffer: Arc<AlignedBuf>,
    range: Range<usize>,
}

impl StoredBytes {
    /// Returns a part of a buffer, or `None` if the part is out of range, or does not start on a
    /// page.
    pub fn part(buffer: &Arc<AlignedBuf>, range: Range<usize>) -> Option<Self> {
        let lies_in = range.start <= range.end && range.end <= buffer.len();
        (lies_in && range.start.is_multiple_of(PAGE_BYTES)).then(|| Self { buffer: Arc::clone(buffer), range })
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &Arc<AlignedBuf> {
        &self.buffer
    }

    /// Returns the bytes as 32-bit words. The length in bytes must be a multiple of four.
    #[inline]
    pub fn words(&self) -> &[u32] {
        debug_assert!(self.range.len().is_multiple_of(4));
        &self.buffer.words()[self.range.start / 4..self.range.end / 4]
    }
}

impl From<AlignedBuf> for StoredBytes {
    fn from(buffer: AlignedBuf) -> Self {
        let range = 0..buffer.len();
        Self { buffer: Arc::new(buffer), range }
    }
}

impl Deref for StoredBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}
