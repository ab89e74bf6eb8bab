//! Explains plans: builds an [`Explanation`](crate::Explanation) from the operators that are about to run, run or have run.
//!
//! ```text
//! physical plan ─ tree  ─► Node, for DataFusion's operators and scans by themselves
//!                 fused ─► a Node for every step of every pipeline
//! ```
//! A plan is explained from the same values that it runs with, and its figures were counted where things
//! happened: an explanation cannot differ from what was done.

mod fused;
mod tree;

pub(crate) use self::tree::{node_of, refused_devices};

use crate::Database;

impl Database {
    /// Keeps the plans of statements that begin from now on, for [`Query::explanation`](crate::Query::explanation).
    pub fn watch_plans(&self) {
        // A second caller finds it set.
        let _ = self.history().node_of.set(node_of);
    }
}
