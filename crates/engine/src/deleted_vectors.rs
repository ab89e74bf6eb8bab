//! Deleted rows of segments as the catalog's store keeps them: by vectors of rows.

use onehop_segment::{BLOCK_ROWS, DeletedRows};

use crate::catalog::{VECTOR_ROWS, VectorRows};

/// Vectors of a full block. Numbers of vectors are those of a segment of full blocks, also where blocks are smaller.
pub(crate) const BLOCK_VECTORS: usize = BLOCK_ROWS / VECTOR_ROWS;

/// Whether a segment of so many rows may have this vector: blocks have as many rows as a vector at least.
pub(crate) fn may_have(rows: u64, vector: u32) -> bool {
    let block = u64::from(vector) / BLOCK_VECTORS as u64;
    block < rows.div_ceil(VECTOR_ROWS as u64)
}

/// What [`Change::DeleteRows`] wrote, read back: vectors of a segment.
pub(crate) fn deleted_rows_of(vectors: impl IntoIterator<Item = (u32, VectorRows)>) -> DeletedRows {
    DeletedRows::new(vectors.into_iter().flat_map(|(vector, rows)| {
        let (block, first) = (vector as usize / BLOCK_VECTORS, vector as usize % BLOCK_VECTORS * VECTOR_ROWS);
        // A block has 65,536 rows at most.
        rows.places().map(|place| (block, (first + place) as u16)).collect::<Vec<_>>()
    }))
}
