//! Simulations: a test replaces decisions of the operating system, so that a run is reproducible
//! from its seed.
//!
//! On a thread that simulates, random names come from a sequence of the seed. Blocking work becomes
//! tasks of the thread's own runtime, in the order in which it was started. Outside of tests no
//! thread simulates, which is known at compile time.

/// Returns true if this thread simulates.
#[cfg(not(any(test, feature = "crash-testing")))]
#[inline(always)]
pub const fn is_on() -> bool {
    false
}

/// Returns the next bits of this thread's sequence, in place of random ones. Returns `None` if the
/// thread does not simulate.
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

    /// Returns true if this thread simulates.
    pub fn is_on() -> bool {
        STATE.get().is_some()
    }

    /// Returns the next bits of this thread's sequence, in place of random ones. Returns `None` if
    /// the thread does not simulate.
    pub fn bits() -> Option<u64> {
        let next = STATE.get()?.wrapping_add(0x9E37_79B9_7F4A_7C15);
        STATE.set(Some(next));
        Some(mix(next))
    }

    /// Starts simulation on this thread with this seed, or stops it with `None`.
    pub fn simulate(seed: Option<u64>) {
        STATE.set(seed.map(mix));
    }
}
