//! What the codes of a dictionary of integers stand for.

use std::sync::Arc;

/// The integers by code, as narrow as it goes: they should stay in the nearest cache. Copies share them.
#[derive(Clone, Debug)]
pub enum CodeTable {
    /// All of them fit 32 bits.
    I32(Arc<[i32]>),
    /// Some do not.
    I64(Arc<[i64]>),
}

impl CodeTable {
    /// Of the integers that the codes from 0 on stand for.
    pub fn new(values: &[i64]) -> Self {
        let fits = |value: &i64| i32::try_from(*value).is_ok();
        match values.iter().all(fits) {
            true => Self::I32(values.iter().map(|value| *value as i32).collect()),
            false => Self::I64(values.into()),
        }
    }

    /// How many codes there are.
    pub fn len(&self) -> usize {
        match self {
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a code stands for.
    pub fn get(&self, code: usize) -> Option<i64> {
        match self {
            Self::I32(values) => values.get(code).map(|value| i64::from(*value)),
            Self::I64(values) => values.get(code).copied(),
        }
    }

    /// Whether the order of codes is that of what they stand for.
    pub fn ascends(&self) -> bool {
        match self {
            Self::I32(values) => values.is_sorted(),
            Self::I64(values) => values.is_sorted(),
        }
    }

    /// Whether it is the very same table.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::I32(a), Self::I32(b)) => Arc::ptr_eq(a, b),
            (Self::I64(a), Self::I64(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}
