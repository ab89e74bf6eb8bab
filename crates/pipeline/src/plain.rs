//! A column in memory as plain values, in the narrowest type that holds all of them. Record batches
//! become such columns.
//!
//! There is nothing to unpack: whole vectors are copied, and picked rows are fetched one by one.

use std::ops::Range;

use crate::block::{Integer, Rows, ViewValues};
use crate::cpu::{Kind, ResultColumn, ResultValues};
use crate::{Domain, Error, Interval, Result, Type, VECTOR_ROWS};

/// Values of a column, one per row. A NULL row holds one of the other values.
#[derive(Debug)]
pub(crate) struct Plain {
    pub values: PlainValues,
    /// 1 for rows that are not NULL; empty if none is NULL.
    pub valid: Vec<u8>,
}

/// Integers, booleans and codes of strings, or doubles.
#[derive(Debug)]
pub(crate) enum PlainValues {
    I32(Vec<i32>),
    I64(Vec<i64>),
    I128(Vec<i128>),
    F64(Vec<f64>),
}

impl Plain {
    /// Concatenates columns of answers whose values all lie within a domain. Also returns the
    /// narrower domain of the values.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they are of another domain.
    pub fn of_answers(domain: &Domain, parts: &[ResultColumn]) -> Result<(Self, Domain)> {
        let other = || Error::Invalid(format!("an answer's column that is no {}", domain.ty));
        let rows = parts.iter().map(ResultColumn::len).sum();
        let mut doubles = Vec::new();
        let mut integers: Vec<i128> = Vec::new();
        let mut valid: Vec<u8> = Vec::with_capacity(rows);
        for part in parts {
            match (&part.values, domain.ty) {
                (ResultValues::Double(values), Type::Double) => doubles.extend_from_slice(values),
                (ResultValues::Bool(values), Type::Bool) => integers.extend(values.iter().map(|v| i128::from(*v))),
                (ResultValues::Int(values), Type::Int) => integers.extend(values.iter().map(|v| i128::from(*v))),
                (ResultValues::Wide(values), Type::Int) => integers.extend_from_slice(values),
                (ResultValues::Text(codes, of), Type::Text) => {
                    let is_same = domain.dictionary.as_ref().is_some_and(|known| known.is_same_as(of));
                    integers.extend(is_same.then_some(codes).ok_or_else(other)?.iter().map(|code| i128::from(*code)));
                }
                (ResultValues::LateText(rows, _), Type::LateText) => {
                    integers.extend(rows.iter().map(|row| i128::from(*row)));
                }
                _ => return Err(other()),
            }
            match &part.valid {
                Some(known) => valid.extend(known.iter().map(|valid| u8::from(*valid))),
                None => valid.resize(valid.len() + part.len(), 1),
            }
        }
        let nullable = valid.contains(&0);
        if !nullable {
            valid = Vec::new();
        }
        let is_double = domain.ty == Type::Double;
        let values = if is_double { PlainValues::F64(doubles) } else { PlainValues::I128(integers) };
        let plain = Self { values, valid };
        let interval = if is_double { Interval::ALL } else { plain.interval() };
        // Codes and row numbers keep the bounds of their dictionary or rows.
        let known = match domain.ty {
            Type::Int => Domain::int(interval, nullable),
            _ => Domain { nullable, ..domain.clone() },
        };
        Ok((plain.narrowed(interval), known))
    }

    /// Returns the interval of the integers; everything if they are doubles.
    pub fn interval(&self) -> Interval {
        self.interval_of(0..self.rows())
    }

    /// Returns the number of values.
    fn rows(&self) -> usize {
        match &self.values {
            PlainValues::I32(values) => values.len(),
            PlainValues::I64(values) => values.len(),
            PlainValues::I128(values) => values.len(),
            PlainValues::F64(values) => values.len(),
        }
    }

    /// Returns the interval of the integers of some rows; everything if they are doubles.
    pub fn interval_of(&self, rows: Range<usize>) -> Interval {
        fn ends<T: Copy + Ord + Into<i128>>(values: &[T], valid: &[u8]) -> Interval {
            let is_valid = |row: usize| valid.get(row).is_none_or(|valid| *valid == 1);
            let values = || values.iter().enumerate().filter(|(row, _)| is_valid(*row)).map(|(_, value)| *value);
            match (values().min(), values().max()) {
                (Some(min), Some(max)) => Interval::new(min.into(), max.into()),
                _ => Interval::EMPTY,
            }
        }
        let valid = self.valid.get(rows.clone()).unwrap_or_default();
        match &self.values {
            PlainValues::I32(values) => ends(&values[rows], valid),
            PlainValues::I64(values) => ends(&values[rows], valid),
            PlainValues::I128(values) => ends(&values[rows], valid),
            PlainValues::F64(_) => Interval::ALL,
        }
    }

    /// Translates the codes of some rows: code `i` becomes `codes[i]`.
    pub fn translated(&self, rows: Range<usize>, codes: &[u32]) -> Self {
        let valid = self.valid.get(rows.clone()).unwrap_or_default().to_vec();
        let code =
            |code: i128| usize::try_from(code).ok().and_then(|code| codes.get(code)).map_or(0, |code| *code as i32);
        let values = match &self.values {
            PlainValues::I32(values) => values[rows].iter().map(|value| code((*value).into())).collect(),
            PlainValues::I64(values) => values[rows].iter().map(|value| code((*value).into())).collect(),
            PlainValues::I128(values) => values[rows].iter().map(|value| code(*value)).collect(),
            PlainValues::F64(_) => Vec::new(),
        };
        Self { values: PlainValues::I32(values), valid }
    }

    /// Narrows the values as far as `interval` allows, which holds all of them. Results computed
    /// from a NULL are discarded, but must stay in the range of the other results. Therefore a NULL
    /// row gets one of the other values.
    pub fn narrowed(self, interval: Interval) -> Self {
        fn narrow<T: Copy + Into<i128>, U: TryFrom<i128> + Copy + Default>(
            values: &[T],
            valid: &[u8],
            least: i128,
        ) -> Vec<U> {
            let is_valid = |row: usize| valid.get(row).is_none_or(|valid| *valid == 1);
            let value = |(row, value): (usize, &T)| if is_valid(row) { (*value).into() } else { least };
            values.iter().enumerate().map(value).map(|value| U::try_from(value).unwrap_or_default()).collect()
        }
        fn as_narrow_as_can_be<T: Copy + Into<i128>>(values: &[T], valid: &[u8], interval: Interval) -> PlainValues {
            let least = if interval.is_empty() { 0 } else { interval.min };
            match Kind::of_interval(interval) {
                Kind::I32 => PlainValues::I32(narrow(values, valid, least)),
                Kind::I64 => PlainValues::I64(narrow(values, valid, least)),
                _ => PlainValues::I128(narrow(values, valid, least)),
            }
        }
        let Self { values, valid } = self;
        let values = match values {
            // Nothing to do, which is the usual case.
            PlainValues::I32(values) if valid.is_empty() => PlainValues::I32(values),
            PlainValues::I32(values) => as_narrow_as_can_be(&values, &valid, interval),
            PlainValues::I64(values) => as_narrow_as_can_be(&values, &valid, interval),
            PlainValues::I128(values) => as_narrow_as_can_be(&values, &valid, interval),
            PlainValues::F64(values) => PlainValues::F64(values),
        };
        Self { values, valid }
    }

    /// Returns the values from row `first` on.
    pub fn view(&self, first: usize) -> ViewValues<'_> {
        match &self.values {
            PlainValues::I32(values) => ViewValues::I32(values.get(first..).unwrap_or_default()),
            PlainValues::I64(values) => ViewValues::I64(values.get(first..).unwrap_or_default()),
            PlainValues::I128(values) => ViewValues::I128(values.get(first..).unwrap_or_default()),
            PlainValues::F64(values) => ViewValues::F64(values.get(first..).unwrap_or_default()),
        }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let values = match &self.values {
            PlainValues::I32(values) => values.capacity() * 4,
            PlainValues::I64(values) => values.capacity() * 8,
            PlainValues::I128(values) => values.capacity() * 16,
            PlainValues::F64(values) => values.capacity() * 8,
        };
        values + self.valid.capacity()
    }

    /// Writes 1 for each of `rows`, counted from row `first`, that is not NULL, 0 for others.
    pub fn validity(&self, first: usize, rows: Rows<'_>, out: &mut [u8; VECTOR_ROWS]) {
        if self.valid.is_empty() {
            out.fill(1);
        } else {
            fetch(&self.valid, first, rows, out, |valid| valid);
        }
    }

    /// Writes the integers of `rows`, counted from row `first`.
    pub fn integers<T: Integer>(&self, first: usize, rows: Rows<'_>, out: &mut [T; VECTOR_ROWS]) {
        match &self.values {
            PlainValues::I32(values) => fetch(values, first, rows, out, |value| T::of_i64(value.into())),
            PlainValues::I64(values) => fetch(values, first, rows, out, T::of_i64),
            PlainValues::I128(values) => fetch(values, first, rows, out, T::of),
            PlainValues::F64(_) => debug_assert!(false, "integers of doubles"),
        }
    }

    /// Writes the doubles of `rows`, counted from row `first`.
    pub fn doubles(&self, first: usize, rows: Rows<'_>, out: &mut [f64; VECTOR_ROWS]) {
        match &self.values {
            PlainValues::F64(values) => fetch(values, first, rows, out, |value| value),
            _ => debug_assert!(false, "doubles of integers"),
        }
    }
}

#[inline(always)]
fn fetch<F: Copy, T: Copy>(
    values: &[F],
    first: usize,
    rows: Rows<'_>,
    out: &mut [T; VECTOR_ROWS],
    convert: impl Fn(F) -> T,
) {
    let values = values.get(first..).unwrap_or_default();
    match rows {
        Rows::Vector { vector, n } => {
            let values = values.get(vector * VECTOR_ROWS..).unwrap_or_default();
            out.iter_mut().zip(values).take(n).for_each(|(out, value)| *out = convert(*value));
        }
        _ => rows.for_each(|i, row| {
            if let (Some(out), Some(value)) = (out.get_mut(i), values.get(row)) {
                *out = convert(*value);
            }
        }),
    }
}
