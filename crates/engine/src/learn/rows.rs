//! Rows as doubles, in chunks, for passes to read.
//!
//! - Batches of a query's partitions become [`Chunk`]s. Each partition's chunks have the order of
//!   its rows, and partitions follow each other. The same plan over the same table gives the same
//!   chunks, and so the same bits.
//! - A row with a NULL is skipped and counted. A value that is not finite is an error that names
//!   its column.
//! - Chunks are kept in memory up to the statement's budget. The rest is in a temporary file, which
//!   each pass reads again. Memory for making and reading chunks is reserved first.
//! - Threads run a pass. Each takes every n-th chunk, and their results are merged in order. Before
//!   each chunk, a thread checks whether the query was cancelled.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, filter};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use onehop_io::{Ledger, WriteAt};
use onehop_learn::{CHUNK_ROWS, Chunk, Extents, Pass};
use onehop_pipeline::{Account, Budget, Holder};
use tokio::task::JoinSet;

use crate::query::Query;
use crate::task::{scoped, spawn_blocking};
use crate::{Error, ErrorKind, Result, pipeline_budget};

/// The maximum bytes of a chunk, which limits the rows of wide tables.
const CHUNK_BYTES: usize = 4 << 20;
/// The minimum rows of a chunk.
const LEAST_CHUNK_ROWS: usize = 512;

/// The permitted values of the last column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// 0 or 1.
    Label,
    /// Any number.
    Number,
}

/// The names of columns in messages.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub function: &'static str,
    pub features: Vec<String>,
    pub label: String,
}

/// Rows that have been read.
#[derive(Debug)]
pub(super) struct Rows {
    chunks: Vec<Kept>,
    extents: Extents,
    skipped: u64,
    store: Arc<Store>,
}

/// A chunk in memory or in a file.
#[derive(Debug)]
enum Kept {
    Memory(Chunk),
    File { offset: u64, rows: usize },
}

/// The storage of chunks.
#[derive(Debug)]
struct Store {
    budget: Budget,
    account: Box<dyn Account>,
    /// The bytes reserved in the account.
    held: Mutex<usize>,
    file: Mutex<Option<Arc<dyn WriteAt>>>,
    written: AtomicU64,
    query: Arc<Query>,
}

impl Rows {
    /// Reads all rows of a plan.
    ///
    /// # Errors
    /// The errors of the plan; [`ErrorKind::Data`] for invalid values; [`ErrorKind::Resources`] if
    /// there is not enough memory to read them.
    pub async fn collect(
        plan: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        names: &Arc<Names>,
        target: Target,
        query: &Arc<Query>,
    ) -> Result<Self> {
        let features = names.features.len();
        let store = Arc::new(Store::new(context, query));
        let partitions = plan.output_partitioning().partition_count();
        let threads = context.session_config().target_partitions();
        // Two chunks per partition while they are made, and one per thread that reads them again.
        store.hold((partitions * 2 + threads) * Chunk::bytes(chunk_rows(features), features))?;
        let mut tasks = JoinSet::new();
        for partition in 0..partitions {
            let mut batches = plan.execute(partition, Arc::clone(context))?;
            let mut part = Part::new(names, target, &store);
            tasks.spawn(scoped(async move {
                while let Some(batch) = batches.next().await {
                    part.add(&batch?)?;
                }
                part.finish()?;
                Ok::<_, Error>((partition, part))
            }));
        }
        let mut parts = Vec::with_capacity(partitions);
        while let Some(ended) = tasks.join_next().await {
            parts.push(ended.map_err(|e| died(&e))??);
        }
        parts.sort_by_key(|(partition, _)| *partition);
        let mut extents = Extents::new(features);
        let (mut chunks, mut skipped) = (Vec::new(), 0);
        for (_, part) in parts {
            part.extents.iter().for_each(|more| extents.merge(more));
            chunks.extend(part.kept);
            skipped += part.skipped;
        }
        Ok(Self { chunks, extents, skipped, store })
    }

    /// Returns the extents of all rows.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Returns the number of rows with a NULL.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the number of bytes in the temporary file.
    pub fn spilled_bytes(&self) -> u64 {
        self.store.written.load(Relaxed)
    }

    /// Reserves memory for something besides the rows.
    ///
    /// # Errors
    /// [`ErrorKind::Resources`].
    pub fn hold(&self, bytes: usize) -> Result<()> {
        self.store.hold(bytes)
    }

    /// Runs one pass over all rows, on `threads` threads.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if the query was cancelled; the errors of reading a temporary file.
    pub async fn pass(self: &Arc<Self>, empty: Pass, threads: usize) -> Result<Pass> {
        let query = &self.store.query;
        query.expect_rows(self.extents.rows());
        let threads = threads.clamp(1, self.chunks.len().max(1));
        let mut workers = Vec::with_capacity(threads);
        for first in 0..threads {
            let (rows, mut pass) = (Arc::clone(self), empty.clone());
            workers.push(spawn_blocking(move || {
                rows.each(first, threads, |chunk| pass.add(chunk))?;
                Ok::<_, Error>(pass)
            }));
        }
        let mut total = empty;
        let mut failed = None;
        for worker in workers {
            match worker.await.map_err(|e| died(&e)).and_then(|outcome| outcome) {
                Ok(pass) => total.merge(&pass),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(total), Err)
    }

    /// Shows every `step`-th chunk, beginning with `first`.
    pub fn each(&self, first: usize, step: usize, mut show: impl FnMut(&Chunk)) -> Result<()> {
        let mut bytes = Vec::new();
        for kept in self.chunks.iter().skip(first).step_by(step) {
            if self.store.query.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the query was cancelled"));
            }
            match kept {
                Kept::Memory(chunk) => show(chunk),
                Kept::File { offset, rows } => {
                    show(&self.store.read(*offset, *rows, self.extents.features(), &mut bytes)?);
                }
            }
            self.store.query.did_rows(kept.rows() as u64);
        }
        Ok(())
    }
}

impl Kept {
    fn rows(&self) -> usize {
        match self {
            Self::Memory(chunk) => chunk.rows(),
            Self::File { rows, .. } => *rows,
        }
    }
}

fn chunk_rows(features: usize) -> usize {
    (CHUNK_BYTES / Chunk::bytes(1, features)).clamp(LEAST_CHUNK_ROWS, CHUNK_ROWS) / LEAST_CHUNK_ROWS * LEAST_CHUNK_ROWS
}

fn died(e: &tokio::task::JoinError) -> Error {
    let kind = if e.is_cancelled() { ErrorKind::Cancelled } else { ErrorKind::Internal };
    Error::new(kind, format!("a thread that learns has ended: {e}"))
}

impl Store {
    fn new(context: &TaskContext, query: &Arc<Query>) -> Self {
        let budget = pipeline_budget::budget(context);
        let account = budget.0.account("rows to learn from", Holder::Spills);
        Self {
            account,
            budget,
            held: Mutex::default(),
            file: Mutex::default(),
            written: AtomicU64::new(0),
            query: Arc::clone(query),
        }
    }

    /// Reserves more bytes.
    fn hold(&self, bytes: usize) -> Result<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.account.try_resize(*held + bytes)?;
        *held += bytes;
        Ok(())
    }

    fn ledger(&self) -> &Ledger {
        self.budget.0.ledger()
    }

    /// Keeps a chunk in memory or, if none is left, in a file.
    fn keep(&self, chunk: Chunk) -> Result<Kept> {
        let bytes = Chunk::bytes(chunk.rows(), chunk.features());
        let Err(no_memory) = self.hold(bytes) else { return Ok(Kept::Memory(chunk)) };
        let Some(file) = self.file()? else { return Err(no_memory) };
        let offset = self.written.fetch_add(bytes as u64, Relaxed);
        let stored: Vec<u8> = chunk.values().iter().flat_map(|value| value.to_le_bytes()).collect();
        file.write_at(offset, &stored, self.ledger())?;
        self.ledger().spilled(bytes);
        Ok(Kept::File { offset, rows: chunk.rows() })
    }

    fn file(&self) -> Result<Option<Arc<dyn WriteAt>>> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = self.budget.0.file()?;
        }
        Ok(file.clone())
    }

    fn read(&self, offset: u64, rows: usize, features: usize, bytes: &mut Vec<u8>) -> Result<Chunk> {
        let Some(file) = self.file()? else {
            return Err(Error::new(ErrorKind::Internal, "rows were put into a file that is not there"));
        };
        bytes.resize(Chunk::bytes(rows, features), 0);
        file.read_at(offset, bytes, self.ledger())?;
        let values = bytes.as_chunks().0.iter().map(|value| f64::from_le_bytes(*value)).collect();
        Ok(Chunk::of_values(features, values))
    }
}

/// The rows of a partition.
struct Part {
    names: Arc<Names>,
    target: Target,
    store: Arc<Store>,
    /// The chunk being made: space for a full chunk's columns, one after the other. `filled` is its
    /// number of rows.
    values: Vec<f64>,
    filled: usize,
    kept: Vec<Kept>,
    extents: Vec<Extents>,
    skipped: u64,
}

impl Part {
    fn new(names: &Arc<Names>, target: Target, store: &Arc<Store>) -> Self {
        let (names, store) = (Arc::clone(names), Arc::clone(store));
        Self { names, target, store, values: Vec::new(), filled: 0, kept: Vec::new(), extents: Vec::new(), skipped: 0 }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = numbers(batch)?;
        let columns = self.without_nulls(columns)?;
        for (place, column) in columns.iter().enumerate() {
            self.check(place, column)?;
        }
        let rows = columns.first().map_or(0, |column| column.len());
        let most = chunk_rows(self.names.features.len());
        let mut done = 0;
        while done < rows {
            if self.values.is_empty() {
                self.values = vec![0.0; most * columns.len()];
            }
            let more = (most - self.filled).min(rows - done);
            for (own, column) in self.values.chunks_exact_mut(most).zip(&columns) {
                own[self.filled..self.filled + more].copy_from_slice(&column.values()[done..done + more]);
            }
            (done, self.filled) = (done + more, self.filled + more);
            if self.filled == most {
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Completes the chunk being made.
    fn finish(&mut self) -> Result<()> {
        let features = self.names.features.len();
        let most = chunk_rows(features);
        let (values, filled) = (std::mem::take(&mut self.values), std::mem::take(&mut self.filled));
        let chunk = match filled {
            0 => return Ok(()),
            filled if filled == most => Chunk::of_values(features, values),
            filled => Chunk::of_columns(&values.chunks_exact(most).map(|column| &column[..filled]).collect::<Vec<_>>()),
        };
        self.extents.push(Extents::of(&chunk));
        self.kept.push(self.store.keep(chunk)?);
        Ok(())
    }

    fn without_nulls(&mut self, columns: Vec<Float64Array>) -> Result<Vec<Float64Array>> {
        let nulls = columns.iter().fold(None, |all, column| NullBuffer::union(all.as_ref(), column.nulls()));
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return Ok(columns) };
        self.skipped += nulls.null_count() as u64;
        let is_whole = BooleanArray::new(nulls.into_inner(), None);
        let whole = columns.iter().map(|column| Ok(filter(column, &is_whole)?.as_primitive::<Float64Type>().clone()));
        whole.collect()
    }

    fn check(&self, place: usize, column: &Float64Array) -> Result<()> {
        let values = column.values();
        // Counting takes a fraction of the time of a search, and the count is nearly always 0.
        if values.iter().filter(|value| !value.is_finite()).count() > 0 {
            let value = values.iter().find(|value| !value.is_finite()).copied().unwrap_or(f64::NAN);
            let (what, name) = match self.names.features.get(place) {
                Some(name) => ("feature", name),
                None => ("label", &self.names.label),
            };
            let problem =
                format!("{}: {what} {name} has the value {value}, which nothing follows from", self.names.function);
            let hint =
                "CASE WHEN isnan(x) THEN NULL ELSE x END leaves such rows out; a query in brackets may be the table";
            return Err(Error::new(ErrorKind::Data, problem).with_hint(hint));
        }
        let is_label = place == self.names.features.len() && self.target == Target::Label;
        if is_label && values.iter().filter(|value| **value != 0.0 && **value != 1.0).count() > 0 {
            let value = values.iter().find(|value| **value != 0.0 && **value != 1.0).copied().unwrap_or(f64::NAN);
            let Names { function, label, .. } = &*self.names;
            let problem = format!("{function}: label {label} has the value {value}, and must be a boolean, 0 or 1");
            let hint = format!("compare it: label => '{label} = {value}' is a boolean");
            return Err(Error::new(ErrorKind::Data, problem).with_hint(hint));
        }
        Ok(())
    }
}

/// Returns a batch's columns as doubles.
fn numbers(batch: &RecordBatch) -> Result<Vec<Float64Array>> {
    let number = |column: &ArrayRef| match column.data_type() {
        DataType::Float64 => Ok(column.as_primitive::<Float64Type>().clone()),
        _ => Ok(cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().clone()),
    };
    batch.columns().iter().map(number).collect()
}
