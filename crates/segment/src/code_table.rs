//! The values of the codes of a dictionary of integers.

use std::sync::Arc;

/// The integers by code, in the narrowest type: they should stay in the nearest cache. Clones share
/// them.
#[derive(Clone, Debug)]
pub enum CodeTable {
    /// All of them fit 32 bits.
    I32(Arc<[i32]>),
    /// Some do not fit 32 bits.
    I64(Arc<[i64]>),
}

impl CodeTable {
    /// Creates the table of the integers of the codes from 0 on.
    pub fn new(values: &[i64]) -> Self {
        let fits = |value: &i64| i32::try_from(*value).is_ok();
        match values.iter().all(fits) {
            true => Self::I32(values.iter().map(|value| *value as i32).collect()),
            false => Self::I64(values.into()),
        }
    }

    /// Returns the number of codes.
    pub fn len(&self) -> usize {
        match self {
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the integer of a code.
    pub fn get(&self, code: usize) -> Option<i64> {
        match self {
            Self::I32(values) => values.get(code).map(|value| i64::from(*value)),
            Self::I64(values) => values.get(code).copied(),
        }
    }

    /// Returns true if the integers ascend with their codes.
    pub fn ascends(&self) -> bool {
        match self {
            Self::I32(values) => values.is_sorted(),
            Self::I64(values) => values.is_sorted(),
        }
    }

    /// Returns the first integer and the step, if the integers ascend by the same step: then the
    /// integer of a code can be computed. The step of a single integer is 1.
    pub fn steps(&self) -> Option<(i64, u64)> {
        /// The differences of ascending integers fit 64 bits without a sign.
        fn of<T: Copy + Into<i64>>(values: &[T]) -> Option<(i64, u64)> {
            let first: i64 = (*values.first()?).into();
            let step = values.get(1).map_or(1, |second| (*second).into().wrapping_sub(first) as u64);
            let follows = |pair: &[T]| {
                let (before, after): (i64, i64) = (pair[0].into(), pair[1].into());
                before < after && after.wrapping_sub(before) as u64 == step
            };
            values.windows(2).all(follows).then_some((first, step))
        }
        match self {
            Self::I32(values) => of(values),
            Self::I64(values) => of(values),
        }
    }

    /// Returns true if both are the same table in memory.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::I32(a), Self::I32(b)) => Arc::ptr_eq(a, b),
            (Self::I64(a), Self::I64(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_the_same_from_the_first_to_the_last() {
        assert_eq!(CodeTable::new(&[]).steps(), None);
        assert_eq!(CodeTable::new(&[7]).steps(), Some((7, 1)));
        assert_eq!(CodeTable::new(&[0, 1, 2, 3]).steps(), Some((0, 1)));
        assert_eq!(CodeTable::new(&[-100, 0, 100]).steps(), Some((-100, 100)));
        assert_eq!(CodeTable::new(&[i64::MIN, i64::MAX]).steps(), Some((i64::MIN, u64::MAX)));
        assert_eq!(CodeTable::new(&[-(1 << 40), 0, 1 << 40]).steps(), Some((-(1 << 40), 1 << 40)));
        for none in [&[0, 1, 3][..], &[0, 2, 3], &[3, 2, 1], &[5, 5], &[0, i64::MAX, i64::MIN]] {
            assert_eq!(CodeTable::new(none).steps(), None, "{none:?}");
        }
    }
}
