//! Random numbers, and keys drawn by them.
//!
//! - Zipf's law: rank `k` of `n` has a probability proportional to `k^-s`. Ranks are drawn by
//!   rejection-inversion (Hörmann, Derflinger: "Rejection-inversion to generate variates from
//!   monotone discrete distributions", 1996), which is exact for every exponent `s > 0`. The
//!   generator of YCSB, by Gray and others, holds for `s < 1` alone.
//! - *Plain*: the rank is the key, so that frequent keys are neighbours. *Scrambled*: the key is a
//!   hash of the rank, modulo the keys, as in YCSB. Neighbours are unrelated then, and ranks may
//!   share a key.

use serde::{Deserialize, Serialize};

use crate::generate::random::{GOLDEN, mix};

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(GOLDEN)))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number in `0..n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles numbers (Fisher and Yates).
    pub fn shuffle(&mut self, all: &mut [u32]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// The mapping of ranks to keys of a Zipf distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The rank is the key.
    Plain,
    /// The rank's hash is the key.
    Scrambled,
}

impl Order {
    /// All, by name.
    pub const ALL: [(&'static str, Order); 2] = [("plain", Order::Plain), ("scrambled", Order::Scrambled)];
}

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "distribution")]
pub enum Distribution {
    /// All equally likely.
    Uniform,
    /// By Zipf's law.
    Zipf {
        /// The exponent.
        exponent: f64,
        /// The mapping of ranks to keys.
        order: Order,
    },
}

/// A generator of keys.
#[derive(Clone, Debug)]
pub struct Keys {
    random: Random,
    count: u64,
    zipf: Option<(Zipf, Order)>,
}

impl Keys {
    /// Draws from `0..count`; `count` must not be 0.
    pub fn new(distribution: Distribution, count: u64, seed: u64) -> Self {
        let zipf = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf { exponent, order } => Some((Zipf::new(count, exponent), order)),
        };
        Self { random: Random::new(seed), count, zipf }
    }

    /// Returns the next key.
    pub fn draw(&mut self) -> u64 {
        match &self.zipf {
            None => self.random.below(self.count),
            Some((zipf, order)) => {
                let rank = zipf.draw(&mut self.random) - 1;
                match order {
                    Order::Plain => rank,
                    Order::Scrambled => mix(rank.wrapping_add(GOLDEN)) % self.count,
                }
            }
        }
    }
}

/// A generator of Zipf ranks, from 1.
#[derive(Clone, Debug)]
struct Zipf {
    count: f64,
    exponent: f64,
    /// The integral of the hat at the ends of its range.
    first: f64,
    last: f64,
    /// Ranks this close to their variate are accepted without a test.
    near: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self { count: count as f64, exponent, first: 0.0, last: 0.0, near: 0.0 };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// Returns the integral of the weight from 1 to `x`: `(x^(1-s) - 1) / (1-s)`, or the logarithm
    /// if `s` is 1.
    fn integral(&self, x: f64) -> f64 {
        let (log, power) = (x.ln(), 1.0 - self.exponent);
        if (power * log).abs() < 1e-8 { log * (1.0 + power * log / 2.0) } else { (power * log).exp_m1() / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        let t = (area * power).max(-1.0);
        if t.abs() < 1e-8 { (area * (1.0 - t / 2.0)).exp() } else { (t.ln_1p() / power).exp() }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.last + random.unit() * (self.first - self.last);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.near || area >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_up_as_the_law_says() {
        for exponent in [0.5, 0.99, 1.0, 1.2, 1.5, 3.0] {
            const DRAWS: u64 = 400_000;
            let zipf = Zipf::new(1000, exponent);
            let mut random = Random::new(11);
            let mut counts = vec![0u64; 1001];
            for _ in 0..DRAWS {
                counts[zipf.draw(&mut random) as usize] += 1;
            }
            let all: f64 = (1..=1000).map(|k| f64::from(k).powf(-exponent)).sum();
            for k in [1u32, 2, 3, 7, 30] {
                let expected = DRAWS as f64 * f64::from(k).powf(-exponent) / all;
                let found = counts[k as usize] as f64;
                // Five standard deviations.
                assert!((found - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{exponent} {k}: {found}, {expected}");
            }
            let tail: f64 = (501..=1000).map(|k| f64::from(k).powf(-exponent)).sum::<f64>() * DRAWS as f64 / all;
            let found: u64 = counts[501..].iter().sum();
            assert!((found as f64 - tail).abs() < 5.0 * tail.sqrt() + 5.0, "{exponent}: {found} in the tail, {tail}");
        }
    }

    #[test]
    fn the_first_key_is_hot_wherever_it_lies() {
        let common = |order| {
            let mut keys = Keys::new(Distribution::Zipf { exponent: 1.5, order }, 1 << 20, 3);
            let drawn: Vec<u64> = (0..10_000).map(|_| keys.draw()).collect();
            assert!(drawn.iter().all(|key| *key < 1 << 20));
            let share = |key| drawn.iter().filter(|one| **one == key).count() as f64 / 10_000.0;
            let hottest = drawn.iter().take(50).copied().max_by(|a, b| share(*a).total_cmp(&share(*b))).unwrap_or(0);
            (hottest, share(hottest))
        };
        // 1 / zeta(1.5) is 0.383.
        let ((plain, a), (scrambled, b)) = (common(Order::Plain), common(Order::Scrambled));
        assert_eq!(plain, 0);
        assert_ne!(scrambled, 0);
        assert!((0.36..0.40).contains(&a) && (0.36..0.40).contains(&b), "{a} {b}");
    }

    #[test]
    fn uniform_keys_are_spread_evenly() {
        let mut keys = Keys::new(Distribution::Uniform, 10, 5);
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[keys.draw() as usize] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
    }
}
