//! Sums over the rows that a program would collect, for fits of linear models on devices. Threads
//! of a processor sum chunks; on a device, the processor that holds the rows in its memory computes
//! the sums there, and only the sums return.
//!
//! The last sink of the program is `Collect`. Its columns are features followed by a target:
//! integers, booleans or doubles. A row with a NULL in any of them is left out. [`Sums`] defines
//! the sums. They return as [`Parts`], one per part of the rows. The caller adds the parts, so no
//! precision is lost in between.
//!
//! ```text
//! Columns  rows │ rows with a NULL │ per column: Σ(x - c)  Σ(x - c)²  least  greatest  unusable
//! Model    log-likelihood, or sum of squares │ misclassified rows │ gradient │ information
//! ```
//! Let z be the scaled features, preceded by a 1 for the intercept. The gradient is `Σ r z`. The
//! information is `Σ w z z'`, its lower triangle row by row. `eta` is `coefficients · z`:
//! - [`Family::Logistic`]: `p = 1 / (1 + exp(-eta))`, `w = p (1 - p)`, `r = y - p`;
//! - [`Family::Gaussian`]: `w = 1`, `r = y - target centre - eta`.

use std::fmt::Debug;

use crate::Result;
use crate::backend::{Control, DeviceRan};

/// Words of [`Sums::Columns`] before those of the columns.
pub const ROW_WORDS: usize = 2;
/// Words of a column: its sum, its sum of squares, the least, the greatest, and the number of
/// unusable values. A value is unusable if it is no finite number, or if it belongs to a label and
/// is neither 0 nor 1.
pub const COLUMN_WORDS: usize = 5;
/// Words of [`Sums::Model`] before the gradient.
pub const GRADIENT: usize = 2;

/// Distribution of the target, given the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 0 or 1, with a probability whose logit is linear.
    Logistic,
    /// Linear, with errors of one variance.
    Gaussian,
}

/// Possible values of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// 0 and 1.
    Label,
    /// Any finite number.
    Number,
}

/// The sums that one pass over the rows computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sums {
    /// Statistics of each column around a centre, features first.
    Columns {
        /// Centre of each feature and of the target.
        centres: Vec<f64>,
        /// Possible values of the target.
        target: Target,
    },
    /// A model at one point of its parameter space.
    Model {
        /// Distribution of the modeled target.
        family: Family,
        /// Centre of each feature: `z = (x - centre) * scale`.
        centres: Vec<f64>,
        /// Scale of each feature.
        scales: Vec<f64>,
        /// Centre that is subtracted from a numeric target.
        target_centre: f64,
        /// The intercept, and one coefficient per scaled feature.
        coefficients: Vec<f64>,
    },
}

impl Sums {
    /// Returns the number of words in a part with `features` features.
    pub fn words(&self, features: usize) -> usize {
        let terms = features + 1;
        match self {
            Self::Columns { .. } => ROW_WORDS + COLUMN_WORDS * terms,
            Self::Model { .. } => GRADIENT + terms + terms * (terms + 1) / 2,
        }
    }
}

/// Partial sums in a fixed order: the same rows give the same parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Words of one part.
    pub words: usize,
    /// The parts, one after the other.
    pub values: Vec<f64>,
}

impl Parts {
    /// Returns the parts in their order.
    pub fn each(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.words.max(1))
    }
}

/// Returns the next sums to compute, given the parts of the last ones, or `None` to end. The first
/// call gets no parts.
pub type Next<'a> = dyn FnMut(Option<&Parts>) -> Result<Option<Sums>> + 'a;

/// A program whose rows a device can sum, any number of times.
pub trait Fit: Debug + Send + Sync {
    /// Computes the sums that `next` requests, until it requests no more. Blocks until then.
    /// Returns the execution statistics of the whole run.
    ///
    /// # Errors
    /// Those of the data, as on the CPU; those of `next`; [`Cancelled`](crate::Error::Cancelled)
    /// soon after a cancellation; [`Memory`](crate::Error::Memory) if the columns do not fit on the
    /// device; [`Device`](crate::Error::Device) for any failure of the device itself.
    fn run(&self, control: &Control<'_>, next: &mut Next<'_>) -> Result<DeviceRan>;
}
