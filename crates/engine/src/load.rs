//! Bulk loads: streams of batches in, segment files and their catalog entries out.
//!
//! Every input stream is a task with a [`SegmentSet`] of its own: one open segment per partition of the table. A full
//! segment is written by a blocking task while the stream goes on with the next, one such at a time, so that a load
//! holds at most two segments per stream and partition. The files are synced when [`load`] returns; nothing mentions
//! them until the caller commits them to the catalog, and if the load fails they are removed here.
//!
//! Rows that are too few to be worth a segment are handed back instead. Until it is known that they are not, every stream
//! keeps what it has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, execute_stream, execute_stream_partitioned,
};
use futures::StreamExt;
use onehop_segment::{SegmentOptions, SegmentWriter};
use onehop_store::mutant::skips;
use tokio::task::{JoinHandle, JoinSet};

use crate::catalog::row::{self, EncodedRows};
use crate::catalog::{PartitionBy, SegmentEntry};
use crate::database::Database;
use crate::fresh::FewRows;
use crate::lower::FusedExec;
use crate::partition::Router;
use crate::query::Query;
use crate::query_planner::in_order;
use crate::settings::Settings;
use crate::snapshot::{SegmentFile, Table};
use crate::task::{scoped, spawn_blocking};
use crate::{Error, ErrorKind, Result, files};

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

/// A full segment that is being written.
type Writing = JoinHandle<Result<Vec<SegmentEntry>>>;

/// Files of a load that no catalog mentions yet. Dropping it removes them, unless they were kept, or a commit failed
/// half-way: then the durable catalog may mention them, and the next open knows.
#[derive(Debug)]
struct NewFiles {
    database: Database,
    names: Mutex<Vec<String>>,
    /// Writes of streams that ended before them.
    abandoned: Mutex<Vec<Writing>>,
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        if self.database.is_in_doubt() || skips("load.remove-files") {
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
            files: Arc::new(NewFiles {
                database: database.clone(),
                names: Mutex::default(),
                abandoned: Mutex::default(),
            }),
        }
    }

    /// A segment that it wrote, as tables have it.
    pub fn segment_file(&self, entry: SegmentEntry, table: &str) -> Arc<SegmentFile> {
        Arc::new(SegmentFile::new(entry, table, &self.schema, self.database.segments()))
    }

    /// The load is committed: its files stay.
    pub fn keep_files(&self) {
        self.files.names.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits for the writes of streams that are no more: nobody else has the files then, and they go with this.
    async fn settle(&self) {
        let abandoned = std::mem::take(&mut *self.files.abandoned.lock().unwrap_or_else(PoisonError::into_inner));
        for writing in abandoned {
            // Whatever came of it, the load has failed.
            let _ = writing.await;
        }
    }
}

/// What a load came to.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Segments. Their files are durable, their names are not yet.
    pub segments: Vec<SegmentEntry>,
    /// Rows that were too few for one. Then there are no segments.
    pub rows: Vec<FewRows>,
}

impl Loaded {
    /// How many rows there are.
    pub fn count(&self) -> u64 {
        let (segments, rows) = (self.segments.iter(), self.rows.iter());
        segments.map(|segment| segment.rows).sum::<u64>() + rows.map(|rows| rows.len() as u64).sum::<u64>()
    }
}

/// Memory that rows may take which are too few for a segment.
const SMALL_BYTES: u64 = 8 << 20;

/// Rows that all streams of a load have seen, while it is not known whether they are worth a segment.
#[derive(Debug, Default)]
struct Few {
    most_rows: u64,
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl Few {
    /// Counts a batch; whether they are still too few.
    fn count(&self, batch: &RecordBatch) -> bool {
        self.rows.fetch_add(batch.num_rows() as u64, Relaxed);
        self.bytes.fetch_add(batch.get_array_memory_size() as u64, Relaxed);
        self.is_few()
    }

    fn is_few(&self) -> bool {
        self.rows.load(Relaxed) <= self.most_rows && self.bytes.load(Relaxed) <= SMALL_BYTES
    }
}

/// Addresses of the rows that a query went through, in no order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(Arc<Mutex<Vec<u64>>>);

impl Addresses {
    /// Takes the first column of a batch; the others are left.
    fn take(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let Some(addresses) = batch.columns().first().and_then(|column| column.as_primitive_opt::<UInt64Type>()) else {
            return Err(Error::new(ErrorKind::Internal, "a query for addresses has none"));
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(addresses.values());
        Ok(batch.project(&(1..batch.num_columns()).collect::<Vec<_>>())?)
    }

    /// All of them.
    pub fn into_vec(self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Rows that are kept for RETURNING, of all streams, in the order in which they come. What they take is asked for.
#[derive(Clone, Debug)]
pub(crate) struct KeptRows(Arc<Mutex<Vec<RecordBatch>>>, Arc<MemoryReservation>);

impl KeptRows {
    pub fn new(context: &TaskContext) -> Self {
        let reservation = MemoryConsumer::new("Returning").register(context.memory_pool());
        Self(Arc::default(), Arc::new(reservation))
    }

    /// Keeps a batch, in the types of a schema.
    ///
    /// # Errors
    /// [`ErrorKind::Resources`](crate::ErrorKind::Resources) if there is no memory for it.
    pub fn add(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<()> {
        let batch = to_schema(batch, schema)?;
        self.1.try_grow(batch.get_array_memory_size())?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
        Ok(())
    }

    /// All of them. They are accounted for as long as this lives.
    pub fn take(&self) -> Vec<RecordBatch> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is kept of rows beside the table that they go to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside {
    /// The first column of the plan goes here.
    pub addresses: Option<Addresses>,
    /// The others, in the table's types, here as well.
    pub rows: Option<KeptRows>,
}

impl Beside {
    /// The columns that go to the table.
    fn take(&self, batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let batch = match &self.addresses {
            Some(addresses) => addresses.take(&batch)?,
            None => batch,
        };
        if let Some(rows) = &self.rows {
            rows.add(&batch, schema)?;
        }
        Ok(batch)
    }
}

/// Goes through the rows of a plan for what is kept of them, and nothing else.
pub(crate) async fn go_through(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    schema: &SchemaRef,
    beside: &Beside,
) -> Result<()> {
    let mut rows = execute_stream(plan, context)?;
    while let Some(batch) = rows.next().await {
        beside.take(batch?, schema)?;
    }
    Ok(())
}

/// Writes all rows of a plan into segments, unless there are no more than `most_rows`, which are handed back. When this
/// has failed, nothing is being written any more.
pub(crate) async fn load(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    target: &Target,
    most_rows: u64,
    beside: &Beside,
) -> Result<Loaded> {
    let mut tasks = JoinSet::new();
    let loaded = load_in(&mut tasks, plan, context, target, most_rows, beside).await;
    if loaded.is_err() {
        tasks.shutdown().await;
        target.settle().await;
    }
    loaded
}

/// What a stream came to: its segments or, if they are few, its rows.
type OfStream = (Vec<SegmentEntry>, Vec<RecordBatch>);

async fn load_in(
    tasks: &mut JoinSet<(usize, Result<OfStream>)>,
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    target: &Target,
    most_rows: u64,
    beside: &Beside,
) -> Result<Loaded> {
    // For the progress bar: how many rows a file or a table will give is known more often than not.
    if let Ok(statistics) = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())
        && let Some(rows) = statistics.num_rows.get_value()
    {
        target.query.expect_rows(*rows as u64);
    }
    let few = Arc::new(Few { most_rows, ..Few::default() });
    let keeps_order = target.partition_by.is_none() && in_order::is_asked(context.session_config());
    if keeps_order && files::is_large_text(&plan) {
        let threads = context.session_config().target_partitions();
        let (segments, rows) = load_runs(execute_stream(plan, context)?, target, &few, beside, threads).await?;
        return Ok(Loaded { segments, rows: strict_rows(rows, target)? });
    }
    let streams = execute_stream_partitioned(spread(plan, &context)?, context)?;
    for (index, stream) in streams.into_iter().enumerate() {
        let (target, few, beside) = (target.clone(), Arc::clone(&few), beside.clone());
        tasks.spawn(scoped(async move { (index, load_stream(stream, target, &few, &beside).await) }));
    }
    let mut loaded = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (index, part) = done.map_err(|e| Error::new(ErrorKind::Internal, format!("a load task died: {e}")))?;
        // The first error ends the load.
        loaded.push((index, part?));
    }
    loaded.sort_by_key(|(index, _)| *index);
    let (mut segments, mut batches) = (Vec::new(), Vec::new());
    for (_, (of_stream, rows)) in loaded {
        // Streams that ended before the others made it worth a segment come before those.
        if !of_stream.is_empty() && !batches.is_empty() {
            segments.extend(packed(std::mem::take(&mut batches), target).await?);
        }
        segments.extend(of_stream);
        batches.extend(rows);
    }
    if !few.is_few() && !batches.is_empty() {
        segments.extend(packed(std::mem::take(&mut batches), target).await?);
    }
    segments.sort_by_key(|segment| segment.partition);
    Ok(Loaded { segments, rows: strict_rows(batches, target)? })
}

/// Rows in segments of their own.
async fn packed(batches: Vec<RecordBatch>, target: &Target) -> Result<Vec<SegmentEntry>> {
    let mut set = SegmentSet::new(target.clone())?;
    for batch in batches {
        set.add(&batch).await?;
    }
    set.finish().await
}

/// Runs of one stream's rows, each of which is packed into a segment by a task of its own.
struct Runs<'a> {
    target: &'a Target,
    /// The run that is not full.
    open: Vec<RecordBatch>,
    open_rows: u64,
    packing: VecDeque<Writing>,
    written: Vec<SegmentEntry>,
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.target.files.abandoned.lock().unwrap_or_else(PoisonError::into_inner).extend(self.packing.drain(..));
    }
}

impl Runs<'_> {
    /// Adds rows; a full run is packed once no more than `most` are.
    async fn add(&mut self, mut batch: RecordBatch, most: usize) -> Result<()> {
        loop {
            let space = self.target.segment_rows.saturating_sub(self.open_rows).max(1);
            let rows = usize::try_from(space).unwrap_or(usize::MAX).min(batch.num_rows());
            self.open.push(batch.slice(0, rows));
            self.open_rows += rows as u64;
            batch = batch.slice(rows, batch.num_rows() - rows);
            if self.open_rows >= self.target.segment_rows {
                self.pack();
            }
            while self.packing.len() > most {
                self.join().await?;
            }
            if batch.num_rows() == 0 {
                return Ok(());
            }
        }
    }

    fn pack(&mut self) {
        let (batches, target) = (std::mem::take(&mut self.open), self.target.clone());
        self.open_rows = 0;
        self.packing.push_back(spawn_blocking(move || {
            let mut set = SegmentSet::new(target)?;
            for batch in batches {
                let full = set.append(&batch)?;
                set.write_now(full)?;
            }
            set.finish_blocking()
        }));
    }

    /// Waits for the first run that is being packed.
    async fn join(&mut self) -> Result<()> {
        let Some(first) = self.packing.front_mut() else { return Ok(()) };
        let written = first.await;
        self.packing.pop_front();
        let written = written.map_err(|e| Error::new(ErrorKind::Internal, format!("a writing task died: {e}")))?;
        self.written.extend(written?);
        Ok(())
    }
}

/// Loads one stream in its order: segments that follow each other or, if they are few, its rows.
async fn load_runs(
    mut stream: SendableRecordBatchStream,
    target: &Target,
    few: &Few,
    beside: &Beside,
    most: usize,
) -> Result<OfStream> {
    let mut runs = Runs { target, open: Vec::new(), open_rows: 0, packing: VecDeque::new(), written: Vec::new() };
    while let Some(batch) = stream.next().await {
        let batch = beside.take(batch?, &target.schema)?;
        few.count(&batch);
        runs.add(batch, most).await?;
    }
    if few.is_few() && runs.packing.is_empty() && runs.written.is_empty() {
        return Ok((Vec::new(), std::mem::take(&mut runs.open)));
    }
    if !runs.open.is_empty() {
        runs.pack();
    }
    while !runs.packing.is_empty() {
        runs.join().await?;
    }
    Ok((std::mem::take(&mut runs.written), Vec::new()))
}

/// Rows that are there already; `None` if there are too many of them to be worth no segment.
pub(crate) fn few(rows: EncodedRows, table: &Table, most_rows: u64, query: &Query) -> Result<Option<Loaded>> {
    if rows.len() as u64 > most_rows || rows.bytes() as u64 > SMALL_BYTES {
        return Ok(None);
    }
    let rows = FewRows::of_encoded(rows);
    if let Some(router) = Router::new(table.entry.partition_by.as_ref(), &table.schema)? {
        // For its error: these rows are of no partition yet.
        router.split(&rows.batch(&table.schema)?)?;
    }
    query.did_rows(rows.len() as u64);
    Ok(Some(Loaded { segments: Vec::new(), rows: vec![rows] }))
}

/// Rows as the table has them: in its types, of its partitions, NULL only where it may be.
fn strict_rows(rows: Vec<RecordBatch>, target: &Target) -> Result<Vec<FewRows>> {
    let router = Router::new(target.partition_by.as_ref(), &target.schema)?;
    let strict = |batch: RecordBatch| {
        let batch = to_schema(&batch, &target.schema)?;
        row::refuse_nulls(&batch, &target.schema)?;
        router.as_ref().map_or(Ok(Vec::new()), |router| router.split(&batch))?;
        target.query.did_rows(batch.num_rows() as u64);
        FewRows::of_batch(RecordBatch::try_new(Arc::clone(&target.schema), batch.columns().to_vec())?)
    };
    rows.into_iter().filter(|batch| batch.num_rows() > 0).map(strict).collect()
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

async fn load_stream(
    mut stream: SendableRecordBatchStream,
    target: Target,
    few: &Few,
    beside: &Beside,
) -> Result<OfStream> {
    let mut rows = Vec::new();
    let mut set: Option<SegmentSet> = None;
    while let Some(batch) = stream.next().await {
        let batch = beside.take(batch?, &target.schema)?;
        if few.count(&batch) && set.is_none() {
            rows.push(batch);
            continue;
        }
        let set = match &mut set {
            Some(set) => set,
            none => none.insert(SegmentSet::new(target.clone())?),
        };
        for batch in rows.drain(..).chain([batch]) {
            set.add(&batch).await?;
        }
    }
    let segments = match set {
        Some(set) => set.finish().await?,
        None => Vec::new(),
    };
    Ok((segments, rows))
}

/// The segments that one stream is filling.
pub(crate) struct SegmentSet {
    target: Target,
    router: Option<Router>,
    open: BTreeMap<u32, SegmentWriter>,
    writing: Option<Writing>,
    written: Vec<SegmentEntry>,
}

impl Drop for SegmentSet {
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.target.files.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(writing);
        }
    }
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

    /// Adds rows, and writes what that made full.
    async fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let full = self.append(batch)?;
        if full.is_empty() { Ok(()) } else { self.write_later(full).await }
    }

    /// Writes full segments beside the stream, after those before them.
    async fn write_later(&mut self, full: Full) -> Result<()> {
        self.join().await?;
        let target = self.target.clone();
        self.writing = Some(spawn_blocking(move || write_all(full, &target)));
        Ok(())
    }

    async fn join(&mut self) -> Result<()> {
        if let Some(writing) = &mut self.writing {
            let written = writing.await;
            self.writing = None;
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
        Ok(std::mem::take(&mut self.written))
    }

    /// As [`SegmentSet::finish`], for loaders that have threads of their own.
    pub fn finish_blocking(mut self) -> Result<Vec<SegmentEntry>> {
        let rest: Full = std::mem::take(&mut self.open).into_iter().collect();
        self.written.extend(write_all(rest, &self.target)?);
        Ok(std::mem::take(&mut self.written))
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
    let name = target.database.new_segment_name(target.table_id);
    target.files.names.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
    let file = target.database.segments().create(&name)?;
    let writer = match target.database.origin() {
        Some(origin) => writer.with_origin(origin),
        None => writer,
    };
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
