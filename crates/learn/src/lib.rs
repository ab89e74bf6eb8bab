//! The arithmetic of machine learning in SQL: linear models by least squares and by maximum
//! likelihood. No SQL, no Arrow, no threads, no I/O.
//!
//! Rows are [`Chunk`]s of columns of doubles, from any source. A method requests *passes* over all
//! of them, and decides after each if it needs another:
//!
//! ```text
//!            point of the next pass
//! method ────────────────────► Pass::add(chunk), chunk by chunk, any number of passes in parallel
//!   ▲                                  │ Pass::merge: always in the same order
//!   └──────────────────────────────────┘ sums: likelihood, gradient, information
//! ```
//!
//! So a processor's threads, files, and devices with kernels of their own can all make passes, and
//! a method is independent of them. The same chunks in the same passes, merged in the same order,
//! give the same bits.
//!
//! - [`logistic`]: logistic regression, iteratively reweighted least squares.
//! - [`linear`]: ordinary least squares.
//! - [`evaluate`]: metrics of a classifier's probabilities.

mod block;
mod chunk;
mod error;
pub mod evaluate;
mod exp;
pub mod linear;
pub mod logistic;
mod model;
mod pass;
mod scaling;
mod statistic;
mod sums;
mod symmetric;

pub use chunk::{CHUNK_ROWS, Chunk};
pub use error::{Error, Result};
pub use model::{Aliased, Term, Warning};
pub use pass::{Family, Pass, Place, linear_predictor};
pub use scaling::{Around, Extents, Intercept, Scaling};

/// The maximum number of features of a model: the sums of a pass grow with their square.
pub const MOST_FEATURES: usize = 1000;
