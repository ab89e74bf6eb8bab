//! Sums of many numbers without visible loss: the rounding errors of the additions are summed as
//! well (Neumaier 1974, with Knuth's branch-free `TwoSum`).
//!
//! Only sums of blocks are added this way. Within a block of some hundred rows plain sums are exact
//! to some ulp, and cost nothing extra. The error of a sum of blocks does not grow with their
//! number.

/// Parallel sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    rounded: Vec<f64>,
    lost: Vec<f64>,
}

impl Sums {
    /// Creates `count` sums of 0.
    pub fn new(count: usize) -> Self {
        Self { rounded: vec![0.0; count], lost: vec![0.0; count] }
    }

    /// Adds to each sum its value.
    #[inline(always)]
    pub fn add(&mut self, values: &[f64]) {
        for ((rounded, lost), value) in self.rounded.iter_mut().zip(&mut self.lost).zip(values) {
            let sum = *rounded + value;
            let part = sum - *rounded;
            *lost += (*rounded - (sum - part)) + (value - part);
            *rounded = sum;
        }
    }

    /// Adds the sums of another one.
    pub fn merge(&mut self, other: &Self) {
        self.add(&other.rounded);
        for (lost, more) in self.lost.iter_mut().zip(&other.lost) {
            *lost += more;
        }
    }

    /// Returns the sums.
    pub fn totals(&self) -> Vec<f64> {
        self.rounded.iter().zip(&self.lost).map(|(rounded, lost)| rounded + lost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_beside_large_ones_are_not_lost() {
        let mut sums = Sums::new(2);
        for _ in 0..1000 {
            sums.add(&[1e16, 1.0]);
            sums.add(&[1.0, 1e-20]);
            sums.add(&[-1e16, 0.0]);
        }
        assert_eq!(sums.totals()[0].to_bits(), 1000f64.to_bits());
        let mut twice = sums.clone();
        twice.merge(&sums);
        assert_eq!(twice.totals()[0].to_bits(), 2000f64.to_bits());
    }
}
