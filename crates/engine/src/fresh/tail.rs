//! The latest rows, as they went to the store, in a log that versions share.
//!
//! ```text
//! log       a b c d e
//! version 1 a b                 a prefix of the log
//! version 2 a b c d e
//! version 3 a b f               another log: c, d and e are not in this version
//! ```
//! The log grows at its end alone, under a lock. Only a successor of the version that has the whole
//! log appends to it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::datatypes::SchemaRef;

use super::Chunk;
use super::rows::{NewRows, decoded};
use crate::Result;
use crate::catalog::row::EncodedRows;

/// The limits of rows and bytes of a tail. A larger tail becomes a chunk.
const MOST_ROWS: usize = 64;
const MOST_BYTES: usize = 64 << 10;

/// The last rows of a version.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    /// The log; `None` if there are no rows.
    log: Option<Arc<Log>>,
    /// The number of the log's rows that are in this version.
    rows: usize,
    bytes: usize,
    /// The rows as a chunk, built by the first reader.
    chunk: OnceLock<Chunk>,
}

/// Rows in the order of their ids.
#[derive(Debug)]
struct Log {
    schema: SchemaRef,
    rows: Mutex<LogRows>,
}

#[derive(Debug)]
struct LogRows {
    ids: Vec<u64>,
    encoded: EncodedRows,
}

impl Tail {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns their size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the tail has space for these rows.
    pub fn has_room_for(&self, new: &NewRows) -> bool {
        self.rows + new.rows.len() <= MOST_ROWS && self.bytes + bytes_of(new) <= MOST_BYTES
    }

    /// Appends rows to a new version. There must be space for them.
    pub fn with(&self, new: &NewRows, schema: &SchemaRef) -> Self {
        let log = match &self.log {
            Some(log) if log.push_after(self.rows, new) => Arc::clone(log),
            other => Arc::new(Log::new(other.as_deref(), self.rows, new, schema)),
        };
        let (rows, bytes) = (self.rows + new.rows.len(), self.bytes + bytes_of(new));
        Self { log: Some(log), rows, bytes, chunk: OnceLock::new() }
    }

    /// Returns the rows as a chunk; `None` if there are none.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) if they are not rows of the table.
    pub fn chunk(&self) -> Result<Option<&Chunk>> {
        let Some(log) = &self.log else { return Ok(None) };
        if let Some(chunk) = self.chunk.get() {
            return Ok(Some(chunk));
        }
        let (ids, rows) = log.first(self.rows);
        let chunk = Chunk::new(decoded(&rows, &log.schema)?, ids.into());
        Ok(Some(self.chunk.get_or_init(|| chunk)))
    }

    /// Returns the id of the first row.
    pub fn first_id(&self) -> Option<u64> {
        self.log.as_ref().and_then(|log| log.lock().ids.first().copied())
    }
}

fn bytes_of(new: &NewRows) -> usize {
    new.rows.encoded().bytes() + new.rows.len() * size_of::<u64>()
}

impl Log {
    /// Creates a log of the first `kept` rows of another one, if there is one, and new rows.
    fn new(before: Option<&Self>, kept: usize, new: &NewRows, schema: &SchemaRef) -> Self {
        let (ids, encoded) = before.map(|before| before.first(kept)).unwrap_or_default();
        let mut rows = LogRows { ids, encoded };
        // The reservation avoids moves during growth.
        rows.ids.reserve_exact(MOST_ROWS - kept);
        let encoded = new.rows.encoded();
        let bytes = (MOST_ROWS - kept).saturating_mul(encoded.bytes() / encoded.len().max(1));
        rows.encoded.reserve(MOST_ROWS - kept, bytes.min(MOST_BYTES));
        rows.push(new);
        Self { schema: Arc::clone(schema), rows: Mutex::new(rows) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LogRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends rows if the log has exactly `rows` rows, so that no other version has appended any.
    fn push_after(&self, rows: usize, new: &NewRows) -> bool {
        let mut log = self.lock();
        let is_end = log.ids.len() == rows;
        if is_end {
            log.push(new);
        }
        is_end
    }

    /// Returns the first `rows` rows, and their ids.
    fn first(&self, rows: usize) -> (Vec<u64>, EncodedRows) {
        let log = self.lock();
        (log.ids[..rows].to_vec(), log.encoded.first(rows))
    }
}

impl LogRows {
    fn push(&mut self, new: &NewRows) {
        self.ids.extend(new.ids());
        self.encoded.extend(new.rows.encoded());
    }
}
