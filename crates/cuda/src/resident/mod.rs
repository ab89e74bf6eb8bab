//! Data that stays in device memory: columns of segments, encoded as they are stored, shared by all
//! queries of a process.
//!
//! [`Store`] implements the budget and the eviction. It is independent of devices, and is tested
//! without one. [`column`] is its content: the planes of one column of one segment.
//! [`ResidentImages`] combines columns to the images that kernels read. It loads missing columns
//! that fit with many threads, and forecasts the forms of those that are streamed.

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
