//! Texts as codes.
//!
//! Every text register is a code into a sorted dictionary, one for the whole pipeline: equal texts have equal codes,
//! codes compare as texts do, and anything computed from a text is computed once per entry instead of once per row.
//! Segments have dictionaries of their own; a source merges them and translates codes as blocks are loaded.

use std::fmt;

use arrow_array::{Array, ArrayRef, StringViewArray};

use crate::{Interval, Result};

/// Distinct texts in ascending order of their bytes.
#[derive(Debug)]
pub struct Dictionary {
    texts: StringViewArray,
    /// Its texts are still to come.
    is_expected: bool,
}

impl Dictionary {
    /// From texts that are sorted, distinct and not NULL, as segments keep them.
    pub fn from_sorted(texts: StringViewArray) -> Self {
        Self { texts, is_expected: false }
    }

    /// Takes the place of a dictionary whose texts are not known yet: nobody can say that they are another's.
    pub fn expected() -> Self {
        Self { texts: StringViewArray::new_null(0), is_expected: true }
    }

    /// From any texts, with the code that each of them gets. NULLs get code 0, which means nothing.
    pub fn from_unsorted(texts: &StringViewArray) -> (Self, Vec<u32>) {
        let mut sorted: Vec<&str> = texts.iter().flatten().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let code = |text: &str| sorted.binary_search(&text).unwrap_or(0) as u32;
        let codes = texts.iter().map(|text| text.map_or(0, code)).collect();
        (Self::from_sorted(StringViewArray::from_iter_values(sorted)), codes)
    }

    /// All texts of several dictionaries, with the new code of each old code of each of them.
    pub fn merge(parts: &[&Self]) -> (Self, Vec<Vec<u32>>) {
        let mut sorted: Vec<&str> = parts.iter().flat_map(|part| part.texts.iter().flatten()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let code = |text: &str| sorted.binary_search(&text).unwrap_or(0) as u32;
        let translate = |part: &&Self| part.texts.iter().flatten().map(code).collect();
        let codes = parts.iter().map(translate).collect();
        (Self::from_sorted(StringViewArray::from_iter_values(sorted)), codes)
    }

    /// Where another dictionary has its texts; `None` if that does not have all of them.
    pub(crate) fn codes_in(&self, other: &Self) -> Option<Vec<u32>> {
        self.texts.iter().flatten().map(|text| other.code_of(text).ok()).collect()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The texts, by code.
    pub fn texts(&self) -> &StringViewArray {
        &self.texts
    }

    /// The code of a text: `Err` has where it would be inserted.
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

/// Something computed from one text: a predicate, a part of it, its length. Called once per dictionary, or for the rows
/// of a vector whose texts are read late, by many threads.
pub trait DictionaryFunction: fmt::Debug + Send + Sync {
    /// How it is printed, with `$` for the text.
    fn name(&self) -> String;

    /// The results for `texts`, which may be NULL: Boolean, Int64, Float64 or Utf8View, one per text.
    ///
    /// # Errors
    /// Whatever the function refuses, as [`Error::Unsupported`](crate::Error::Unsupported). It must refuse only what it
    /// would refuse for a row; and since it sees texts that no row uses, and rows that other conditions leave out, it
    /// fails no query: whoever else can run it decides.
    fn apply(&self, texts: &StringViewArray) -> Result<ArrayRef>;

    /// Whether there are texts that it refuses. Such a function of late texts is applied only to rows that need it, after
    /// all that cannot fail.
    fn can_fail(&self) -> bool {
        true
    }

    /// What results that are integers lie within, whatever the texts are.
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
