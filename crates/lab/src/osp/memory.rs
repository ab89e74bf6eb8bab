//! What data structures say about their references, in a persistent address space that need not exist.
//!
//! A structure keeps what it needs to know (keys, links) in ordinary memory, as small as it likes, and says for each load
//! and store where it would be in persistent memory. Stores of what is there already are left out, as a careful author
//! would: they would make lines dirty that have not changed.

/// Bytes of a word: elements, keys, values and pointers are that long.
pub const WORD_BYTES: u64 = 8;

/// Told of references. Addresses are multiples of [`WORD_BYTES`].
pub trait Memory {
    /// Loads of so many words from an address on.
    fn load(&mut self, address: u64, words: u64);
    /// Stores of so many words from an address on.
    fn store(&mut self, address: u64, words: u64);
}

/// Nobody is told: for filling a structure before anything is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untold;

impl Memory for Untold {
    fn load(&mut self, _: u64, _: u64) {}
    fn store(&mut self, _: u64, _: u64) {}
}
