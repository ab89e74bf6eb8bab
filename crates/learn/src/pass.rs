//! One pass over rows: sums of them all, at one place.

use crate::block::{self, At, Layout, Scratch};
use crate::sums::Sums;
use crate::symmetric::Symmetric;
use crate::{Chunk, Scaling};

/// What the target is, given the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 0 or 1, with a probability whose logit is linear.
    Logistic,
    /// Linear, but for errors of one variance.
    Gaussian,
}

/// Where a pass is. Features are seen as `z = (x - centre) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place<'a> {
    /// What the target is.
    pub family: Family,
    /// Of each feature.
    pub centres: &'a [f64],
    /// Of each feature.
    pub scales: &'a [f64],
    /// What a target that is a number is moved by.
    pub target_centre: f64,
    /// The intercept, and one of each scaled feature.
    pub coefficients: &'a [f64],
}

/// The sums of the rows that it has seen, of a fit at one place.
#[derive(Clone, Debug)]
pub struct Pass {
    family: Family,
    scaling: Scaling,
    coefficients: Vec<f64>,
    scratch: Scratch,
    sums: Sums,
}

impl Pass {
    /// Of no rows so far. The coefficients are scaled, the intercept is the first of them.
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

    /// Where it is: all that somebody else needs to add up rows.
    pub fn place(&self) -> Place<'_> {
        let Scaling { centres, scales, target_centre, .. } = &self.scaling;
        let (family, coefficients) = (self.family, self.coefficients.as_slice());
        Place { family, centres, scales, target_centre: *target_centre, coefficients }
    }

    /// How many numbers its sums are, of so many features.
    pub fn words(features: usize) -> usize {
        Layout::new(features).count()
    }

    /// Adds sums of rows that somebody else has added up at the same place, as many as [`words`](Self::words): the
    /// log-likelihood or the sum of squares, rows that are not on their side, the gradient, and the lower triangle of the
    /// information row by row.
    pub fn add_sums(&mut self, sums: &[f64]) {
        debug_assert_eq!(sums.len(), Self::words(self.scaling.features()));
        self.sums.add(sums);
    }

    /// Adds what another pass at the same place has seen. In another order the last bits may be others.
    pub fn merge(&mut self, other: &Self) {
        self.sums.merge(&other.sums);
    }

    /// The sums.
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

/// What a pass has come to.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// The log-likelihood, or the sum of squares.
    pub fit: f64,
    /// Rows that are not on their side.
    pub wrong: f64,
    pub gradient: Vec<f64>,
    pub information: Symmetric,
}

/// The linear predictor of each row of a chunk, by coefficients in the features' own units, the intercept first: what is
/// not finite, or not known, is 0 times.
pub fn linear_predictor(chunk: &Chunk, coefficients: &[f64], out: &mut Vec<f64>) {
    out.clear();
    out.resize(chunk.rows(), coefficients.first().copied().unwrap_or(0.0));
    for (feature, coefficient) in coefficients.iter().skip(1).enumerate() {
        for (eta, x) in out.iter_mut().zip(chunk.feature(feature)) {
            *eta += coefficient * x;
        }
    }
}
