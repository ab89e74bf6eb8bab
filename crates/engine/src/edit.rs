//! What a statement changes in a table: a value that can be applied to any version of it in which the rows that it removes are
//! still there.
//!
//! A transaction applies its edits twice: to what it sees, statement by statement, and at its end to what is committed by
//! then. Rows that are only added go on top of whatever others have added; who removes rows has made sure, in the writer's
//! place, that the table is the one it looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use onehop_store::mutant::skips;

use crate::catalog::{Change, TableEntry, VECTOR_ROWS, VectorRows, stands_on_nothing};
use crate::deleted_vectors::BLOCK_VECTORS;
use crate::fresh::{NewRows, RowAddress};
use crate::snapshot::{SegmentFile, Snapshot, Table, TableSegment};
use crate::{Error, ErrorKind, Result};

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

impl Snapshot {
    /// A snapshot with edited tables, and what makes it durable. See [`Database::edit`].
    pub(crate) fn edited(&self, edits: &[(String, TableEdit)], seen: &Snapshot) -> Result<(Snapshot, Vec<Change>)> {
        let (mut next, mut changes) = (self.clone(), Vec::new());
        for (name, edit) in edits {
            self.unchanged(name, edit, seen)?;
            changes.extend(next.apply(name, edit)?);
        }
        Ok((next, changes))
    }

    /// Edits a table of it; what makes that durable.
    pub(crate) fn apply(&mut self, name: &str, edit: &TableEdit) -> Result<Vec<Change>> {
        let Some(before) = self.tables.get(name) else { return Err(dropped(name)) };
        let (table, changes) = edit.apply(before)?;
        if !Arc::ptr_eq(&table.entry, &before.entry) {
            Arc::make_mut(&mut self.catalog).tables.insert(name.to_string(), TableEntry::clone(&table.entry));
        }
        self.tables.put(Arc::new(table));
        Ok(changes)
    }

    /// The table that an edit was made for, if the edit can be applied to it as it is here.
    pub(crate) fn unchanged(&self, name: &str, edit: &TableEdit, seen: &Snapshot) -> Result<&Arc<Table>> {
        let seen_table = seen.tables.get(name);
        let here = self.tables.get(name).filter(|here| seen_table.is_some_and(|seen| seen.entry.id == here.entry.id));
        let Some(here) = here else { return Err(dropped(name)) };
        if edit.removes() && !seen_table.is_some_and(|seen| Arc::ptr_eq(seen, here)) && !skips("commit.conflict") {
            // What it looked at has not happened.
            if self.is_of_later_epoch(seen) {
                return Err(stands_on_nothing());
            }
            let message =
                format!("rows of table \"{name}\" were changed by another session since this transaction began");
            return Err(Error::new(ErrorKind::Conflict, message).with_hint(
                "ROLLBACK, and do the transaction again; BEGIN IMMEDIATE keeps others from changing anything",
            ));
        }
        Ok(here)
    }
}

fn dropped(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("table \"{name}\" was dropped meanwhile"))
}
