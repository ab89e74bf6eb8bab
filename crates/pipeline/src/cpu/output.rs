//! Columns of an answer. The caller converts them to the types that the user sees.

use std::sync::Arc;

use crate::budget::Growth;
use crate::{Dictionary, Domain, Interval, LateTexts, Type};

/// A column of an answer.
#[derive(Clone, Debug)]
pub struct ResultColumn {
    /// Its values. NULL values are arbitrary.
    pub values: ResultValues,
    /// True for rows that are not NULL; `None` if no row is NULL.
    pub valid: Option<Vec<bool>>,
}

/// Values of an answer.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum ResultValues {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    /// Integers that 64 bits may not hold.
    Wide(Vec<i128>),
    Double(Vec<f64>),
    /// Codes of a dictionary.
    Text(Vec<u32>, Arc<Dictionary>),
    /// Row numbers, and the strings that they stand for.
    LateText(Vec<u64>, Arc<LateTexts>),
}

impl ResultColumn {
    /// Creates a column of integers, codes, row numbers or booleans of a domain.
    pub fn of_integers(domain: &Domain, integers: impl Iterator<Item = Option<i128>> + Clone) -> Self {
        let valid = domain.nullable.then(|| integers.clone().map(|value| value.is_some()).collect());
        let integers = integers.map(Option::unwrap_or_default);
        let values = match (domain.ty, &domain.dictionary, &domain.late) {
            (Type::Bool, ..) => ResultValues::Bool(integers.map(|value| value != 0).collect()),
            (Type::Text, Some(dictionary), _) => {
                ResultValues::Text(integers.map(|code| code as u32).collect(), Arc::clone(dictionary))
            }
            (Type::LateText, _, Some(texts)) => {
                ResultValues::LateText(integers.map(|row| row as u64).collect(), Arc::clone(texts))
            }
            _ if Interval::new(i64::MIN.into(), i64::MAX.into()).contains(domain.interval) => {
                ResultValues::Int(integers.map(|value| value as i64).collect())
            }
            _ => ResultValues::Wide(integers.collect()),
        };
        Self { values, valid }
    }

    /// Creates an empty column of a domain.
    pub fn empty(domain: &Domain) -> Self {
        match domain.ty {
            Type::Double => Self { values: ResultValues::Double(Vec::new()), valid: domain.nullable.then(Vec::new) },
            _ => Self::of_integers(domain, std::iter::empty()),
        }
    }

    /// Returns the rows at `picked`, in that order.
    pub fn gather(&self, picked: &[u32]) -> Self {
        fn at<T: Copy>(values: &[T], picked: &[u32]) -> Vec<T> {
            picked.iter().map(|row| values[*row as usize]).collect()
        }
        let values = match &self.values {
            ResultValues::Bool(values) => ResultValues::Bool(at(values, picked)),
            ResultValues::Int(values) => ResultValues::Int(at(values, picked)),
            ResultValues::Wide(values) => ResultValues::Wide(at(values, picked)),
            ResultValues::Double(values) => ResultValues::Double(at(values, picked)),
            ResultValues::Text(codes, dictionary) => ResultValues::Text(at(codes, picked), Arc::clone(dictionary)),
            ResultValues::LateText(rows, texts) => ResultValues::LateText(at(rows, picked), Arc::clone(texts)),
        };
        Self { values, valid: self.valid.as_ref().map(|valid| at(valid, picked)) }
    }

    /// Keeps the rows at `picked`, which are in ascending order.
    pub(crate) fn compact(&mut self, picked: &[u32]) {
        fn keep<T: Copy>(values: &mut Vec<T>, picked: &[u32]) {
            picked.iter().enumerate().for_each(|(to, from)| values[to] = values[*from as usize]);
            values.truncate(picked.len());
        }
        match &mut self.values {
            ResultValues::Bool(values) => keep(values, picked),
            ResultValues::Int(values) => keep(values, picked),
            ResultValues::Wide(values) => keep(values, picked),
            ResultValues::Double(values) => keep(values, picked),
            ResultValues::Text(codes, _) => keep(codes, picked),
            ResultValues::LateText(rows, _) => keep(rows, picked),
        }
        if let Some(valid) = &mut self.valid {
            keep(valid, picked);
        }
    }

    /// Appends the rows of a column of the same domain.
    pub fn append(&mut self, other: &Self) {
        match (&mut self.values, &other.values) {
            (ResultValues::Bool(to), ResultValues::Bool(from)) => to.extend_from_slice(from),
            (ResultValues::Int(to), ResultValues::Int(from)) => to.extend_from_slice(from),
            (ResultValues::Wide(to), ResultValues::Wide(from)) => to.extend_from_slice(from),
            (ResultValues::Double(to), ResultValues::Double(from)) => to.extend_from_slice(from),
            (ResultValues::Text(to, _), ResultValues::Text(from, _)) => to.extend_from_slice(from),
            (ResultValues::LateText(to, _), ResultValues::LateText(from, _)) => to.extend_from_slice(from),
            _ => debug_assert!(false, "columns of different domains"),
        }
        if let (Some(to), Some(from)) = (&mut self.valid, &other.valid) {
            to.extend_from_slice(from);
        }
    }

    /// Returns the memory that it takes when `more` rows are added.
    pub(crate) fn growth(&self, more: usize) -> Growth {
        let values = match &self.values {
            ResultValues::Bool(values) => Growth::of_vec(values, more),
            ResultValues::Int(values) => Growth::of_vec(values, more),
            ResultValues::Wide(values) => Growth::of_vec(values, more),
            ResultValues::Double(values) => Growth::of_vec(values, more),
            ResultValues::Text(codes, _) => Growth::of_vec(codes, more),
            ResultValues::LateText(rows, _) => Growth::of_vec(rows, more),
        };
        values.and(self.valid.as_ref().map_or(Growth::default(), |valid| Growth::of_vec(valid, more)))
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        match &self.values {
            ResultValues::Bool(values) => values.len(),
            ResultValues::Int(values) => values.len(),
            ResultValues::Wide(values) => values.len(),
            ResultValues::Double(values) => values.len(),
            ResultValues::Text(values, _) => values.len(),
            ResultValues::LateText(values, _) => values.len(),
        }
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
