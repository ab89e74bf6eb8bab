//! The iterations: see the [module](super).

use super::Options;
use crate::model::{Aliased, Term, Warning};
use crate::pass::Totals;
use crate::scaling::{Extents, Intercept, Scaling};
use crate::statistic::normal_p_value;
use crate::symmetric::{Cholesky, Dependent, Symmetric};
use crate::{Error, Family, MOST_FEATURES, Pass, Result};

/// The maximum number of times that a step is halved.
const MOST_HALVINGS: u32 = 12;
/// The relative rounding error of a log-likelihood.
const ROUNDING: f64 = 1e-13;
/// A last step that changes the logit of some row by this much does not end near a maximum.
const FAR: f64 = 0.5;
/// The inflation of a coefficient's variance from which the feature depends on others except for
/// its last digits.
const NEARLY_COLLINEAR: f64 = 1e6;
/// Far from a maximum Newton's method gains a steady fraction of its previous gain. It does so
/// forever if the features separate the labels, and for some iterations otherwise.
const STEADY: std::ops::Range<f64> = 0.1..1.0;
const STEADY_ITERATIONS: u32 = 6;

/// The next action after a pass.
#[derive(Debug)]
pub enum Next {
    /// Another pass, at [`Irls::pass`].
    Pass,
    /// None: this is the model.
    Done(Box<Fit>),
}

/// A fitted model.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The intercept, if there is one.
    pub intercept: Option<Term>,
    /// The features' terms, in order.
    pub terms: Vec<Term>,
    /// The log-likelihood of all rows.
    pub log_likelihood: f64,
    /// The log-likelihood of a model with only an intercept, or of an empty model without one.
    pub null_log_likelihood: f64,
    /// The square root of the ratio of the information's largest to its smallest eigenvalue, in the
    /// features' own units.
    pub condition_number: f64,
    /// The number of passes without halved steps.
    pub iterations: u32,
    /// True if the last iteration gained less than the tolerance.
    pub converged: bool,
    /// The number of rows.
    pub rows: u64,
    /// Warnings about the model.
    pub warnings: Vec<Warning>,
}

/// A fit in progress.
#[derive(Clone, Debug)]
pub struct Irls {
    options: Options,
    scaling: Scaling,
    rows: u64,
    null_log_likelihood: f64,
    /// The point of the next pass.
    here: Vec<f64>,
    /// The last good point, and the results there.
    last: Option<Last>,
    /// The terms that are left out, which the first pass determines.
    dependent: Vec<Dependent>,
    warnings: Vec<Warning>,
    iterations: u32,
    halvings: u32,
    /// The number of successive iterations that gained a steady fraction of the previous gain.
    steady: u32,
    gain: f64,
}

#[derive(Clone, Debug)]
struct Last {
    coefficients: Vec<f64>,
    objective: f64,
    totals: Totals,
}

impl Irls {
    /// Creates a fit of rows with these statistics. Labels are 0 or 1.
    ///
    /// # Errors
    /// [`Error::NoRows`], [`Error::FewRows`], [`Error::OneClass`], [`Error::Option`] for invalid
    /// options or too many features, or those of [`Scaling::new`].
    pub fn new(extents: &Extents, intercept: Intercept, options: Options) -> Result<Self> {
        options.check()?;
        let rows = extents.rows();
        if rows == 0 {
            return Err(Error::NoRows);
        }
        let features = extents.features();
        if features > MOST_FEATURES {
            return Err(Error::Option(format!("{features} features are more than the {MOST_FEATURES} of a model")));
        }
        let (least, greatest) = extents.target_range();
        if least == greatest {
            return Err(Error::OneClass { label: u8::from(least > 0.5) });
        }
        let terms = features + usize::from(intercept == Intercept::Fitted);
        if options.l2 == 0.0 && rows < terms as u64 {
            return Err(Error::FewRows { rows, terms });
        }
        let ones = extents.target_mean();
        let null = match intercept {
            Intercept::Fitted => ones * ones.ln() + (1.0 - ones) * (-ones).ln_1p(),
            Intercept::None => -std::f64::consts::LN_2,
        };
        Ok(Self {
            options,
            scaling: Scaling::new(extents, intercept)?,
            rows,
            null_log_likelihood: rows as f64 * null,
            here: vec![0.0; features + 1],
            last: None,
            dependent: Vec::new(),
            warnings: Vec::new(),
            iterations: 0,
            halvings: 0,
            steady: 0,
            gain: f64::INFINITY,
        })
    }

    /// Returns a pass without rows, to which all rows are to be added.
    pub fn pass(&self) -> Pass {
        Pass::new(Family::Logistic, &self.scaling, &self.here)
    }

    /// Returns the number of passes without halved steps.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns the gain of the last iteration. It is infinite after the first.
    pub fn gain(&self) -> f64 {
        self.gain
    }

    /// Continues with a [`pass`](Self::pass) to which all rows were added.
    pub fn step(&mut self, pass: &Pass) -> Next {
        let mut totals = pass.totals();
        let penalty = self.penalize(&mut totals);
        let objective = totals.fit - penalty;
        if let Some(last) = &self.last {
            let noise = ROUNDING * last.objective.abs();
            let is_worse = objective.is_nan() || objective < last.objective - noise || !totals.information.is_finite();
            if is_worse {
                return self.halve();
            }
            let gain = objective - last.objective;
            self.steady = if STEADY.contains(&(gain / self.gain)) { self.steady + 1 } else { 0 };
            self.gain = gain.max(0.0);
        } else {
            self.leave_out(&totals.information);
        }
        self.iterations += 1;
        self.halvings = 0;
        let is_separated = totals.wrong == 0.0 && self.options.l2 == 0.0;
        let last = Last { coefficients: self.here.clone(), objective, totals };
        self.last = Some(last.clone());
        if is_separated {
            self.warnings.push(Warning::Separated);
            return self.done(&last, None, false);
        }
        let Some(step) = self.newton(&last.totals) else {
            // Weights have vanished: the model is certain of every row, and of some wrongly, so
            // there is no step.
            self.warnings.push(Warning::Stalled);
            return self.done(&last, None, false);
        };
        let noise = ROUNDING * objective.abs();
        if self.iterations > 1 && self.gain <= self.options.tolerance + noise {
            if self.options.l2 == 0.0
                && let Some(feature) = self.far(&step)
            {
                self.warnings.push(Warning::QuasiSeparated { feature });
                return self.done(&last, None, false);
            }
            return self.done(&last, Some(&step), true);
        }
        if self.iterations >= self.options.max_iterations {
            self.warnings.push(match self.steady >= STEADY_ITERATIONS && self.options.l2 == 0.0 {
                true => Warning::Separating { wrong: last.totals.wrong as u64 },
                false => Warning::NotConverged { gain: Some(self.gain).filter(|gain| gain.is_finite()) },
            });
            return self.done(&last, None, false);
        }
        self.here = sum(&last.coefficients, &step);
        Next::Pass
    }

    /// Returns the penalty, `l2/2 |b|²`, and applies it to the gradient and the information.
    fn penalize(&self, totals: &mut Totals) -> f64 {
        let mut penalty = 0.0;
        for (feature, scale) in self.scaling.scales.iter().enumerate() {
            let weight = self.options.l2 * scale * scale;
            let coefficient = self.here[feature + 1];
            penalty += weight / 2.0 * coefficient * coefficient;
            totals.gradient[feature + 1] -= weight * coefficient;
            totals.information.add_to_diagonal(feature + 1, weight);
        }
        penalty
    }

    /// Halves a step that was too long.
    fn halve(&mut self) -> Next {
        let Some(last) = self.last.clone() else { return Next::Pass };
        self.halvings += 1;
        if self.halvings > MOST_HALVINGS {
            self.warnings.push(Warning::Stalled);
            return self.done(&last, None, false);
        }
        for (here, last) in self.here.iter_mut().zip(&last.coefficients) {
            *here = (*here + last) / 2.0;
        }
        Next::Pass
    }

    /// Determines the terms that are left out: at first, all weights are equal.
    fn leave_out(&mut self, information: &Symmetric) {
        let all = self.all_terms();
        let cholesky = Cholesky::new(&information.part(&all));
        for dependent in &cholesky.dependent {
            let feature = all[dependent.place] - 1;
            let because = match self.scaling.is_constant[feature] {
                true => Aliased::Constant,
                false => Aliased::Combination(combination(dependent, &all)),
            };
            self.warnings.push(Warning::LeftOut { feature, because });
        }
        self.dependent = cholesky.dependent;
    }

    /// Returns the terms of the model, as indices into those of a pass.
    fn all_terms(&self) -> Vec<usize> {
        let first = usize::from(self.scaling.intercept == Intercept::None);
        (first..=self.scaling.features()).collect()
    }

    /// Returns the terms that are not left out.
    fn active_terms(&self) -> Vec<usize> {
        let all = self.all_terms();
        let is_in = |place: &usize| !self.dependent.iter().any(|dependent| dependent.place == *place);
        (0..all.len()).filter(is_in).map(|place| all[place]).collect()
    }

    /// Returns the next step, for all terms of a pass, or `None` if there is none.
    fn newton(&self, totals: &Totals) -> Option<Vec<f64>> {
        let active = self.active_terms();
        let cholesky = Cholesky::new(&totals.information.part(&active));
        let of_active: Vec<f64> = cholesky.places().iter().map(|&place| totals.gradient[active[place]]).collect();
        let mut step = vec![0.0; self.here.len()];
        for (&place, value) in cholesky.places().iter().zip(cholesky.solve(&of_active)) {
            step[active[place]] = value;
        }
        let is_step = !cholesky.places().is_empty() && step.iter().all(|value| value.is_finite());
        is_step.then_some(step)
    }

    /// Returns the feature by which a step moves some logit far, if any. `Some(None)` is the
    /// intercept.
    fn far(&self, step: &[f64]) -> Option<Option<usize>> {
        let by_feature = step[1..].iter().zip(&self.scaling.widths).map(|(step, width)| (step * width).abs());
        let farthest = by_feature.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        match farthest {
            Some((feature, moved)) if moved >= FAR => Some(Some(feature)),
            _ => (step[0].abs() >= FAR).then_some(None),
        }
    }

    /// Returns the model at the last good point, or one last step from there.
    fn done(&mut self, last: &Last, step: Option<&[f64]>, converged: bool) -> Next {
        let coefficients = step.map_or_else(|| last.coefficients.clone(), |step| sum(&last.coefficients, step));
        let active = self.active_terms();
        let information = last.totals.information.part(&active);
        let cholesky = Cholesky::new(&information);
        let is_regular = cholesky.dependent.is_empty();
        let is_separated = self.warnings.iter().any(|warning| {
            matches!(warning, Warning::Separated | Warning::Separating { .. } | Warning::QuasiSeparated { .. })
        });
        let covariance = cholesky.inverse();
        if is_regular && !is_separated {
            for (place, &term) in active.iter().enumerate().filter(|(_, term)| **term > 0) {
                let inflation = covariance.get(place, place) * information.get(place, place);
                if inflation >= NEARLY_COLLINEAR {
                    self.warnings.push(Warning::NearlyCollinear { feature: term - 1, inflation });
                }
            }
        }
        // Errors of coefficients that have no maximum, or are penalised, would be meaningless.
        let has_errors = is_regular && !is_separated && self.options.l2 == 0.0;
        let (variances, condition_number) = match is_regular {
            true => self.scaling.in_own_units(&active, &information, &covariance),
            false => (vec![f64::NAN; active.len()], f64::INFINITY),
        };
        let own = self.scaling.unscaled(&coefficients);
        let mut terms: Vec<Term> = own
            .iter()
            .map(|_| Term { coefficient: None, standard_error: None, statistic: None, p_value: None })
            .collect();
        for (place, &term) in active.iter().enumerate() {
            let error = variances[place].sqrt();
            terms[term].coefficient = Some(own[term]);
            if has_errors && error.is_finite() {
                let z = own[term] / error;
                terms[term].standard_error = Some(error);
                (terms[term].statistic, terms[term].p_value) = (Some(z), Some(normal_p_value(z)));
            }
        }
        let intercept = terms.remove(0);
        Next::Done(Box::new(Fit {
            intercept: (self.scaling.intercept == Intercept::Fitted).then_some(intercept),
            terms,
            log_likelihood: last.totals.fit,
            null_log_likelihood: self.null_log_likelihood,
            condition_number,
            iterations: self.iterations,
            converged,
            rows: self.rows,
            warnings: std::mem::take(&mut self.warnings),
        }))
    }
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Returns the features that one depends on, without those due to rounding.
pub(crate) fn combination(dependent: &Dependent, terms: &[usize]) -> Vec<usize> {
    const NOTHING: f64 = 1e-6;
    let is_there = |(place, times): &&(usize, f64)| times.abs() > NOTHING && terms[*place] > 0;
    dependent.on.iter().filter(is_there).map(|(place, _)| terms[*place] - 1).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Chunk;

    /// Fits with steps after the first point that are `longer` than Newton's. Returns the fit, and
    /// the number of passes.
    fn fit(longer: f64) -> (Fit, u32) {
        let x: Vec<f64> = (0..200).map(|n| f64::from(n * 37 % 200) / 50.0 - 2.0).collect();
        let y: Vec<f64> =
            x.iter().enumerate().map(|(n, x)| f64::from(u8::from(x + (n as f64).sin() * 2.0 > 0.3))).collect();
        let chunk = Chunk::of_columns(&[&x, &y]);
        let options = Options { tolerance: 1e-12, ..Options::default() };
        let mut irls = Irls::new(&Extents::of(&chunk), Intercept::Fitted, options).unwrap();
        for passes in 1.. {
            let mut pass = irls.pass();
            pass.add(&chunk);
            match irls.step(&pass) {
                Next::Done(fit) => return (*fit, passes),
                Next::Pass if passes == 1 => irls.here.iter_mut().for_each(|b| *b *= longer),
                Next::Pass => {}
            }
        }
        unreachable!()
    }

    #[test]
    fn a_step_that_is_too_long_is_halved() {
        let (expected, passes) = fit(1.0);
        assert!(expected.converged && passes == expected.iterations);
        for longer in [20.0, 400.0] {
            let (fit, passes) = fit(longer);
            assert!(fit.converged && passes > fit.iterations + 2, "{passes} passes, {fit:?}");
            for (term, other) in fit.terms.iter().zip(&expected.terms) {
                assert!((term.coefficient.unwrap() / other.coefficient.unwrap() - 1.0).abs() < 1e-9, "{fit:?}");
            }
        }
        // No number of halvings is sufficient: the fit reports it, with the last good point.
        let (fit, _) = fit(1e300);
        assert!(!fit.converged && fit.warnings == [Warning::Stalled], "{fit:?}");
    }
}
