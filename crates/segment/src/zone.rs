//! Zone maps: statistics of a block (or a whole column), and the predicates that they rule out.
//!
//! A zone keeps the least and greatest value, and the number of NULLs and of rows. For strings it
//! keeps 16 bytes of each, with a bit that is set if those are all of it. All tests err towards
//! "may match": [`Predicate::may_match`] returns `false` only if no row of the zone can make the
//! predicate true. In SQL's three-valued logic a row whose predicate is NULL is not a match, so
//! comparisons never match NULLs.
//!
//! Floats: comparisons in the engine follow IEEE's total order except for zero, because SQL
//! requires -0 = 0. A zone that ends in one zero is widened to both, which is correct under either
//! reading. NaN is greater than every number.

use std::cmp::Ordering;

use crate::layout::flags;

/// The bytes of a string that a zone keeps.
pub const TEXT_PREFIX_BYTES: usize = 16;

/// A value to compare with: a key, or a UTF-8 string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The key of a fixed-width value (see the table in the types module), widened.
    Key(i128),
    /// A string.
    Text(String),
}

/// Statistics of the values that are not NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    pub(crate) min: [u8; 16],
    pub(crate) max: [u8; 16],
    pub(crate) flags: u32,
    pub(crate) is_text: bool,
    /// The number of NULL rows.
    pub null_count: u64,
    /// The total number of rows.
    pub rows: u64,
}

/// The keys of the two zeroes of a float column, to widen zones that end in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeroes {
    /// Not a float.
    One,
    /// -0 has key -1, +0 has key 0.
    Two,
}

impl Zone {
    /// Returns a zone of `rows` rows that are all NULL.
    pub(crate) fn of_nulls(rows: u64, is_text: bool) -> Self {
        Self { min: [0; 16], max: [0; 16], flags: 0, is_text, null_count: rows, rows }
    }

    /// Returns a zone of keys.
    pub(crate) fn of_keys(min: i128, max: i128, zeroes: Zeroes, null_count: u64, rows: u64) -> Self {
        let (min, max) = match zeroes {
            Zeroes::Two => (if min == 0 { -1 } else { min }, if max == -1 { 0 } else { max }),
            Zeroes::One => (min, max),
        };
        Self {
            min: min.to_le_bytes(),
            max: max.to_le_bytes(),
            flags: flags::HAS_VALUES | flags::MIN_WHOLE | flags::MAX_WHOLE,
            is_text: false,
            null_count,
            rows,
        }
    }

    /// Returns a zone of strings.
    pub(crate) fn of_text(min: &[u8], max: &[u8], null_count: u64, rows: u64) -> Self {
        let (min, min_flag) = prefix(min, flags::MIN_WHOLE);
        let (max, max_flag) = prefix(max, flags::MAX_WHOLE);
        Self { min, max, flags: flags::HAS_VALUES | min_flag | max_flag, is_text: true, null_count, rows }
    }

    /// Returns the zone of both zones' rows.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut union = match (self.has_values(), other.has_values()) {
            (_, false) => *self,
            (false, true) => *other,
            (true, true) => {
                let mut union = *self;
                if other.cmp_ends(&other.min, &self.min) == Ordering::Less {
                    union.min = other.min;
                    union.flags = (union.flags & !flags::MIN_WHOLE) | (other.flags & flags::MIN_WHOLE);
                } else if other.min == self.min && other.flags & flags::MIN_WHOLE == 0 {
                    union.flags &= !flags::MIN_WHOLE;
                }
                if other.cmp_ends(&other.max, &self.max) == Ordering::Greater {
                    union.max = other.max;
                    union.flags = (union.flags & !flags::MAX_WHOLE) | (other.flags & flags::MAX_WHOLE);
                } else if other.max == self.max && other.flags & flags::MAX_WHOLE == 0 {
                    union.flags &= !flags::MAX_WHOLE;
                }
                union
            }
        };
        union.null_count = self.null_count + other.null_count;
        union.rows = self.rows + other.rows;
        union
    }

    /// Returns true if the zone contains all values of the other one, so that predicates it rules
    /// out are ruled out for the other.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let ends = |zone: &Self| Self { null_count: 0, rows: 0, ..*zone };
        ends(self).union(&ends(other)) == ends(self)
    }

    fn cmp_ends(&self, a: &[u8; 16], b: &[u8; 16]) -> Ordering {
        if self.is_text { a.cmp(b) } else { i128::from_le_bytes(*a).cmp(&i128::from_le_bytes(*b)) }
    }

    /// Returns true if any row is not NULL.
    pub fn has_values(&self) -> bool {
        self.flags & flags::HAS_VALUES != 0
    }

    /// Returns the least and greatest key. Exact, except for the widening of float zeroes. `None`
    /// for strings or if all rows are NULL.
    pub fn keys(&self) -> Option<(i128, i128)> {
        let is_known = self.has_values() && !self.is_text;
        is_known.then(|| (i128::from_le_bytes(self.min), i128::from_le_bytes(self.max)))
    }

    /// Returns whether some value may be before, equal to, or after `value`.
    fn reaches(&self, value: &Value) -> Reach {
        if !self.has_values() {
            return Reach::default();
        }
        match (value, self.keys()) {
            (Value::Key(key), Some((min, max))) => Reach::of_keys(min, max, *key),
            (Value::Text(text), None) => self.reaches_text(text.as_bytes()),
            // A comparison of a string with a key, which no plan should contain: rule nothing out.
            _ => Reach { less: true, equal: true, greater: true },
        }
    }

    fn reaches_text(&self, text: &[u8]) -> Reach {
        let (start, _) = prefix(text, 0);
        let is_min_whole = self.flags & flags::MIN_WHOLE != 0;
        let is_max_whole = self.flags & flags::MAX_WHOLE != 0;
        // Strings of up to 16 bytes without a zero byte at their end are distinguished by their
        // padded prefix. Because of such zero bytes, equality of prefixes alone never rules
        // anything out.
        let (min, max) = (self.min.cmp(&start), self.max.cmp(&start));
        let is_short = text.len() <= TEXT_PREFIX_BYTES;
        let min_may_equal = min == Ordering::Equal;
        let max_may_equal = max == Ordering::Equal;
        Reach {
            less: min == Ordering::Less || min_may_equal && !(is_min_whole && is_short && trimmed(text)),
            equal: min != Ordering::Greater && max != Ordering::Less,
            greater: max == Ordering::Greater || max_may_equal && !(is_max_whole && is_short && trimmed(text)),
        }
    }

    fn may_start_with(&self, prefix_bytes: &[u8]) -> bool {
        if !self.has_values() {
            return false;
        }
        if !self.is_text {
            return true;
        }
        let n = prefix_bytes.len().min(TEXT_PREFIX_BYTES);
        self.min[..n] <= prefix_bytes[..n] && self.max[..n] >= prefix_bytes[..n]
    }
}

/// Returns true if there is no zero byte at the end, so that padding with zeroes is reversible.
fn trimmed(text: &[u8]) -> bool {
    text.last() != Some(&0)
}

fn prefix(text: &[u8], whole: u32) -> ([u8; 16], u32) {
    let mut start = [0; TEXT_PREFIX_BYTES];
    let n = text.len().min(TEXT_PREFIX_BYTES);
    start[..n].copy_from_slice(&text[..n]);
    (start, if text.len() <= TEXT_PREFIX_BYTES && trimmed(text) { whole } else { 0 })
}

#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    less: bool,
    equal: bool,
    greater: bool,
}

impl Reach {
    #[inline]
    fn of_keys(min: i128, max: i128, key: i128) -> Self {
        Self { less: min < key, equal: min <= key && key <= max, greater: max > key }
    }

    #[inline]
    fn admits(self, op: Comparison) -> bool {
        match op {
            Comparison::Equal => self.equal,
            Comparison::NotEqual => self.less || self.greater,
            Comparison::Less => self.less,
            Comparison::LessOrEqual => self.less || self.equal,
            Comparison::Greater => self.greater,
            Comparison::GreaterOrEqual => self.greater || self.equal,
        }
    }
}

/// A comparison operator of a column and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// Returns true if the comparison may hold between a value from `min` to `max` and `key`.
    #[inline]
    pub(crate) fn may_hold(self, min: i128, max: i128, key: i128) -> bool {
        Reach::of_keys(min, max, key).admits(self)
    }
}

/// A condition to be tested against zones. Columns are positions in the segment's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicate {
    /// An unknown condition: any zone may match.
    Unknown,
    /// True for no row: a comparison with NULL, an impossible range.
    Never,
    /// column OP value
    Compare {
        /// The column.
        column: usize,
        /// The operator.
        op: Comparison,
        /// The other side.
        value: Value,
    },
    /// column IN (values)
    In {
        /// The column.
        column: usize,
        /// The list, without NULLs.
        values: Vec<Value>,
    },
    /// column LIKE 'prefix%'
    StartsWith {
        /// The column.
        column: usize,
        /// The required prefix.
        prefix: String,
    },
    /// column IS NULL
    IsNull {
        /// The column.
        column: usize,
    },
    /// column IS NOT NULL
    IsNotNull {
        /// The column.
        column: usize,
    },
    /// All of them.
    And(Vec<Predicate>),
    /// Any of them.
    Or(Vec<Predicate>),
}

impl Predicate {
    /// Returns true if a row may match in a block. `zone` returns the block's zones by column.
    pub fn may_match(&self, zone: &impl Fn(usize) -> Zone) -> bool {
        match self {
            Self::Unknown => true,
            Self::Never => false,
            Self::Compare { column, op, value } => zone(*column).reaches(value).admits(*op),
            Self::In { column, values } => {
                let zone = zone(*column);
                values.iter().any(|value| zone.reaches(value).equal)
            }
            Self::StartsWith { column, prefix } => zone(*column).may_start_with(prefix.as_bytes()),
            Self::IsNull { column } => zone(*column).null_count > 0,
            Self::IsNotNull { column } => zone(*column).has_values(),
            Self::And(all) => all.iter().all(|predicate| predicate.may_match(zone)),
            Self::Or(any) => any.iter().any(|predicate| predicate.may_match(zone)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPS: [Comparison; 6] = [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ];

    fn holds<T: Ord + ?Sized>(a: &T, op: Comparison, b: &T) -> bool {
        match op {
            Comparison::Equal => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
        }
    }

    fn compare(op: Comparison, value: Value) -> Predicate {
        Predicate::Compare { column: 0, op, value }
    }

    proptest! {
        #[test]
        fn no_matching_text_is_ruled_out(
            texts in prop::collection::vec("[a\u{0}b]{0,20}", 1..6),
            probe in "[a\u{0}b]{0,20}",
        ) {
            let (min, max) = (texts.iter().min().unwrap(), texts.iter().max().unwrap());
            let zone = Zone::of_text(min.as_bytes(), max.as_bytes(), 0, texts.len() as u64);
            for op in OPS {
                if texts.iter().any(|text| holds(text.as_bytes(), op, probe.as_bytes())) {
                    prop_assert!(compare(op, Value::Text(probe.clone())).may_match(&|_| zone), "{op:?}");
                }
            }
            if texts.iter().any(|text| text.starts_with(&probe)) {
                let starts = Predicate::StartsWith { column: 0, prefix: probe };
                prop_assert!(starts.may_match(&|_| zone));
            }
        }

        #[test]
        fn keys_are_ruled_out_exactly(mut keys in prop::collection::vec(-5i128..5, 2), probe in -6i128..6) {
            keys.sort();
            let zone = Zone::of_keys(keys[0], keys[1], Zeroes::One, 0, 2);
            for op in OPS {
                let any = (keys[0]..=keys[1]).any(|key| holds(&key, op, &probe));
                prop_assert_eq!(compare(op, Value::Key(probe)).may_match(&|_| zone), any, "{:?}", op);
            }
        }

        #[test]
        fn a_union_reaches_what_its_parts_reach(
            texts in prop::collection::vec("[ab]{0,20}", 4), probe in "[ab]{0,20}",
        ) {
            let zone = |a: &str, b: &str| Zone::of_text(a.min(b).as_bytes(), a.max(b).as_bytes(), 0, 2);
            let (x, y) = (zone(&texts[0], &texts[1]), zone(&texts[2], &texts[3]));
            let union = x.union(&y);
            for op in OPS {
                let predicate = compare(op, Value::Text(probe.clone()));
                if predicate.may_match(&|_| x) || predicate.may_match(&|_| y) {
                    prop_assert!(predicate.may_match(&|_| union), "{op:?}");
                }
            }
        }
    }

    #[test]
    fn nulls_match_nothing_but_is_null() {
        let zone = Zone::of_nulls(10, false);
        for op in OPS {
            assert!(!compare(op, Value::Key(0)).may_match(&|_| zone));
        }
        assert!(Predicate::IsNull { column: 0 }.may_match(&|_| zone));
        assert!(!Predicate::IsNotNull { column: 0 }.may_match(&|_| zone));
        assert!(!Predicate::In { column: 0, values: vec![] }.may_match(&|_| zone));
    }

    #[test]
    fn both_zeroes_of_a_float_are_one_place() {
        let negative_zero = crate::types::f64_key(-0.0);
        assert_eq!((negative_zero, crate::types::f64_key(0.0)), (-1, 0));
        let zone = Zone::of_keys(-1, -1, Zeroes::Two, 0, 1);
        assert!(compare(Comparison::Equal, Value::Key(0)).may_match(&|_| zone));
    }
}
