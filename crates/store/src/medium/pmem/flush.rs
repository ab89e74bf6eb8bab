//! Flushes of lines of the processor's caches, with the best available instruction, and the wait
//! for them.
//!
//! | | | |
//! |---|---|---|
//! | `clwb` | keeps the line in the cache | ordered by `sfence` |
//! | `clflushopt` | evicts the line | ordered by `sfence` |
//! | `clflush` | evicts the line, one after the other | ordered by itself |
//!
//! Processors other than x86-64 use `msync`, which is slow and correct.

/// The instruction that flushes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flusher {
    #[cfg(target_arch = "x86_64")]
    Clwb,
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    #[cfg(target_arch = "x86_64")]
    Clflush,
    #[cfg(not(target_arch = "x86_64"))]
    Msync,
    /// The contents of the caches are safe already.
    Needless,
}

impl Flusher {
    /// Returns the best one of this processor.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_processor() -> Self {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const EXTENDED_FEATURES: u32 = 7;
        if __cpuid(0).eax < EXTENDED_FEATURES {
            return Self::Clflush;
        }
        match __cpuid_count(EXTENDED_FEATURES, 0).ebx {
            features if features & (1 << 24) != 0 => Self::Clwb,
            features if features & (1 << 23) != 0 => Self::Clflushopt,
            _ => Self::Clflush,
        }
    }

    /// Returns the best one of this processor.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn of_processor() -> Self {
        Self::Msync
    }

    /// Returns the instruction's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => "clwb",
            #[cfg(target_arch = "x86_64")]
            Self::Clflushopt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            Self::Clflush => "clflush",
            #[cfg(not(target_arch = "x86_64"))]
            Self::Msync => "msync",
            Self::Needless => "nothing",
        }
    }

    /// Begins to make the lines of `len` bytes at `from` durable.
    ///
    /// # Safety
    /// As many bytes at `from` are mapped during the call.
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn flush(self, from: *mut u8, len: usize) -> rustix::io::Result<()> {
        use crate::backend::LINE_BYTES;
        use std::arch::asm;
        let skipped = from as usize % LINE_BYTES;
        let lines = if len == 0 { 0 } else { (skipped + len).div_ceil(LINE_BYTES) };
        for line in 0..lines {
            let address = from.wrapping_sub(skipped).wrapping_add(line * LINE_BYTES);
            // SAFETY: the line has mapped bytes, since mappings begin and end at pages; the
            // processor has the instruction, which changes no byte. It must not be moved before the
            // stores, so it is declared to access memory.
            unsafe {
                match self {
                    Self::Clwb => asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags)),
                    Self::Clflushopt => asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags)),
                    Self::Clflush => asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags)),
                    Self::Needless => {}
                }
            }
        }
        Ok(())
    }

    /// Makes the lines of `len` bytes at `from` durable.
    ///
    /// # Safety
    /// As many bytes at `from` are mapped during the call.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) unsafe fn flush(self, from: *mut u8, len: usize) -> rustix::io::Result<()> {
        const PAGE_BYTES: usize = 4096;
        if self == Self::Needless || len == 0 {
            return Ok(());
        }
        let skipped = from as usize % PAGE_BYTES;
        // SAFETY: the pages have mapped bytes.
        unsafe { rustix::mm::msync(from.wrapping_sub(skipped).cast(), skipped + len, rustix::mm::MsyncFlags::SYNC) }
    }
}

/// Waits until all lines that this thread flushed are durable, and prevents stores from moving
/// across. Lines of another thread count as well if it has released a lock that this thread
/// acquired afterwards: locked instructions order flushes like a fence.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
