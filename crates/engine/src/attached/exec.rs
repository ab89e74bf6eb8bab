//! The scan of a table of an attached database. Each partition has one connection, and reads every
//! n-th part of the table, where n is the number of partitions.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as DataFusionResult, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::stream;
use onehop_io::Hop;
use onehop_postgres::{Pages, Reader, Selection, Table, View};

use crate::Result;
use crate::query::Query;

/// The scan operator.
#[derive(Debug)]
pub(super) struct AttachedExec {
    view: Arc<View>,
    table: Arc<Table>,
    selection: Selection,
    parts: Arc<Vec<Pages>>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl AttachedExec {
    pub fn new(
        view: &Arc<View>,
        table: &Arc<Table>,
        selection: Selection,
        parts: Vec<Pages>,
        partitions: usize,
    ) -> Self {
        let schema = selection.schema(table);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            view: Arc::clone(view),
            table: Arc::clone(table),
            selection,
            parts: Arc::new(parts),
            schema,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for AttachedExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if matches!(t, DisplayFormatType::TreeRender) { "\n" } else { "; " };
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "{} at {}", self.table.sql_name(), self.view.place())?;
        write!(f, "{separator}columns: {}", names.join(", "))?;
        if let Some(condition) = &self.selection.condition {
            write!(f, "{separator}filtered there: {condition}")?;
        }
        if let Some(limit) = self.selection.limit {
            write!(f, "{separator}limit: {limit}")?;
        }
        let connections = self.properties.partitioning.partition_count();
        write!(f, "{separator}{}", crate::units::plural(self.parts.len() as u64, "part"))?;
        write!(f, "{separator}{}", crate::units::plural(connections as u64, "connection"))
    }
}

/// The state of one partition.
struct Reading {
    view: Arc<View>,
    table: Arc<Table>,
    selection: Selection,
    /// The remaining parts, the next one last.
    parts: Vec<Pages>,
    course: Course,
    query: Option<Arc<Query>>,
    metrics: BaselineMetrics,
    bytes: Count,
    received: u64,
}

enum Course {
    NotBegun,
    Reading(Box<Reader>),
    Ended,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match std::mem::replace(&mut self.course, Course::Ended) {
                Course::NotBegun => {
                    let reader = self.view.reader(&self.table, &self.selection).await?;
                    self.course = Course::Reading(Box::new(reader));
                    self.begin_next().await?;
                }
                Course::Reading(mut reader) => {
                    let batch = reader.next().await?;
                    self.count(&reader);
                    match batch {
                        Some(batch) => {
                            self.course = Course::Reading(reader);
                            return Ok(Some(self.told(batch)));
                        }
                        None if self.parts.is_empty() => return Ok(reader.finish()?.map(|batch| self.told(batch))),
                        None => {
                            self.course = Course::Reading(reader);
                            self.begin_next().await?;
                        }
                    }
                }
                Course::Ended => return Ok(None),
            }
        }
    }

    async fn begin_next(&mut self) -> Result<()> {
        match (&mut self.course, self.parts.pop()) {
            (Course::Reading(reader), Some(pages)) => Ok(reader.begin(pages).await?),
            _ => Ok(()),
        }
    }

    /// Counts the received bytes.
    fn count(&mut self, reader: &Reader) {
        let bytes = usize::try_from(reader.received() - self.received).unwrap_or(usize::MAX);
        self.received = reader.received();
        self.bytes.add(bytes);
        if let Some(query) = &self.query {
            query.shared_ledger().moved(Hop::StorageToHost, bytes);
            query.shared_ledger().needed(bytes);
        }
    }

    fn told(&self, batch: RecordBatch) -> RecordBatch {
        let rows = batch.num_rows();
        self.metrics.record_output(rows);
        if let Some(query) = &self.query {
            query.did_rows(rows as u64);
            query.shared_ledger().rows_in(rows as u64);
        }
        batch
    }
}

impl ExecutionPlan for AttachedExec {
    fn name(&self) -> &'static str {
        "PostgresScan"
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

    fn partition_statistics(&self, partition: Option<usize>) -> DataFusionResult<Arc<Statistics>> {
        let unknown = Statistics::new_unknown(&self.schema);
        let rows = self.table.rows.and_then(|rows| usize::try_from(rows).ok());
        let is_all = partition.is_none() && self.selection.condition.is_none() && self.selection.limit.is_none();
        Ok(Arc::new(match rows {
            Some(rows) if is_all => Statistics { num_rows: Precision::Inexact(rows), ..unknown },
            _ => unknown,
        }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let count = self.properties.partitioning.partition_count();
        let query = context.session_config().get_extension::<Query>();
        if let (0, Some(query), Some(rows)) = (partition, &query, self.table.rows) {
            query.expect_rows(rows);
        }
        let parts: Vec<Pages> = self.parts.iter().skip(partition).step_by(count).rev().copied().collect();
        let reading = Reading {
            view: Arc::clone(&self.view),
            table: Arc::clone(&self.table),
            selection: self.selection.clone(),
            parts,
            course: Course::NotBegun,
            query,
            metrics: BaselineMetrics::new(&self.metrics, partition),
            bytes: MetricBuilder::new(&self.metrics).counter("bytes_read", partition),
            received: 0,
        };
        let batches = stream::try_unfold(reading, |mut reading| async move {
            let batch = reading.next().await?;
            Ok(batch.map(|batch| (batch, reading)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
