//! Bulk loads: streams of batches in, segment files and their catalog entries out.
//!
//! Every input stream is a task with a [`SegmentSet`] of its own: one open segment per partition of the table. A full
//! segment is written by a blocking task while the stream goes on with the next, one such at a time, so that a load
//! holds at most two segments per stream and partition. The files are synced when [`load`] returns; nothing mentions
//! them until the caller commits them to the catalog, and if the load fails they are removed here.

pub(crate) mod partition;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, execute_stream_partitioned};
use futures::StreamExt;
use onehop_segment::{SegmentOptions, SegmentWriter};
use tokio::task::JoinSet;

use self::partition::Router;
use crate::catalog::{PartitionBy, SegmentEntry};
use crate::database::{Database, segment_name};
use crate::lower::FusedExec;
use crate::query::Query;
use crate::settings::Settings;
use crate::{Error, ErrorKind, Result};

/// Where rows go, and how they are cut.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub database: Database,
    /// For file names: the table's id.
    pub table_id: u64,
    pub schema: SchemaRef,
    pub partition_by: Option<PartitionBy>,
    pub block_rows: usize,
    pub segment_rows: u64,
    pub query: Arc<Query>,
    files: Arc<NewFiles>,
}

/// Files of a load that no catalog mentions yet. Dropping it removes them, unless they were kept, or a commit failed
/// half-way: then the durable catalog may mention them, and the next open knows.
#[derive(Debug)]
struct NewFiles {
    database: Database,
    names: Mutex<Vec<String>>,
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        if self.database.is_in_doubt() {
            return;
        }
        for name in self.names.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // What cannot be removed now is an orphan, which the next open collects.
            let _ = self.database.segments().remove(name);
        }
    }
}

impl Target {
    pub fn new(
        database: &Database,
        settings: &Settings,
        table_id: u64,
        schema: SchemaRef,
        partition_by: Option<PartitionBy>,
        query: &Arc<Query>,
    ) -> Self {
        Self {
            database: database.clone(),
            table_id,
            schema,
            partition_by,
            block_rows: settings.block_rows(),
            segment_rows: settings.segment_rows(),
            query: Arc::clone(query),
            files: Arc::new(NewFiles { database: database.clone(), names: Mutex::default() }),
        }
    }

    /// The load is committed: its files stay.
    pub fn keep_files(&self) {
        self.files.names.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Writes all rows of a plan. The files are durable, their names are not yet.
pub(crate) async fn load(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    target: &Target,
) -> Result<Vec<SegmentEntry>> {
    // For the progress bar: how many rows a file or a table will give is known more often than not.
    if let Ok(statistics) = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())
        && let Some(rows) = statistics.num_rows.get_value()
    {
        target.query.expect_rows(*rows as u64);
    }
    let streams = execute_stream_partitioned(spread(plan, &context)?, context)?;
    let mut tasks = JoinSet::new();
    for (index, stream) in streams.into_iter().enumerate() {
        let target = target.clone();
        tasks.spawn(async move { (index, load_stream(stream, target).await) });
    }
    let mut loaded = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (index, segments) = done.map_err(|e| Error::new(ErrorKind::Internal, format!("a load task died: {e}")))?;
        // The first error ends the load: dropping the set stops the other tasks.
        loaded.push((index, segments?));
    }
    loaded.sort_by_key(|(index, _)| *index);
    let mut segments: Vec<SegmentEntry> = loaded.into_iter().flat_map(|(_, segments)| segments).collect();
    segments.sort_by_key(|segment| segment.partition);
    Ok(segments)
}

/// Rows that pipelines hand over in one stream, in no order, are packed on all threads.
fn spread(plan: Arc<dyn ExecutionPlan>, context: &TaskContext) -> Result<Arc<dyn ExecutionPlan>> {
    let threads = context.session_config().target_partitions();
    if threads < 2 || plan.output_partitioning().partition_count() > 1 || !is_flow(&plan) {
        return Ok(plan);
    }
    Ok(Arc::new(RepartitionExec::try_new(plan, Partitioning::RoundRobinBatch(threads))?))
}

/// Whether its rows are those of a pipeline as they are made, projected or not.
fn is_flow(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match (plan.downcast_ref::<FusedExec>(), plan.children().as_slice()) {
        (Some(exec), _) => exec.fused().collects(),
        (None, [below]) if plan.is::<ProjectionExec>() => is_flow(below),
        _ => false,
    }
}

async fn load_stream(mut stream: SendableRecordBatchStream, target: Target) -> Result<Vec<SegmentEntry>> {
    let mut set = SegmentSet::new(target)?;
    while let Some(batch) = stream.next().await {
        let full = set.append(&batch?)?;
        if !full.is_empty() {
            set.write_later(full).await?;
        }
    }
    set.finish().await
}

/// The segments that one stream is filling.
pub(crate) struct SegmentSet {
    target: Target,
    router: Option<Router>,
    open: BTreeMap<u32, SegmentWriter>,
    writing: Option<tokio::task::JoinHandle<Result<Vec<SegmentEntry>>>>,
    written: Vec<SegmentEntry>,
}

type Full = Vec<(u32, SegmentWriter)>;

impl SegmentSet {
    pub fn new(target: Target) -> Result<Self> {
        let router = Router::new(target.partition_by.as_ref(), &target.schema)?;
        Ok(Self { target, router, open: BTreeMap::new(), writing: None, written: Vec::new() })
    }

    /// Adds rows; returns the segments that this made full.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<Full> {
        let batch = to_schema(batch, &self.target.schema)?;
        self.target.query.did_rows(batch.num_rows() as u64);
        let parts = match &self.router {
            Some(router) => router.split(&batch)?,
            None => vec![(0, batch)],
        };
        let mut full = Vec::new();
        for (partition, part) in parts {
            self.append_part(partition, &part, &mut full)?;
        }
        Ok(full)
    }

    fn append_part(&mut self, partition: u32, part: &RecordBatch, full: &mut Full) -> Result<()> {
        let mut start = 0;
        while start < part.num_rows() {
            let writer = match self.open.entry(partition) {
                std::collections::btree_map::Entry::Occupied(open) => open.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => {
                    let options = SegmentOptions { block_rows: self.target.block_rows };
                    free.insert(SegmentWriter::new(&self.target.schema, options)?)
                }
            };
            let space = (self.target.segment_rows - writer.rows()) as usize;
            let rows = space.min(part.num_rows() - start);
            writer.append(&part.slice(start, rows))?;
            start += rows;
            if rows == space
                && let Some(writer) = self.open.remove(&partition)
            {
                full.push((partition, writer));
            }
        }
        Ok(())
    }

    /// Writes full segments beside the stream, after those before them.
    async fn write_later(&mut self, full: Full) -> Result<()> {
        self.join().await?;
        let target = self.target.clone();
        self.writing = Some(tokio::task::spawn_blocking(move || write_all(full, &target)));
        Ok(())
    }

    async fn join(&mut self) -> Result<()> {
        if let Some(writing) = self.writing.take() {
            let written = writing.await;
            let written = written.map_err(|e| Error::new(ErrorKind::Internal, format!("a writing task died: {e}")))?;
            self.written.extend(written?);
        }
        Ok(())
    }

    /// Writes what is open, full or not.
    async fn finish(mut self) -> Result<Vec<SegmentEntry>> {
        let rest: Full = std::mem::take(&mut self.open).into_iter().collect();
        if !rest.is_empty() {
            self.write_later(rest).await?;
        }
        self.join().await?;
        Ok(self.written)
    }

    /// As [`SegmentSet::finish`], for loaders that have threads of their own.
    pub fn finish_blocking(mut self) -> Result<Vec<SegmentEntry>> {
        let rest: Full = std::mem::take(&mut self.open).into_iter().collect();
        self.written.extend(write_all(rest, &self.target)?);
        Ok(self.written)
    }

    /// Writes full segments now, for loaders that have threads of their own.
    pub fn write_now(&mut self, full: Full) -> Result<()> {
        self.written.extend(write_all(full, &self.target)?);
        Ok(())
    }
}

fn write_all(full: Full, target: &Target) -> Result<Vec<SegmentEntry>> {
    full.into_iter().map(|(partition, writer)| write_segment(writer, partition, target)).collect()
}

fn write_segment(writer: SegmentWriter, partition: u32, target: &Target) -> Result<SegmentEntry> {
    let name = segment_name(target.table_id, target.database.new_id());
    target.files.names.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
    let file = target.database.segments().create(&name)?;
    let written = writer.finish(&*file, target.query.shared_ledger())?;
    let checksum = Some(written.checksum);
    Ok(SegmentEntry { file: name, rows: written.rows, bytes: written.bytes, checksum, partition })
}

/// Brings a batch to the table's types: other string types, other decimals, wider or narrower integers.
fn to_schema(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let is_same = batch.schema_ref().fields().iter().zip(schema.fields()).all(|(a, b)| a.data_type() == b.data_type());
    if is_same {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().zip(schema.fields()).map(|(array, field)| {
        let options = arrow::compute::CastOptions { safe: false, ..Default::default() };
        arrow::compute::cast_with_options(array, field.data_type(), &options)
    });
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    // NOT NULL is the writer's to enforce, with a better message than a schema mismatch.
    let loose = arrow::datatypes::Schema::new(
        schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>(),
    );
    Ok(RecordBatch::try_new(Arc::new(loose), columns)?)
}
