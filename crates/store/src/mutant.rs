//! Mutants: the store, or code on top of it, with one of its precautions left out.
//!
//! A flush, a fence, a check or an ordering rule that a crash could prove necessary is written as
//! `if !skips("lines.commit.fence-data") { medium.fence()? }`. Crash tests leave out one precaution
//! after the other, and must fail with each: a precaution whose absence no test notices is either
//! needless or untested. Outside of tests `skips` is `false` at compile time.

/// Returns true if this thread leaves out the precaution called `name`.
#[cfg(not(any(test, feature = "crash-testing")))]
#[inline(always)]
pub const fn skips(_name: &'static str) -> bool {
    false
}

#[cfg(any(test, feature = "crash-testing"))]
pub use tested::*;

#[cfg(any(test, feature = "crash-testing"))]
mod tested {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;

    thread_local! {
        /// True if `LEFT_OUT` has a name, or if `MET` is recorded.
        static IS_WATCHED: Cell<bool> = const { Cell::new(cfg!(test)) };
        static LEFT_OUT: RefCell<Option<String>> = const { RefCell::new(None) };
        static MET: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Returns true if this thread leaves out the precaution called `name`.
    pub fn skips(name: &'static str) -> bool {
        // Tests of other crates reach this line for every page.
        if !IS_WATCHED.get() {
            return false;
        }
        MET.with_borrow_mut(|met| met.insert(name));
        LEFT_OUT.with_borrow(|left_out| left_out.as_deref() == Some(name))
    }

    /// Leaves out the precaution called `name` on this thread, or none.
    pub fn leave_out(name: Option<&str>) {
        IS_WATCHED.set(cfg!(test) || name.is_some());
        LEFT_OUT.set(name.map(String::from));
    }

    /// Returns all precautions that this thread has reached. Outside of this crate's tests they are
    /// recorded only while one is left out.
    pub fn met() -> BTreeSet<&'static str> {
        MET.with_borrow(Clone::clone)
    }
}
