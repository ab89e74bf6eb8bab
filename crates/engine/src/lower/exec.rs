//! Runs a fused subtree on the CPU. It first executes the plans of derived relations into memory.
//! Then each thread runs a worker, on threads beside the runtime's, so that timers, signals and
//! other queries are served however long a morsel takes. Dropping the stream stops the workers
//! within a vector. An answer that did not fit in memory leaves as it is merged from files.
//!
//! A program that was placed on a device runs there instead ([`super::device`]). If that fails and
//! no row has left, the CPU reuses the derived relations here.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as DataFusionResult, internal_datafusion_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, execute_stream,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use onehop_governor as governor;
use onehop_pipeline::backend::{Brought, ShareRan};
use onehop_pipeline::cpu::{
    Answer, Execution, KeyPart, Merger, ResultColumn, Skipped, SpillCounts, Spilled, Stage, StageTimes, StepRows,
    TableFacts, TopFacts, Worker,
};
use onehop_pipeline::{BatchSource, BatchSourceBuilder, Source};
use onehop_segment::AheadFacts;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::cannot_run;
use super::device::{DeviceTimes, OnDevice};
use super::input::{DerivedInput, Input};
use super::node::Fused;
use super::stream::Flow;
use crate::place::Placement;
use crate::query::Query;
use crate::settings::Fallback;
use crate::task::spawn_blocking;
use crate::units::bytes as in_words;
use crate::{ErrorKind, Result, pipeline_budget, planner};

/// Maximum parts of a table. Beyond that, keys have too many rows, or there is no memory at all.
const MOST_PARTS: u32 = 256;

/// The minimum share of `memory_limit` per worker. With less, fewer workers are faster.
const WORKER_BYTES: usize = 4 << 20;

/// A fused subtree as an operator.
#[derive(Debug)]
pub(crate) struct FusedExec {
    fused: Arc<Fused>,
    placement: Arc<Placement>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The statistics of the last execution.
    ran: Arc<Mutex<Option<Ran>>>,
    /// The plans of derived relations.
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// The number of first rows in an order that are wanted.
    fetch: Option<usize>,
}

/// Statistics of an execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    /// Statistics of the derived relations, by number.
    pub derived: Vec<(usize, DerivedRan)>,
    /// Statistics of the pipelines, in their order. Fewer if memory ran out.
    pub pipelines: Vec<PipelineRan>,
    /// The number of rows of the answer.
    pub rows: u64,
    /// The reason why DataFusion's operators took over, if they did.
    pub taken_over: Option<String>,
    /// True if the pipelines ran on the device that they were placed on.
    pub on_device: bool,
    /// The error of the device, if the CPU redid the work.
    pub device_failed: Option<String>,
}

/// Statistics of a derived relation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DerivedRan {
    /// The time until the last row was in memory.
    pub elapsed: Duration,
    pub rows: u64,
    pub bytes: u64,
}

/// Statistics of a pipeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct PipelineRan {
    pub elapsed: Duration,
    pub workers: usize,
    /// Rows of the blocks that were left to read.
    pub rows: u64,
    /// Blocks ruled out by the keys of join tables.
    pub skipped: Vec<Skipped>,
    pub steps: Vec<StepRows>,
    /// The time of its threads by activity.
    pub times: StageTimes,
    /// The time to merge the workers' results.
    pub finishing: Duration,
    /// Bytes that the workers' sinks had taken before the merge.
    pub sink_bytes: usize,
    /// The join table that it built.
    pub table: Option<TableFacts>,
    /// The selection of the first rows in an order.
    pub top: Option<TopFacts>,
    /// Groups that did not fit in memory.
    pub spilled: Option<SpillRan>,
    /// The data that was read ahead.
    pub ahead: AheadFacts,
    /// The number of passes: one for each part of a table that did not fit in memory.
    pub passes: usize,
    /// Time and volume on a device, if it ran there.
    pub device: Option<DeviceTimes>,
    /// The transfer of its input to a device.
    pub brought: Option<Brought>,
    /// Statistics by device, if it ran on several.
    pub shares: Vec<ShareRan>,
}

impl PipelineRan {
    /// Adds the statistics of another pass.
    fn add(&mut self, other: Self) {
        self.elapsed += other.elapsed;
        self.finishing += other.finishing;
        self.times.add(&other.times);
        self.workers = self.workers.max(other.workers);
        self.rows += other.rows;
        self.sink_bytes = self.sink_bytes.max(other.sink_bytes);
        self.steps.resize(self.steps.len().max(other.steps.len()), StepRows::default());
        for (rows, other) in self.steps.iter_mut().zip(other.steps) {
            rows.rows_in += other.rows_in;
            rows.rows_out += other.rows_out;
        }
        // Blocks that no pass has read.
        if self.passes == 0 {
            self.skipped = other.skipped;
        } else {
            let is_again = |morsel: &usize| other.skipped.iter().any(|s| s.morsels.binary_search(morsel).is_ok());
            self.skipped.iter_mut().for_each(|known| known.morsels.retain(is_again));
            self.skipped.retain(|known| !known.morsels.is_empty());
        }
        self.top = match (self.top, other.top) {
            (Some(a), Some(b)) => Some(TopFacts {
                rows_in: a.rows_in + b.rows_in,
                rows_left_out: a.rows_left_out + b.rows_left_out,
                morsels_skipped: a.morsels_skipped.min(b.morsels_skipped),
                rows_skipped: a.rows_skipped.min(b.rows_skipped),
            }),
            (a, b) => a.or(b),
        };
        self.passes += other.passes;
        self.ahead.add(&other.ahead);
        // The largest part, with the rows of all parts.
        self.table = match (self.table, other.table) {
            (Some(a), Some(b)) => Some(TableFacts {
                is_unique: a.is_unique.zip(b.is_unique).map(|(a, b)| a && b),
                rows: a.rows + b.rows,
                bytes: a.bytes.max(b.bytes),
                ..b
            }),
            (a, b) => a.or(b),
        };
    }
}

/// Statistics of groups that did not fit in memory.
#[derive(Clone, Debug)]
pub(crate) struct SpillRan {
    pub counts: Arc<SpillCounts>,
    pub partitions: usize,
}

impl FusedExec {
    /// Creates the operator of a subtree whose rows come in `order`, if in any.
    pub fn new(
        fused: Arc<Fused>,
        placement: Arc<Placement>,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        order: Option<LexOrdering>,
    ) -> Self {
        let schema = Arc::clone(fused.schema.inner());
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(Arc::clone(&schema), order),
            Partitioning::UnknownPartitioning(1),
            if fused.collects() { EmissionType::Incremental } else { EmissionType::Final },
            Boundedness::Bounded,
        );
        let fetch = fused.top();
        Self {
            fused,
            placement,
            schema,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            ran: Arc::default(),
            inputs,
            fetch,
        }
    }

    /// Returns the fused subtree.
    pub fn fused(&self) -> &Fused {
        &self.fused
    }

    /// Returns its placement and the reason for it.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns whether a device runs it, or ran it.
    pub fn is_on_device(&self) -> bool {
        let ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        ran.as_ref().map_or(self.placement.device.is_some(), |ran| ran.on_device)
    }

    /// Returns the statistics of the last execution.
    pub fn ran(&self) -> Option<Ran> {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl DisplayAs for FusedExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match t {
            DisplayFormatType::TreeRender => "\n",
            _ => ", ",
        };
        if !matches!(t, DisplayFormatType::TreeRender) {
            write!(f, "{}: ", self.name())?;
        }
        write!(f, "{}", self.fused)?;
        for scan in self.fused.scans() {
            let name = if self.is_on_device() { "; GpuScan: " } else { "; CpuScan: " };
            f.write_str(if separator == "\n" { "\n" } else { name })?;
            scan.plan.describe(f, &scan.table.name, &scan.column_names(), separator)?;
        }
        Ok(())
    }
}

impl ExecutionPlan for FusedExec {
    fn name(&self) -> &'static str {
        match (self.fused.top(), self.is_on_device()) {
            (Some(_), false) => "CpuTopK",
            (Some(_), true) => "GpuTopK",
            (None, false) if self.fused.collects() => "CpuCollect",
            (None, true) if self.fused.collects() => "GpuCollect",
            (None, false) => "CpuPreAgg",
            (None, true) => "GpuPreAgg",
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.inputs.len()]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            fused: Arc::clone(&self.fused),
            placement: Arc::clone(&self.placement),
            schema: Arc::clone(&self.schema),
            properties: Arc::clone(&self.properties),
            metrics: self.metrics.clone(),
            ran: Arc::clone(&self.ran),
            inputs: children,
            fetch: self.fetch,
        }))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    /// Lowers the number of first rows in an order. Other pipelines have no limit.
    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let fetch = self.fetch?;
        Some(Arc::new(Self {
            fused: Arc::clone(&self.fused),
            placement: Arc::clone(&self.placement),
            schema: Arc::clone(&self.schema),
            properties: Arc::clone(&self.properties),
            metrics: self.metrics.clone(),
            ran: Arc::clone(&self.ran),
            inputs: self.inputs.clone(),
            fetch: Some(limit.map_or(fetch, |limit| limit.min(fetch))),
        }))
    }

    fn execute(&self, _partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let metrics = BaselineMetrics::new(&self.metrics, 0);
        let skipped = MetricBuilder::new(&self.metrics).counter("blocks_skipped_by_joins", 0);
        let (fused, schema, inputs) = (Arc::clone(&self.fused), Arc::clone(&self.schema), self.inputs.clone());
        let told = Arc::clone(&self.ran);
        let placement = Arc::clone(&self.placement);
        let run = Run { fused, placement, context, schema, inputs, fetch: self.fetch, told: Arc::clone(&told) };
        let batches = stream::once(async move {
            let timer = metrics.elapsed_compute().timer();
            let mut ran = Ran::default();
            let outcome = run.run(&mut ran).await;
            if let Err(Stop::TakeOver(reason)) = &outcome {
                ran.taken_over = Some(reason.to_string());
            }
            skipped.add(ran.pipelines.iter().flat_map(|pipeline| &pipeline.skipped).map(|s| s.morsels.len()).sum());
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran.clone());
            let batches = match outcome {
                Ok(Leaving::Batches(batches)) => batches,
                Ok(Leaving::Flowing(flow, first)) => {
                    timer.done();
                    return Ok(flow.rows(first, ran, told, metrics));
                }
                Err(Stop::TakeOver(reason)) => return run.unfused(reason).await,
                Err(Stop::Failed(e)) => return Err(e),
            };
            timer.done();
            let count = move |batch: &RecordBatch| {
                metrics.record_output(batch.num_rows());
                if let Some(ran) = told.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                    ran.rows += batch.num_rows() as u64;
                }
            };
            Ok(batches.inspect_ok(count).boxed())
        });
        let batches = batches.try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

const HINT_OF_MEMORY: &str = "raise memory_limit (SET memory_limit = '8GiB'), or let DataFusion's operators, which spill to \
                              disk, take over (SET exec.fallback = 'warn')";

pub(super) type Outcome<T> = std::result::Result<T, Stop>;
pub(super) type Batches = BoxStream<'static, DataFusionResult<RecordBatch>>;

/// The reason why an execution ends without an answer.
pub(super) enum Stop {
    /// DataFusion's operators can run it: no row has left the pipelines yet.
    TakeOver(TakeOver),
    /// DataFusion's operators would return the same error.
    Failed(DataFusionError),
}

/// The reason why DataFusion's operators take over.
pub(super) enum TakeOver {
    /// Memory ran out.
    Memory(crate::Error),
    /// A derived relation holds values that pipelines do not support.
    Unsupported(String),
}

impl fmt::Display for TakeOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("memory_limit was reached: operators that spill to disk"),
            Self::Unsupported(reason) => write!(f, "no fused pipeline can run {reason}: DataFusion's operators"),
        }
    }
}

impl From<crate::Error> for Stop {
    fn from(e: crate::Error) -> Self {
        let cause = std::error::Error::source(&e).and_then(|cause| cause.downcast_ref());
        if let Some(onehop_pipeline::Error::Unsupported(reason)) = cause {
            return Self::TakeOver(TakeOver::Unsupported(reason.clone()));
        }
        match e.kind() {
            ErrorKind::Resources => Self::TakeOver(TakeOver::Memory(e)),
            _ => Self::Failed(e.into()),
        }
    }
}

impl From<DataFusionError> for Stop {
    fn from(e: DataFusionError) -> Self {
        crate::Error::from(e).into()
    }
}

impl From<onehop_pipeline::Error> for Stop {
    fn from(e: onehop_pipeline::Error) -> Self {
        match e {
            onehop_pipeline::Error::Unsupported(reason) => Self::TakeOver(TakeOver::Unsupported(reason)),
            other => crate::Error::from(other).into(),
        }
    }
}

/// Rows that leave the operator.
pub(super) enum Leaving {
    /// Rows of groups, in memory or merged from files.
    Batches(Batches),
    /// Rows of a collecting pipeline that continues, after the first batch.
    Flowing(Box<Flow>, Option<RecordBatch>),
}

/// One execution.
pub(super) struct Run {
    pub fused: Arc<Fused>,
    pub placement: Arc<Placement>,
    pub context: Arc<TaskContext>,
    pub schema: SchemaRef,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    pub fetch: Option<usize>,
    /// The statistics to update, also by rows that leave later.
    pub told: Arc<Mutex<Option<Ran>>>,
}

impl Run {
    /// Switches to DataFusion's operators: no row has left this one yet.
    async fn unfused(&self, reason: TakeOver) -> DataFusionResult<Batches> {
        let query = self.context.session_config().get_extension::<Query>();
        match (self.fused.fallback, &query, reason) {
            (Fallback::Error, _, TakeOver::Memory(e)) => return Err(e.with_hint(HINT_OF_MEMORY).into()),
            (Fallback::Error, _, TakeOver::Unsupported(reason)) => return Err(cannot_run(&reason).into()),
            (Fallback::Warn, Some(query), TakeOver::Memory(_)) => {
                query.notice(
                    "not fused after all: memory_limit is reached; operators that spill to disk took over".into(),
                );
            }
            (Fallback::Warn, Some(query), TakeOver::Unsupported(reason)) => {
                query.notice(format!("not fused after all: {reason}"));
            }
            _ => {}
        }
        let plan = self.fused.plan_unfused().await?;
        let plan = match &query {
            Some(query) => planner::runnable(plan, query)?,
            None => plan,
        };
        let schema = Arc::clone(&self.schema);
        let batches = execute_stream(plan, Arc::clone(&self.context))?;
        // The columns are the same, but the schema may be less specific.
        let batches = batches.map(move |batch| {
            let batch = batch?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), batch.columns().to_vec(), &options)?)
        });
        Ok(batches.boxed())
    }

    async fn run(&self, ran: &mut Ran) -> Outcome<Leaving> {
        let (execution, held) = self.begin(ran).await?;
        if let Some(placed) = &self.placement.device {
            match self.on_device(placed, &execution, ran).await? {
                OnDevice::Leaving(leaving) => return Ok(leaving),
                OnDevice::Failed(why) => ran.device_failed = Some(why),
            }
        }
        self.on_cpu(execution, held, ran).await
    }

    /// Prepares the program. Computes derived relations, and returns their reservations.
    async fn begin(&self, ran: &mut Ran) -> Outcome<(Execution, Vec<MemoryReservation>)> {
        let query = self.context.session_config().get_extension::<Query>();
        let budget = pipeline_budget::budget(&self.context);
        if let Some(query) = &query {
            for scan in self.fused.scans() {
                let (considered, read) = (scan.plan.blocks_considered as u64, scan.plan.blocks.len() as u64);
                scan.ledger.planned_blocks(considered, considered - read);
                query.expect_rows(scan.plan.rows() as u64);
            }
        }
        let mut sources = self.fused.execution.sources().to_vec();
        // The reservations last until the answer is complete.
        let mut held = Vec::with_capacity(self.inputs.len());
        for (number, (source, input)) in sources.iter_mut().zip(&self.fused.inputs).enumerate() {
            let Input::Derived(input) = input else { continue };
            let began = Instant::now();
            let (derived, reservation) = self.derive(number, input).await?;
            let (rows, bytes) = (derived.all_rows(), derived.bytes() as u64);
            if let Some(query) = &query {
                query.expect_rows(rows);
            }
            ran.derived.push((input.number, DerivedRan { elapsed: began.elapsed(), rows, bytes }));
            held.push(reservation);
            *source = Arc::new(derived);
        }
        let execution = match held.is_empty() {
            true => self.fused.execution.with_budget(budget),
            false => self.fused.execution.with_sources(sources, budget)?,
        };
        Ok((execution, held))
    }

    /// Publishes the statistics so far.
    fn tell(&self, ran: &Ran) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran.clone());
    }

    async fn on_cpu(&self, mut execution: Execution, held: Vec<MemoryReservation>, ran: &mut Ran) -> Outcome<Leaving> {
        let query = self.context.session_config().get_extension::<Query>();
        let stop = StopOnDrop::default();
        let last = execution.pipelines() - 1;
        // The table that does not fit, if there is one. A collecting pipeline cannot make passes:
        // its rows would have left before another part turns out not to fit.
        let mut parted = None;
        let may_pass = |execution: &Execution, pipeline| !self.fused.collects() && execution.may_pass(pipeline);
        for pipeline in 0..last {
            match self.build(&mut execution, pipeline, KeyPart::ALL).await {
                Err(Stop::TakeOver(TakeOver::Memory(_))) if parted.is_none() && may_pass(&execution, pipeline) => {
                    parted = Some(pipeline);
                    execution.leave_out(pipeline)?;
                    ran.pipelines.push(PipelineRan::default());
                }
                built => ran.pipelines.push(built?),
            }
            self.tell(ran);
        }
        if self.fused.collects() {
            let stage = execution.stage(last)?;
            self.plan_blocks(&execution, last, &stage, false);
            let threads = self.context.session_config().target_partitions();
            let held = (execution, held);
            let mut flow = Flow::start(&self.fused, &self.schema, &stage, threads, query.as_ref(), held);
            // No row has left yet.
            let first = flow.next().await.transpose()?;
            return Ok(Leaving::Flowing(Box::new(flow), first));
        }
        let began = Instant::now();
        let (stage, workers, mut done) = match parted {
            None => self.carry(&execution, last, Vec::new(), &stop).await?,
            Some(table) => self.passes(&mut execution, table, &stop, &mut ran.pipelines[table]).await?,
        };
        let finishing = Instant::now();
        let answer = self.finish(&mut execution, last, stage, workers).await?;
        if let Answer::Spilled(spilled) = &answer {
            done.spilled = Some(SpillRan { counts: Arc::clone(spilled.counts()), partitions: spilled.partitions() });
        }
        (done.finishing, done.elapsed) = (finishing.elapsed(), began.elapsed());
        ran.pipelines.push(done);
        // Join tables and their inputs are not needed any more.
        drop((execution, held));
        let threads = self.context.session_config().target_partitions();
        let batches = match answer {
            Answer::Rows(mut rows) => {
                let mut batches = Vec::new();
                for chunk in std::mem::take(&mut rows.chunks) {
                    let batch = batch_of(&self.fused, &self.schema, &chunk, threads)?;
                    // The first rows in their order are one chunk.
                    let wanted = self.fetch.map_or(batch.num_rows(), |fetch| fetch.min(batch.num_rows()));
                    batches.extend(self.sliced(&batch.slice(0, wanted)));
                }
                // The batches hold the memory of the columns.
                let batches = stream::iter(batches).inspect(move |_| {
                    let _held = &rows;
                });
                batches.map(Ok).boxed()
            }
            Answer::Spilled(spilled) => self.merged(&spilled, stop, query.as_deref()).await?,
        };
        Ok(Leaving::Batches(batches))
    }

    /// Builds a table, or a part of one.
    async fn build(&self, execution: &mut Execution, pipeline: usize, part: KeyPart) -> Outcome<PipelineRan> {
        let began = Instant::now();
        // A flag of its own: other pipelines continue if one table does not fit.
        let stop = StopOnDrop::default();
        if part != KeyPart::ALL {
            execution.leave_out(pipeline)?;
        }
        let stage = execution.stage_of_part(pipeline, part)?;
        let is_again = part != KeyPart::ALL;
        let (workers, mut done) = self.carry_stage(execution, pipeline, &stage, Vec::new(), is_again, &stop).await?;
        let finishing = Instant::now();
        self.finish(execution, pipeline, stage, workers).await?;
        (done.finishing, done.elapsed) = (finishing.elapsed(), began.elapsed());
        done.table = execution.tables().get(pipeline).copied();
        Ok(done)
    }

    /// Builds a table part by part, and runs the last pipeline once for each. The table and the
    /// groups, some of which exist when the next part is built, get half of the memory each.
    async fn passes(
        &self,
        execution: &mut Execution,
        table: usize,
        stop: &StopOnDrop,
        built: &mut PipelineRan,
    ) -> Outcome<(Arc<Stage>, Vec<Worker>, PipelineRan)> {
        let last = execution.pipelines() - 1;
        let half = pipeline_budget::limit(self.context.memory_pool().as_ref()) / 2;
        let aside = MemoryConsumer::new("CpuPreAgg").register(self.context.memory_pool());
        let mut parts: Vec<KeyPart> = KeyPart::ALL.split().collect();
        let mut carried: Option<(Arc<Stage>, Vec<Worker>, PipelineRan)> = None;
        while let Some(part) = parts.pop() {
            let groups_bytes = carried.iter().flat_map(|(_, workers, _)| workers).map(Worker::bytes).sum();
            // Reserves as much as is available, to leave the other half to the build.
            let _ = aside.try_resize(half.saturating_sub(groups_bytes));
            match self.build(execution, table, part).await {
                Err(Stop::TakeOver(TakeOver::Memory(_))) if part.of < MOST_PARTS => {
                    execution.leave_out(table)?;
                    parts.extend(part.split());
                    continue;
                }
                part => built.add(part?),
            }
            let table_bytes = execution.tables().get(table).map_or(0, |table| table.bytes);
            let _ = aside.try_resize(half.saturating_sub(table_bytes));
            let (workers, mut all) = match carried.take() {
                Some((_, workers, all)) => (workers, all),
                None => Default::default(),
            };
            let (stage, workers, done) = self.carry(execution, last, workers, stop).await?;
            all.add(done);
            carried = Some((stage, workers, all));
        }
        let carried = carried.ok_or_else(|| internal_datafusion_err!("a table without parts"))?;
        if let Some(query) = self.context.session_config().get_extension::<Query>() {
            query.notice(format!(
                "memory_limit is reached: a join table was built in {} parts, and what is joined with it read for each",
                built.passes
            ));
        }
        Ok(carried)
    }

    /// Runs a pipeline, with the workers of previous passes, if there are any.
    async fn carry(
        &self,
        execution: &Execution,
        pipeline: usize,
        workers: Vec<Worker>,
        stop: &StopOnDrop,
    ) -> Outcome<(Arc<Stage>, Vec<Worker>, PipelineRan)> {
        let stage = execution.stage(pipeline)?;
        let is_again = !workers.is_empty();
        let (workers, done) = self.carry_stage(execution, pipeline, &stage, workers, is_again, stop).await?;
        Ok((stage, workers, done))
    }

    /// Counts the blocks that join tables rule out.
    fn plan_blocks(&self, execution: &Execution, pipeline: usize, stage: &Stage, is_again: bool) {
        let by_joins: usize = stage.skipped().iter().map(|skipped| skipped.morsels.len()).sum();
        if let Input::Table(scan) = self.input(execution, pipeline) {
            // The first pass was counted with the scan.
            let again = if is_again { scan.plan.blocks.len() } else { 0 };
            scan.ledger.planned_blocks(again as u64, by_joins as u64);
        }
    }

    async fn carry_stage(
        &self,
        execution: &Execution,
        pipeline: usize,
        stage: &Arc<Stage>,
        workers: Vec<Worker>,
        is_again: bool,
        stop: &StopOnDrop,
    ) -> Outcome<(Vec<Worker>, PipelineRan)> {
        let query = self.context.session_config().get_extension::<Query>();
        let began = Instant::now();
        self.plan_blocks(execution, pipeline, stage, is_again);
        if let Some(query) = query.as_ref().filter(|_| is_again) {
            query.expect_rows(stage.rows());
        }
        let workers = self.work(stage, workers, stop, query.as_ref()).await?;
        let top = stage.top();
        if let (Some(top), Input::Table(scan)) = (top, self.input(execution, pipeline)) {
            scan.ledger.planned_blocks(0, top.morsels_skipped as u64);
        }
        let done = PipelineRan {
            elapsed: began.elapsed(),
            workers: workers.len(),
            rows: stage.rows() - top.map_or(0, |top| top.rows_skipped),
            skipped: stage.skipped().to_vec(),
            steps: stage.step_rows(),
            times: stage.times(),
            finishing: Duration::ZERO,
            sink_bytes: workers.iter().map(Worker::bytes).sum(),
            table: None,
            top,
            spilled: None,
            ahead: stage.ahead(),
            passes: 1,
            device: None,
            brought: None,
            shares: Vec::new(),
        };
        Ok((workers, done))
    }

    /// Returns the input of a pipeline.
    fn input(&self, execution: &Execution, pipeline: usize) -> &Input {
        &self.fused.inputs[execution.program().pipelines[pipeline].source]
    }

    /// Merges the workers' results, on a thread that may block.
    async fn finish(
        &self,
        execution: &mut Execution,
        pipeline: usize,
        stage: Arc<Stage>,
        workers: Vec<Worker>,
    ) -> Outcome<Answer> {
        let mut finishing = execution.clone();
        let finished = spawn_blocking(move || {
            let answer = finishing.finish(pipeline, &stage, workers);
            (finishing, answer)
        });
        let (finished, answer) = finished.await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?;
        *execution = finished;
        Ok(answer?)
    }

    /// Returns the rows of spilled groups as they are merged. Waits for the first rows of each
    /// merger: until a row leaves, DataFusion's operators can take over.
    async fn merged(&self, spilled: &Arc<Spilled>, stop: StopOnDrop, query: Option<&Query>) -> Outcome<Batches> {
        if let Some(query) = query {
            let bytes = in_words(spilled.counts().bytes());
            query.notice(format!("memory_limit is reached: {bytes} of groups were spilled to disk"));
        }
        let threads = self.context.session_config().target_partitions();
        let mut merging: Vec<Merging> = Vec::new();
        for _ in 0..spilled.mergers(threads) {
            let (sender, batches) = mpsc::channel(1);
            let merger = spilled.merger(&stop.0);
            let (fused, schema) = (Arc::clone(&self.fused), Arc::clone(&self.schema));
            let task = spawn_blocking(move || merge(merger, &sender, &fused, &schema));
            merging.push(Merging { batches, task: Some(task) });
        }
        let mut first = Vec::new();
        for merging in &mut merging {
            first.extend(merging.next().await.transpose()?);
        }
        let rest = merging.into_iter().map(|merging| {
            let next = |mut merging: Merging| async move {
                let batch = merging.next().await?;
                Some((batch.map_err(DataFusionError::from), merging))
            };
            stream::unfold(merging, next).boxed()
        });
        // Dropping the rows stops the mergers.
        let rest = stream::select_all(rest).inspect(move |_| {
            let _stop = &stop;
        });
        Ok(stream::iter(first).map(Ok).chain(rest).boxed())
    }

    /// Computes the derived relation of source `number`. Returns its rows and their reservation.
    async fn derive(&self, number: usize, input: &DerivedInput) -> Outcome<(BatchSource, MemoryReservation)> {
        let Some(plan) = self.inputs.get(input.number) else {
            return Err(internal_datafusion_err!("no plan for {}", input.name).into());
        };
        let reservation = MemoryConsumer::new("CpuDerived").register(self.context.memory_pool());
        let mut builder = BatchSourceBuilder::new(&input.name, &input.columns)?;
        let reads = |column| self.fused.execution.program().reads_values_of(number, column);
        (0..input.columns.len()).filter(|column| !reads(*column)).for_each(|column| builder.count_only(column));
        // These are errors of DataFusion's operators too, including memory that they did not get.
        let mut batches = execute_stream(Arc::clone(plan), Arc::clone(&self.context)).map_err(Stop::Failed)?;
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(Stop::Failed)?;
            // The capacity of columns is up to twice their rows.
            reservation.try_resize(2 * builder.bytes() + batch.get_array_memory_size())?;
            builder.push(&batch)?;
        }
        let derived = spawn_blocking(move || builder.finish()).await;
        let derived = derived.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?;
        reservation.try_resize(derived.bytes())?;
        Ok((derived, reservation))
    }

    /// Runs a stage on all threads.
    async fn work(
        &self,
        stage: &Arc<Stage>,
        before: Vec<Worker>,
        stop: &StopOnDrop,
        query: Option<&Arc<Query>>,
    ) -> Outcome<Vec<Worker>> {
        let affordable = pipeline_budget::limit(self.context.memory_pool().as_ref()) / WORKER_BYTES;
        let threads = self.context.session_config().target_partitions().min(stage.morsels()).min(affordable).max(1);
        // A failure stops only the other workers of this stage.
        let stop_all = StopOnDrop(Arc::clone(&stop.0));
        let mut tasks = JoinSet::new();
        // All at once, since each gets a share of the memory.
        let mut all: Vec<Worker> = before.into_iter().map(|worker| worker.pass(stage)).collect();
        all.extend((all.len()..threads).map(|_| Worker::new(stage, &stop.0)));
        for worker in all {
            let query = query.cloned();
            tasks.spawn_blocking(governor::bind(move || carry_on(worker, query.as_deref())));
        }
        let mut workers = Vec::with_capacity(threads);
        let mut failed: Option<Stop> = None;
        while let Some(joined) = tasks.join_next().await {
            let worker = joined.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)).into());
            match worker.and_then(|worker| worker) {
                Ok(worker) => workers.push(worker),
                // Waits for the others, since a takeover needs their memory.
                Err(e) => {
                    stop.0.store(true, Relaxed);
                    failed.get_or_insert(e);
                }
            }
        }
        if let Some(e) = failed {
            return Err(e);
        }
        stop_all.disarm();
        Ok(workers)
    }

    /// Slices a batch to the batch size of DataFusion's operators.
    pub fn sliced(&self, batch: &RecordBatch) -> Vec<RecordBatch> {
        let size = self.context.session_config().batch_size();
        (0..batch.num_rows())
            .step_by(size)
            .map(|start| batch.slice(start, size.min(batch.num_rows() - start)))
            .collect()
    }
}

/// Converts rows of a pipeline to a batch for DataFusion. `threads` threads read late text.
pub(super) fn batch_of(
    fused: &Fused,
    schema: &SchemaRef,
    columns: &[ResultColumn],
    threads: usize,
) -> Result<RecordBatch> {
    let arrays = fused.finish.iter().zip(schema.fields());
    let arrays = arrays.map(|(finish, field)| finish.array(columns, field, threads)).collect::<Result<Vec<_>>>()?;
    let rows = columns.first().map_or(0, ResultColumn::len);
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)?)
}

/// A merger on a thread of its own, and its output.
struct Merging {
    batches: mpsc::Receiver<RecordBatch>,
    /// The task; `None` after its outcome was taken.
    task: Option<JoinHandle<Result<()>>>,
}

impl Merging {
    /// Returns the next batch, or the task's error, which a closed channel would hide.
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        if let Some(batch) = self.batches.recv().await {
            return Some(Ok(batch));
        }
        match self.task.take()?.await {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(Err(e)),
            Err(e) => Some(Err(DataFusionError::ExecutionJoin(Box::new(e)).into())),
        }
    }
}

fn merge(mut merger: Merger, batches: &mpsc::Sender<RecordBatch>, fused: &Fused, schema: &SchemaRef) -> Result<()> {
    while let Some(columns) = merger.next()? {
        // The reader is gone.
        if batches.blocking_send(batch_of(fused, schema, &columns, 1)?).is_err() {
            break;
        }
    }
    Ok(())
}

/// Stops workers when it is dropped.
#[derive(Default)]
pub(crate) struct StopOnDrop(pub Arc<AtomicBool>);

impl StopOnDrop {
    /// Lets the workers continue.
    fn disarm(mut self) {
        self.0 = Arc::default();
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn carry_on(mut worker: Worker, query: Option<&Query>) -> Outcome<Worker> {
    while worker.step()?.is_some() {
        if let Some(query) = query {
            query.did_rows(worker.morsel_rows() as u64);
        }
    }
    Ok(worker)
}
