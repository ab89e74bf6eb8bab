//! One pass over rows: sums over all of them, at one point.

use crate::block::{self, At, Layout, Scratch};
use crate::sums::Sums;
use crate::symmetric::Symmetric;
use crate::{Chunk, Scaling};

/// The distribution of the target, given the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 0 or 1, with a probability whose logit is linear.
    Logistic,
    /// Linear, with errors of one variance.
    Gaussian,
}

/// The point of a pass. Features are seen as `z = (x - centre) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place<'a> {
    /// The distribution of the target.
    pub family: Family,
    /// The centre of each feature.
    pub centres: &'a [f64],
    /// The scale of each feature.
    pub scales: &'a [f64],
    /// The centre of a numeric target.
    pub target_centre: f64,
    /// The intercept, and the coefficient of each scaled feature.
    pub coefficients: &'a [f64],
}

/// The sums over the rows added so far, of a fit at one point.
#[derive(Clone, Debug)]
pub struct Pass {
    family: Family,
    scaling: Scaling,
    coefficients: Vec<f64>,
    scratch: Scratch,
    sums: Sums,
}

impl Pass {
    /// Creates a pass without rows. The coefficients are scaled, the intercept is the first of
    /// them.
    pub(crate) fn new(family: Family, scaling: &Scaling, coefficients: &[f64]) -> Self {
        let features = scaling.features();
        Self {
            family,
            scaling: scaling.clone(),
            coefficients: coefficients.to_vec(),
            scratch: Scratch::new(features),
            sums: Sums::new(Layout::new(features).count()),
        }
    }

    /// Adds the rows of a chunk, which has as many features as the fit.
    pub fn add(&mut self, chunk: &Chunk) {
        let at = At { family: self.family, scaling: &self.scaling, coefficients: &self.coefficients };
        block::add(chunk, at, &mut self.scratch, &mut self.sums);
    }

    /// Returns the point: all that another component needs to sum up rows.
    pub fn place(&self) -> Place<'_> {
        let Scaling { centres, scales, target_centre, .. } = &self.scaling;
        let (family, coefficients) = (self.family, self.coefficients.as_slice());
        Place { family, centres, scales, target_centre: *target_centre, coefficients }
    }

    /// Returns the number of sums, for a number of features.
    pub fn words(features: usize) -> usize {
        Layout::new(features).count()
    }

    /// Adds sums of rows that another component has computed at the same point, as many as
    /// [`words`](Self::words). They are the log-likelihood or the sum of squares, the number of
    /// misclassified rows, the gradient, and the lower triangle of the information row by row.
    pub fn add_sums(&mut self, sums: &[f64]) {
        debug_assert_eq!(sums.len(), Self::words(self.scaling.features()));
        self.sums.add(sums);
    }

    /// Adds the rows of another pass at the same point. Another order may change the last bits.
    pub fn merge(&mut self, other: &Self) {
        self.sums.merge(&other.sums);
    }

    /// Returns the sums.
    pub(crate) fn totals(&self) -> Totals {
        let layout = Layout::new(self.scaling.features());
        let sums = self.sums.totals();
        Totals {
            fit: sums[Layout::FIT],
            wrong: sums[Layout::WRONG],
            gradient: sums[Layout::GRADIENT..layout.information()].to_vec(),
            information: Symmetric::of_lower(layout.terms, &sums[layout.information()..]),
        }
    }
}

/// The sums of a pass.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// The log-likelihood, or the sum of squares.
    pub fit: f64,
    /// The number of misclassified rows.
    pub wrong: f64,
    /// The gradient.
    pub gradient: Vec<f64>,
    /// The information.
    pub information: Symmetric,
}

/// Computes the linear predictor of each row of a chunk, by coefficients in the features' own
/// units, the intercept first. Missing coefficients count as 0.
pub fn linear_predictor(chunk: &Chunk, coefficients: &[f64], out: &mut Vec<f64>) {
    out.clear();
    out.resize(chunk.rows(), coefficients.first().copied().unwrap_or(0.0));
    for (feature, coefficient) in coefficients.iter().skip(1).enumerate() {
        for (eta, x) in out.iter_mut().zip(chunk.feature(feature)) {
            *eta += coefficient * x;
        }
    }
}
