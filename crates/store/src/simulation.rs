//! Simulations: what a test decides in place of the operating system, so that a run of a seed can be had again.
//!
//! On a thread that simulates, names that would be random are a sequence of the seed, and work that would block goes to tasks of
//! the thread's own runtime, in the order in which it was started. Outside of tests no thread simulates, at compile time.

/// Whether this thread simulates.
#[cfg(not(any(test, feature = "crash-testing")))]
#[inline(always)]
pub const fn is_on() -> bool {
    false
}

/// The next bits of this thread's sequence, in place of random ones; `None` if it does not simulate.
#[cfg(not(any(test, feature = "crash-testing")))]
#[inline(always)]
pub const fn bits() -> Option<u64> {
    None
}

#[cfg(any(test, feature = "crash-testing"))]
pub use tested::*;

#[cfg(any(test, feature = "crash-testing"))]
mod tested {
    use std::cell::Cell;

    use crate::explore::mix;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Whether this thread simulates.
    pub fn is_on() -> bool {
        STATE.get().is_some()
    }

    /// The next bits of this thread's sequence, in place of random ones; `None` if it does not simulate.
    pub fn bits() -> Option<u64> {
        let next = STATE.get()?.wrapping_add(0x9E37_79B9_7F4A_7C15);
        STATE.set(Some(next));
        Some(mix(next))
    }

    /// Has this thread simulate from now on, by this seed, or no more.
    pub fn simulate(seed: Option<u64>) {
        STATE.set(seed.map(mix));
    }
}
