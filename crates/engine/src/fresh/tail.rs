//! The rows that came last, as they went to the store, in a list of all versions that have some of them.
//!
//! ```text
//! log       a b c d e
//! version 1 a b                 a beginning of the log
//! version 2 a b c d e
//! version 3 a b f               another log: what came after version 1 in this one is not its
//! ```
//! The log grows at its end alone, under a lock, by whoever goes on from the version that has all of it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::datatypes::SchemaRef;

use super::Chunk;
use super::rows::{NewRows, decoded};
use crate::Result;
use crate::catalog::row::EncodedRows;

/// More rows, or more bytes of them, are a chunk.
const MOST_ROWS: usize = 64;
const MOST_BYTES: usize = 64 << 10;

/// The last rows of a version.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    /// `None` if there are none.
    log: Option<Arc<Log>>,
    /// How many of the log's.
    rows: usize,
    bytes: usize,
    /// The rows as who reads them has them.
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
    /// How many there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether so many more may come to them.
    pub fn has_room_for(&self, new: &NewRows) -> bool {
        self.rows + new.rows.len() <= MOST_ROWS && self.bytes + bytes_of(new) <= MOST_BYTES
    }

    /// With more rows after them, for which there is room.
    pub fn with(&self, new: &NewRows, schema: &SchemaRef) -> Self {
        let log = match &self.log {
            Some(log) if log.push_after(self.rows, new) => Arc::clone(log),
            other => Arc::new(Log::new(other.as_deref(), self.rows, new, schema)),
        };
        let (rows, bytes) = (self.rows + new.rows.len(), self.bytes + bytes_of(new));
        Self { log: Some(log), rows, bytes, chunk: OnceLock::new() }
    }

    /// As a chunk; `None` if there are none.
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

    /// The id of the first.
    pub fn first_id(&self) -> Option<u64> {
        self.log.as_ref().and_then(|log| log.lock().ids.first().copied())
    }
}

fn bytes_of(new: &NewRows) -> usize {
    new.rows.encoded().bytes() + new.rows.len() * size_of::<u64>()
}

impl Log {
    /// The first so many rows of another one, if there is one, and new ones.
    fn new(before: Option<&Self>, kept: usize, new: &NewRows, schema: &SchemaRef) -> Self {
        let (ids, encoded) = before.map(|before| before.first(kept)).unwrap_or_default();
        let mut rows = LogRows { ids, encoded };
        // So that it need not move while it grows.
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

    /// Adds rows, if there are so many before them: others have added none.
    fn push_after(&self, rows: usize, new: &NewRows) -> bool {
        let mut log = self.lock();
        let is_end = log.ids.len() == rows;
        if is_end {
            log.push(new);
        }
        is_end
    }

    /// The first so many, and their ids.
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
