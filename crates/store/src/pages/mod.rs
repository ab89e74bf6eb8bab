//! Versions of pages in memory over a [`Backend`](crate::backend::Backend): one writer, many
//! snapshot readers, group commit.
//!
//! Commits are numbered, from 1 at each open. A transaction *hands over* its changes: its versions
//! are installed in the [`cache`] under the next number and merged into the waiting group, and the
//! next writer continues from there. A thread that finds no leader makes the group durable as one
//! batch ([`group`]). Readers see the last commit that was durable at their start ([`snapshots`]).
//! Neither waits for the other.

mod allocator;
mod cache;
mod group;
mod snapshots;
mod transaction;
mod volatile;

pub use group::{Durability, Turn};
pub(crate) use group::{Limits, Pages, Snapshot};
pub use transaction::Savepoint;
pub(crate) use transaction::{Handed, Transaction};
pub(crate) use volatile::Volatile;

use std::sync::Arc;

use crate::Result;
use crate::backend::{Image, PageNo};

/// Pages by number: of a snapshot, or of the open transaction.
pub(crate) trait Source {
    /// Returns a page.
    fn page(&mut self, page: PageNo) -> Result<Arc<Image>>;

    /// Returns a number that changes whenever any page may have changed.
    fn stamp(&self) -> u64;
}
