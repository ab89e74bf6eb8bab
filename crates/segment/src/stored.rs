//! A block as it is stored, for code that computes on encoded values: planes of packed words, and
//! the base to add to them.
//!
//! [`BlockColumn::verify`] must have been called once. It ensures that no value lies outside of the
//! block's zone and no code outside of the dictionary, for files of any writer, so that
//! computations may rely on the zone's interval.

use arrow_array::StringViewArray;
use arrow_buffer::ScalarBuffer;

use crate::decode::{BlockColumn, Entries};
use crate::isa::per_isa;
use crate::layout::{EncodingCode, chunk};
use crate::packed::{
    Mask, VECTOR_ROWS, Values, pick, prefetch, prefetch_words, unpack, value_at, vector_words, within,
};
use crate::types::ColumnType;
use crate::{Error, Zone};

/// Values of a block: `base` plus the contents of the planes.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Added to every value.
    pub base: i64,
    /// The low 32 bits, or `None` if every value is the base.
    pub low: Option<Plane<'a>>,
    /// The bits above them, if there are any.
    pub high: Option<Plane<'a>>,
    /// True if these are codes of the column's dictionary rather than keys.
    pub is_code: bool,
}

/// Packed vectors of one width.
#[derive(Clone, Copy, Debug)]
pub struct Plane<'a> {
    width: u32,
    words: &'a [u32],
}

impl<'a> Plane<'a> {
    /// Returns the bits of a value, up to 32.
    pub fn width(self) -> u32 {
        self.width
    }

    /// Returns the words of a vector.
    #[inline]
    pub fn vector(self, vector: usize) -> &'a [u32] {
        &self.words[vector * vector_words(self.width)..][..vector_words(self.width)]
    }

    /// Returns the words of the first `count` vectors, to be copied unchanged.
    pub fn vectors(self, count: usize) -> &'a [u32] {
        &self.words[..count * vector_words(self.width)]
    }

    /// Unpacks a whole vector.
    #[inline]
    pub fn unpack(self, vector: usize, out: &mut Values) {
        unpack(self.width, self.vector(vector), out);
    }

    /// Computes a mask of the values of a vector within `min..=max`.
    #[inline]
    pub fn within(self, vector: usize, min: u32, max: u32, out: &mut Mask) {
        within(self.width, self.vector(vector), min, max, out);
    }

    /// Returns the values of single rows, counted from the first vector's first.
    pub fn pick(self, rows: &[u16], out: &mut [u32]) {
        pick(self.width, self.words, rows, out);
    }

    /// Prefetches the words that [`Plane::pick`] is about to read.
    pub fn prefetch(self, rows: &[u16]) {
        prefetch(self.width, self.words, rows);
    }

    /// Prefetches a whole vector. Its number may be out of range.
    #[inline]
    pub fn prefetch_vector(self, vector: usize) {
        let words = vector_words(self.width);
        prefetch_words(self.words, vector * words, words);
    }

    /// Returns one value of a vector.
    #[inline]
    pub fn value_at(self, vector: usize, row: usize) -> u32 {
        value_at(self.width, self.vector(vector), row)
    }
}

impl BlockColumn {
    /// Returns the stored integers, or `None` for plain values and for strings without a
    /// dictionary.
    pub fn stored(&self) -> Option<Stored<'_>> {
        let is_code = match self.encoding {
            EncodingCode::Packed => false,
            EncodingCode::Dictionary => true,
            EncodingCode::Plain | EncodingCode::Text => return None,
        };
        let low = self.low();
        let high = self.chunks[chunk::HIGH].as_ref().filter(|_| !is_code);
        let high = high.map(|c| Plane { width: self.width.saturating_sub(32), words: c.words() });
        // A code is the packed value. Only a block of a single code has no chunk and keeps the code
        // in its base.
        let base = if is_code && low.is_some() { 0 } else { self.base };
        Some(Stored { base, low, high, is_code })
    }

    /// Returns the low 32 bits of the stored integers alone: sufficient for each vector after one
    /// call of [`BlockColumn::stored`].
    #[inline]
    pub fn low(&self) -> Option<Plane<'_>> {
        // A boolean whose least value is true is always true.
        let is_true = matches!(self.column_type, ColumnType::Boolean) && self.base != 0;
        let is_packed = matches!(self.encoding, EncodingCode::Packed | EncodingCode::Dictionary);
        let chunk = self.chunks[chunk::VALUES].as_ref().filter(|_| is_packed && !is_true)?;
        Some(Plane { width: self.width.min(32), words: chunk.words() })
    }

    /// Returns a bit per row in lane geometry, set if the row is not NULL, or `None` if no row is
    /// NULL. See also [`BlockColumn::null_count`]: a block that is NULL throughout stores no bits
    /// either.
    pub fn validity(&self) -> Option<Plane<'_>> {
        self.chunks[chunk::VALIDITY].as_ref().map(|c| Plane { width: 1, words: c.words() })
    }

    /// Returns the number of NULL rows.
    pub fn null_count(&self) -> usize {
        self.null_count
    }

    /// Returns the type of the block's column.
    pub fn column_type(&self) -> &ColumnType {
        &self.column_type
    }

    /// Reads every value once and compares it with the block's zone and the dictionary's length.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a value that is not NULL and lies outside.
    pub fn verify(&self, zone: &Zone) -> Result<(), Error> {
        self.verify_values(zone).map_err(|reason| self.origin.corrupt(reason))
    }

    fn verify_values(&self, zone: &Zone) -> Result<(), String> {
        let Some(stored) = self.stored() else { return Ok(()) };
        let (min, max) = match (&self.dictionary, zone.keys()) {
            (Some(dictionary), _) => (0, dictionary.len() as i128 - 1),
            (None, Some(keys)) => keys,
            (None, None) => return Ok(()),
        };
        let base = i128::from(stored.base);
        let outside = |value: i128| value < min || value > max;
        // Under a NULL may be any value, but codes are looked up before the NULL check.
        let is_code = stored.is_code;
        let Some(low) = stored.low else {
            let is_used = self.null_count < self.rows;
            return if is_used && outside(base) { Err(out_of_zone(base, min, max)) } else { Ok(()) };
        };
        let (mut low_values, mut high_values): (Values, Values) = ([0; VECTOR_ROWS], [0; VECTOR_ROWS]);
        for vector in 0..self.rows.div_ceil(VECTOR_ROWS) {
            low.unpack(vector, &mut low_values);
            if let Some(high) = stored.high {
                high.unpack(vector, &mut high_values);
            }
            let rows = (self.rows - vector * VECTOR_ROWS).min(VECTOR_ROWS);
            let pair = |row: usize| u64::from(high_values[row]) << 32 | u64::from(low_values[row]);
            let value = |row: usize| i128::from(stored.base.wrapping_add(pair(row) as i64));
            // Only the extremes need a second check, if no sum wraps.
            let (least, most) = match stored.high {
                None => extremes(&low_values[..rows]),
                Some(_) => wide_extremes(&low_values[..rows], &high_values[..rows]),
            };
            let (least, most) = (base + i128::from(least), base + i128::from(most));
            if !outside(least) && !outside(most) && most <= i128::from(i64::MAX) {
                continue;
            }
            for row in 0..rows {
                let is_valid = is_code
                    || self.null_count == 0
                    || self.validity().is_some_and(|bits| bits.value_at(vector, row) == 1);
                if is_valid && outside(value(row)) {
                    return Err(out_of_zone(value(row), min, max));
                }
            }
        }
        Ok(())
    }
}

impl crate::decode::Dictionary {
    pub(crate) fn len(&self) -> usize {
        match &self.entries {
            Entries::Keys(keys) => keys.len(),
            Entries::Texts { views, .. } => views.len(),
        }
    }

    pub(crate) fn keys(&self) -> Option<&[i64]> {
        match &self.entries {
            Entries::Keys(keys) => Some(keys),
            Entries::Texts { .. } => None,
        }
    }

    pub(crate) fn texts(&self) -> Option<StringViewArray> {
        let Entries::Texts { views, text } = &self.entries else { return None };
        // SAFETY: `Dictionary::parse` made every view from offsets that it found to lie inside the
        // bytes and to cut them between characters of valid UTF-8.
        Some(unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(views.clone()), vec![text.clone()], None) })
    }
}

per_isa! {
    /// Returns the least and the greatest value.
    fn extremes(values: &[u32]) -> (u64, u64) {
        let (mut least, mut most) = (u32::MAX, 0);
        // A fold may become a function of its own, compiled for the baseline.
        for value in values {
            least = least.min(*value);
            most = most.max(*value);
        }
        (u64::from(least), u64::from(most))
    }
}

per_isa! {
    /// Returns the same as [`extremes`], of values in two planes.
    fn wide_extremes(low: &[u32], high: &[u32]) -> (u64, u64) {
        let (mut least, mut most) = (u64::MAX, 0);
        for (low, high) in low.iter().zip(high) {
            let value = u64::from(*high) << 32 | u64::from(*low);
            least = least.min(value);
            most = most.max(value);
        }
        (least, most)
    }
}

fn out_of_zone(value: i128, min: i128, max: i128) -> String {
    format!("it holds {value}, and its zone map or dictionary says {min} to {max}")
}
