//! Probabilities of test statistics.
//!
//! The normal distribution uses the C library's `erfc`. Student's distribution is the regularized
//! incomplete beta function `I(x; a, b)` with `a = d/2`, `b = 1/2`, by the continued fraction of
//! DLMF 8.17.22, evaluated by Lentz's method, on the side where it converges fast.

use std::f64::consts::{PI, SQRT_2};

/// Returns the probability that a standard normal number is this far from 0, or further.
pub(crate) fn normal_p_value(z: f64) -> f64 {
    libm::erfc(z.abs() / SQRT_2)
}

/// Returns the same for Student's distribution with `degrees` degrees of freedom:
/// `I(d / (d + t²); d/2, 1/2)`.
pub(crate) fn student_p_value(t: f64, degrees: f64) -> f64 {
    if !t.is_finite() {
        return if t.is_nan() { f64::NAN } else { 0.0 };
    }
    let (a, b) = (degrees / 2.0, 0.5);
    // Both are computed directly: if one is near 1, subtraction would lose the other.
    let (x, y) = (degrees / (degrees + t * t), t * t / (degrees + t * t));
    if y == 0.0 {
        return 1.0;
    }
    let front = (-log_beta_half(a) + a * (-y).ln_1p() + b * y.ln()).exp();
    let p = match x < (a + 1.0) / (a + b + 2.0) {
        true => front * continued_fraction(x, a, b) / a,
        false => 1.0 - front * continued_fraction(y, b, a) / b,
    };
    p.clamp(0.0, 1.0)
}

/// Returns `log B(a, 1/2)`. A difference of large logarithms is mostly rounding error: for large
/// `a` its series is exact.
fn log_beta_half(a: f64) -> f64 {
    const LARGE: f64 = 50.0;
    let log_ratio = match a < LARGE {
        true => libm::lgamma(a + 0.5) - libm::lgamma(a),
        false => 0.5 * a.ln() - 1.0 / (8.0 * a) + 1.0 / (192.0 * a.powi(3)) - 1.0 / (640.0 * a.powi(5)),
    };
    0.5 * PI.ln() - log_ratio
}

fn continued_fraction(x: f64, a: f64, b: f64) -> f64 {
    /// The number of terms is about the square root of `a`, times a small factor: sufficient for
    /// any number of rows.
    const MOST_TERMS: u32 = 1_000_000;
    const TINY: f64 = 1e-300;
    let kept = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / kept(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for term in 1..=MOST_TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / kept(1.0 + even * d);
        c = kept(1.0 + even / c);
        value *= c * d;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / kept(1.0 + odd * d);
        c = kept(1.0 + odd / c);
        let factor = c * d;
        value *= factor;
        if (factor - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From SciPy 1.17: `2 * norm.sf(z)`, `2 * t.sf(t, d)`.
    #[test]
    fn they_are_scipys() {
        for (z, expected) in NORMAL {
            assert!((normal_p_value(z) / expected - 1.0).abs() < 1e-12, "{z}: {}", normal_p_value(z));
        }
        for (t, degrees, expected) in STUDENT {
            let p = student_p_value(t, degrees);
            assert!((p / expected - 1.0).abs() < 1e-10, "{t}, {degrees}: {p} instead of {expected}");
        }
    }

    const NORMAL: [(f64, f64); 6] = [
        (0.0, 1.0),
        (1.0, 0.31731050786291415),
        (-1.959963984540054, 0.05),
        (5.0, 5.733031437583866e-07),
        (12.0, 3.552964224155306e-33),
        (35.0, 2.2498214129448122e-268),
    ];
    const STUDENT: [(f64, f64, f64); 10] = [
        (1.0, 1.0, 0.5000000000000001),
        (0.001, 3.0, 0.9992648949694609),
        (2.0, 10.0, 0.07338803477074037),
        (-4.5, 25.0, 0.00013619005105880118),
        (1.96, 99.0, 0.052807113750970754),
        (30.0, 100.0, 8.380332558688329e-52),
        (1.96, 101.0, 0.05275124950878238),
        (1.96, 1e6, 0.04999606758526985),
        (-8.0, 4e7, 1.2442249550150292e-15),
        (0.01, 4e7, 0.992021287420607),
    ];
}
