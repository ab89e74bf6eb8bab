//! Tells AddressSanitizer which parts of regions nobody has: it knows the allocator's memory by itself, and a slab's not.
//! Does nothing but in the tests that are built with it (`--cfg asan`).

use std::ops::Range;

#[cfg(asan)]
mod sanitizer {
    unsafe extern "C" {
        pub fn __asan_poison_memory_region(start: *const u8, bytes: usize);
        pub fn __asan_unpoison_memory_region(start: *const u8, bytes: usize);
    }
}

/// From now on, whoever touches these bytes makes an error.
pub(super) fn poison(addresses: &Range<usize>) {
    #[cfg(asan)]
    // SAFETY: the addresses are mapped; their bytes are not looked at.
    unsafe {
        sanitizer::__asan_poison_memory_region(addresses.start as *const u8, addresses.len());
    }
    #[cfg(not(asan))]
    let _ = addresses;
}

/// Somebody has these bytes from now on.
pub(super) fn unpoison(addresses: &Range<usize>) {
    #[cfg(asan)]
    // SAFETY: as in `poison`.
    unsafe {
        sanitizer::__asan_unpoison_memory_region(addresses.start as *const u8, addresses.len());
    }
    #[cfg(not(asan))]
    let _ = addresses;
}
