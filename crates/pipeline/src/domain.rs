//! Static knowledge of a register: its type, its nullability, and the values it can hold.
//!
//! There is one integer type. Integers, decimals (unscaled), dates and timestamps all use it. The
//! number of bits that a backend gives a register follows from its [`Interval`], which starts from
//! zone maps and propagates through every expression. Thus a DECIMAL(38, 4) product whose values
//! fit 32 bits is computed in 32 bits.

use std::fmt;
use std::sync::Arc;

use crate::{Dictionary, LateTexts};

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// True or false.
    Bool,
    /// Integers, decimals without their point, dates, timestamps.
    Int,
    /// IEEE 754 double precision.
    Double,
    /// A code of a sorted dictionary.
    Text,
    /// The number of a row whose string is read on demand. Equal strings may have different
    /// numbers, and the order of numbers means nothing.
    LateText,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Double => "double",
            Type::Text => "text",
            Type::LateText => "late text",
        })
    }
}

/// Integers from `min` to `max`, both included. Empty if `min > max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The least.
    pub min: i128,
    /// The greatest.
    pub max: i128,
}

impl Interval {
    /// All integers.
    pub const ALL: Self = Self { min: i128::MIN, max: i128::MAX };
    /// No integer.
    pub const EMPTY: Self = Self { min: i128::MAX, max: i128::MIN };

    /// Creates the interval from `min` to `max`.
    pub const fn new(min: i128, max: i128) -> Self {
        Self { min, max }
    }

    /// Creates the interval of one integer.
    pub const fn of(value: i128) -> Self {
        Self { min: value, max: value }
    }

    /// Returns true if it holds no integer.
    pub fn is_empty(self) -> bool {
        self.min > self.max
    }

    /// Returns the number of integers, if it fits.
    pub fn count(self) -> Option<u128> {
        if self.is_empty() {
            return Some(0);
        }
        self.max.checked_sub(self.min).map(|span| span as u128 + 1)
    }

    /// Returns true if all of `other` lies within.
    pub fn contains(self, other: Self) -> bool {
        other.is_empty() || self.min <= other.min && other.max <= self.max
    }

    /// Returns the least interval around both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => Self { min: self.min.min(other.min), max: self.max.max(other.max) },
        }
    }

    /// Returns the integers that both hold.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self { min: self.min.max(other.min), max: self.max.min(other.max) }
    }

    /// Returns the greatest distance from zero, saturated.
    pub fn magnitude(self) -> u128 {
        if self.is_empty() { 0 } else { self.min.unsigned_abs().max(self.max.unsigned_abs()) }
    }

    /// Returns the interval of all sums; `None` if some do not fit 128 bits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.map2(other, i128::checked_add, |b| b)
    }

    /// Returns the interval of all differences; `None` if some do not fit 128 bits.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.map2(other, i128::checked_sub, |b| Self { min: b.max, max: b.min })
    }

    fn map2(self, other: Self, f: impl Fn(i128, i128) -> Option<i128>, arrange: impl Fn(Self) -> Self) -> Option<Self> {
        if self.is_empty() || other.is_empty() {
            return Some(Self::EMPTY);
        }
        let other = arrange(other);
        Some(Self { min: f(self.min, other.min)?, max: f(self.max, other.max)? })
    }

    /// Returns the interval of all products; `None` if some do not fit 128 bits.
    pub fn checked_mul(self, other: Self) -> Option<Self> {
        if self.is_empty() || other.is_empty() {
            return Some(Self::EMPTY);
        }
        let mut all = Self::EMPTY;
        for (a, b) in [(self.min, other.min), (self.min, other.max), (self.max, other.min), (self.max, other.max)] {
            all = all.union(Self::of(a.checked_mul(b)?));
        }
        Some(all)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("[..]"),
            all if all.is_empty() => f.write_str("[]"),
            Self { min, max } => write!(f, "[{min}..{max}]"),
        }
    }
}

/// Static knowledge of a register.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Its type.
    pub ty: Type,
    /// True if the register may be NULL.
    pub nullable: bool,
    /// The integers, codes or row numbers it can hold; [`Interval::ALL`] for doubles.
    pub interval: Interval,
    /// Dictionary of the codes of a string.
    pub dictionary: Option<Arc<Dictionary>>,
    /// Strings behind the numbers of a late string.
    pub late: Option<Arc<LateTexts>>,
}

impl Domain {
    /// Creates the domain of integers.
    pub fn int(interval: Interval, nullable: bool) -> Self {
        Self { ty: Type::Int, nullable, interval, dictionary: None, late: None }
    }

    /// Creates the domain of booleans.
    pub fn bool(nullable: bool) -> Self {
        Self { ty: Type::Bool, nullable, interval: Interval::new(0, 1), dictionary: None, late: None }
    }

    /// Creates the domain of doubles.
    pub fn double(nullable: bool) -> Self {
        Self { ty: Type::Double, nullable, interval: Interval::ALL, dictionary: None, late: None }
    }

    /// Creates the domain of strings of a dictionary.
    pub fn text(dictionary: Arc<Dictionary>, nullable: bool) -> Self {
        let interval = Interval::new(0, dictionary.len() as i128 - 1);
        Self { ty: Type::Text, nullable, interval, dictionary: Some(dictionary), late: None }
    }

    /// Creates the domain of strings that are read late.
    pub fn late_text(texts: Arc<LateTexts>, nullable: bool) -> Self {
        Self { ty: Type::LateText, nullable, interval: texts.numbers(), dictionary: None, late: Some(texts) }
    }

    /// Returns the name of late strings for an error message; `None` for other types. Late strings
    /// support no operation other than a read.
    pub(crate) fn late_name(&self) -> Option<String> {
        let unnamed = || "texts that are stored without a dictionary".into();
        (self.ty == Type::LateText).then(|| self.late.as_ref().map_or_else(unnamed, |texts| texts.name()))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ty)?;
        match self.ty {
            Type::Int => write!(f, "{}", self.interval)?,
            Type::Text | Type::LateText => write!(f, "({})", self.interval.count().unwrap_or(0))?,
            Type::Bool | Type::Double => {}
        }
        if self.nullable { f.write_str("?") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interval() -> impl Strategy<Value = (Interval, i128)> {
        (any::<i64>(), any::<u32>(), any::<u32>()).prop_map(|(min, span, at)| {
            let min = i128::from(min);
            (Interval::new(min, min + i128::from(span)), min + i128::from(at) % (i128::from(span) + 1))
        })
    }

    proptest! {
        #[test]
        fn results_lie_within((a, x) in interval(), (b, y) in interval()) {
            for (all, one) in [(a.checked_add(b), x + y), (a.checked_sub(b), x - y), (a.checked_mul(b), x * y)] {
                prop_assert!(all.is_some_and(|all| all.contains(Interval::of(one))));
            }
            prop_assert!(a.union(b).contains(a) && a.union(b).contains(b));
            prop_assert!(a.contains(a.intersection(b)) && b.contains(a.intersection(b)));
        }
    }

    #[test]
    fn what_does_not_fit_is_not_known() {
        assert_eq!(Interval::ALL.checked_add(Interval::of(1)), None);
        assert_eq!(Interval::of(i128::MAX).checked_mul(Interval::of(2)), None);
        assert_eq!(Interval::EMPTY.checked_mul(Interval::ALL), Some(Interval::EMPTY));
        assert_eq!(Interval::ALL.count(), None);
        assert_eq!(Interval::new(3, 5).count(), Some(3));
    }
}
