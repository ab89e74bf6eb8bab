//! The interface by which data structures report their references, in a persistent address space
//! that need not exist.
//!
//! A structure keeps its necessary data (keys, links) in ordinary memory, as compactly as it likes,
//! and reports the address of each load and store in persistent memory. Stores that change nothing
//! are omitted, as in carefully written code: they would make unchanged lines dirty.

/// The size of a word in bytes: elements, keys, values and pointers are that long.
pub const WORD_BYTES: u64 = 8;

/// A receiver of references. Addresses are multiples of [`WORD_BYTES`].
pub trait Memory {
    /// Reports loads of `words` words from an address on.
    fn load(&mut self, address: u64, words: u64);
    /// Reports stores of `words` words from an address on.
    fn store(&mut self, address: u64, words: u64);
}

/// Ignores references, for filling a structure before anything is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untold;

impl Memory for Untold {
    fn load(&mut self, _: u64, _: u64) {}
    fn store(&mut self, _: u64, _: u64) {}
}
