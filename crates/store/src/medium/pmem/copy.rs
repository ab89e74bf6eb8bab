//! Copies between memory that other threads may use at the same time, and private bytes.
//!
//! Copies use words of 8 bytes, ascending, each stored at once: persistent memory guarantees not to
//! tear them, and the crash models assume that. Accesses are atomic, although a reader and a writer
//! must not overlap. If they do, the bytes are mixed, and nothing worse happens.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD_BYTES: usize = 8;

/// Copies `into.len()` bytes from `from`.
///
/// # Safety
/// As many bytes at `from` are mapped during the call, and are accessed atomically only.
pub(super) unsafe fn load(from: *const u8, into: &mut [u8]) {
    let head = from.align_offset(WORD_BYTES).min(into.len());
    let (first, rest) = into.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<WORD_BYTES>();
    // SAFETY: all positions are within the bytes that the caller guarantees; words are aligned
    // since `head` bytes are skipped.
    unsafe {
        for (at, byte) in first.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
        }
        let from = from.add(head);
        for (at, word) in words.iter_mut().enumerate() {
            let value = AtomicU64::from_ptr(from.cast::<u64>().add(at).cast_mut()).load(Ordering::Relaxed);
            *word = value.to_ne_bytes();
        }
        let from = from.add(words.len() * WORD_BYTES);
        for (at, byte) in last.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
        }
    }
}

/// Copies `bytes` to `to`.
///
/// # Safety
/// As many bytes at `to` are mapped and writable during the call, and are accessed atomically only.
pub(super) unsafe fn store(to: *mut u8, bytes: &[u8]) {
    let head = to.align_offset(WORD_BYTES).min(bytes.len());
    let (first, rest) = bytes.split_at(head);
    let (words, last) = rest.as_chunks::<WORD_BYTES>();
    // SAFETY: as in `load`.
    unsafe {
        for (at, byte) in first.iter().enumerate() {
            AtomicU8::from_ptr(to.add(at)).store(*byte, Ordering::Relaxed);
        }
        let to = to.add(head);
        for (at, word) in words.iter().enumerate() {
            AtomicU64::from_ptr(to.cast::<u64>().add(at)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let to = to.add(words.len() * WORD_BYTES);
        for (at, byte) in last.iter().enumerate() {
            AtomicU8::from_ptr(to.add(at)).store(*byte, Ordering::Relaxed);
        }
    }
}
