//! One statement from text to its last row: what came out, how far it is, what it moved.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use futures::Stream;
use onehop_io::{Ledger, LedgerSnapshot};

use crate::{Error, Result};

/// How far a statement is, in rows: rows that scans and loads have dealt with, of those that they will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows done.
    pub done: u64,
    /// Rows in all; 0 when nobody knows.
    pub total: u64,
}

/// A running or finished statement, as seen from beside it. Shared; all methods may be called from any thread.
#[derive(Debug)]
pub struct Query {
    started: Instant,
    planned_ns: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
    ledger: Arc<Ledger>,
}

impl Query {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            planned_ns: AtomicU64::new(0),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            ledger: Arc::default(),
        })
    }

    pub(crate) fn planned(&self) {
        self.planned_ns.store(self.started.elapsed().as_nanos() as u64, Relaxed);
    }

    pub(crate) fn expect_rows(&self, rows: u64) {
        self.total.fetch_add(rows, Relaxed);
    }

    pub(crate) fn did_rows(&self, rows: u64) {
        self.done.fetch_add(rows, Relaxed);
    }

    /// Time since the statement began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Time spent parsing and planning; zero until that is over.
    pub fn plan_time(&self) -> Duration {
        Duration::from_nanos(self.planned_ns.load(Relaxed))
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress { done: self.done.load(Relaxed), total: self.total.load(Relaxed) }
    }

    /// What it has moved so far.
    pub fn ledger(&self) -> LedgerSnapshot {
        self.ledger.snapshot()
    }

    pub(crate) fn shared_ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }
}

/// What a statement gives back.
#[derive(Debug)]
pub enum Output {
    /// Rows, as they come.
    Rows(Rows),
    /// Nothing but the fact that it is done.
    Done(Done),
}

/// A statement that returns no rows has been carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What was done, in SQL's words: `CREATE TABLE`, `INSERT`, `COPY` ...
    pub tag: &'static str,
    /// Rows written or removed, where that makes sense.
    pub rows: Option<u64>,
}

/// A stream of record batches. Dropping it cancels the query.
pub struct Rows {
    pub(crate) schema: SchemaRef,
    pub(crate) stream: SendableRecordBatchStream,
}

impl Rows {
    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.as_mut().poll_next(cx).map(|next| next.map(|batch| batch.map_err(Error::from)))
    }
}
