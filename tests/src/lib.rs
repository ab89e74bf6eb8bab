//! What the golden tests are made of: the fixtures, the canonical rendering of answers, the adapter to sqllogictest.
//!
//! Ships with nothing. `tests/README.md` says how to run and extend them.

pub mod adapter;
pub mod canonical;
pub mod fixtures;
pub mod generated;
