//! A global allocator that asks for huge pages for large blocks, around one that allocates.
//!
//! A query over millions of rows fills hash tables of megabytes, and one page fault for each 4 KiB of
//! those takes a third of its time. Huge pages for every block cost tens of megabytes per process: each
//! arena of the allocator then starts with pages of 2 MiB. So only blocks that contain whole huge pages
//! ask, with `madvise(MADV_HUGEPAGE)`. The advice is free of effect where the system has none.
//!
//! Invariants: nothing here allocates, takes a lock, or unwinds.

use std::alloc::{GlobalAlloc, Layout};

/// Bytes of a huge page: what the second level of page tables maps on x86-64 and AArch64.
const PAGE_BYTES: usize = 2 << 20;

/// Asks for huge pages for the large blocks of `A`.
#[derive(Debug)]
pub struct HugePages<A>(A);

impl<A> HugePages<A> {
    /// Around an allocator.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }
}

/// The huge pages that lie whole in a block: offset and length in bytes, or `None`.
fn whole_pages(address: usize, size: usize) -> Option<(usize, usize)> {
    let start = address.checked_next_multiple_of(PAGE_BYTES)? - address;
    let length = size.checked_sub(start)? / PAGE_BYTES * PAGE_BYTES;
    (length > 0).then_some((start, length))
}

fn advise(block: *mut u8, size: usize) {
    if size < PAGE_BYTES || block.is_null() {
        return;
    }
    if let Some((start, length)) = whole_pages(block.addr(), size) {
        // SAFETY: the range is within the block. Advice about page sizes changes no contents; an error
        // means that the system has no huge pages.
        unsafe { libc::madvise(block.add(start).cast(), length, libc::MADV_HUGEPAGE) };
    }
}

// SAFETY: memory comes from `A`, and goes back to it, with the layouts that callers give.
unsafe impl<A: GlobalAlloc> GlobalAlloc for HugePages<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is that of `A`.
        let block = unsafe { self.0.alloc(layout) };
        advise(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is that of `A`.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        advise(block, layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is that of `A`.
        unsafe { self.0.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is that of `A`.
        let moved = unsafe { self.0.realloc(block, layout, size) };
        if size > layout.size() {
            advise(moved, size);
        }
        moved
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::alloc::System;

    use super::*;

    #[test]
    fn only_pages_that_lie_whole_in_a_block_are_advised() {
        const P: usize = PAGE_BYTES;
        assert_eq!(whole_pages(P, P), Some((0, P)));
        assert_eq!(whole_pages(P, 3 * P - 1), Some((0, 2 * P)));
        assert_eq!(whole_pages(P + 4096, 2 * P), Some((P - 4096, P)));
        assert_eq!(whole_pages(P + 4096, 2 * P - 4097), None);
        assert_eq!(whole_pages(P, P - 1), None);
        assert_eq!(whole_pages(usize::MAX - 4096, 8 * P), None);
    }

    #[test]
    fn blocks_keep_their_contents() {
        let allocator = HugePages::new(System);
        let layout = Layout::from_size_align(5 << 20, 64).unwrap();
        // SAFETY: the layout is not empty; the block is freed with the layout that it has last.
        unsafe {
            let block = allocator.alloc_zeroed(layout);
            assert!(!block.is_null() && block.add((5 << 20) - 1).read() == 0);
            block.add(4 << 20).write(7);
            let moved = allocator.realloc(block, layout, 9 << 20);
            assert_eq!(moved.add(4 << 20).read(), 7);
            allocator.dealloc(moved, Layout::from_size_align(9 << 20, 64).unwrap());
        }
    }
}
