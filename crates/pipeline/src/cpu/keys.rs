//! Keys of joins and groups: several registers packed into one integer.
//!
//! Every part is counted from its least value. The parts are the digits of a number in mixed radix,
//! so equal numbers mean equal keys, and the parts can be recovered from the key. The first part is
//! the most significant digit: keys sort as rows do by their parts. If NULL is a value of its own
//! (in groups), it is the last digit of its part.

use super::kernels::{self, Digit};
use super::vector::{Data, Vector};
use crate::{Domain, Error, Interval, Result, VECTOR_ROWS};

/// Layout of a key.
#[derive(Clone, Debug)]
pub struct KeyLayout {
    parts: Vec<Part>,
    /// Exclusive upper bound of the keys.
    pub count: u64,
}

#[derive(Clone, Debug)]
struct Part {
    interval: Interval,
    /// Weight of one step of this part in the number.
    stride: u64,
    /// Number of values of the part, NULL included.
    count: u64,
    /// The digit of NULL, if it has one.
    null: Option<u64>,
}

/// Contribution of one part to a key, for code that computes keys elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDigit {
    /// The part's least and greatest value.
    pub interval: Interval,
    /// Weight of one step from the least value.
    pub stride: u64,
    /// The digit of NULL, if it has one.
    pub null: Option<u64>,
}

/// Buffers for keys.
#[derive(Debug)]
pub(crate) struct KeyScratch {
    pub short: [u32; VECTOR_ROWS],
    pub keys: [u64; VECTOR_ROWS],
}

impl KeyScratch {
    pub fn new() -> Self {
        Self { short: [0; VECTOR_ROWS], keys: [0; VECTOR_ROWS] }
    }
}

/// Marks a row without a key: the row has a NULL, or a value that no key of the layout has.
pub(crate) const NO_KEY: u64 = u64::MAX;

impl KeyLayout {
    /// Creates the layout for keys of these domains.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if 64 bits do not hold them.
    pub fn new(domains: &[Domain], nulls_are_values: bool) -> Result<Self> {
        let too_wide = || Error::Unsupported("a key of more than 64 bits".into());
        let mut parts = Vec::with_capacity(domains.len());
        let mut count: u64 = 1;
        for domain in domains.iter().rev() {
            if !super::code::is_key(domain) {
                return Err(Error::Unsupported(match domain.ty {
                    crate::Type::Double => "a join or group by doubles".into(),
                    _ => "a join or group by integers of more than 64 bits".into(),
                }));
            }
            let values = domain.interval.count().and_then(|n| u64::try_from(n).ok()).ok_or_else(too_wide)?;
            let null = (domain.nullable && nulls_are_values).then_some(values);
            let values = values.checked_add(null.is_some().into()).ok_or_else(too_wide)?;
            parts.push(Part { interval: domain.interval, stride: count, count: values, null });
            count = count.checked_mul(values.max(1)).filter(|n| *n < NO_KEY).ok_or_else(too_wide)?;
        }
        parts.reverse();
        Ok(Self { parts, count })
    }

    /// Returns its parts.
    pub fn digits_of_parts(&self) -> impl Iterator<Item = KeyDigit> {
        self.parts.iter().map(|part| KeyDigit { interval: part.interval, stride: part.stride, null: part.null })
    }

    /// Creates the layout of one part with values from `interval`.
    ///
    /// # Errors
    /// As [`KeyLayout::new`].
    pub fn single(interval: Interval) -> Result<Self> {
        Self::new(&[Domain::int(interval, false)], false)
    }

    /// Returns the interval of the part, if there is only one.
    pub fn single_interval(&self) -> Option<Interval> {
        match self.parts.as_slice() {
            [part] => Some(part.interval),
            _ => None,
        }
    }

    /// Computes the keys of `n` rows; [`NO_KEY`] for rows without a key.
    pub(crate) fn keys(&self, slots: &[usize], vectors: &[Vector], n: usize, out: &mut [u64; VECTOR_ROWS]) {
        let out = &mut out[..n];
        out.fill(0);
        for (part, slot) in self.parts.iter().zip(slots) {
            part.add(&vectors[*slot], out);
        }
    }

    /// Returns the values of a key of one part without NULLs, and the least key and the number of
    /// keys of the layout, if all of that fits 32 bits. Probes use this as a fast path.
    pub(crate) fn plain<'a>(
        &self,
        slots: &[usize],
        vectors: &'a [Vector],
    ) -> Option<(&'a [i32; VECTOR_ROWS], i32, u32)> {
        let ([part], [slot]) = (self.parts.as_slice(), slots) else { return None };
        let Vector { data: Data::I32(values), has_nulls: false, .. } = &vectors[*slot] else { return None };
        let min = i32::try_from(part.interval.min).ok()?;
        i32::try_from(part.interval.max).ok()?;
        Some((values, min, u32::try_from(part.count).ok()?))
    }

    /// Computes keys as [`KeyLayout::keys`] does, for a layout with at most 2^32 - 1 keys;
    /// `u32::MAX` for rows without a key.
    pub(crate) fn short_keys(
        &self,
        slots: &[usize],
        vectors: &[Vector],
        n: usize,
        keys: &mut [u64; VECTOR_ROWS],
        out: &mut [u32; VECTOR_ROWS],
    ) {
        if let Some((values, min, count)) = self.plain(slots, vectors) {
            short_offsets(&values[..n], min, count, &mut out[..n]);
            return;
        }
        self.keys(slots, vectors, n, keys);
        for (out, key) in out.iter_mut().zip(keys.iter()).take(n) {
            *out = if *key < self.count { *key as u32 } else { u32::MAX };
        }
    }

    /// Computes the keys of `n` rows, for a layout that covers all possible values and has fewer
    /// than 2^32 keys: every row has a key.
    pub(crate) fn digits(
        &self,
        slots: &[usize],
        vectors: &[Vector],
        n: usize,
        keys: &mut [u64; VECTOR_ROWS],
        out: &mut [u32; VECTOR_ROWS],
    ) {
        out[..n].fill(0);
        for (part, slot) in self.parts.iter().zip(slots) {
            let vector = &vectors[*slot];
            let (stride, null) = (part.stride as u32, part.null.unwrap_or(0) as u32);
            match (&vector.data, i32::try_from(part.interval.min)) {
                (Data::I32(values), Ok(min)) if !vector.has_nulls => {
                    kernels::add_digits_i32(&values[..n], min, stride, &mut out[..n]);
                }
                (Data::I32(values), Ok(min)) => {
                    let (values, valid) = (&values[..n], &vector.valid[..n]);
                    kernels::add_digits_or_null_i32(values, valid, min, stride, null, &mut out[..n]);
                }
                _ => {
                    keys[..n].fill(0);
                    part.add(vector, &mut keys[..n]);
                    out.iter_mut().zip(keys.iter()).take(n).for_each(|(out, key)| *out = out.wrapping_add(*key as u32));
                }
            }
        }
    }

    /// Computes keys as [`KeyLayout::digits`] does, for layouts of any size.
    pub(crate) fn wide_digits(&self, slots: &[usize], vectors: &[Vector], n: usize, out: &mut [u64; VECTOR_ROWS]) {
        let out = &mut out[..n];
        out.fill(0);
        for (part, slot) in self.parts.iter().zip(slots) {
            let vector = &vectors[*slot];
            // `is_key`: the interval lies within 64 bits. An empty interval has no value, and all
            // its rows are NULL.
            let min = if part.interval.is_empty() { 0 } else { part.interval.min as i64 };
            let digit = Digit { min, stride: part.stride, null: part.null.unwrap_or(0) };
            let valid = vector.has_nulls.then(|| &vector.valid[..n]);
            match (&vector.data, valid) {
                (Data::I32(values), None) => kernels::add_wide_digits_i32(&values[..n], digit, out),
                (Data::I64(values), None) => kernels::add_wide_digits_i64(&values[..n], digit, out),
                (Data::I32(values), Some(valid)) => {
                    kernels::add_wide_digits_or_null_i32(&values[..n], valid, digit, out);
                }
                (Data::I64(values), Some(valid)) => {
                    kernels::add_wide_digits_or_null_i64(&values[..n], valid, digit, out);
                }
                _ => part.add(vector, out),
            }
        }
    }

    /// Returns a key with one part replaced by another value that is not NULL.
    pub fn with_part(&self, part: usize, key: u64, value: i128) -> u64 {
        let part = &self.parts[part];
        let digit = key / part.stride % part.count.max(1);
        key - digit * part.stride + (value - part.interval.min) as u64 * part.stride
    }

    /// Returns the value of a part in a key; `None` for NULL.
    pub fn part_of(&self, part: usize, key: u64) -> Option<i128> {
        let part = &self.parts[part];
        let digit = key / part.stride % part.count.max(1);
        (part.null != Some(digit)).then(|| part.interval.min + i128::from(digit))
    }
}

onehop_segment::per_isa! {
    fn short_offsets(values: &[i32], min: i32, count: u32, out: &mut [u32]) {
        for (out, value) in out.iter_mut().zip(values) {
            let offset = value.wrapping_sub(min) as u32;
            *out = if offset < count { offset } else { u32::MAX };
        }
    }
}

impl Part {
    fn add(&self, vector: &Vector, out: &mut [u64]) {
        let min = self.interval.min;
        let span = self.interval.count().unwrap_or(0) as u64;
        let (stride, null) = (self.stride, self.null);
        macro_rules! each {
            ($values:expr, $offset:expr) => {
                for (row, (out, value)) in out.iter_mut().zip($values.iter()).enumerate() {
                    let offset: Option<u64> = match !vector.has_nulls || vector.valid[row] != 0 {
                        true => Some($offset(*value)).filter(|offset| *offset < span),
                        false => null,
                    };
                    *out = match offset {
                        Some(offset) if *out != NO_KEY => *out + offset * stride,
                        _ => NO_KEY,
                    };
                }
            };
        }
        match &vector.data {
            Data::Bool(values) => each!(values, |v: u8| i128::from(v).wrapping_sub(min) as u64),
            // `is_key`: the interval lies within 64 bits, so offsets wrap around only outside of
            // it.
            Data::I32(values) => each!(values, |v: i32| i64::from(v).wrapping_sub(min as i64) as u64),
            Data::I64(values) => each!(values, |v: i64| v.wrapping_sub(min as i64) as u64),
            Data::I128(values) => {
                each!(values, |v: i128| u64::try_from(v.wrapping_sub(min)).unwrap_or(u64::MAX));
            }
            Data::F64(_) => out.fill(NO_KEY),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cpu::vector::Kind;

    #[test]
    fn keys_can_be_read_back() {
        let domains = [
            Domain::int(Interval::new(-5, 4), true),
            Domain::bool(false),
            Domain::int(Interval::new(1992, 1998), false),
        ];
        let layout = KeyLayout::new(&domains, true).unwrap();
        assert_eq!(layout.count, 11 * 2 * 7);
        let mut first = Vector::new(Kind::I32);
        let Data::I32(values) = &mut first.data else { return };
        values[..4].copy_from_slice(&[-5, 4, 0, 99]);
        first.has_nulls = true;
        first.valid[2] = 0;
        let vectors = [first, Vector::constant(Kind::Bool, 1), Vector::constant(Kind::I64, 1993)];
        let mut keys = [0; VECTOR_ROWS];
        layout.keys(&[0, 1, 2], &vectors, 4, &mut keys);
        assert_eq!(keys[3], NO_KEY);
        let parts = |key: u64| (0..3).map(|part| layout.part_of(part, key)).collect::<Vec<_>>();
        assert_eq!(parts(keys[0]), [Some(-5), Some(1), Some(1993)]);
        assert_eq!(parts(keys[1]), [Some(4), Some(1), Some(1993)]);
        assert_eq!(parts(keys[2]), [None, Some(1), Some(1993)]);
    }

    #[test]
    fn the_whole_range_of_64_bits_is_too_much() {
        let all = Interval::new(i64::MIN.into(), i64::MAX.into());
        assert!(KeyLayout::single(all).is_err());
        assert!(KeyLayout::single(Interval::new(i64::MIN.into(), (i64::MAX - 2).into())).is_ok());
        let wide = Domain::int(Interval::new(0, 1 << 40), false);
        assert!(KeyLayout::new(&[wide.clone(), wide], false).is_err());
    }

    #[test]
    fn offsets_outside_of_the_interval_are_no_key() {
        let layout = KeyLayout::single(Interval::new(10, 19)).unwrap();
        let mut vector = Vector::new(Kind::I32);
        let Data::I32(values) = &mut vector.data else { return };
        values[..5].copy_from_slice(&[9, 10, 19, 20, i32::MIN]);
        let (mut short, mut long) = ([0; VECTOR_ROWS], [0; VECTOR_ROWS]);
        layout.short_keys(&[0], std::slice::from_ref(&vector), 5, &mut long, &mut short);
        layout.keys(&[0], std::slice::from_ref(&vector), 5, &mut long);
        assert_eq!(short[..5], [u32::MAX, 0, 9, u32::MAX, u32::MAX]);
        assert_eq!(long[..5], [NO_KEY, 0, 9, NO_KEY, NO_KEY]);
    }
}
