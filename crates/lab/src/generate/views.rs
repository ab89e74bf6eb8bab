//! String columns over few distinct values, without copying bytes per row.
//!
//! A buffer that all batches share contains the distinct strings once, each with its prepared
//! 16-byte view. A column is the views selected by code. As Arrow specifies, strings of up to 12
//! bytes are in the view itself.

use arrow::array::{ArrayRef, StringViewArray, make_view};
use arrow::buffer::{Buffer, ScalarBuffer};
use std::sync::Arc;

use super::Result;

/// The distinct values of a string column, in code order.
pub(super) struct ViewSet {
    views: Vec<u128>,
    buffers: Arc<[Buffer]>,
}

impl ViewSet {
    /// Creates a set of the given strings; the first has code 0.
    pub(super) fn new<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Self {
        let mut bytes = Vec::new();
        let mut views = Vec::new();
        for value in values {
            let value = value.as_ref().as_bytes();
            views.push(make_view(value, 0, bytes.len() as u32));
            bytes.extend_from_slice(value);
        }
        Self { views, buffers: [Buffer::from_vec(bytes)].into() }
    }

    /// Returns the number of distinct strings.
    pub(super) fn len(&self) -> usize {
        self.views.len()
    }

    /// Returns the column that has, row by row, the strings with these codes.
    pub(super) fn column<C: Copy + Into<usize>>(&self, codes: &[C]) -> Result<ArrayRef> {
        let views: Vec<u128> = codes.iter().map(|&code| self.views[code.into()]).collect();
        let array = StringViewArray::try_new(ScalarBuffer::from(views), Arc::clone(&self.buffers), None)?;
        Ok(Arc::new(array))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::cast::AsArray;

    #[test]
    fn short_and_long_strings_come_back() -> Result<()> {
        let set = ViewSet::new(["AIR", "", "longer than twelve bytes", "twelve bytes"]);
        let column = set.column(&[2u8, 0, 1, 3, 2])?;
        let values: Vec<_> = column.as_string_view().iter().flatten().collect();
        assert_eq!(values, ["longer than twelve bytes", "AIR", "", "twelve bytes", "longer than twelve bytes"]);
        assert_eq!(set.len(), 4);
        Ok(())
    }
}
