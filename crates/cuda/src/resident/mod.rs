//! What stays in a device's memory: columns of segments, encoded as they are stored, shared by all queries of a process.
//!
//! [`Store`] is the budget and who has to go; it knows nothing of devices, and is tested without one. [`column`] is what it
//! keeps: the planes of one column of one segment. [`ResidentImages`] puts them together to what kernels read, has those that
//! are missing and fit brought by many threads at once, and foresees the forms of those that are streamed.

pub mod column;
mod forecast;
mod images;
mod load;
mod store;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use images::{Assembled, Bytes, Columns, Keep, ResidentImages, SourceOfRun};
pub use store::{Claim, Full, Listed, Loading, Store};
