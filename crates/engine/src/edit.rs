//! What a statement changes in a table: a value that can be applied to any version of it in which the rows that it removes are
//! still there.
//!
//! A transaction applies its edits twice: to what it sees, statement by statement, and at its end to what is committed by
//! then. Rows that are only added go on top of whatever others have added; who removes rows has made sure, in the writer's
//! place, that the table is the one it looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use onehop_segment::{BLOCK_ROWS, DeletedRows};

use crate::catalog::{Change, VECTOR_ROWS, VectorRows};
use crate::fresh::{NewRows, RowAddress};
use crate::snapshot::{SegmentFile, Table, TableSegment};
use crate::{Error, ErrorKind, Result};

/// Vectors of a full block. Numbers of vectors are those of a segment of full blocks, also where blocks are smaller.
const BLOCK_VECTORS: usize = BLOCK_ROWS / VECTOR_ROWS;

/// What changes in one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableEdit {
    /// Ids of fresh rows that are gone.
    pub gone_rows: Vec<u64>,
    /// Rows of segments that are gone, by file: block, and row of it.
    pub deleted: BTreeMap<String, Vec<(usize, u16)>>,
    /// Segments that are gone, by file.
    pub gone_segments: BTreeSet<String>,
    /// Segments that are new.
    pub segments: Vec<Arc<SegmentFile>>,
    /// Rows that are new.
    pub rows: Vec<NewRows>,
}

impl TableEdit {
    /// Removes rows that a scan of `table` has found.
    pub fn remove(&mut self, addresses: impl IntoIterator<Item = RowAddress>, table: &Table) -> Result<()> {
        for address in addresses {
            match address {
                RowAddress::Fresh(id) => self.gone_rows.push(id),
                RowAddress::Segment { segment, block, row } => {
                    let segment = table.segments.get(segment).ok_or_else(|| {
                        let message = format!("table \"{}\" has no segment {segment}", table.name);
                        Error::new(ErrorKind::Internal, message)
                    })?;
                    self.deleted.entry(segment.entry.file.clone()).or_default().push((block, row));
                }
            }
        }
        Ok(())
    }

    /// Removes all rows of `table`.
    pub fn remove_all(&mut self, table: &Table) -> Result<()> {
        self.gone_segments.extend(table.segments.iter().map(|segment| segment.entry.file.clone()));
        for (ids, _) in table.fresh.batches()? {
            self.gone_rows.extend(ids);
        }
        Ok(())
    }

    /// Whether it can be applied only to the version of the table that it was made for.
    pub fn removes(&self) -> bool {
        !(self.gone_rows.is_empty() && self.deleted.is_empty() && self.gone_segments.is_empty())
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        !self.removes() && self.segments.is_empty() && self.rows.is_empty()
    }

    /// The next version of `table`, and what makes it durable.
    pub fn apply(&self, table: &Table) -> Result<(Table, Vec<Change>)> {
        let id = table.entry.id;
        let mut next = table.clone();
        let mut changes = Vec::new();
        if !self.gone_rows.is_empty() {
            next.fresh = Arc::new(next.fresh.without(self.gone_rows.iter().copied())?);
            changes.push(Change::RemoveRows { table: id, rows: self.gone_rows.clone() });
        }
        for (file, rows) in &self.deleted {
            changes.push(delete(&mut next, file, rows)?);
        }
        self.apply_segments(&mut next, &mut changes);
        for new in &self.rows {
            next.fresh = Arc::new(next.fresh.with(new, &table.schema)?);
            let rows = Arc::clone(new.rows.encoded());
            changes.push(Change::AddRows { table: id, first_id: new.first_id, rows });
        }
        Ok((next, changes))
    }

    fn apply_segments(&self, next: &mut Table, changes: &mut Vec<Change>) {
        let id = next.entry.id;
        if !self.gone_segments.is_empty() {
            next.segments.retain(|segment| !self.gone_segments.contains(&segment.entry.file));
            changes.push(Change::RemoveSegments { table: id, files: self.gone_segments.iter().cloned().collect() });
        }
        if !self.segments.is_empty() {
            let new = self.segments.iter().map(|file| TableSegment { file: Arc::clone(file), deleted: None });
            next.segments.extend(new);
            next.segments.sort_by_key(|segment| segment.entry.partition);
            let segments = self.segments.iter().map(|file| file.entry.clone()).collect();
            changes.push(Change::AddSegments { table: id, segments });
        }
        if !(self.gone_segments.is_empty() && self.segments.is_empty()) {
            let segments = next.segments.iter().map(|segment| segment.entry.clone()).collect();
            let entry = Arc::make_mut(&mut next.entry);
            entry.segments = segments;
        }
    }
}

/// Marks rows of a segment.
fn delete(table: &mut Table, file: &str, rows: &[(usize, u16)]) -> Result<Change> {
    let id = table.entry.id;
    let Some(segment) = table.segments.iter_mut().find(|segment| segment.entry.file == file) else {
        let message = format!("table \"{}\" has no segment {file} to delete rows of", table.name);
        return Err(Error::new(ErrorKind::Internal, message));
    };
    let before = segment.deleted.as_deref().cloned().unwrap_or_default();
    let deleted = Arc::new(before.with(rows.iter().copied()));
    let touched: BTreeSet<(usize, usize)> =
        rows.iter().map(|(block, row)| (*block, usize::from(*row) / VECTOR_ROWS)).collect();
    let vectors = touched.into_iter().filter_map(|(block, vector)| {
        let rows = VectorRows::of(deleted.block(block)?, vector);
        Some(((block * BLOCK_VECTORS + vector) as u32, rows))
    });
    let vectors = vectors.collect();
    segment.deleted = Some(deleted);
    Ok(Change::DeleteRows { table: id, file: file.to_string(), vectors })
}

/// Whether a segment of so many rows may have this vector: blocks have as many rows as a vector at least.
pub(crate) fn may_have(rows: u64, vector: u32) -> bool {
    let block = u64::from(vector) / BLOCK_VECTORS as u64;
    block < rows.div_ceil(VECTOR_ROWS as u64)
}

/// What [`Change::DeleteRows`] wrote, read back: vectors of a segment.
pub(crate) fn deleted_rows(vectors: impl IntoIterator<Item = (u32, VectorRows)>) -> DeletedRows {
    DeletedRows::new(vectors.into_iter().flat_map(|(vector, rows)| {
        let (block, first) = (vector as usize / BLOCK_VECTORS, vector as usize % BLOCK_VECTORS * VECTOR_ROWS);
        // A block has 65,536 rows at most.
        rows.places().map(|place| (block, (first + place) as u16)).collect::<Vec<_>>()
    }))
}
