//! The inner loop: the sums of one block of rows, at one point.
//!
//! ```text
//! chunk:  x0 ████████████████████…  512 rows of it, scaled, in the first   z0 ████  z1 ████ …
//!         x1 ████████████████████…  cache level:
//!         y  ████████████████████…  linear predictor ─► weights w,         w  ████  r  ████
//!                                   residuals r                            wz ████ (one feature's)
//!         Σ w, Σ r;  Σ w z, Σ r z;
//!         Σ wz z': four products at a time, so that wz is loaded once for four
//! ```
//! A sum has eight lanes, regardless of the width of the processor's registers, which are added in
//! one order. The bits of a sum depend on the processor only by fused multiplication and addition.
//! Padding behind the last row of the last block has neither weight nor residual.
//!
//! The loops are written for the compiler to vectorise. They are compiled three times, and selected
//! by the processor at run time.

use crate::exp::{Arithmetic, Fused, Separate, exp_of_negative};
use crate::sums::Sums;
use crate::{Chunk, Family, Scaling};

/// The rows of a block. Ten columns of them fit the first cache level.
const ROWS: usize = 512;
/// The partial sums of a sum.
const LANES: usize = 8;
/// The number of products at a time.
const TILE: usize = 4;
/// A linear predictor that is certain of its label, for padding.
const CERTAIN: f64 = 800.0;

type Column = [f64; ROWS];

/// The positions of sums in the totals of a pass, for a number of features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The number of terms, with the intercept.
    pub terms: usize,
}

impl Layout {
    /// The log-likelihood, or for least squares the sum of squares.
    pub const FIT: usize = 0;
    /// The number of misclassified rows.
    pub const WRONG: usize = 1;
    /// The gradient: a number for each term, the intercept first.
    pub const GRADIENT: usize = 2;

    /// Creates the layout for a number of features.
    pub fn new(features: usize) -> Self {
        Self { terms: features + 1 }
    }

    /// Returns the position of the information, the lower triangle, row by row.
    pub fn information(self) -> usize {
        Self::GRADIENT + self.terms
    }

    /// Returns the number of sums.
    pub fn count(self) -> usize {
        self.information() + self.terms * (self.terms + 1) / 2
    }
}

/// The buffers of a thread that adds blocks.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    z: Vec<Column>,
    eta: Box<Column>,
    w: Box<Column>,
    r: Box<Column>,
    wz: Box<Column>,
    /// The block's sums.
    sums: Vec<f64>,
}

impl Scratch {
    /// Creates the buffers for a number of features.
    pub fn new(features: usize) -> Self {
        let column = || Box::new([0.0; ROWS]);
        let sums = vec![0.0; Layout::new(features).count()];
        Self { z: vec![[0.0; ROWS]; features], eta: column(), w: column(), r: column(), wz: column(), sums }
    }
}

/// The point at which blocks are added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    /// The family of the model.
    pub family: Family,
    /// The scaling of the features.
    pub scaling: &'a Scaling,
    /// The coefficients, scaled, the intercept first.
    pub coefficients: &'a [f64],
}

/// Adds the sums of a chunk's rows.
pub(crate) fn add(chunk: &Chunk, at: At<'_>, scratch: &mut Scratch, sums: &mut Sums) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            // SAFETY: the processor has the features that the function was compiled for.
            return unsafe { add_avx512(chunk, at, scratch, sums) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { add_avx2(chunk, at, scratch, sums) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    return add_blocks::<Fused>(chunk, at, scratch, sums);
    #[cfg(not(target_arch = "aarch64"))]
    add_blocks::<Separate>(chunk, at, scratch, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,fma")]
fn add_avx512(chunk: &Chunk, at: At<'_>, scratch: &mut Scratch, sums: &mut Sums) {
    add_blocks::<Fused>(chunk, at, scratch, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn add_avx2(chunk: &Chunk, at: At<'_>, scratch: &mut Scratch, sums: &mut Sums) {
    add_blocks::<Fused>(chunk, at, scratch, sums);
}

#[inline(always)]
fn add_blocks<A: Arithmetic>(chunk: &Chunk, at: At<'_>, scratch: &mut Scratch, sums: &mut Sums) {
    let mut first = 0;
    while first < chunk.rows() {
        let rows = ROWS.min(chunk.rows() - first);
        predict::<A>(chunk, first, rows, at, scratch);
        let target = &chunk.target()[first..first + rows];
        let (fit, wrong) = match at.family {
            Family::Logistic => logistic::<A>(target, scratch),
            Family::Gaussian => gaussian::<A>(target, at.scaling.target_centre, scratch),
        };
        scratch.sums[Layout::FIT] = fit;
        scratch.sums[Layout::WRONG] = wrong;
        products::<A>(scratch);
        sums.add(&scratch.sums);
        first += rows;
    }
}

/// Scales a block's features, and computes the linear predictor of each row.
#[inline(always)]
fn predict<A: Arithmetic>(chunk: &Chunk, first: usize, rows: usize, at: At<'_>, scratch: &mut Scratch) {
    scratch.eta.fill(at.coefficients[0]);
    for (feature, z) in scratch.z.iter_mut().enumerate() {
        let x = &chunk.feature(feature)[first..first + rows];
        let (centre, scale) = (at.scaling.centres[feature], at.scaling.scales[feature]);
        let coefficient = at.coefficients[feature + 1];
        for ((z, x), eta) in z.iter_mut().zip(x).zip(scratch.eta.iter_mut()) {
            *z = (x - centre) * scale;
            *eta = A::mul_add(coefficient, *z, *eta);
        }
        z[rows..].fill(0.0);
    }
}

/// Computes, for `P(y = 1) = 1 / (1 + exp(-eta))`, the weights `p (1 - p)` and the residuals
/// `y - p`. Returns the log-likelihood, and the number of misclassified rows.
///
/// With the margin `m`, the linear predictor with the label's sign, and `e = exp(-|m|)`, no
/// precision is lost if `p` is near 0 or 1. `sum log(1 + e)` is the logarithm of a product: of 64
/// factors of at most 2 in each lane.
#[inline(always)]
fn logistic<A: Arithmetic>(target: &[f64], scratch: &mut Scratch) -> (f64, f64) {
    let (eta, w, r, es) = (&mut *scratch.eta, &mut *scratch.w, &mut *scratch.r, &mut *scratch.wz);
    let rows = target.len();
    for (r, y) in r.iter_mut().zip(target) {
        *r = y + y - 1.0;
    }
    // Padding is certain, and not misclassified.
    r[rows..].fill(1.0);
    eta[rows..].fill(CERTAIN);
    for (((eta, w), r), e) in eta.iter_mut().zip(w.iter_mut()).zip(r.iter_mut()).zip(es.iter_mut()) {
        let sign = *r;
        let margin = sign * *eta;
        *e = exp_of_negative::<A>(-margin.abs());
        let d = 1.0 / (1.0 + *e);
        *w = *e * d * d;
        *r = sign * if margin > 0.0 { *e * d } else { d };
        *eta = margin;
    }
    let (mut products, mut hinges, mut wrongs) = ([1.0; LANES], [0.0; LANES], [0.0; LANES]);
    for (margins, es) in lanes(eta).iter().zip(lanes(es)) {
        for lane in 0..LANES {
            products[lane] *= 1.0 + es[lane];
            hinges[lane] += margins[lane].min(0.0);
            wrongs[lane] += if margins[lane] > 0.0 { 0.0 } else { 1.0 };
        }
    }
    w[rows..].fill(0.0);
    r[rows..].fill(0.0);
    let logarithms = products.map(f64::ln);
    (total(&hinges) - total(&logarithms), total(&wrongs))
}

/// Computes weights of 1, and residuals. Returns the sum of their squares.
#[inline(always)]
fn gaussian<A: Arithmetic>(target: &[f64], centre: f64, scratch: &mut Scratch) -> (f64, f64) {
    let (eta, w, r) = (&*scratch.eta, &mut *scratch.w, &mut *scratch.r);
    let rows = target.len();
    w[..rows].fill(1.0);
    for ((r, y), eta) in r.iter_mut().zip(target).zip(eta) {
        *r = y - centre - eta;
    }
    w[rows..].fill(0.0);
    r[rows..].fill(0.0);
    let [squares] = dots::<A, 1>(r, [r]);
    (squares, 0.0)
}

/// Computes the gradient and the information of weights and residuals.
#[inline(always)]
fn products<A: Arithmetic>(scratch: &mut Scratch) {
    let Scratch { z, w, r, wz, sums, .. } = scratch;
    let features = z.len();
    let (gradient, information) = sums[Layout::GRADIENT..].split_at_mut(features + 1);
    gradient[0] = sum(r);
    information[0] = sum(w);
    let mut row = 1;
    for feature in 0..features {
        let (weighted, slope) = weigh::<A>(&z[feature], w, r, wz);
        gradient[feature + 1] = slope;
        information[row] = weighted;
        let out = &mut information[row + 1..row + feature + 2];
        let mut other = 0;
        while other + TILE <= out.len() {
            let tile = dots::<A, TILE>(wz, [&z[other], &z[other + 1], &z[other + 2], &z[other + 3]]);
            out[other..other + TILE].copy_from_slice(&tile);
            other += TILE;
        }
        for (out, z) in out[other..].iter_mut().zip(&z[other..]) {
            [*out] = dots::<A, 1>(wz, [z]);
        }
        row += feature + 2;
    }
}

/// Multiplies a column by the weights. Returns its sum, and that of the column times the residuals.
#[inline(always)]
fn weigh<A: Arithmetic>(z: &Column, w: &Column, r: &Column, wz: &mut Column) -> (f64, f64) {
    let (mut weighted, mut slopes) = ([0.0; LANES], [0.0; LANES]);
    for ((z, w), wz) in z.iter().zip(w).zip(wz.iter_mut()) {
        *wz = z * w;
    }
    for ((z, r), wz) in lanes(z).iter().zip(lanes(r)).zip(lanes(wz)) {
        for lane in 0..LANES {
            weighted[lane] += wz[lane];
            slopes[lane] = A::mul_add(z[lane], r[lane], slopes[lane]);
        }
    }
    (total(&weighted), total(&slopes))
}

/// Returns the dot products of a column with others.
#[inline(always)]
fn dots<A: Arithmetic, const N: usize>(a: &Column, others: [&Column; N]) -> [f64; N] {
    let mut sums = [[0.0; LANES]; N];
    let others = others.map(lanes);
    for (at, a) in lanes(a).iter().enumerate() {
        for (sum, other) in sums.iter_mut().zip(others) {
            for lane in 0..LANES {
                sum[lane] = A::mul_add(a[lane], other[at][lane], sum[lane]);
            }
        }
    }
    sums.map(|sum| total(&sum))
}

#[inline(always)]
fn sum(values: &Column) -> f64 {
    let mut sums = [0.0; LANES];
    for values in lanes(values) {
        for lane in 0..LANES {
            sums[lane] += values[lane];
        }
    }
    total(&sums)
}

/// Returns a column as consecutive groups of one value for each lane.
#[inline(always)]
fn lanes(column: &Column) -> &[[f64; LANES]; ROWS / LANES] {
    // There are only whole groups.
    const { assert!(ROWS.is_multiple_of(LANES)) };
    // SAFETY: both are ROWS consecutive doubles.
    unsafe { &*std::ptr::from_ref(column).cast() }
}

#[inline(always)]
fn total(lanes: &[f64; LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Extents, Intercept};

    /// Returns pseudorandom numbers between -1 and 1.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    /// Computes the sums by their definition.
    fn expected(chunk: &Chunk, at: At<'_>) -> Vec<f64> {
        let layout = Layout::new(chunk.features());
        let mut sums = vec![0.0; layout.count()];
        for row in 0..chunk.rows() {
            let mut z = vec![1.0];
            z.extend((0..chunk.features()).map(|feature| {
                (chunk.feature(feature)[row] - at.scaling.centres[feature]) * at.scaling.scales[feature]
            }));
            let eta: f64 = z.iter().zip(at.coefficients).map(|(z, coefficient)| z * coefficient).sum();
            let y = chunk.target()[row];
            let (fit, w, r) = match at.family {
                Family::Logistic => {
                    let p = 1.0 / (1.0 + (-eta).exp());
                    (y * eta - eta.exp().ln_1p(), p * (1.0 - p), y - p)
                }
                Family::Gaussian => {
                    let r = y - at.scaling.target_centre - eta;
                    (r * r, 1.0, r)
                }
            };
            sums[Layout::FIT] += fit;
            if at.family == Family::Logistic {
                sums[Layout::WRONG] += f64::from(u8::from((2.0 * y - 1.0) * eta <= 0.0));
            }
            let mut place = layout.information();
            for (term, value) in z.iter().enumerate() {
                sums[Layout::GRADIENT + term] += r * value;
                for other in &z[..=term] {
                    sums[place] += w * value * other;
                    place += 1;
                }
            }
        }
        sums
    }

    #[test]
    fn every_way_of_compiling_gives_the_sums_that_one_would_write_down() {
        for (rows, features) in [(1, 1), (7, 2), (511, 3), (512, 4), (513, 5), (1300, 9), (3, 0), (2048, 6)] {
            let mut next = noise(rows as u64 + 31);
            let mut columns: Vec<Vec<f64>> =
                (0..features).map(|feature| (0..rows).map(|_| next() * 3.0 + feature as f64).collect()).collect();
            columns.push((0..rows).map(|_| f64::from(u8::from(next() > 0.2))).collect());
            let chunk = Chunk::of_columns(&columns.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let scaling = Scaling::new(&Extents::of(&chunk), Intercept::Fitted).unwrap();
            let coefficients: Vec<f64> = (0..=features).map(|_| next() * 2.0).collect();
            for family in [Family::Logistic, Family::Gaussian] {
                let at = At { family, scaling: &scaling, coefficients: &coefficients };
                let expected = expected(&chunk, at);
                let run = |add: &dyn Fn(&Chunk, At<'_>, &mut Scratch, &mut Sums)| {
                    let mut sums = Sums::new(expected.len());
                    add(&chunk, at, &mut Scratch::new(features), &mut sums);
                    let totals = sums.totals();
                    for (got, expected) in totals.iter().zip(&expected) {
                        assert!(
                            (got - expected).abs() <= 1e-11 * (1.0 + rows as f64).max(expected.abs()),
                            "{rows} rows, {features} features: {got} instead of {expected}"
                        );
                    }
                    totals
                };
                run(&add);
                run(&add_blocks::<Separate>);
                let fused = run(&add_blocks::<Fused>);
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has both.
                    assert_eq!(run(&|chunk, at, scratch, sums| unsafe { add_avx2(chunk, at, scratch, sums) }), fused);
                }
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
                    // SAFETY: the processor has both.
                    assert_eq!(run(&|chunk, at, scratch, sums| unsafe { add_avx512(chunk, at, scratch, sums) }), fused);
                }
            }
        }
    }
}
