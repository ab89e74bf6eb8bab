//! The validity of the rows of a block: true for rows that are not NULL.

use arrow_array::Array;

use super::pack_bits;
use crate::packed::{LANES, VECTOR_ROWS};

/// Collects the validity of the open block. It costs nothing until the first NULL.
#[derive(Debug, Default)]
pub(crate) struct Validity {
    /// A bit per row in row order, once there is a NULL.
    bits: Vec<u32>,
    rows: usize,
    nulls: usize,
}

impl Validity {
    /// Adds the rows of an array.
    pub fn append(&mut self, array: &dyn Array) {
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let start = self.rows;
        self.rows += array.len();
        if nulls.is_none() && self.bits.is_empty() {
            return;
        }
        if self.bits.is_empty() {
            set_range(&mut self.bits, 0, start);
        }
        match nulls {
            None => set_range(&mut self.bits, start, self.rows),
            Some(nulls) => {
                self.nulls += nulls.null_count();
                self.bits.resize(self.rows.div_ceil(32), 0);
                for row in nulls.valid_indices() {
                    let at = start + row;
                    self.bits[at / 32] |= 1 << (at % 32);
                }
            }
        }
    }

    /// Returns true if a row is NULL.
    pub fn has_nulls(&self) -> bool {
        self.nulls > 0
    }

    /// Returns true if a row is not NULL.
    pub fn is_valid(&self, row: usize) -> bool {
        !self.has_nulls() || self.bits[row / 32] >> (row % 32) & 1 == 1
    }

    /// Ends the block. Returns its NULL count and, if some rows are NULL and some are not, its bits
    /// in lane geometry.
    pub fn take(&mut self) -> BlockValidity {
        let block = BlockValidity {
            null_count: self.nulls,
            lanes: if self.nulls > 0 && self.nulls < self.rows { pack_bits(&self.bits) } else { Vec::new() },
        };
        self.bits.clear();
        self.rows = 0;
        self.nulls = 0;
        block
    }
}

fn set_range(bits: &mut Vec<u32>, from: usize, to: usize) {
    bits.resize(to.div_ceil(32), 0);
    for row in from..to {
        bits[row / 32] |= 1 << (row % 32);
    }
}

/// The validity of a finished block.
#[derive(Debug)]
pub(crate) struct BlockValidity {
    /// The number of NULL rows.
    pub null_count: usize,
    lanes: Vec<u32>,
}

impl BlockValidity {
    /// Appends the bits to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.lanes.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// Returns true if a row is not NULL.
    pub fn is_valid(&self, row: usize) -> bool {
        // Lane geometry: row 32*i + lane is bit i of the lane's word.
        let (vector, row) = (row / VECTOR_ROWS, row % VECTOR_ROWS);
        match self.lanes.get(vector * LANES + row % LANES) {
            Some(word) => word >> (row / LANES) & 1 == 1,
            None => self.null_count == 0,
        }
    }

    /// Returns the rows that are not NULL, of `rows`.
    pub fn valid_rows(&self, rows: usize) -> impl Iterator<Item = usize> + '_ {
        (0..rows).filter(|row| self.is_valid(*row))
    }

    /// Returns the bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.lanes.capacity() * 4
    }
}
