//! Evaluation of a classifier's probabilities against the labels of rows: accuracy, log loss,
//! confusion, and the area under the receiver operating characteristic.
//!
//! The area is the probability that a row of label 1 has a higher probability than one of label 0,
//! with ties counting half. It is the statistic of Mann and Whitney, by ranks (Fawcett 2006).

/// Metrics of a classifier that predicts 1 from a probability of a half on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The number of rows of label 1 that are predicted as 1.
    pub true_positives: u64,
    /// The number of rows of label 0 that are predicted as 1.
    pub false_positives: u64,
    /// The number of rows of label 0 that are predicted as 0.
    pub true_negatives: u64,
    /// The number of rows of label 1 that are predicted as 0.
    pub false_negatives: u64,
    /// The mean of `-log` of the probability of a row's label. Infinite if the classifier is
    /// certain of a wrong one.
    pub log_loss: f64,
    /// The area. `None` if all labels are the same.
    pub auc: Option<f64>,
}

impl Evaluation {
    /// Evaluates linear predictors, each with true if its row's label is 1. Sorts them.
    pub fn of(rows: &mut [(f64, bool)]) -> Self {
        rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut evaluation = Self {
            true_positives: 0,
            false_positives: 0,
            true_negatives: 0,
            false_negatives: 0,
            log_loss: 0.0,
            auc: None,
        };
        let mut losses = crate::sums::Sums::new(1);
        for &(logit, is_one) in rows.iter() {
            *match (logit >= 0.0, is_one) {
                (true, true) => &mut evaluation.true_positives,
                (true, false) => &mut evaluation.false_positives,
                (false, false) => &mut evaluation.true_negatives,
                (false, true) => &mut evaluation.false_negatives,
            } += 1;
            let margin = if is_one { logit } else { -logit };
            losses.add(&[(-margin.abs()).exp().ln_1p() + (-margin).max(0.0)]);
        }
        evaluation.log_loss = losses.totals()[0] / rows.len() as f64;
        evaluation.auc = area(rows);
        evaluation
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.true_positives + self.false_positives + self.true_negatives + self.false_negatives
    }

    /// Returns the fraction of rows whose label is predicted.
    pub fn accuracy(&self) -> f64 {
        (self.true_positives + self.true_negatives) as f64 / self.rows() as f64
    }
}

/// Returns the area of sorted rows.
fn area(rows: &[(f64, bool)]) -> Option<f64> {
    let ones = rows.iter().filter(|row| row.1).count() as u64;
    let zeros = rows.len() as u64 - ones;
    if ones == 0 || zeros == 0 {
        return None;
    }
    // Twice the number of pairs in the right order, with ties counting one: no rounding.
    let (mut pairs, mut zeros_before) = (0u128, 0u64);
    for ties in rows.chunk_by(|a, b| a.0 == b.0) {
        let tied_ones = ties.iter().filter(|row| row.1).count() as u64;
        let tied_zeros = ties.len() as u64 - tied_ones;
        pairs += u128::from(tied_ones) * (2 * u128::from(zeros_before) + u128::from(tied_zeros));
        zeros_before += tied_zeros;
    }
    Some(pairs as f64 / 2.0 / (ones as f64 * zeros as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_and_ties_are_half() {
        let mut rows = [(1.0, true), (-1.0, false), (1.0, false), (2.0, true), (-3.0, true)];
        let evaluation = Evaluation::of(&mut rows);
        assert_eq!((evaluation.true_positives, evaluation.false_negatives), (2, 1));
        assert_eq!((evaluation.false_positives, evaluation.true_negatives), (1, 1));
        assert_eq!(evaluation.auc, Some((1.5 + 2.0) / 6.0));
        assert!((evaluation.accuracy() - 0.6).abs() < 1e-15);
        assert_eq!(Evaluation::of(&mut [(0.0, true)]).auc, None);
        assert!((Evaluation::of(&mut [(0.0, true)]).log_loss - 2f64.ln()).abs() < 1e-15);
    }
}
