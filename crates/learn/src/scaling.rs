//! Features as a fit sees them: `z = (x - centre) * scale`.
//!
//! Sums of squares of values around 2,000, for example, that vary by 10, have lost the significant
//! digits. A matrix with some features in thousandths and others in billions cannot be solved. A
//! feature that is centred at its mean and scaled by its deviation has neither problem. Any centre
//! and scale gives the same model, so they need not be exact, only near.
//!
//! Without an intercept a feature must not be moved: then it is only scaled.

use crate::symmetric::Symmetric;
use crate::{Chunk, Error, Result};

/// The presence of a term that is the same for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intercept {
    /// The model has an intercept.
    Fitted,
    /// The model passes through zero.
    None,
}

/// Statistics of the columns of some rows: those of the features, then the target.
#[derive(Clone, Debug, PartialEq)]
pub struct Extents {
    rows: u64,
    columns: Vec<Extent>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Extent {
    mean: f64,
    /// The sum of squares around the mean.
    squares: f64,
    least: f64,
    greatest: f64,
}

/// Statistics of a column: sums around a number, and the extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Around {
    /// The number.
    pub centre: f64,
    /// The sum of the values minus the number.
    pub sum: f64,
    /// The sum of the squares of those differences.
    pub squares: f64,
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub greatest: f64,
}

impl Extents {
    /// Creates the statistics of no rows of `features` features.
    pub fn new(features: usize) -> Self {
        let none = Extent { mean: 0.0, squares: 0.0, least: f64::INFINITY, greatest: f64::NEG_INFINITY };
        Self { rows: 0, columns: vec![none; features + 1] }
    }

    /// Computes the statistics of a chunk.
    pub fn of(chunk: &Chunk) -> Self {
        let columns = (0..=chunk.features()).map(|column| Extent::of(chunk.feature(column))).collect();
        Self { rows: chunk.rows() as u64, columns }
    }

    /// Creates the statistics of `rows` rows from sums of another component, features first. The
    /// precision of sums around a number depends on its distance to the mean.
    pub fn around(rows: u64, columns: &[Around]) -> Self {
        let count = rows.max(1) as f64;
        let column = |around: &Around| {
            let apart = around.sum / count;
            // Rounding must not make it negative.
            let squares = (around.squares - apart * around.sum).max(0.0);
            Extent { mean: around.centre + apart, squares, least: around.least, greatest: around.greatest }
        };
        Self { rows, columns: columns.iter().map(column).collect() }
    }

    /// Returns the mean of each column, features first.
    pub fn means(&self) -> Vec<f64> {
        self.columns.iter().map(|column| column.mean).collect()
    }

    /// Adds the rows of another one (Chan, Golub and LeVeque 1979).
    pub fn merge(&mut self, other: &Self) {
        if other.rows == 0 {
            return;
        }
        if self.rows == 0 {
            self.clone_from(other);
            return;
        }
        let (here, there) = (self.rows as f64, other.rows as f64);
        for (own, other) in self.columns.iter_mut().zip(&other.columns) {
            let apart = other.mean - own.mean;
            own.mean += apart * (there / (here + there));
            own.squares += other.squares + apart * apart * (here * there / (here + there));
            own.least = own.least.min(other.least);
            own.greatest = own.greatest.max(other.greatest);
        }
        self.rows += other.rows;
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of features.
    pub fn features(&self) -> usize {
        self.columns.len() - 1
    }

    /// Returns the least and the greatest value of the target.
    pub fn target_range(&self) -> (f64, f64) {
        let target = self.target();
        (target.least, target.greatest)
    }

    /// Returns the sum of squares of the target around its mean, or around zero without an
    /// intercept.
    pub(crate) fn target_squares(&self, intercept: Intercept) -> f64 {
        let target = self.target();
        match intercept {
            Intercept::Fitted => target.squares,
            Intercept::None => target.squares + self.rows as f64 * target.mean * target.mean,
        }
    }

    pub(crate) fn target_mean(&self) -> f64 {
        self.target().mean
    }

    fn target(&self) -> &Extent {
        &self.columns[self.columns.len() - 1]
    }
}

impl Extent {
    fn of(values: &[f64]) -> Self {
        let Some(first) = values.first() else {
            return Self { mean: 0.0, squares: 0.0, least: f64::INFINITY, greatest: f64::NEG_INFINITY };
        };
        // Around the first value: the rounding error depends on the distances between values.
        let mean = first + sum(values, |value| value - first) / values.len() as f64;
        let squares = sum(values, |value| (value - mean) * (value - mean));
        let (least, greatest) = range(values);
        Self { mean, squares, least, greatest }
    }
}

/// The number of parallel partial sums, as in a processor's registers.
const LANES: usize = 16;

fn sum(values: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for values in whole {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += of(*value);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|value| of(*value)).sum::<f64>()
}

/// Returns the least and the greatest number.
fn range(values: &[f64]) -> (f64, f64) {
    let (whole, rest) = values.as_chunks::<LANES>();
    let (mut least, mut greatest) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
    for values in whole {
        for ((least, greatest), value) in least.iter_mut().zip(&mut greatest).zip(values) {
            *least = if *value < *least { *value } else { *least };
            *greatest = if *value > *greatest { *value } else { *greatest };
        }
    }
    let least = least.iter().chain(rest).copied().fold(f64::INFINITY, f64::min);
    (least, greatest.iter().chain(rest).copied().fold(f64::NEG_INFINITY, f64::max))
}

/// The scaling of features by a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    pub(crate) intercept: Intercept,
    pub(crate) centres: Vec<f64>,
    pub(crate) scales: Vec<f64>,
    /// The difference of the greatest and the least value of each feature, scaled.
    pub(crate) widths: Vec<f64>,
    /// True for a feature whose values are all the same.
    pub(crate) is_constant: Vec<bool>,
    /// The centre of the target, if the model centres it.
    pub(crate) target_centre: f64,
}

/// A deviation this small relative to the mean is the rounding error of a constant.
const ROUNDING: f64 = 1e-14;

impl Scaling {
    /// Computes the scaling from the statistics of all rows.
    ///
    /// # Errors
    /// [`Error::Range`] and [`Error::TargetRange`] for sums out of the range of doubles.
    pub fn new(extents: &Extents, intercept: Intercept) -> Result<Self> {
        let count = extents.features();
        let mut scaling = Self {
            intercept,
            centres: vec![0.0; count],
            scales: vec![1.0; count],
            widths: vec![0.0; count],
            is_constant: vec![false; count],
            target_centre: if intercept == Intercept::Fitted { extents.target_mean() } else { 0.0 },
        };
        if !extents.target_squares(intercept).is_finite() {
            return Err(Error::TargetRange);
        }
        let rows = extents.rows.max(1) as f64;
        for (feature, extent) in extents.columns[..count].iter().enumerate() {
            let around_zero = extent.squares + rows * extent.mean * extent.mean;
            let deviation = (extent.squares / rows).sqrt();
            if !around_zero.is_finite() {
                return Err(Error::Range { feature });
            }
            let is_constant = extent.least == extent.greatest || deviation <= ROUNDING * extent.mean.abs();
            let (centre, size) = match intercept {
                Intercept::Fitted => (extent.mean, deviation),
                Intercept::None => (0.0, (around_zero / rows).sqrt()),
            };
            // The squares of smaller numbers vanish: such a column counts as constant.
            let is_nothing = size < f64::MIN_POSITIVE.sqrt();
            scaling.is_constant[feature] = is_nothing || (is_constant && intercept == Intercept::Fitted);
            scaling.centres[feature] = centre;
            scaling.scales[feature] = if scaling.is_constant[feature] { 0.0 } else { 1.0 / size };
            scaling.widths[feature] = (extent.greatest - extent.least) * scaling.scales[feature];
        }
        Ok(scaling)
    }

    /// Returns the number of features.
    pub fn features(&self) -> usize {
        self.centres.len()
    }

    /// Returns the presence of an intercept.
    pub fn intercept(&self) -> Intercept {
        self.intercept
    }

    /// Returns a scaled model in the features' own units. Both have the intercept first.
    pub(crate) fn unscaled(&self, coefficients: &[f64]) -> Vec<f64> {
        let mut own = Vec::with_capacity(coefficients.len());
        own.push(coefficients[0]);
        for (feature, coefficient) in coefficients[1..].iter().enumerate() {
            let slope = coefficient * self.scales[feature];
            own[0] -= slope * self.centres[feature];
            own.push(slope);
        }
        own
    }

    /// Returns the variances of terms and the condition number of the information in the features'
    /// own units.
    ///
    /// A row of own units is one of scaled units times `A`, so the information is `A' H A` and the
    /// covariance its inverse. The smallest eigenvalue of the information is computed from the
    /// largest of the covariance: the small eigenvalues of a matrix with large ones are mostly
    /// rounding errors.
    pub(crate) fn in_own_units(
        &self,
        terms: &[usize],
        information: &Symmetric,
        covariance: &Symmetric,
    ) -> (Vec<f64>, f64) {
        let order = terms.len();
        // The columns of `A`, and of the transpose of its inverse.
        let mut into = vec![vec![0.0; order]; order];
        let mut back = into.clone();
        for (place, &term) in terms.iter().enumerate() {
            let Some(feature) = term.checked_sub(1) else {
                (into[place][place], back[place][place]) = (1.0, 1.0);
                continue;
            };
            let (centre, scale) = (self.centres[feature], self.scales[feature]);
            (into[place][place], back[place][place]) = (1.0 / scale, scale);
            // The first term is the intercept then.
            if self.intercept == Intercept::Fitted {
                (into[place][0], back[0][place]) = (centre, -centre * scale);
            }
        }
        let (information, covariance) = (information.transformed(&into), covariance.transformed(&back));
        let variances = (0..order).map(|place| covariance.get(place, place)).collect();
        (variances, (information.largest_eigenvalue() * covariance.largest_eigenvalue()).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(values: &[f64]) -> Extents {
        Extents::of(&Chunk::of_columns(&[values, &vec![0.0; values.len()]]))
    }

    #[test]
    fn parts_together_are_what_the_whole_is() {
        let values: Vec<f64> = (0..1000).map(|n| 1e9 + f64::from(n * n % 97)).collect();
        let whole = extents(&values);
        let mut parts = Extents::new(1);
        for part in values.chunks(37) {
            parts.merge(&extents(part));
        }
        assert_eq!(parts.rows(), 1000);
        let (part, whole) = (parts.columns[0], whole.columns[0]);
        assert!((part.mean - whole.mean).abs() < 1e-5 && (part.squares / whole.squares - 1.0).abs() < 1e-7);
        assert_eq!((part.least, part.greatest), (whole.least, whole.greatest));
    }

    #[test]
    fn sums_around_a_number_near_the_mean_say_the_same() {
        let values: Vec<f64> = (0..1000).map(|n| 2000.0 + f64::from(n * n % 97) / 97.0).collect();
        let whole = extents(&values).columns[0];
        for centre in [2000.0, 2000.5, whole.mean] {
            let apart = || values.iter().map(|value| value - centre);
            let (sum, squares) = (apart().sum(), apart().map(|apart| apart * apart).sum());
            let around = Around { centre, sum, squares, least: whole.least, greatest: whole.greatest };
            let got = Extents::around(1000, &[around, around]);
            assert_eq!((got.rows(), got.features()), (1000, 1));
            let got = got.columns[0];
            assert!((got.mean / whole.mean - 1.0).abs() < 1e-14, "{got:?} {whole:?}");
            assert!((got.squares / whole.squares - 1.0).abs() < 1e-12, "{got:?} {whole:?}");
        }
    }

    #[test]
    fn constants_are_seen_and_sums_that_are_no_numbers_refused() {
        for values in [[0.1; 7], [1e300; 7], [0.0; 7]] {
            let scaling = Scaling::new(&extents(&values), Intercept::Fitted);
            assert!(scaling.map_or(values[0] > 1e200, |scaling| scaling.is_constant[0]), "{values:?}");
        }
        let scaling = Scaling::new(&extents(&[2.0; 7]), Intercept::None);
        assert!(scaling.is_ok_and(|scaling| !scaling.is_constant[0] && scaling.scales[0] == 0.5));
        let huge = extents(&[1e200, -1e200]);
        assert_eq!(Scaling::new(&huge, Intercept::Fitted), Err(Error::Range { feature: 0 }));
    }
}
