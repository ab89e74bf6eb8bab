//! Runs a fused subtree: first the plans of derived relations, into memory, then a worker per thread, on threads beside
//! the runtime's, so that timers, signals and other queries are heard however long a morsel takes. Whoever stops waiting
//! stops the workers, within a vector.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as DataFusionResult, internal_datafusion_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, execute_stream,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use onehop_pipeline::cpu::{ResultColumn, Skipped, Stage, StepRows, TableFacts, Worker};
use onehop_pipeline::{BatchSource, BatchSourceBuilder};
use tokio::task::{JoinSet, spawn_blocking};

use super::cannot_run;
use super::input::{DerivedInput, Input};
use super::node::Fused;
use super::stream::Flow;
use crate::query::Query;
use crate::settings::Fallback;
use crate::{ErrorKind, Result, planner};

/// A fused subtree as an operator.
#[derive(Debug)]
pub(crate) struct FusedExec {
    fused: Arc<Fused>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// What came of the execution that ended last.
    ran: Arc<Mutex<Option<Ran>>>,
    /// The plans of derived relations.
    inputs: Vec<Arc<dyn ExecutionPlan>>,
}

/// What came of an execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    /// Of the derived relations, by number.
    pub derived: Vec<(usize, DerivedRan)>,
    /// Of the pipelines, in their order; fewer if memory ran out.
    pub pipelines: Vec<PipelineRan>,
    /// The answer's rows.
    pub rows: u64,
    /// Why DataFusion's operators started anew, if they did.
    pub taken_over: Option<String>,
}

/// What came of a derived relation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DerivedRan {
    /// Until the last row was in memory.
    pub elapsed: Duration,
    pub rows: u64,
    pub bytes: u64,
}

/// What came of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineRan {
    pub elapsed: Duration,
    pub workers: usize,
    /// Rows of the blocks that were left to read.
    pub rows: u64,
    /// Blocks ruled out by the keys of join tables.
    pub skipped: Vec<Skipped>,
    pub steps: Vec<StepRows>,
    /// Bytes that the workers' sinks had taken before they were put together.
    pub sink_bytes: usize,
    /// The join table that it built.
    pub table: Option<TableFacts>,
}

impl FusedExec {
    pub fn new(fused: Arc<Fused>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        let schema = Arc::clone(fused.schema.inner());
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            if fused.collects() { EmissionType::Incremental } else { EmissionType::Final },
            Boundedness::Bounded,
        );
        Self {
            fused,
            schema,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            ran: Arc::default(),
            inputs,
        }
    }

    /// What it does.
    pub fn fused(&self) -> &Fused {
        &self.fused
    }

    /// What came of the execution that ended last.
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
            f.write_str(if separator == "\n" { "\n" } else { "; CpuScan: " })?;
            scan.plan.describe(f, &scan.table.name, &scan.column_names(), separator)?;
        }
        Ok(())
    }
}

impl ExecutionPlan for FusedExec {
    fn name(&self) -> &'static str {
        if self.fused.collects() { "CpuCollect" } else { "CpuPreAgg" }
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
            schema: Arc::clone(&self.schema),
            properties: Arc::clone(&self.properties),
            metrics: self.metrics.clone(),
            ran: Arc::clone(&self.ran),
            inputs: children,
        }))
    }

    fn execute(&self, _partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let metrics = BaselineMetrics::new(&self.metrics, 0);
        let skipped = MetricBuilder::new(&self.metrics).counter("blocks_skipped_by_joins", 0);
        let (fused, schema, inputs) = (Arc::clone(&self.fused), Arc::clone(&self.schema), self.inputs.clone());
        let run = Run { fused, context, schema, inputs };
        let told = Arc::clone(&self.ran);
        let batches = stream::once(async move {
            let timer = metrics.elapsed_compute().timer();
            let mut ran = Ran::default();
            let outcome = run.run(&mut ran).await;
            if let Err(Stop::TakeOver(reason)) = &outcome {
                ran.taken_over = Some(reason.to_string());
            }
            if let Ok(Answer::Whole(batch)) = &outcome {
                ran.rows = batch.num_rows() as u64;
            }
            skipped.add(ran.pipelines.iter().flat_map(|pipeline| &pipeline.skipped).map(|s| s.morsels).sum());
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran.clone());
            let batch = match outcome {
                Ok(Answer::Whole(batch)) => batch,
                Ok(Answer::Flowing(flow, first)) => {
                    timer.done();
                    return Ok(flow.rows(first, ran, told, metrics));
                }
                Err(Stop::TakeOver(reason)) => return run.unfused(reason).await,
                Err(Stop::Failed(e)) => return Err(e),
            };
            timer.done();
            metrics.record_output(batch.num_rows());
            Ok(stream::iter(run.sliced(&batch)).map(Ok).boxed())
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

type Outcome<T> = std::result::Result<T, Stop>;

/// Why an execution ends without an answer.
enum Stop {
    /// DataFusion's operators can do it: no row has left the pipelines yet.
    TakeOver(TakeOver),
    /// It is an error for them as well.
    Failed(DataFusionError),
}

/// What pipelines could not go on for.
enum TakeOver {
    /// Memory ran out.
    Memory(crate::Error),
    /// What a derived relation turned out to hold.
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

/// What an execution comes to.
enum Answer {
    /// All rows.
    Whole(RecordBatch),
    /// Rows that go on coming, after the first.
    Flowing(Flow, Option<RecordBatch>),
}

/// One execution.
struct Run {
    fused: Arc<Fused>,
    context: Arc<TaskContext>,
    schema: SchemaRef,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
}

impl Run {
    /// Hands over to DataFusion's operators: no row has left this yet.
    async fn unfused(&self, reason: TakeOver) -> DataFusionResult<BoxStream<'static, DataFusionResult<RecordBatch>>> {
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
        // Its columns are the same, and may know less about themselves.
        let batches = batches.map(move |batch| {
            let batch = batch?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), batch.columns().to_vec(), &options)?)
        });
        Ok(batches.boxed())
    }

    async fn run(&self, ran: &mut Ran) -> Outcome<Answer> {
        let query = self.context.session_config().get_extension::<Query>();
        let pool = self.context.memory_pool();
        let budget = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes,
            _ => usize::MAX,
        };
        let mut answer = Vec::new();
        if let Some(query) = &query {
            for scan in self.fused.scans() {
                let (considered, read) = (scan.plan.blocks_considered as u64, scan.plan.blocks.len() as u64);
                scan.ledger.planned_blocks(considered, considered - read);
                query.expect_rows(scan.plan.rows() as u64);
            }
        }
        let mut sources = self.fused.execution.sources().to_vec();
        // What they hold is theirs until the answer is there.
        let mut held = Vec::with_capacity(self.inputs.len());
        for (source, input) in sources.iter_mut().zip(&self.fused.inputs) {
            let Input::Derived(input) = input else { continue };
            let began = Instant::now();
            let (derived, reservation) = self.derive(input).await?;
            let (rows, bytes) = (derived.all_rows() as u64, derived.bytes() as u64);
            if let Some(query) = &query {
                query.expect_rows(rows);
            }
            ran.derived.push((input.number, DerivedRan { elapsed: began.elapsed(), rows, bytes }));
            held.push(reservation);
            *source = Arc::new(derived);
        }
        let mut execution = match held.is_empty() {
            true => self.fused.execution.with_budget(budget),
            false => self.fused.execution.with_sources(sources, budget)?,
        };
        for pipeline in 0..execution.pipelines() {
            let began = Instant::now();
            let stage = execution.stage(pipeline)?;
            let by_joins: usize = stage.skipped().iter().map(|skipped| skipped.morsels).sum();
            if let Input::Table(scan) = &self.fused.inputs[execution.program().pipelines[pipeline].source] {
                scan.ledger.planned_blocks(0, by_joins as u64);
            }
            if self.fused.collects() && pipeline + 1 == execution.pipelines() {
                let tables = MemoryConsumer::new("CpuJoin").register(pool);
                tables.try_resize(execution.tables().iter().map(|table| table.bytes).sum())?;
                held.push(tables);
                let threads = self.context.session_config().target_partitions();
                let mut flow = Flow::start(&self.fused, &self.schema, &stage, threads, query.as_ref(), held);
                // Nothing has left yet.
                let first = flow.next().await.transpose()?;
                return Ok(Answer::Flowing(flow, first));
            }
            // What they hold is theirs until it has been put together.
            let (workers, _reservations): (Vec<_>, Vec<_>) =
                self.work(&stage, query.as_ref()).await?.into_iter().unzip();
            let (count, sink_bytes) = (workers.len(), workers.iter().map(Worker::bytes).sum());
            answer = execution.finish(&stage, workers)?;
            ran.pipelines.push(PipelineRan {
                elapsed: began.elapsed(),
                workers: count,
                rows: stage.rows(),
                skipped: stage.skipped().to_vec(),
                steps: stage.step_rows(),
                sink_bytes,
                table: execution.tables().get(pipeline).copied(),
            });
        }
        let threads = self.context.session_config().target_partitions();
        Ok(Answer::Whole(batch_of(&self.fused, &self.schema, &answer, threads)?))
    }

    /// The rows of a derived relation, and the memory that is theirs.
    async fn derive(&self, input: &DerivedInput) -> Outcome<(BatchSource, MemoryReservation)> {
        let Some(plan) = self.inputs.get(input.number) else {
            return Err(internal_datafusion_err!("no plan for {}", input.name).into());
        };
        let reservation = MemoryConsumer::new("CpuDerived").register(self.context.memory_pool());
        let mut builder = BatchSourceBuilder::new(&input.name, &input.columns)?;
        // Its errors are DataFusion's as well, memory that its operators did not get among them.
        let mut batches = execute_stream(Arc::clone(plan), Arc::clone(&self.context)).map_err(Stop::Failed)?;
        while let Some(batch) = batches.next().await {
            builder.push(&batch.map_err(Stop::Failed)?)?;
            reservation.try_resize(builder.bytes())?;
        }
        let derived = spawn_blocking(move || builder.finish()).await;
        let derived = derived.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?;
        reservation.try_resize(derived.bytes())?;
        Ok((derived, reservation))
    }

    /// Carries a stage through on all threads.
    async fn work(&self, stage: &Arc<Stage>, query: Option<&Arc<Query>>) -> Outcome<Vec<Held>> {
        let threads = self.context.session_config().target_partitions().min(stage.morsels()).max(1);
        let stop = StopOnDrop::default();
        let mut tasks = JoinSet::new();
        for _ in 0..threads {
            let worker = Worker::new(stage, &stop.0);
            let reservation = MemoryConsumer::new("CpuPreAgg").register(self.context.memory_pool());
            let query = query.cloned();
            tasks.spawn_blocking(move || {
                carry_on(worker, &reservation, query.as_deref()).map(|worker| (worker, reservation))
            });
        }
        let mut workers = Vec::with_capacity(threads);
        while let Some(joined) = tasks.join_next().await {
            workers.push(joined.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))??);
        }
        Ok(workers)
    }

    /// In pieces of the size that DataFusion's operators work on.
    fn sliced(&self, batch: &RecordBatch) -> Vec<RecordBatch> {
        let size = self.context.session_config().batch_size();
        (0..batch.num_rows())
            .step_by(size)
            .map(|start| batch.slice(start, size.min(batch.num_rows() - start)))
            .collect()
    }
}

/// Rows of a pipeline as DataFusion's operators know them. Late texts are read by so many threads.
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

/// A worker, and the memory that is its.
type Held = (Worker, MemoryReservation);

/// Stops workers that nobody waits for any more.
#[derive(Default)]
pub(super) struct StopOnDrop(pub Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn carry_on(mut worker: Worker, reservation: &MemoryReservation, query: Option<&Query>) -> Outcome<Worker> {
    while worker.step()?.is_some() {
        reservation.try_resize(worker.bytes())?;
        if let Some(query) = query {
            query.did_rows(worker.morsel_rows() as u64);
        }
    }
    Ok(worker)
}
