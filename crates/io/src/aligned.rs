//! A buffer that direct I/O and device copies accept: starts on a page, holds whole pages.
//!
//! Its memory is a slab's ([`Slab`]), but for what is small and cleared, or refused there: that is the allocator's.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{PAGE_BYTES, Slab};

/// A cleared buffer with fewer bytes is of the allocator: a page for a footer needs no huge page of its own.
const SMALL_BYTES: usize = 64 << 10;

/// Page-aligned, initialised bytes. Guarantees address alignment and a capacity in whole pages; the *length* is what was
/// asked for, so a direct read of the last page of a file may use [`AlignedBuf::padded_mut`].
#[derive(Debug)]
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    /// Where it goes when it is dropped; without one, to the allocator.
    slab: Option<Arc<Slab>>,
}

// SAFETY: the buffer owns its allocation and has no interior mutability, like Vec<u8>.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        match len {
            SMALL_BYTES.. => Self::of_slab_zeroed(Slab::of_process(), len).unwrap_or_else(|| Self::of_allocator(len)),
            _ => Self::of_allocator(len),
        }
    }

    /// `len` bytes that the caller is about to write to: initialised, with whatever the last owner left.
    pub fn uncleared(len: usize) -> Self {
        Self::of_slab(Slab::of_process(), len).unwrap_or_else(|| Self::of_allocator(len))
    }

    /// As [`AlignedBuf::uncleared`], of a slab; `None` if that has no more.
    pub(crate) fn of_slab(slab: &Arc<Slab>, len: usize) -> Option<Self> {
        Some(Self::of_slab_and_new(slab, len)?.0)
    }

    /// As [`AlignedBuf::zeroed`], of a slab; `None` if that has no more.
    pub(crate) fn of_slab_zeroed(slab: &Arc<Slab>, len: usize) -> Option<Self> {
        let (mut buffer, is_new) = Self::of_slab_and_new(slab, len)?;
        if !is_new {
            buffer.padded_mut().fill(0);
        }
        Some(buffer)
    }

    /// And whether it is still zero.
    fn of_slab_and_new(slab: &Arc<Slab>, len: usize) -> Option<(Self, bool)> {
        let capacity = Self::capacity_for(len)?;
        let (start, is_new) = slab.take(capacity)?;
        Some((Self { start, len, capacity, slab: Some(Arc::clone(slab)) }, is_new))
    }

    fn of_allocator(len: usize) -> Self {
        let layout = Self::layout(Self::capacity_for(len).unwrap_or(usize::MAX));
        // SAFETY: the layout has a size of at least one page.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { alloc::handle_alloc_error(layout) };
        Self { start, len, capacity: layout.size(), slab: None }
    }

    /// Whole pages, and at least one.
    fn capacity_for(len: usize) -> Option<usize> {
        len.max(1).checked_next_multiple_of(PAGE_BYTES)
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
        // SAFETY: `capacity` bytes at `start` are this value's and initialised, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }

    /// Leaves out what comes after the first `len` bytes. The memory stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Leaves the first `at` bytes, whole pages and not all, and hands out what is behind them, which from now on is a buffer
    /// of its own. `None`, and nothing has happened, if there is no such place, and for memory of the allocator, which takes
    /// back only all that it gave.
    pub(crate) fn split_off(&mut self, at: usize) -> Option<Self> {
        let is_within = at > 0 && at.is_multiple_of(PAGE_BYTES) && at < self.capacity;
        let slab = Arc::clone(self.slab.as_ref().filter(|_| is_within)?);
        // SAFETY: `at` is within the buffer's bytes.
        let start = unsafe { self.start.add(at) };
        let behind = Self { start, len: self.len.saturating_sub(at), capacity: self.capacity - at, slab: Some(slab) };
        (self.len, self.capacity) = (self.len.min(at), at);
        Some(behind)
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
        match &self.slab {
            Some(slab) => slab.give(self.start, self.capacity),
            // SAFETY: allocated in `of_allocator` with this very layout, handed on to nobody, and freed only here.
            None => unsafe { alloc::dealloc(self.start.as_ptr(), Self::layout(self.capacity)) },
        }
    }
}
