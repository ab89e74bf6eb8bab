//! What stays in a device's memory: columns of segments, encoded as they are stored, shared by all queries of a process.
//!
//! [`Store`] is the budget and who has to go; it knows nothing of devices, and is tested without one. [`column`] is what it
//! keeps: the planes of one column of one segment. [`Images`] puts them together to what kernels read.

pub mod column;
mod images;
mod store;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use images::{Assembled, Bytes, Columns, Keep, ResidentImages, SourceOfRun};
pub use store::{Full, Listed, Store};
