//! Sums over the rows that a program would collect, for fits of linear models on devices: what a processor's threads add up
//! of chunks, whoever has the rows in its memory adds up there, and only the sums come back.
//!
//! A program is one whose last sink is `Collect`; its columns are features and then a target, integers, booleans or doubles. A
//! row with a NULL among them is left out. What is added up is [`Sums`]; it comes as [`Parts`], which whoever asked adds, so
//! that nothing is lost on the way: a part is what a part of the rows comes to.
//!
//! ```text
//! Sums::Columns   rows │ rows with a NULL │ of each column: Σ(x - c)  Σ(x - c)²  least  greatest  values of no use
//! Sums::Model     log-likelihood, or the sum of squares │ rows on the wrong side │ gradient │ information
//! ```
//! With z the scaled features, and 1 for the intercept before them, the gradient is `Σ r z`, the information `Σ w z z'`, its
//! lower triangle row by row; `eta` is `coefficients · z`:
//! - [`Family::Logistic`]: `p = 1 / (1 + exp(-eta))`, `w = p (1 - p)`, `r = y - p`;
//! - [`Family::Gaussian`]: `w = 1`, `r = y - target centre - eta`.

use std::fmt::Debug;

use crate::Result;
use crate::backend::{Control, DeviceRan};

/// Words of [`Sums::Columns`] before those of columns.
pub const ROW_WORDS: usize = 2;
/// Words of a column: its sum, its squares, the least, the greatest, and how many of its values are of no use, which are
/// those that are no finite numbers, and of a label all but 0 and 1.
pub const COLUMN_WORDS: usize = 5;
/// Words of [`Sums::Model`] before the gradient.
pub const GRADIENT: usize = 2;

/// What the target is, given the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 0 or 1, with a probability whose logit is linear.
    Logistic,
    /// Linear, but for errors of one variance.
    Gaussian,
}

/// What values of the target there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// 0 and 1.
    Label,
    /// Any finite number.
    Number,
}

/// What is added up in a pass over the rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Sums {
    /// What there is to know of each column, around a centre, features first.
    Columns {
        /// Of each feature and the target.
        centres: Vec<f64>,
        /// What values of the target there may be.
        target: Target,
    },
    /// A model at a place.
    Model {
        /// What it is a model of.
        family: Family,
        /// Of each feature: `z = (x - centre) * scale`.
        centres: Vec<f64>,
        /// Of each feature.
        scales: Vec<f64>,
        /// What a target that is a number is moved by.
        target_centre: f64,
        /// The intercept, and one of each scaled feature.
        coefficients: Vec<f64>,
    },
}

impl Sums {
    /// Words of a part, of so many features.
    pub fn words(&self, features: usize) -> usize {
        let terms = features + 1;
        match self {
            Self::Columns { .. } => ROW_WORDS + COLUMN_WORDS * terms,
            Self::Model { .. } => GRADIENT + terms + terms * (terms + 1) / 2,
        }
    }
}

/// Sums, in parts that are in an order: the same rows give the same parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// Words of each.
    pub words: usize,
    /// One part after the other.
    pub values: Vec<f64>,
}

impl Parts {
    /// The parts, in their order.
    pub fn each(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.words.max(1))
    }
}

/// Says what is wanted next, knowing what came of the last: nothing, and it is over. The first time there is no last.
pub type Next<'a> = dyn FnMut(Option<&Parts>) -> Result<Option<Sums>> + 'a;

/// A program over whose rows a device can add up; as often as it is asked to.
pub trait Fit: Debug + Send + Sync {
    /// Adds up what `next` wants, until it wants no more. Blocks until it is done. What came of the whole.
    ///
    /// # Errors
    /// Those of the data, as on the CPU; those of `next`; [`Cancelled`](crate::Error::Cancelled) soon after it was;
    /// [`Memory`](crate::Error::Memory) if the columns do not fit on the device;
    /// [`Device`](crate::Error::Device) for all that went wrong with the device itself.
    fn run(&self, control: &Control<'_>, next: &mut Next<'_>) -> Result<DeviceRan>;
}
