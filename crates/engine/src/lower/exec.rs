//! Runs a fused subtree: a worker per thread, on threads beside the runtime's, so that timers, signals and other queries
//! are heard however long a morsel takes. Whoever stops waiting stops the workers, within a vector.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as DataFusionResult};
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
use tokio::task::JoinSet;

use super::node::Fused;
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
}

/// What came of an execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    /// Of the pipelines, in their order; fewer if memory ran out.
    pub pipelines: Vec<PipelineRan>,
    /// The answer's rows.
    pub rows: u64,
    /// Memory ran out, and DataFusion's operators started anew.
    pub was_taken_over: bool,
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
    pub fn new(fused: Arc<Fused>) -> Self {
        let schema = Arc::clone(fused.schema.inner());
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self {
            fused,
            schema,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            ran: Arc::default(),
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
            write!(f, "CpuPreAgg: ")?;
        }
        write!(f, "{}", self.fused)?;
        for scan in &self.fused.scans {
            f.write_str(if separator == "\n" { "\n" } else { "; CpuScan: " })?;
            scan.plan.describe(f, &scan.table.name, &scan.column_names(), separator)?;
        }
        Ok(())
    }
}

impl ExecutionPlan for FusedExec {
    fn name(&self) -> &'static str {
        "CpuPreAgg"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let metrics = BaselineMetrics::new(&self.metrics, 0);
        let skipped = MetricBuilder::new(&self.metrics).counter("blocks_skipped_by_joins", 0);
        let run = Run { fused: Arc::clone(&self.fused), context, schema: Arc::clone(&self.schema) };
        let told = Arc::clone(&self.ran);
        let batches = stream::once(async move {
            let timer = metrics.elapsed_compute().timer();
            let mut ran = Ran::default();
            let outcome = run.run(&mut ran).await;
            ran.was_taken_over = matches!(&outcome, Err(e) if e.kind() == ErrorKind::Resources);
            ran.rows = outcome.as_ref().map_or(0, |batch| batch.num_rows() as u64);
            skipped.add(ran.pipelines.iter().flat_map(|pipeline| &pipeline.skipped).map(|s| s.morsels).sum());
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran);
            let batch = match outcome {
                Err(e) if e.kind() == ErrorKind::Resources => return run.unfused(e).await,
                outcome => outcome.map_err(DataFusionError::from)?,
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

/// One execution.
struct Run {
    fused: Arc<Fused>,
    context: Arc<TaskContext>,
    schema: SchemaRef,
}

impl Run {
    /// Hands over to DataFusion's operators, which spill to disk, after memory ran out: no row has left this yet.
    async fn unfused(&self, e: crate::Error) -> DataFusionResult<BoxStream<'static, DataFusionResult<RecordBatch>>> {
        let query = self.context.session_config().get_extension::<Query>();
        match (self.fused.fallback, &query) {
            (Fallback::Error, _) => return Err(e.with_hint(HINT_OF_MEMORY).into()),
            (Fallback::Warn, Some(query)) => {
                query.notice(
                    "not fused after all: memory_limit is reached; operators that spill to disk took over".into(),
                );
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

    async fn run(&self, ran: &mut Ran) -> Result<RecordBatch> {
        let scans = &self.fused.scans;
        let query = self.context.session_config().get_extension::<Query>();
        let pool = self.context.memory_pool();
        let budget = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes,
            _ => usize::MAX,
        };
        let mut execution = self.fused.execution.with_budget(budget);
        let mut answer = Vec::new();
        if let Some(query) = &query {
            for scan in scans {
                let (considered, read) = (scan.plan.blocks_considered as u64, scan.plan.blocks.len() as u64);
                scan.ledger.planned_blocks(considered, considered - read);
                query.expect_rows(scan.plan.rows() as u64);
            }
        }
        for pipeline in 0..execution.pipelines() {
            let began = Instant::now();
            let stage = execution.stage(pipeline)?;
            let by_joins: usize = stage.skipped().iter().map(|skipped| skipped.morsels).sum();
            scans[execution.program().pipelines[pipeline].source].ledger.planned_blocks(0, by_joins as u64);
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
        self.batch(&answer)
    }

    /// Carries a stage through on all threads.
    async fn work(&self, stage: &Arc<Stage>, query: Option<&Arc<Query>>) -> Result<Vec<Held>> {
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

    fn batch(&self, columns: &[ResultColumn]) -> Result<RecordBatch> {
        let arrays = self.fused.finish.iter().zip(self.schema.fields());
        let arrays = arrays.map(|(finish, field)| finish.array(columns, field)).collect::<Result<Vec<_>>>()?;
        let rows = columns.first().map_or(0, ResultColumn::len);
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?)
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

/// A worker, and the memory that is its.
type Held = (Worker, MemoryReservation);

/// Stops workers that nobody waits for any more.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn carry_on(mut worker: Worker, reservation: &MemoryReservation, query: Option<&Query>) -> Result<Worker> {
    while worker.step()?.is_some() {
        reservation.try_resize(worker.bytes())?;
        if let Some(query) = query {
            query.did_rows(worker.morsel_rows() as u64);
        }
    }
    Ok(worker)
}
