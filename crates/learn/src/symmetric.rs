//! Symmetric matrices of some terms: Cholesky's decomposition without the columns that depend on
//! earlier ones, solutions, inverses, and the largest eigenvalue by Jacobi's method.
//!
//! The matrices are small, `terms x terms`. They are made of sums over all rows, which take nearly
//! all of the time.

/// The fraction of a column's variance below which the column depends on earlier ones, and the rest
/// is rounding error.
const DEPENDENT: f64 = 1e-11;
/// The maximum number of sweeps of Jacobi's method, which takes about six.
const MOST_SWEEPS: usize = 60;

/// A symmetric matrix, whole, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Symmetric {
    order: usize,
    values: Vec<f64>,
}

impl Symmetric {
    /// Creates a matrix of zeros.
    pub fn zero(order: usize) -> Self {
        Self { order, values: vec![0.0; order * order] }
    }

    /// Creates a matrix from its lower triangle, row by row.
    pub fn of_lower(order: usize, lower: &[f64]) -> Self {
        let mut matrix = Self::zero(order);
        let mut values = lower.iter();
        for row in 0..order {
            for column in 0..=row {
                let value = values.next().copied().unwrap_or(0.0);
                matrix.set(row, column, value);
            }
        }
        matrix
    }

    /// Returns a value.
    pub fn get(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.order + column]
    }

    /// Sets a value and its mirror image.
    pub fn set(&mut self, row: usize, column: usize, value: f64) {
        self.values[row * self.order + column] = value;
        self.values[column * self.order + row] = value;
    }

    /// Adds to a value on the diagonal.
    pub fn add_to_diagonal(&mut self, place: usize, value: f64) {
        self.values[place * self.order + place] += value;
    }

    /// Returns true if all values are finite.
    pub fn is_finite(&self) -> bool {
        self.values.iter().all(|value| value.is_finite())
    }

    /// Returns only the rows and columns at these places.
    pub fn part(&self, places: &[usize]) -> Self {
        let mut part = Self::zero(places.len());
        for (row, &from) in places.iter().enumerate() {
            for (column, &other) in places[..=row].iter().enumerate() {
                part.set(row, column, self.get(from, other));
            }
        }
        part
    }

    /// Returns `t' m t` for a square `t`, given as its columns.
    pub fn transformed(&self, columns: &[Vec<f64>]) -> Self {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut result = Self::zero(self.order);
        for (place, column) in columns.iter().enumerate() {
            let product: Vec<f64> = self.values.chunks(self.order.max(1)).map(|row| dot(row, column)).collect();
            for (other, column) in columns[..=place].iter().enumerate() {
                result.set(place, other, dot(&product, column));
            }
        }
        result
    }

    /// Returns the largest eigenvalue of a matrix without negative ones: Jacobi's rotations, cyclic
    /// (Golub and Van Loan, 8.5).
    pub fn largest_eigenvalue(&self) -> f64 {
        let mut m = self.clone();
        let order = m.order;
        for _ in 0..MOST_SWEEPS {
            let mut has_rotated = false;
            for p in 0..order {
                for q in p + 1..order {
                    let off = m.get(p, q);
                    if off.abs() <= f64::EPSILON * (m.get(p, p) * m.get(q, q)).abs().sqrt() || off == 0.0 {
                        continue;
                    }
                    has_rotated = true;
                    m.rotate(p, q);
                }
            }
            if !has_rotated {
                break;
            }
        }
        (0..order).map(|place| m.get(place, place)).fold(0.0, f64::max)
    }

    /// Rotates so that the value at `(p, q)` becomes zero.
    fn rotate(&mut self, p: usize, q: usize) {
        let (pp, qq, pq) = (self.get(p, p), self.get(q, q), self.get(p, q));
        let tau = (qq - pp) / (2.0 * pq);
        let t = tau.signum() / (tau.abs() + tau.hypot(1.0));
        let c = 1.0 / t.hypot(1.0);
        let s = t * c;
        for k in 0..self.order {
            if k == p || k == q {
                continue;
            }
            let (kp, kq) = (self.get(k, p), self.get(k, q));
            self.set(k, p, c * kp - s * kq);
            self.set(k, q, s * kp + c * kq);
        }
        self.set(p, p, pp - t * pq);
        self.set(q, q, qq + t * pq);
        self.set(p, q, 0.0);
    }
}

/// A place that depends on earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dependent {
    /// The place.
    pub place: usize,
    /// The places it depends on, with their factors.
    pub on: Vec<(usize, f64)>,
}

/// Cholesky's decomposition `l l'` of those rows and columns that depend on no earlier ones.
#[derive(Clone, Debug)]
pub(crate) struct Cholesky {
    /// The places of these in the matrix.
    places: Vec<usize>,
    /// The rows of `l`.
    lower: Vec<Vec<f64>>,
    /// The dependent places.
    pub dependent: Vec<Dependent>,
}

impl Cholesky {
    /// Decomposes a matrix without negative eigenvalues, in the order of its places. The rest of a
    /// column is compared with the whole, so that scales do not matter.
    pub fn new(matrix: &Symmetric) -> Self {
        let mut this = Self { places: Vec::new(), lower: Vec::new(), dependent: Vec::new() };
        for place in 0..matrix.order {
            let column: Vec<f64> = this.places.iter().map(|&other| matrix.get(place, other)).collect();
            let row = this.forward(&column);
            let whole = matrix.get(place, place);
            let left = whole - row.iter().map(|value| value * value).sum::<f64>();
            if left > DEPENDENT * whole && whole.is_finite() {
                let mut row = row;
                row.push(left.sqrt());
                this.lower.push(row);
                this.places.push(place);
            } else {
                let on = this.places.iter().copied().zip(this.backward(row)).collect();
                this.dependent.push(Dependent { place, on });
            }
        }
        this
    }

    /// Returns the places that depend on no others.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Returns `x` of `m x = b`, over the places that are left.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        self.backward(self.forward(b))
    }

    /// Returns the inverse, over the places that are left.
    pub fn inverse(&self) -> Symmetric {
        let order = self.places.len();
        let mut inverse = Symmetric::zero(order);
        for column in 0..order {
            let mut unit = vec![0.0; order];
            unit[column] = 1.0;
            for (row, value) in self.solve(&unit).into_iter().enumerate().skip(column) {
                inverse.set(row, column, value);
            }
        }
        inverse
    }

    /// Solves `l x = b`.
    fn forward(&self, b: &[f64]) -> Vec<f64> {
        let mut x = Vec::with_capacity(b.len() + 1);
        for (row, value) in self.lower.iter().zip(b) {
            let known: f64 = row.iter().zip(&x).map(|(l, x)| l * x).sum();
            x.push((value - known) / row[x.len()]);
        }
        x
    }

    /// Solves `l' x = b`.
    fn backward(&self, mut b: Vec<f64>) -> Vec<f64> {
        for place in (0..b.len()).rev() {
            let row = &self.lower[place];
            b[place] /= row[place];
            for before in 0..place {
                b[before] -= row[before] * b[place];
            }
        }
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_others_is_left_out_and_said_of_what() {
        // The third column is twice the first minus the second.
        let rows = [[1.0, 0.5, 1.5], [2.0, -1.0, 5.0], [0.0, 3.0, -3.0], [1.0, 1.0, 1.0]];
        let mut m = Symmetric::zero(3);
        for i in 0..3 {
            for j in 0..=i {
                m.set(i, j, rows.iter().map(|row| row[i] * row[j]).sum());
            }
        }
        let cholesky = Cholesky::new(&m);
        assert_eq!(cholesky.places(), [0, 1]);
        let [Dependent { place: 2, on }] = cholesky.dependent.as_slice() else { panic!("{cholesky:?}") };
        assert!((on[0].1 - 2.0).abs() < 1e-9 && (on[1].1 + 1.0).abs() < 1e-9, "{on:?}");
        let x = cholesky.solve(&[1.0, 2.0]);
        let back: Vec<f64> = (0..2).map(|i| m.get(i, 0) * x[0] + m.get(i, 1) * x[1]).collect();
        assert!((back[0] - 1.0).abs() < 1e-12 && (back[1] - 2.0).abs() < 1e-12);
        let unit = cholesky.inverse();
        assert!((unit.get(0, 0) * m.get(0, 0) + unit.get(0, 1) * m.get(1, 0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_largest_eigenvalue_is_what_it_is() {
        let m = Symmetric::of_lower(3, &[2.0, -1.0, 2.0, 0.0, -1.0, 2.0]);
        assert!((m.largest_eigenvalue() - (2.0 + 2f64.sqrt())).abs() < 1e-12);
        assert_eq!(Symmetric::of_lower(2, &[1.0, 0.0, 1e12]).largest_eigenvalue(), 1e12);
        assert_eq!(Symmetric::zero(0).largest_eigenvalue(), 0.0);
    }
}
