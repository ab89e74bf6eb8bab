//! Fits models whose passes a device runs.
//!
//! ```text
//! 1. Columns around 0        rows, means
//! 2. Columns around means    deviations, extremes; a value that is no use ends the fit here,
//!                            and the CPU reports it with its column
//! 3. Model at a point        a pass of the fit, repeated until it is done
//! ```
//! The device's sums come in parts. They are added here as those of the CPU's threads are.

use onehop_learn::{Around, Error as Unfit, Extents, Family, Intercept, Pass, linear, logistic};
use onehop_pipeline::fit::{self, COLUMN_WORDS, Parts, ROW_WORDS, Sums};

use super::rows::Target;

/// The state of a fit on a device.
#[derive(Debug)]
pub(super) struct Learner {
    target: Target,
    intercept: Intercept,
    options: logistic::Options,
    state: State,
    skipped: u64,
}

/// The center of sums of squares. Around 0 they lose precision for values far from it; means do
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    AroundZero,
    AroundMeans,
}

#[derive(Debug)]
enum State {
    /// Sums of columns around these centers were requested.
    Columns(Round, Vec<f64>),
    Logistic(Box<(logistic::Irls, Pass)>),
    Linear(Box<(linear::LeastSquares, Pass)>),
    Learnt(Learnt),
}

/// The outcome of a fit.
#[derive(Debug)]
pub(super) enum Learnt {
    Logistic(Box<logistic::Fit>),
    Linear(Box<linear::Fit>),
    /// There is no model of such rows.
    Unfit(Unfit),
    /// Some values are invalid. The CPU finds them one by one.
    OfNoUse,
}

fn target_of(target: Target) -> fit::Target {
    match target {
        Target::Label => fit::Target::Label,
        Target::Number => fit::Target::Number,
    }
}

/// Returns sums of a model before the first pass, to ask a device whether it can compute them.
pub(super) fn example(features: usize, target: Target) -> Sums {
    let family = match target {
        Target::Label => fit::Family::Logistic,
        Target::Number => fit::Family::Gaussian,
    };
    let (centres, scales, coefficients) = (vec![0.0; features], vec![1.0; features], vec![0.0; features + 1]);
    Sums::Model { family, centres, scales, target_centre: 0.0, coefficients }
}

impl Learner {
    /// Creates the learner of a label or a number.
    pub fn new(features: usize, target: Target, intercept: Intercept, options: logistic::Options) -> Self {
        let state = State::Columns(Round::AroundZero, vec![0.0; features + 1]);
        Self { target, intercept, options, state, skipped: 0 }
    }

    /// Returns the outcome, and the number of rows with a NULL.
    pub fn learnt(self) -> (Learnt, u64) {
        match self.state {
            State::Learnt(learnt) => (learnt, self.skipped),
            _ => (Learnt::OfNoUse, self.skipped),
        }
    }

    /// Returns the next sums, if any. Never fails: [`learnt`](Self::learnt) returns the outcome.
    #[allow(clippy::unnecessary_wraps, reason = "what a device asks may fail")]
    pub fn step(&mut self, last: Option<&Parts>) -> onehop_pipeline::Result<Option<Sums>> {
        Ok(self.next(last))
    }

    fn next(&mut self, last: Option<&Parts>) -> Option<Sums> {
        let state = std::mem::replace(&mut self.state, State::Learnt(Learnt::OfNoUse));
        self.state = match (last, state) {
            (None, begun) => begun,
            (Some(parts), State::Columns(round, around)) => self.extents(parts, round, &around),
            (Some(parts), State::Logistic(mut at)) => {
                let (irls, pass) = &mut *at;
                parts.each().for_each(|part| pass.add_sums(part));
                match irls.step(pass) {
                    logistic::Next::Pass => {
                        *pass = irls.pass();
                        State::Logistic(at)
                    }
                    logistic::Next::Done(fit) => State::Learnt(Learnt::Logistic(fit)),
                }
            }
            (Some(parts), State::Linear(mut at)) => {
                let (squares, pass) = &mut *at;
                parts.each().for_each(|part| pass.add_sums(part));
                match squares.step(pass) {
                    linear::Next::Pass => {
                        *pass = squares.pass();
                        State::Linear(at)
                    }
                    linear::Next::Done(fit) => State::Learnt(Learnt::Linear(fit)),
                }
            }
            (Some(_), learnt @ State::Learnt(_)) => learnt,
        };
        match &self.state {
            State::Columns(_, centres) => {
                Some(Sums::Columns { centres: centres.clone(), target: target_of(self.target) })
            }
            State::Logistic(at) => Some(sums_of(&at.1)),
            State::Linear(at) => Some(sums_of(&at.1)),
            State::Learnt(_) => None,
        }
    }

    /// Continues after sums of columns: with sums around their means, or with the fit.
    fn extents(&mut self, parts: &Parts, round: Round, around: &[f64]) -> State {
        let Some((extents, skipped, of_no_use)) = extents_of(parts, around) else {
            return State::Learnt(Learnt::OfNoUse);
        };
        if of_no_use > 0 {
            return State::Learnt(Learnt::OfNoUse);
        }
        self.skipped = skipped;
        let means = extents.means();
        if round == Round::AroundZero && extents.rows() > 0 && means.iter().all(|mean| mean.is_finite()) {
            return State::Columns(Round::AroundMeans, means);
        }
        let begun = match self.target {
            Target::Label => logistic::Irls::new(&extents, self.intercept, self.options).map(|irls| {
                let pass = irls.pass();
                State::Logistic(Box::new((irls, pass)))
            }),
            Target::Number => linear::LeastSquares::new(&extents, self.intercept).map(|squares| {
                let pass = squares.pass();
                State::Linear(Box::new((squares, pass)))
            }),
        };
        begun.unwrap_or_else(|unfit| State::Learnt(Learnt::Unfit(unfit)))
    }
}

/// Returns the extents of columns, the number of rows with a NULL, and the number of invalid
/// values.
fn extents_of(parts: &Parts, around: &[f64]) -> Option<(Extents, u64, u64)> {
    let mut parts = parts.each();
    let mut total = parts.next()?.to_vec();
    // The rounding errors of additions are summed as well: `x + y - (x + y)` of each.
    let mut lost = vec![0.0; total.len()];
    for part in parts {
        for (word, value) in part.iter().enumerate() {
            match word.checked_sub(ROW_WORDS).map(|word| word % COLUMN_WORDS) {
                Some(2) => total[word] = total[word].min(*value),
                Some(3) => total[word] = total[word].max(*value),
                _ => {
                    let sum = total[word] + value;
                    let part = sum - total[word];
                    lost[word] += (total[word] - (sum - part)) + (value - part);
                    total[word] = sum;
                }
            }
        }
    }
    for (total, lost) in total.iter_mut().zip(&lost).filter(|(_, lost)| lost.is_finite()) {
        *total += lost;
    }
    let (rows, skipped) = (total.first().copied()? as u64, total.get(1).copied()? as u64);
    let columns: Vec<&[f64]> = total[ROW_WORDS..].chunks_exact(COLUMN_WORDS).collect();
    let of_no_use: f64 = columns.iter().map(|column| column[4]).sum();
    let known = columns.iter().zip(around).map(|(column, centre)| Around {
        centre: *centre,
        sum: column[0],
        squares: column[1],
        least: column[2],
        greatest: column[3],
    });
    Some((Extents::around(rows, &known.collect::<Vec<_>>()), skipped, of_no_use as u64))
}

fn sums_of(pass: &Pass) -> Sums {
    let place = pass.place();
    let family = match place.family {
        Family::Logistic => fit::Family::Logistic,
        Family::Gaussian => fit::Family::Gaussian,
    };
    Sums::Model {
        family,
        centres: place.centres.to_vec(),
        scales: place.scales.to_vec(),
        target_centre: place.target_centre,
        coefficients: place.coefficients.to_vec(),
    }
}
