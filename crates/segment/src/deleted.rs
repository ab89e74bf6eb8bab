//! Deleted rows of a segment: a bit per row, by block and vector.
//!
//! A segment never changes. Its deleted rows are kept beside it, in versions. A version never
//! changes either: one with more rows shares the blocks without new ones. So deleting a few rows
//! costs a few bitmaps, regardless of the number of deleted rows, and a reader of an older version
//! continues to use it.

use std::sync::Arc;

use crate::packed::{LANES, Mask, VECTOR_ROWS};

/// Deleted rows of one block. There is at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedBlock {
    /// The mask of each vector up to the last that has some.
    vectors: Vec<Mask>,
    count: usize,
}

impl DeletedBlock {
    /// Returns the number of deleted rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns true if a row, counted from the block's first, is deleted.
    pub fn has(&self, row: usize) -> bool {
        let vector = self.vectors.get(row / VECTOR_ROWS);
        vector.is_some_and(|mask| mask[row % VECTOR_ROWS / LANES] >> (row % LANES) & 1 == 1)
    }

    /// Returns a bit for each row of a vector, 1 if the row is deleted, or `None` for a vector
    /// behind the last one with deleted rows.
    pub fn vector(&self, vector: usize) -> Option<&Mask> {
        self.vectors.get(vector)
    }

    /// Returns the rows, ascending.
    pub fn rows(&self) -> impl Iterator<Item = u16> {
        let words = self.vectors.iter().flatten().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            let bits = (0..LANES).filter(move |bit| word >> bit & 1 == 1);
            // A block has 65,536 rows at most.
            bits.map(move |bit| (at * LANES + bit) as u16)
        })
    }

    fn add(&mut self, row: u16) {
        let row = usize::from(row);
        let vector = row / VECTOR_ROWS;
        if self.vectors.len() <= vector {
            self.vectors.resize(vector + 1, [0; LANES]);
        }
        let (word, bit) = (&mut self.vectors[vector][row % VECTOR_ROWS / LANES], 1 << (row % LANES));
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }
}

/// Deleted rows of a segment. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedRows {
    /// The deleted rows of each block up to the last that has some.
    blocks: Vec<Option<Arc<DeletedBlock>>>,
    count: u64,
}

impl DeletedRows {
    /// Creates the set of these rows, by block and counted from its first, in any order. Rows may
    /// repeat.
    pub fn new(rows: impl IntoIterator<Item = (usize, u16)>) -> Self {
        Self::default().with(rows)
    }

    /// Returns the set with these rows added.
    #[must_use]
    pub fn with(&self, rows: impl IntoIterator<Item = (usize, u16)>) -> Self {
        let mut all = self.clone();
        for (block, row) in rows {
            if all.blocks.len() <= block {
                all.blocks.resize(block + 1, None);
            }
            // Copied once: from then on the block belongs to this version.
            let block = Arc::make_mut(all.blocks[block].get_or_insert_default());
            let before = block.count;
            block.add(row);
            all.count += (block.count - before) as u64;
        }
        all
    }

    /// Returns the number of deleted rows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the deleted rows of a block, or `None` if there are none.
    pub fn block(&self, block: usize) -> Option<&Arc<DeletedBlock>> {
        self.blocks.get(block)?.as_ref()
    }

    /// Returns true if a row of a block is deleted.
    pub fn has(&self, block: usize, row: usize) -> bool {
        self.block(block).is_some_and(|block| block.has(row))
    }

    /// Returns the blocks that have deleted rows, with their numbers.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, &Arc<DeletedBlock>)> {
        self.blocks.iter().enumerate().filter_map(|(number, block)| Some((number, block.as_ref()?)))
    }

    /// Returns the rows, ascending, by block and counted from its first.
    pub fn rows(&self) -> impl Iterator<Item = (usize, u16)> {
        self.blocks().flat_map(|(number, block)| block.rows().map(move |row| (number, row)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn rows() -> impl Strategy<Value = Vec<(usize, u16)>> {
        proptest::collection::vec((0..4usize, any::<u16>()), 0..200)
    }

    proptest! {
        #[test]
        fn a_version_has_the_rows_of_the_one_before_and_its_own(before in rows(), more in rows()) {
            let old = DeletedRows::new(before.iter().copied());
            let new = old.with(more.iter().copied());
            let expected: BTreeSet<_> = before.iter().copied().collect();
            prop_assert!(old.rows().eq(expected.iter().copied()));
            prop_assert_eq!(old.count(), expected.len() as u64);
            let expected: BTreeSet<_> = before.iter().chain(&more).copied().collect();
            prop_assert!(new.rows().eq(expected.iter().copied()));
            prop_assert_eq!(new.count(), expected.len() as u64);
            for (block, row) in before.into_iter().chain(more).chain([(0, 0), (9, 9)]) {
                prop_assert_eq!(new.has(block, row.into()), expected.contains(&(block, row)));
            }
        }
    }

    #[test]
    fn bits_are_those_of_the_rows() {
        let all = DeletedRows::new([(1, 1023), (1, 1024), (1, 2048 + 37)]);
        assert!(all.block(0).is_none() && all.block(2).is_none());
        let block = all.block(1).unwrap();
        assert_eq!(block.vector(0).unwrap()[31], 1 << 31);
        assert_eq!(block.vector(1).unwrap()[0], 1);
        assert_eq!(block.vector(2).unwrap()[1], 1 << 5);
        assert!(block.vector(3).is_none());
    }

    #[test]
    fn what_has_no_more_rows_is_shared() {
        let old = DeletedRows::new([(0, 1), (1, 1)]);
        let new = old.with([(1, 2)]);
        assert!(Arc::ptr_eq(old.block(0).unwrap(), new.block(0).unwrap()));
        assert!(!Arc::ptr_eq(old.block(1).unwrap(), new.block(1).unwrap()));
    }
}
