//! A buffer that direct I/O and device copies accept: starts on a page, holds whole pages.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::PAGE_BYTES;
use crate::spares::Spares;

/// Page-aligned, initialised bytes. Guarantees address alignment and a capacity in whole pages; the *length* is what was
/// asked for, so a direct read of the last page of a file may use [`AlignedBuf::padded_mut`].
#[derive(Debug)]
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    /// Where it goes when it is dropped, as long as that is there.
    home: Option<Weak<Spares>>,
}

// SAFETY: the buffer owns its allocation and has no interior mutability, like Vec<u8>.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size of at least one page.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { alloc::handle_alloc_error(layout) };
        Self { start, len, capacity, home: None }
    }

    /// `len` bytes, of a buffer that somebody has had if there is one: then they are what that one left. Goes back there
    /// when it is dropped.
    pub(crate) fn of_spares(spares: &Arc<Spares>, len: usize) -> Self {
        let capacity = len.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let mut buffer = spares.take(capacity).unwrap_or_else(|| Self::zeroed(len));
        (buffer.len, buffer.home) = (len, Some(Arc::downgrade(spares)));
        buffer
    }

    /// Bytes that it takes.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    fn layout(capacity: usize) -> Layout {
        match Layout::from_size_align(capacity, PAGE_BYTES) {
            Ok(layout) => layout,
            // Only a capacity near isize::MAX gets here, which no allocator could serve either.
            Err(_) => alloc::handle_alloc_error(Layout::new::<u8>()),
        }
    }

    /// All bytes up to the end of the last page.
    pub fn padded_mut(&mut self) -> &mut [u8] {
        // SAFETY: `capacity` bytes were allocated and initialised at `start`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }

    /// Leaves out what comes after the first `len` bytes. The memory stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The contents as 32-bit words in the machine's order. The length in bytes must be a multiple of four.
    #[inline]
    pub fn words(&self) -> &[u32] {
        debug_assert!(self.len.is_multiple_of(4));
        // SAFETY: a page-aligned start is aligned for u32, and len/4 words lie within the allocation.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<u32>(), self.len / 4) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` initialised bytes lie at `start`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(spares) = self.home.take().and_then(|home| home.upgrade()) {
            // The allocation is that one's from here on, with the way out that is just below.
            return spares.keep(Self { start: self.start, len: self.capacity, capacity: self.capacity, home: None });
        }
        // SAFETY: allocated in `zeroed` with this very layout, handed on to nobody, and freed only here.
        unsafe { alloc::dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}
