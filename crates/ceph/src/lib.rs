//! Files on a Ceph cluster as an object store: `rados://POOL[.NAMESPACE]/PATH`.
//!
//! [`onehop_io::rados`] has the files: names in a pool, bytes in another one. Here they are what libraries that know object
//! stores want to see:
//! - [`Location`]: what a URL names.
//! - [`Connections`]: file systems by their URLs; a cluster is connected to once, when one of its files is asked for.
//! - [`RadosStore`]: an [`object_store::ObjectStore`] whose puts are visible whole or not at all, whose renames copy nothing,
//!   and which counts what it moves in a ledger. Of [`Pinned`] files, it has those as they were, whoever replaces them.
//!
//! `onehop_io` waits for a cluster on the thread that asks; the store does that on threads that may wait.

mod connections;
mod error;
mod pinned;
mod store;
mod upload;

pub use connections::{Connections, NotMounted};
/// What a URL names.
pub use onehop_io::rados::{Authority, BadUrl, Location, SCHEME};
pub use pinned::Pinned;
pub use store::RadosStore;
