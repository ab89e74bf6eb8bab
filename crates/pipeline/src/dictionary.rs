//! Strings as codes.
//!
//! A string register holds codes of one sorted dictionary for the whole pipeline. Equal strings
//! have equal codes, and codes compare as their strings do. A function of a string is computed once
//! per entry instead of once per row. Segments have dictionaries of their own; a source merges them
//! and translates codes when it loads blocks.

use std::fmt;

use arrow_array::{Array, ArrayRef, StringViewArray};

use crate::{Interval, Result};

/// Distinct strings in ascending order of their bytes.
#[derive(Debug)]
pub struct Dictionary {
    texts: StringViewArray,
    /// True if the strings are not known yet.
    is_expected: bool,
}

impl Dictionary {
    /// Creates a dictionary from strings that are sorted, distinct and not NULL, as segments store
    /// them.
    pub fn from_sorted(texts: StringViewArray) -> Self {
        Self { texts, is_expected: false }
    }

    /// Creates a placeholder for a dictionary whose strings are not known yet. It is not the same
    /// as any other dictionary.
    pub fn expected() -> Self {
        Self { texts: StringViewArray::new_null(0), is_expected: true }
    }

    /// Creates a dictionary from any strings. Also returns the code of each of them. NULLs get code
    /// 0, which means nothing.
    pub fn from_unsorted(texts: &StringViewArray) -> (Self, Vec<u32>) {
        let mut sorted: Vec<&str> = texts.iter().flatten().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let code = |text: &str| sorted.binary_search(&text).unwrap_or(0) as u32;
        let codes = texts.iter().map(|text| text.map_or(0, code)).collect();
        (Self::from_sorted(StringViewArray::from_iter_values(sorted)), codes)
    }

    /// Merges several dictionaries. Also returns the new code of each old code of each dictionary.
    pub fn merge(parts: &[&Self]) -> (Self, Vec<Vec<u32>>) {
        let mut sorted: Vec<&str> = parts.iter().flat_map(|part| part.texts.iter().flatten()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let code = |text: &str| sorted.binary_search(&text).unwrap_or(0) as u32;
        let translate = |part: &&Self| part.texts.iter().flatten().map(code).collect();
        let codes = parts.iter().map(translate).collect();
        (Self::from_sorted(StringViewArray::from_iter_values(sorted)), codes)
    }

    /// Returns the codes of its strings in another dictionary; `None` if that dictionary lacks one
    /// of them.
    pub(crate) fn codes_in(&self, other: &Self) -> Option<Vec<u32>> {
        self.texts.iter().flatten().map(|text| other.code_of(text).ok()).collect()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns the strings, by code.
    pub fn texts(&self) -> &StringViewArray {
        &self.texts
    }

    /// Returns the code of a string, or `Err` with its insertion point.
    pub fn code_of(&self, text: &str) -> std::result::Result<u32, u32> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.texts.value(middle).cmp(text) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle as u32),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low as u32)
    }

    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || !self.is_expected && !other.is_expected && self.texts == other.texts
    }
}

/// A function of one string: a predicate, a part of it, its length. Many threads call it, once per
/// dictionary, or for the rows of a vector whose strings are read late.
pub trait DictionaryFunction: fmt::Debug + Send + Sync {
    /// Returns the printed form, with `$` for the string.
    fn name(&self) -> String;

    /// Returns the results for `texts`, which may be NULL: Boolean, Int64, Float64 or Utf8View, one
    /// per string.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for any string that the function refuses.
    /// It must refuse only strings that it would refuse for a row. It also sees strings that no row
    /// uses, and rows that other conditions leave out. Therefore its error does not fail the query:
    /// another executor that can run the query decides.
    fn apply(&self, texts: &StringViewArray) -> Result<ArrayRef>;

    /// Returns true if there are strings that it refuses. Such a function of late strings is
    /// applied only to rows that need it, after all expressions that cannot fail.
    fn can_fail(&self) -> bool {
        true
    }

    /// Returns the bounds of integer results, for any string.
    fn interval(&self) -> Interval {
        Interval::new(i64::MIN.into(), i64::MAX.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_the_order_of_texts() {
        let texts = StringViewArray::from(vec![Some("pear"), None, Some("apple"), Some("pear"), Some("")]);
        let (dictionary, codes) = Dictionary::from_unsorted(&texts);
        assert_eq!(dictionary.texts().iter().flatten().collect::<Vec<_>>(), ["", "apple", "pear"]);
        assert_eq!(codes, [2, 0, 1, 2, 0]);
        assert_eq!(dictionary.code_of("apple"), Ok(1));
        assert_eq!(dictionary.code_of("banana"), Err(2));
        assert_eq!(dictionary.code_of("zebra"), Err(3));
    }

    #[test]
    fn merged_codes_mean_the_same_texts() {
        let a = Dictionary::from_sorted(StringViewArray::from(vec!["b", "d"]));
        let b = Dictionary::from_sorted(StringViewArray::from(vec!["a", "b", "c"]));
        let (merged, codes) = Dictionary::merge(&[&a, &b]);
        assert_eq!(merged.len(), 4);
        for (part, codes) in [&a, &b].into_iter().zip(&codes) {
            for (old, new) in codes.iter().enumerate() {
                assert_eq!(part.texts().value(old), merged.texts().value(*new as usize));
            }
        }
    }
}
