//! Hand-written kernels: a CUDA C++ source for each, and the code that launches it. A kernel is
//! compiled on first use, for the present device, with facts about the data as constants.
//!
//! Threads do not wait for each other, and share memory only through atomic additions. Tests
//! therefore compile the same source for the host and run it there.

pub mod copy;
pub mod decode;
pub mod q6;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]
mod tests;

/// Words of any kernel's argument, padding included: the size that every device accepts.
pub(crate) const ARGUMENT_WORDS: usize = 512;

/// Argument of a kernel, padded to one length. A later reader, such as the driver of the tests,
/// need not know its type.
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
