//! Columns of an answer. Whoever asked turns them into the types that the user sees.

use std::sync::Arc;

use crate::{Dictionary, Domain, Interval, LateTexts, Type};

/// A column of an answer.
#[derive(Clone, Debug)]
pub struct ResultColumn {
    /// Its values. Those that are NULL hold anything.
    pub values: ResultValues,
    /// Which rows are not NULL; `None` if all are not.
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
    /// Numbers of rows, and what they stand for.
    LateText(Vec<u64>, Arc<LateTexts>),
}

impl ResultColumn {
    /// Integers, codes, rows or booleans of a domain.
    pub(crate) fn of_integers(domain: &Domain, integers: impl Iterator<Item = Option<i128>> + Clone) -> Self {
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

    /// Rows.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
