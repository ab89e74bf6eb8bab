//! Compares one report with another, point by point. A ratio above 1 is better than the base, for
//! rates as for latencies.

use super::{Point, Report};

/// A point that both reports have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The point.
    pub point: Point,
    /// The rate in the base.
    pub base_bytes_per_sec: f64,
    /// The rate now.
    pub bytes_per_sec: f64,
    /// The ratio of the rate now to that of the base.
    pub rate: f64,
    /// The ratio of the base's median latency to the latency now.
    pub p50: f64,
    /// The same ratio of the 99th percentiles.
    pub p99: f64,
}

/// The comparison of two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The points of both, in the order of the later one.
    pub points: Vec<Compared>,
    /// The number of points that only one has.
    pub unmatched: usize,
}

impl Comparison {
    /// Compares a base with a later report.
    pub fn of(base: &Report, now: &Report) -> Self {
        let mut points = Vec::new();
        for new in &now.points {
            let Some(old) = base.points.iter().find(|old| old.figures.point == new.figures.point) else { continue };
            let (then, now) = (&old.figures, &new.figures);
            points.push(Compared {
                point: now.point,
                base_bytes_per_sec: then.bytes_per_sec,
                bytes_per_sec: now.bytes_per_sec,
                rate: ratio(now.bytes_per_sec, then.bytes_per_sec),
                p50: ratio(then.latency.p50_us, now.latency.p50_us),
                p99: ratio(then.latency.p99_us, now.latency.p99_us),
            });
        }
        let alone = |of: &Report, other: &Report| {
            let is_there = |point| other.points.iter().any(|other| other.figures.point == point);
            of.points.iter().filter(|one| !is_there(one.figures.point)).count()
        };
        let unmatched = alone(base, now) + alone(now, base);
        Self { points, unmatched }
    }

    /// Returns the lowest ratio of rates, or `None` if no point could be compared.
    pub fn lowest(&self) -> Option<f64> {
        self.points.iter().map(|point| point.rate).min_by(f64::total_cmp)
    }

    /// Returns the geometric mean of the ratios of rates.
    pub fn geometric_mean(&self) -> Option<f64> {
        let logs = self.points.iter().map(|point| point.rate.max(f64::MIN_POSITIVE).ln());
        (!self.points.is_empty()).then(|| (logs.sum::<f64>() / self.points.len() as f64).exp())
    }
}

/// Returns the ratio, or 1 if both are zero.
fn ratio(a: f64, b: f64) -> f64 {
    match (a > 0.0, b > 0.0) {
        (false, false) => 1.0,
        (true, false) => f64::INFINITY,
        _ => a / b,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::report::tests::{figures, report};
    use super::super::{Rw, Way};
    use super::*;

    #[test]
    fn points_that_both_have_are_compared() {
        let of = |way, rate| figures(Rw::Read, way, 4096, 1, 1, rate);
        let base = report(vec![of(Way::Host, 1e9), of(Way::Buffered, 1e9), of(Way::Uring, 0.0)]);
        let mut faster = of(Way::Buffered, 4e9);
        faster.latency.p50_us /= 3.0;
        let now = report(vec![faster, of(Way::Uring, 0.0), of(Way::UringBuffered, 1.0), of(Way::Host, 0.5e9)]);
        let comparison = Comparison::of(&base, &now);
        let ratios: Vec<(Way, f64, f64)> = comparison.points.iter().map(|c| (c.point.way, c.rate, c.p50)).collect();
        assert_eq!(ratios, [(Way::Buffered, 4.0, 3.0), (Way::Uring, 1.0, 1.0), (Way::Host, 0.5, 1.0)]);
        assert_eq!((comparison.unmatched, comparison.lowest()), (1, Some(0.5)));
        assert!((comparison.geometric_mean().unwrap() - 2f64.powf(1.0 / 3.0)).abs() < 1e-12);
        let nothing = Comparison::of(&report(Vec::new()), &now);
        assert_eq!((nothing.lowest(), nothing.geometric_mean(), nothing.unmatched), (None, None, 4));
    }
}
