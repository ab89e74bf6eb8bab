//! Logistic regression by iteratively reweighted least squares, which is Newton's method (McCullagh
//! and Nelder, *Generalized Linear Models*, 2.5).
//!
//! `P(y = 1 | x) = 1 / (1 + exp(-(b0 + b'x)))`. The fit maximises `log L(b) - l2/2 |b|²`, with the
//! intercept not penalised.
//!
//! 1. A pass at `b`, at first 0, computes `log L`, its gradient `g = X'(y - p)` and its information
//!    `H = X'WX`, `W = p (1 - p)`.
//! 2. If `log L` is less than at the last point, the step was too long: halve it, and make another
//!    pass.
//! 3. Misclassified rows are counted. If there are none, some `b` separates the labels, and `log L`
//!    grows forever in its direction. The fit ends with a warning.
//! 4. The next step is `d` of `H d = g`. If the last one gained less than `tolerance`, this one is
//!    the last. The steps before have shown that it is as small as the square of the last:
//!    statistics of this pass are those of the model.
//! 5. A last step that still moves some row's logit far without a gain leads to a maximum that is
//!    infinitely far away: a feature separates some rows from the rest. So does a step after which
//!    the likelihood has grown for many iterations by a steady fraction. Both give warnings.
//!
//! Features are [scaled](crate::Scaling). Results are in the features' own units. A feature that
//! depends on earlier ones is left out, with a warning. The first pass, where all weights are
//! equal, determines these features.

mod irls;

pub(crate) use irls::combination;
pub use irls::{Fit, Irls, Next};

use crate::{Error, Result};

/// The options of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The maximum number of iterations.
    pub max_iterations: u32,
    /// The fit is complete when an iteration gains less than this in log-likelihood.
    pub tolerance: f64,
    /// The penalty, of `l2/2` times the sum of squared coefficients, in the features' own units:
    /// scikit-learn's `1 / C`.
    pub l2: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_iterations: 20, tolerance: 1e-4, l2: 0.0 }
    }
}

impl Options {
    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn check(&self) -> Result<()> {
        let problem = if self.max_iterations == 0 {
            "max_iter is 0, and must be 1 or more"
        } else if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            "tolerance must be a number that is not negative"
        } else if !(self.l2 >= 0.0 && self.l2.is_finite()) {
            "l2 must be a number that is not negative"
        } else {
            return Ok(());
        };
        Err(Error::Option(problem.into()))
    }
}

/// Returns the probability of 1, by its logit.
pub fn probability(logit: f64) -> f64 {
    let e = (-logit.abs()).exp();
    if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}
