//! A crash-safe, embedded, ordered key-value store: named B+trees, one writer and many snapshot
//! readers, on files and on persistent memory.
//!
//! The store commits by **optimized shadow paging** (OSP). A transaction writes its pages beside
//! the committed ones, never over them, and a commit switches to the new versions. There is no log
//! that is written first and copied home later.
//!
//! ```
//! # fn main() -> onehop_store::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("app.store");
//! use onehop_store::{Options, Store};
//!
//! let store = Store::open(&path, &Options::default())?;
//!
//! let transaction = store.write()?;
//! let mut users = transaction.tree("users")?;
//! users.insert("ada", "1815")?;
//! users.insert("grace", "1906")?;
//! transaction.commit()?; // durable
//!
//! let snapshot = store.read()?; // sees this commit, whatever is written meanwhile
//! for entry in snapshot.tree("users")?.range("a".."c") {
//!     let entry = entry?;
//!     assert_eq!((entry.key(), entry.value()), (&b"ada"[..], &b"1815"[..]));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - Keys have up to [`MAX_KEY_BYTES`], values up to [`MAX_VALUE_BYTES`]. Keys are ordered as
//!   bytes.
//! - One [`WriteTransaction`] at a time, of any number of trees, with savepoints. Threads that
//!   commit together share one wait for the device.
//! - Any number of [`ReadTransaction`]s. They never wait.
//! - After an error of the medium the store commits nothing more ([`Error::Poisoned`]): open it
//!   again.
//!
//! # Layers
//!
//! From the bottom up. Each layer uses only the layer below it:
//!
//! 1. [`medium`]: bytes that survive a crash, and the guarantees of the hardware: at which
//!    granularity, and when.
//! 2. `backend`: pages that change atomically. There are two backends: one for media of cache
//!    lines, one for media of pages.
//! 3. `pages`: versions of pages in memory: transactions, snapshots, group commit.
//! 4. `tree`: ordered maps in pages.
//!
//! The crate is self-contained: no SQL, no Arrow, no async.

pub(crate) mod backend;
mod bytes;
mod copy;
mod error;
#[cfg(any(test, feature = "crash-testing"))]
pub mod explore;
pub(crate) mod flips;
pub(crate) mod lines;
mod lock;
mod maintenance;
pub mod medium;
#[doc(hidden)]
pub mod mutant;
mod options;
mod pages;
mod read;
mod report;
#[doc(hidden)]
pub mod simulation;
mod store;
pub(crate) mod superblock;
mod tree;
mod view;
mod write;

pub use backend::BackendStats;
pub use error::{Error, Result};
pub use lock::lock_holder;
pub use options::{Access, CommitBy, Maintenance, MediumKind, Options, Syncs};
pub use pages::{Durability, Savepoint, Turn};
pub use read::ReadTransaction;
pub use report::{Report, TreeReport};
pub use store::{Stats, Store};
pub use tree::{Entry, MAX_KEY_BYTES, MAX_VALUE_BYTES, Value};
pub use view::{Range, Tree};
pub use write::{Committed, Pending, TreeMut, WriteTransaction};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
