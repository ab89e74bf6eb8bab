//! Rows of files and tables keep their order if a query requests no other: the setting
//! `preserve_order`.
//!
//! DataFusion distributes the files of a scan to its partitions while it runs, and batches to
//! streams round-robin. It merges streams in the order in which batches arrive. `FROM 'file' LIMIT
//! 2` then returns other rows each time. So:
//!
//! 1. Each partition of a scan reads its own files, which follow those of the partition before it.
//!    Text files are in one partition, and all threads parse the file that is being read.
//! 2. Above the scan, up to the first operator that does not process single rows, no batches are
//!    distributed round-robin, and [`InOrderExec`] concatenates streams.
//!
//! Aggregates, sorts and joins do not keep the order of files. The operators above them stay as
//! planned.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, replace_children_if_necessary};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use datafusion::prelude::SessionConfig;
use datafusion_datasource::sink::DataSinkExec;
use futures::StreamExt;

use crate::files;
use crate::planner::is_unseen;
use crate::scan::SegmentScanExec;
use crate::settings::RowOrder;

/// The number of batches of a partition that wait for those before it.
const AHEAD_BATCHES: usize = 16;

/// Returns whether a statement keeps the order of stored rows.
pub(crate) fn is_asked(config: &SessionConfig) -> bool {
    config.get_extension::<RowOrder>().is_some_and(|order| *order == RowOrder::Stored)
}

/// Returns the plan with the rows of files in their order, from each of its partitions to the next.
pub(crate) fn ordered(plan: Arc<dyn ExecutionPlan>, state: &SessionState) -> Result<Arc<dyn ExecutionPlan>> {
    if !is_asked(state.config()) {
        return Ok(plan);
    }
    Ok(match kept(&plan, state.config().target_partitions())? {
        Some(Kept { plan: kept, reads: Reads::Stored }) => kept,
        _ => plan,
    })
}

/// Returns an [`ordered`] plan as one stream.
pub(crate) fn one_stream(plan: Arc<dyn ExecutionPlan>, state: &SessionState) -> Arc<dyn ExecutionPlan> {
    if is_asked(state.config()) && plan.output_partitioning().partition_count() > 1 && is_kept(&plan) {
        return Arc::new(InOrderExec::new(plan));
    }
    plan
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Rows that are stored in an order.
    Stored,
    Other,
}

/// A plan whose partitions follow each other.
struct Kept {
    plan: Arc<dyn ExecutionPlan>,
    reads: Reads,
}

fn kept(plan: &Arc<dyn ExecutionPlan>, threads: usize) -> Result<Option<Kept>> {
    if let Some(config) = file_scan(plan) {
        let config = match files::one_after_another(config, threads) {
            Some(texts) => texts,
            None => FileScanConfigBuilder::from(config.clone()).with_preserve_order(true).build(),
        };
        return Ok(Some(Kept { plan: DataSourceExec::from_data_source(config), reads: Reads::Stored }));
    }
    if plan.is::<SegmentScanExec>() {
        return Ok(Some(Kept { plan: Arc::clone(plan), reads: Reads::Stored }));
    }
    if plan.is::<UnionExec>() {
        return kept_union(plan, threads);
    }
    let children = plan.children();
    if let [input] = children.as_slice() {
        if deals_in_turns(plan) {
            return kept(input, threads);
        }
        if plan.is::<CoalescePartitionsExec>() {
            let Some(Kept { plan: input, reads }) = kept(input, threads)? else { return Ok(None) };
            return Ok(Some(Kept { plan: joined(input, plan.fetch()), reads }));
        }
        if is_about_single_rows(plan) {
            let Some(Kept { plan: input, reads }) = kept(input, threads)? else { return Ok(None) };
            return Ok(Some(Kept { plan: replace_children_if_necessary(Arc::clone(plan), vec![input])?, reads }));
        }
    }
    let is_one = plan.output_partitioning().partition_count() == 1;
    Ok(is_one.then(|| Kept { plan: Arc::clone(plan), reads: Reads::Other }))
}

fn kept_union(plan: &Arc<dyn ExecutionPlan>, threads: usize) -> Result<Option<Kept>> {
    let (mut inputs, mut reads) = (Vec::new(), Reads::Other);
    for input in plan.children() {
        let Some(input) = kept(input, threads)? else { return Ok(None) };
        inputs.push(input.plan);
        if input.reads == Reads::Stored {
            reads = Reads::Stored;
        }
    }
    Ok(Some(Kept { plan: replace_children_if_necessary(Arc::clone(plan), inputs)?, reads }))
}

/// Returns whether [`ordered`] has produced a plan.
fn is_kept(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(config) = file_scan(plan) {
        return config.preserve_order || config.file_groups.len() == 1;
    }
    if plan.is::<SegmentScanExec>() {
        return true;
    }
    let children = plan.children();
    if plan.is::<UnionExec>() {
        let is_one = |input: &Arc<dyn ExecutionPlan>| input.output_partitioning().partition_count() == 1;
        return children.iter().all(|input| is_kept(input) || is_one(input));
    }
    match children.as_slice() {
        [input] => is_about_single_rows(plan) && is_kept(input),
        _ => false,
    }
}

fn file_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()
}

fn deals_in_turns(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let dealt = plan.downcast_ref::<RepartitionExec>();
    dealt.is_some_and(|dealt| matches!(dealt.partitioning(), Partitioning::RoundRobinBatch(_)))
}

fn is_about_single_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<ProjectionExec>()
        || plan.is::<FilterExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<GlobalLimitExec>()
        || plan.is::<UnnestExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<DataSinkExec>()
        || is_unseen(plan)
}

/// Concatenates partitions, and limits them to the first rows.
fn joined(input: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Arc<dyn ExecutionPlan> {
    let one: Arc<dyn ExecutionPlan> = match input.output_partitioning().partition_count() {
        1 => input,
        _ => Arc::new(InOrderExec::new(input)),
    };
    match fetch {
        Some(fetch) => Arc::new(GlobalLimitExec::new(one, 0, Some(fetch))),
        None => one,
    }
}

/// An operator that returns the rows of its input's partitions, one partition after the other. The
/// later ones run ahead by some batches.
#[derive(Debug)]
struct InOrderExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl InOrderExec {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self { input, properties: Arc::new(properties) }
    }

    /// Executes a partition. A task reads its first batches ahead of the consumer.
    fn ahead(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut rows = self.input.execute(partition, context)?;
        let mut ahead = RecordBatchReceiverStream::builder(self.input.schema(), AHEAD_BATCHES);
        let sender = ahead.tx();
        ahead.spawn(async move {
            while let Some(batch) = rows.next().await {
                let is_last = batch.is_err();
                if sender.send(batch).await.is_err() || is_last {
                    break;
                }
            }
            Ok(())
        });
        Ok(ahead.build())
    }
}

impl DisplayAs for InOrderExec {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match kind {
            DisplayFormatType::TreeRender => Ok(()),
            _ => f.write_str(self.name()),
        }
    }
}

impl ExecutionPlan for InOrderExec {
    fn name(&self) -> &'static str {
        "InOrderExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) => Ok(Arc::new(Self::new(input))),
            None => internal_err!("InOrderExec has no input"),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition > 0 {
            return internal_err!("InOrderExec has no partition {partition}");
        }
        let partitions = self.input.output_partitioning().partition_count();
        let streams = (0..partitions).map(|partition| self.ahead(partition, Arc::clone(&context)));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let rows = futures::stream::iter(streams).flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.input.schema(), rows)))
    }

    fn child_stats_requests(&self, _: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("one input has {} statistics", inputs.len()),
        }
    }
}
