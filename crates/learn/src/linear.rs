//! Linear regression by ordinary least squares.
//!
//! 1. A pass at 0 computes `X'X` and `X'y` of scaled features and a centred target. Cholesky solves
//!    for `b`.
//! 2. A pass at `b` computes the residuals. Their sum of squares is taken directly, not as a
//!    difference of large sums. `X'r`, which would be 0 without rounding, gives one step of
//!    refinement (Björck, *Numerical Methods for Least Squares Problems*, 2.9).

use crate::logistic::combination;
use crate::model::{Aliased, Term, Warning};
use crate::scaling::{Extents, Intercept, Scaling};
use crate::statistic::student_p_value;
use crate::symmetric::{Cholesky, Symmetric};
use crate::{Error, Family, MOST_FEATURES, Pass, Result};

/// A fitted model.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The intercept, if there is one.
    pub intercept: Option<Term>,
    /// The features' terms, in order.
    pub terms: Vec<Term>,
    /// The fraction of the target's variance that the model explains: around the mean, or around 0
    /// without an intercept.
    pub r2: f64,
    /// The standard error of the residuals. `None` if no degree of freedom is left.
    pub residual_error: Option<f64>,
    /// The square root of the ratio of the largest to the smallest eigenvalue of `X'X`, in the
    /// features' own units.
    pub condition_number: f64,
    /// The number of rows.
    pub rows: u64,
    /// Warnings about the model.
    pub warnings: Vec<Warning>,
}

/// The next action after a pass.
#[derive(Debug)]
pub enum Next {
    /// Another pass, at [`LeastSquares::pass`].
    Pass,
    /// None: this is the model.
    Done(Box<Fit>),
}

/// A fit in progress.
#[derive(Clone, Debug)]
pub struct LeastSquares {
    scaling: Scaling,
    rows: u64,
    target_squares: f64,
    here: Vec<f64>,
    solved: Option<Solved>,
}

#[derive(Clone, Debug)]
struct Solved {
    /// The terms of the model, as indices into those of a pass.
    terms: Vec<usize>,
    information: Symmetric,
    cholesky: Cholesky,
}

const NEARLY_COLLINEAR: f64 = 1e6;

impl LeastSquares {
    /// Creates a fit of rows with these statistics.
    ///
    /// # Errors
    /// [`Error::NoRows`], [`Error::FewRows`], [`Error::Option`] for too many features, or those of
    /// [`Scaling::new`].
    pub fn new(extents: &Extents, intercept: Intercept) -> Result<Self> {
        let (rows, features) = (extents.rows(), extents.features());
        let terms = features + usize::from(intercept == Intercept::Fitted);
        if rows == 0 {
            return Err(Error::NoRows);
        }
        if features > MOST_FEATURES {
            return Err(Error::Option(format!("{features} features are more than the {MOST_FEATURES} of a model")));
        }
        if rows < terms as u64 {
            return Err(Error::FewRows { rows, terms });
        }
        Ok(Self {
            scaling: Scaling::new(extents, intercept)?,
            rows,
            target_squares: extents.target_squares(intercept),
            here: vec![0.0; features + 1],
            solved: None,
        })
    }

    /// Returns a pass without rows, to which all rows are to be added.
    pub fn pass(&self) -> Pass {
        Pass::new(Family::Gaussian, &self.scaling, &self.here)
    }

    /// Continues with a [`pass`](Self::pass) to which all rows were added.
    pub fn step(&mut self, pass: &Pass) -> Next {
        let totals = pass.totals();
        match self.solved.take() {
            None => {
                let first = usize::from(self.scaling.intercept == Intercept::None);
                let terms: Vec<usize> = (first..=self.scaling.features()).collect();
                let information = totals.information.part(&terms);
                let cholesky = Cholesky::new(&information);
                let solved = Solved { terms, information, cholesky };
                self.advance(&solved, &totals.gradient);
                self.solved = Some(solved);
                Next::Pass
            }
            Some(solved) => {
                self.advance(&solved, &totals.gradient);
                Next::Done(Box::new(self.done(&solved, totals.fit)))
            }
        }
    }

    fn advance(&mut self, solved: &Solved, gradient: &[f64]) {
        let active = solved.active();
        let right: Vec<f64> = active.iter().map(|&term| gradient[term]).collect();
        for (&term, step) in active.iter().zip(solved.cholesky.solve(&right)) {
            self.here[term] += step;
        }
    }

    fn done(&self, solved: &Solved, residual_squares: f64) -> Fit {
        let active = solved.active();
        let covariance = solved.cholesky.inverse();
        let information = solved.information.part(solved.cholesky.places());
        let mut warnings: Vec<Warning> = solved.cholesky.dependent.iter().map(|d| self.left_out(d, solved)).collect();
        for (place, &term) in active.iter().enumerate().filter(|(_, term)| **term > 0) {
            let inflation = covariance.get(place, place) * information.get(place, place);
            if inflation >= NEARLY_COLLINEAR {
                warnings.push(Warning::NearlyCollinear { feature: term - 1, inflation });
            }
        }
        let degrees = self.rows as f64 - active.len() as f64;
        let variance = (degrees > 0.0).then(|| residual_squares / degrees);
        let (unit_variances, condition_number) = self.scaling.in_own_units(&active, &information, &covariance);
        let mut own = self.scaling.unscaled(&self.here);
        own[0] += self.scaling.target_centre;
        let none = Term { coefficient: None, standard_error: None, statistic: None, p_value: None };
        let mut terms = vec![none; own.len()];
        for (place, &term) in active.iter().enumerate() {
            terms[term].coefficient = Some(own[term]);
            let Some(error) = variance.map(|variance| (variance * unit_variances[place]).sqrt()) else { continue };
            terms[term].standard_error = Some(error);
            // A fit without errors has nothing to test.
            if error > 0.0 {
                let t = own[term] / error;
                (terms[term].statistic, terms[term].p_value) = (Some(t), Some(student_p_value(t, degrees)));
            }
        }
        let intercept = terms.remove(0);
        let r2 = match self.target_squares > 0.0 {
            true => 1.0 - residual_squares / self.target_squares,
            false => f64::NAN,
        };
        Fit {
            intercept: (self.scaling.intercept == Intercept::Fitted).then_some(intercept),
            terms,
            r2,
            residual_error: variance.map(f64::sqrt),
            condition_number,
            rows: self.rows,
            warnings,
        }
    }

    fn left_out(&self, dependent: &crate::symmetric::Dependent, solved: &Solved) -> Warning {
        let feature = solved.terms[dependent.place] - 1;
        let because = match self.scaling.is_constant[feature] {
            true => Aliased::Constant,
            false => Aliased::Combination(combination(dependent, &solved.terms)),
        };
        Warning::LeftOut { feature, because }
    }
}

impl Solved {
    /// Returns the terms that are not left out.
    fn active(&self) -> Vec<usize> {
        self.cholesky.places().iter().map(|&place| self.terms[place]).collect()
    }
}
