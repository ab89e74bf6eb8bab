//! For tests of readers: the same tables, with rows that are fresh and rows of segments that are deleted.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use onehop_io::Ledger;
use onehop_segment::DeletedRows;

use crate::fresh::{FewRows, FreshRows, NewRows, filtered};
use crate::snapshot::{Table, TableSegment};
use crate::{Database, Error, Result};

impl Database {
    /// Moves rows of all tables from segments to the fresh rows, in this process alone and until the next commit to a
    /// table: those for whose number, counted over the segments of a table, `moves` holds. The tables have the same rows
    /// as before, in another order. Among the fresh ones every moved row is a second time, deleted.
    ///
    /// # Errors
    /// Those of the storage.
    #[doc(hidden)]
    pub fn unsettle(&self, moves: impl Fn(u64) -> bool) -> Result<()> {
        self.replace_tables(|table, writing| match table.is_settled() {
            true => moved(table, &moves, |rows| self.new_rows(rows, writing).start).map(Some),
            false => Ok(None),
        })
    }
}

fn moved(table: &Table, moves: &impl Fn(u64) -> bool, first_id: impl Fn(usize) -> u64) -> Result<Table> {
    let mut fresh = FreshRows::default();
    let mut segments = Vec::with_capacity(table.segments.len());
    let mut next = 0;
    for file in &table.segments {
        let segment = file.segment()?;
        let mut deleted = DeletedRows::default();
        for block in 0..segment.blocks() {
            let rows = segment.block_rows(block);
            let is_moved: BooleanArray = (next..next + rows as u64).map(|row| Some(moves(row))).collect();
            next += rows as u64;
            let columns = 0..table.schema.fields().len();
            let arrays = columns.map(|column| {
                let column = segment.load(column, block, &Ledger::default())?;
                column.decode(0..column.rows())
            });
            let arrays = arrays.collect::<std::result::Result<Vec<_>, _>>().map_err(Error::from)?;
            let batch = RecordBatch::try_new(Arc::clone(&table.schema), filtered(arrays, Some(&is_moved))?)?;
            // Twice, of which one is deleted again.
            for is_gone in [true, false] {
                let rows = FewRows::of_batch(batch.clone())?;
                let new = NewRows { first_id: first_id(batch.num_rows()), rows };
                fresh = fresh.with(&new, &table.schema)?;
                if is_gone {
                    fresh = fresh.without(new.ids())?;
                }
            }
            let rows = is_moved.iter().enumerate().filter(|(_, is_moved)| *is_moved == Some(true));
            deleted = deleted.with(rows.map(|(row, _)| (block, row as u16)));
        }
        let deleted = Some(deleted).filter(|deleted| deleted.count() > 0).map(Arc::new);
        segments.push(TableSegment { file: Arc::clone(&file.file), deleted });
    }
    Ok(Table { segments, fresh: Arc::new(fresh), ..Table::clone(table) })
}
