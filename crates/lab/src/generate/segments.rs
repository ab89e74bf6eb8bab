//! Loads a generator's tables directly into a database's segments, in parallel, in bounded memory.
//!
//! The unit of work is a run of chunks that makes one full segment. Worker threads claim units in
//! order. Each generates its chunks and feeds them to a writer of its own, so at most one segment
//! per thread is in memory. A table becomes visible as a whole, in one commit, when its last unit
//! is written.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onehop_engine::{BulkLoad, Session};

use super::write::Progress;
use super::{CHUNK_ROWS, Error, Generator, Result, TableInfo};

/// A loaded table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The table.
    pub table: &'static str,
    /// The number of its rows.
    pub rows: u64,
}

/// Loads one table, which must exist and have the generator's columns.
///
/// `progress` is called from worker threads, after every batch. When `cancel` becomes true the load
/// stops at the next batch with [`Error::Cancelled`], and the table stays as it was.
pub fn load_table(
    generator: &dyn Generator,
    table: &TableInfo,
    session: &Session,
    threads: NonZeroUsize,
    progress: &(dyn Fn(Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Loaded> {
    let load = session.bulk_load(table.name)?;
    let chunks = generator.chunks(table.name)? as u64;
    let work = Work {
        generator,
        table,
        load: &load,
        chunks,
        // Chunks hold about CHUNK_ROWS rows: slightly less than a segment's worth, so that none
        // overflows into a small one.
        unit_chunks: (load.segment_rows() / (CHUNK_ROWS + CHUNK_ROWS / 64)).max(1),
        next_unit: AtomicU64::new(0),
        rows_done: AtomicU64::new(0),
        progress,
        cancel,
        failure: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| work.run());
        }
    });
    if let Some(error) = work.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    Ok(Loaded { table: table.name, rows: load.commit()? })
}

struct Work<'a> {
    generator: &'a dyn Generator,
    table: &'a TableInfo,
    load: &'a BulkLoad,
    chunks: u64,
    unit_chunks: u64,
    next_unit: AtomicU64,
    rows_done: AtomicU64,
    progress: &'a (dyn Fn(Progress) + Sync),
    cancel: &'a AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl Work<'_> {
    fn run(&self) {
        loop {
            let unit = self.next_unit.fetch_add(1, Ordering::Relaxed);
            let first = unit * self.unit_chunks;
            if first >= self.chunks || self.has_failed() {
                return;
            }
            if let Err(error) = self.run_unit(unit, first..(first + self.unit_chunks).min(self.chunks)) {
                // The first failure is the one to report; the others may only be its consequences.
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn run_unit(&self, unit: u64, chunks: std::ops::Range<u64>) -> Result<()> {
        let mut writer = self.load.writer(unit)?;
        for chunk in chunks {
            for batch in self.generator.chunk(self.table.name, chunk as usize)? {
                if self.cancel.load(Ordering::Relaxed) {
                    return Err(Error::Cancelled);
                }
                let batch = batch?;
                writer.append(&batch)?;
                let rows = batch.num_rows() as u64;
                let rows_done = self.rows_done.fetch_add(rows, Ordering::Relaxed) + rows;
                let (table, rows_expected) = (self.table.name, self.table.rows_expected);
                (self.progress)(Progress { table, rows_done, rows_expected });
            }
        }
        writer.finish()?;
        Ok(())
    }
}
