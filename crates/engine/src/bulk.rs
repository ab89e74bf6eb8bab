//! Bulk loads from outside of SQL: many threads bring batches, one commit makes them visible.
//!
//! Each thread takes a [`BulkWriter`] of its own; what it wrote is durable when [`BulkWriter::finish`] returns, and
//! part of the table when [`BulkLoad::commit`] does. Dropped before that, nothing happened. Rows are stored in the
//! order in which they come: for a table with CLUSTER BY they must come sorted.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::catalog::SegmentEntry;
use crate::limits::Limits;
use crate::load::{SegmentSet, Target};
use crate::place::{Placing, residence};
use crate::session::CancelOnDrop;
use crate::settings::Settings;
use crate::snapshot::{Snapshot, Table};
use crate::statement::{add_segments, writable_table};
use crate::{Database, Query, Result, Session};

/// A load into one table.
#[derive(Debug)]
pub struct BulkLoad {
    database: Database,
    table: Arc<Table>,
    /// What it began with.
    seen: Arc<Snapshot>,
    target: Target,
    /// What the writers finished, with the place each gave itself.
    finished: Mutex<Vec<(u64, Vec<SegmentEntry>)>>,
    query: Arc<Query>,
    settings: Arc<Settings>,
    guard: CancelOnDrop,
}

/// One thread's part of a [`BulkLoad`].
pub struct BulkWriter<'a> {
    load: &'a BulkLoad,
    set: SegmentSet,
    place: u64,
}

impl Session {
    /// Begins a load into a table.
    ///
    /// # Errors
    /// If there is no such table, it is a view, or the database is read-only.
    pub fn bulk_load(&self, table: &str) -> Result<BulkLoad> {
        let database = self.database();
        let seen = database.snapshot();
        let table = writable_table(table, database, &seen)?;
        let query = self.start_query(
            &format!("bulk load into {}", table.name),
            Limits::of(&self.current_settings()).without_time(),
        );
        let entry = &table.entry;
        let schema = Arc::clone(&table.schema);
        let settings = self.current_settings();
        let target = Target::new(database, &settings, entry.id, schema, entry.partition_by.clone(), &query);
        let guard = CancelOnDrop::new(&query);
        Ok(BulkLoad {
            database: database.clone(),
            table,
            seen,
            target,
            finished: Mutex::default(),
            query,
            settings,
            guard,
        })
    }
}

impl BulkLoad {
    /// The columns that batches must have; types that can be cast to them are.
    pub fn schema(&self) -> &SchemaRef {
        &self.target.schema
    }

    /// Rows that make one full segment: the unit of work that leaves no small ones behind.
    pub fn segment_rows(&self) -> u64 {
        self.target.segment_rows
    }

    /// A writer. Segments end up in the order of their writers' `place`s.
    pub fn writer(&self, place: u64) -> Result<BulkWriter<'_>> {
        Ok(BulkWriter { load: self, set: SegmentSet::new(self.target.clone())?, place })
    }

    /// Makes the rows of all finished writers part of the table; their number.
    pub fn commit(self) -> Result<u64> {
        let mut finished = std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner));
        finished.sort_by_key(|(place, _)| *place);
        let segments: Vec<SegmentEntry> = finished.into_iter().flat_map(|(_, segments)| segments).collect();
        let rows = segments.iter().map(|segment| segment.rows).sum();
        add_segments(&self.database, &self.settings, &self.table, &self.seen, segments, &self.target)
            .inspect_err(|e| self.query.failed(e))?;
        self.follow();
        self.query.made_rows(rows);
        self.query.done();
        self.guard.disarm();
        Ok(rows)
    }
}

impl BulkLoad {
    /// Loads what belongs on a device.
    fn follow(&self) {
        if let Some(table) = self.database.snapshot().table(&self.table.name) {
            let placing = Placing::new(self.database.known(), &self.settings);
            let cache = Arc::new(self.database.cache().by_path(self.settings.io_path()));
            residence::follow(&placing, &cache, table, &self.query, &AtomicBool::new(false));
        }
    }
}

impl BulkWriter<'_> {
    /// Adds rows. Writes full segments on the way, so a call may take as long as that.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        let full = self.set.append(batch)?;
        if full.is_empty() { Ok(()) } else { self.set.write_now(full) }
    }

    /// Writes what is left.
    pub fn finish(self) -> Result<()> {
        let segments = self.set.finish_blocking()?;
        self.load.finished.lock().unwrap_or_else(PoisonError::into_inner).push((self.place, segments));
        Ok(())
    }
}
