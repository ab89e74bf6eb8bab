//! Builds an [`Explanation`](crate::Explanation) from the operators of a planned, running or
//! finished query.
//!
//! ```text
//! physical plan ─ tree  ─► Node, for DataFusion's operators and scans by themselves
//!                 fused ─► a Node for every step of every pipeline
//! ```
//! The explanation uses the same values that the plan runs with, and counters of the execution
//! itself. It cannot differ from the execution.

mod fused;
mod tree;

pub(crate) use self::tree::{node_of, refused_devices};

use crate::Database;

impl Database {
    /// Keeps the plans of statements that begin from now on, for
    /// [`Query::explanation`](crate::Query::explanation).
    pub fn watch_plans(&self) {
        // A second call has no effect.
        let _ = self.history().node_of.set(node_of);
    }
}
