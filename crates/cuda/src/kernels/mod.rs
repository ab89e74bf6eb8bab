//! Kernels that are written by hand: for each a text in CUDA C++, and beside it what launches it. They are compiled when
//! they are needed, for the device at hand, with the facts about the data as constants.
//!
//! Their threads do not wait for each other and share no memory but by atomic additions, so that the same text, compiled
//! for the host, is what the tests run.

pub mod copy;
pub mod decode;
pub mod q6;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]
mod tests;

/// Words of any kernel's argument, padding included: as much as every device takes.
pub(crate) const ARGUMENT_WORDS: usize = 512;

/// A kernel's argument, padded to one length: what takes it later, as the tests' driver does, need not know which it is.
#[derive(Clone, Copy)]
#[repr(C)]
struct Argument<A> {
    argument: A,
    padding: [u64; ARGUMENT_WORDS],
}

impl<A> Argument<A> {
    fn new(argument: A) -> Self {
        Self { argument, padding: [0; ARGUMENT_WORDS] }
    }
}
