//! The scan operator: reads its blocks and decodes the needed columns, a batch at a time.
//!
//! Each of its partitions has a [`BlockStream`]: the wanted blocks are known in advance, and are
//! read while operators above process earlier ones. Its memory is reserved from the statement's
//! pool. If the pool refuses, each block is read when it is needed. Fresh rows are in memory
//! already, and come after the blocks. Partitions are ordered: read one after the other, their rows
//! are in the table's order.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, RecordBatchStream,
};
use futures::Stream;
use onehop_io::Ledger;
use onehop_segment::packed::VECTOR_ROWS;
use onehop_segment::{AheadFacts, BLOCK_ROWS, BlockColumn, BlockStream};

use super::scan_facts;
use crate::explanation::ScanFacts;
use crate::fresh::{self, FreshSlice};
use crate::query::Query;
use crate::scan_plan::{BlockRef, ScanPlan};
use crate::snapshot::Table;
use crate::{Error, pipeline_budget};

/// Maximum bytes of all partitions that are in flight or in memory ahead of the current position.
const AHEAD_BYTES: usize = 64 << 20;
/// The same limit as a fraction of the memory: one part in this many.
const AHEAD_SHARE: usize = 16;
/// Maximum per partition. A fast device delivers this much while operators are busy.
const PARTITION_BYTES: usize = 32 << 20;

/// The number of fresh rows per slice. Slices are divided among partitions.
const FRESH_ROWS: usize = 8 * VECTOR_ROWS;
/// The weight of a block, in slices.
const BLOCK_WEIGHT: usize = BLOCK_ROWS.div_ceil(FRESH_ROWS);

/// Reads segments, and then fresh rows.
#[derive(Debug)]
pub struct SegmentScanExec {
    table: Arc<Table>,
    plan: ScanPlan,
    /// The wanted columns, by their position in the table. The row address comes after all of
    /// these.
    projection: Vec<usize>,
    limit: Option<usize>,
    /// Blocks, and slices of fresh rows, of each output partition.
    shares: Vec<(Range<usize>, Range<usize>)>,
    fresh: Vec<FreshSlice>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    statistics: Arc<Statistics>,
    metrics: ExecutionPlanMetricsSet,
    /// Statistics of reading ahead.
    ahead: Arc<Mutex<AheadFacts>>,
}

impl SegmentScanExec {
    pub(crate) fn new(
        table: Arc<Table>,
        columns: &SchemaRef,
        plan: ScanPlan,
        projection: Vec<usize>,
        limit: Option<usize>,
        partitions: usize,
        statistics: Statistics,
    ) -> crate::Result<Self> {
        let schema = Arc::new(columns.project(&projection)?);
        let fresh = plan.fresh.slices(FRESH_ROWS)?;
        let partitions = partitions.min(plan.blocks.len() + fresh.len()).max(1);
        let blocks = plan.blocks.len();
        let end = |partition: usize| {
            let weight = (blocks * BLOCK_WEIGHT + fresh.len()) * partition / partitions;
            (blocks.min(weight / BLOCK_WEIGHT), weight.saturating_sub(blocks * BLOCK_WEIGHT))
        };
        let shares = (0..partitions).map(|p| {
            let ((block, slice), (end_block, end_slice)) = (end(p), end(p + 1));
            (block..end_block, slice..end_slice)
        });
        let shares = shares.collect();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(Self {
            table,
            plan,
            projection,
            limit,
            shares,
            fresh,
            schema,
            properties: Arc::new(properties),
            statistics: Arc::new(statistics),
            metrics: ExecutionPlanMetricsSet::new(),
            ahead: Arc::default(),
        })
    }

    /// Reserves a partition's memory for reading ahead, as far as the pool permits.
    fn ahead_memory(&self, context: &TaskContext) -> MemoryReservation {
        let pool = context.memory_pool();
        let all = AHEAD_BYTES.min(pipeline_budget::limit(pool.as_ref()) / AHEAD_SHARE);
        let reservation = MemoryConsumer::new("CpuScan").register(pool);
        // Without the reservation it does not read ahead.
        let _ = reservation.try_grow((all / self.shares.len()).min(PARTITION_BYTES));
        reservation
    }

    /// Returns the first blocks of a partition that have as many rows as are wanted, without those
    /// that have no live rows.
    fn wanted(&self, share: Range<usize>) -> Vec<BlockRef> {
        let mut rows = 0;
        let is_wanted = |block: &BlockRef| {
            let is_wanted = rows < self.limit.unwrap_or(usize::MAX);
            rows += block.live_rows();
            is_wanted
        };
        let blocks = share.map(|at| self.plan.block(at)).take_while(is_wanted);
        blocks.filter(|block| block.live_rows() > 0).collect()
    }

    /// Returns the wanted columns that are the table's own.
    fn columns(&self) -> Vec<usize> {
        let own = self.table.schema.fields().len();
        self.projection.iter().copied().filter(|column| *column < own).collect()
    }

    /// Returns the position of the row address among the wanted columns, if it is wanted.
    fn address_at(&self) -> Option<usize> {
        self.projection.iter().position(|column| *column == self.table.schema.fields().len())
    }
}

impl SegmentScanExec {
    /// Returns the table.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the statistics for EXPLAIN.
    pub(crate) fn facts(&self) -> ScanFacts {
        let limit = self.limit.map(|rows| rows as u64);
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ahead = Some(ahead).filter(|ahead| ahead.way.is_some());
        ScanFacts { limit, ahead, ..scan_facts(&self.table, &self.plan, &self.columns()) }
    }
}

impl DisplayAs for SegmentScanExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        let columns: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let separator = match t {
            DisplayFormatType::TreeRender => "\n",
            _ => ", ",
        };
        if !matches!(t, DisplayFormatType::TreeRender) {
            write!(f, "CpuScan: ")?;
        }
        plan.describe(f, &self.table.name, &columns, separator)?;
        if let Some(limit) = self.limit {
            write!(f, "{separator}limit={limit}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for SegmentScanExec {
    fn name(&self) -> &'static str {
        "CpuScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some((share, slices)) = self.shares.get(partition) else {
            return Err(DataFusionError::Internal(format!("the scan has no partition {partition}")));
        };
        let query = context.session_config().get_extension::<Query>();
        if let Some(query) = query.as_ref().filter(|_| partition == 0) {
            let skipped = self.plan.blocks_considered - self.plan.blocks.len();
            query.shared_ledger().planned_blocks(self.plan.blocks_considered as u64, skipped as u64);
            query.expect_rows(self.plan.rows() as u64);
        }
        let ledger = query.as_ref().map_or_else(Arc::default, |query| Arc::clone(query.shared_ledger()));
        let memory = self.ahead_memory(&context);
        let wanted = self.wanted(share.clone());
        let blocks = wanted.iter().map(|block| (&block.segment, block.block)).collect();
        let fresh: Vec<FreshSlice> = self.fresh.get(slices.clone()).unwrap_or_default().to_vec();
        let (requested, columns) = (self.plan.requested, self.columns());
        Ok(Box::pin(ScanStream {
            blocks: BlockStream::new(requested, blocks, columns.clone(), &ledger, memory.size()),
            wanted: wanted.into_iter(),
            fresh: fresh.into_iter(),
            columns,
            address_at: self.address_at(),
            ahead: Some(Arc::clone(&self.ahead)),
            _memory: memory,
            schema: Arc::clone(&self.schema),
            batch_rows: context.session_config().batch_size().next_multiple_of(VECTOR_ROWS),
            rows_left: self.limit.unwrap_or(usize::MAX),
            open: None,
            query,
            ledger,
            metrics: BaselineMetrics::new(&self.metrics, partition),
            blocks_read: MetricBuilder::new(&self.metrics).counter("blocks_read", partition),
            bytes_read: MetricBuilder::new(&self.metrics).counter("bytes_read", partition),
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(&self, _inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match args.partition() {
            None => Ok(Arc::clone(&self.statistics)),
            Some(_) => Ok(Arc::new(Statistics::new_unknown(&self.schema))),
        }
    }
}

/// A loaded block, partly returned.
struct OpenBlock {
    columns: Vec<BlockColumn>,
    block: BlockRef,
    rows: usize,
    next_row: usize,
}

struct ScanStream {
    blocks: BlockStream,
    /// Blocks that are not read yet.
    wanted: std::vec::IntoIter<BlockRef>,
    /// Fresh rows that come after them.
    fresh: std::vec::IntoIter<FreshSlice>,
    /// Columns of the table.
    columns: Vec<usize>,
    /// The position among them where row addresses go, if they are wanted.
    address_at: Option<usize>,
    /// The statistics of all partitions; `None` after this one has reported.
    ahead: Option<Arc<Mutex<AheadFacts>>>,
    /// Released when the stream has ended.
    _memory: MemoryReservation,
    schema: SchemaRef,
    batch_rows: usize,
    rows_left: usize,
    open: Option<OpenBlock>,
    query: Option<Arc<Query>>,
    ledger: Arc<Ledger>,
    metrics: BaselineMetrics,
    blocks_read: Count,
    bytes_read: Count,
}

impl ScanStream {
    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<crate::Result<Option<RecordBatch>>> {
        while self.rows_left > 0 {
            if self.open.as_ref().is_none_or(|open| open.next_row == open.rows) {
                self.open = None;
                let Some(columns) = ready!(self.blocks.poll_next(context))? else {
                    // EXPLAIN reads the statistics at the end of the query, possibly before this is
                    // dropped.
                    self.tell();
                    return Poll::Ready(self.next_fresh());
                };
                self.open = self.wanted.next().map(|block| self.opened(block, columns));
            }
            // All of its rows may be deleted.
            let batch = self.next_batch()?;
            if batch.as_ref().is_none_or(|batch| batch.num_rows() > 0) {
                return Poll::Ready(Ok(batch));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn next_batch(&mut self) -> crate::Result<Option<RecordBatch>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let rows = open.next_row..(open.next_row + self.batch_rows).min(open.rows);
        open.next_row = rows.end;
        let arrays = open.columns.iter().map(|column| column.decode(rows.clone()));
        let mut arrays = arrays.collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
        if let Some(at) = self.address_at {
            arrays.insert(at, fresh::addresses(open.block.place, open.block.block, rows.clone()));
        }
        let is_live = fresh::live_mask(open.block.deleted.as_deref(), rows.clone());
        let count = is_live.as_ref().map_or(rows.len(), BooleanArray::true_count);
        let arrays = fresh::filtered(arrays, is_live.as_ref())?;
        self.batch(arrays, count).map(Some)
    }

    /// Returns the next rows that are in no segment.
    fn next_fresh(&mut self) -> crate::Result<Option<RecordBatch>> {
        while let Some(slice) = self.fresh.next().filter(|_| self.rows_left > 0) {
            let (mut arrays, addresses, rows) = slice.read(&self.columns)?;
            if rows == 0 {
                continue;
            }
            if let Some(at) = self.address_at {
                arrays.insert(at, addresses);
            }
            self.ledger.rows_in(rows as u64);
            if let Some(query) = &self.query {
                query.did_rows(rows as u64);
            }
            return self.batch(arrays, rows).map(Some);
        }
        Ok(None)
    }

    /// Returns a batch of these rows, cut to the number that is still wanted.
    fn batch(&mut self, arrays: Vec<ArrayRef>, rows: usize) -> crate::Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?;
        let batch = if batch.num_rows() > self.rows_left { batch.slice(0, self.rows_left) } else { batch };
        self.rows_left -= batch.num_rows();
        Ok(batch)
    }

    /// Reports the statistics of reading ahead.
    fn tell(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            ahead.lock().unwrap_or_else(PoisonError::into_inner).add(self.blocks.facts());
        }
    }

    /// Opens a block that was read.
    fn opened(&self, block: BlockRef, columns: Vec<BlockColumn>) -> OpenBlock {
        let rows = block.live_rows();
        self.ledger.read_block(rows as u64);
        self.blocks_read.add(1);
        self.bytes_read.add(columns.iter().map(BlockColumn::memory_bytes).sum());
        if let Some(query) = &self.query {
            query.did_rows(rows as u64);
        }
        OpenBlock { columns, rows: block.segment.block_rows(block.block), block, next_row: 0 }
    }
}

impl Drop for ScanStream {
    fn drop(&mut self) {
        self.tell();
    }
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let timer = self.metrics.elapsed_compute().clone();
        let _timer = timer.timer();
        let next = self.poll_batch(context).map(|next| next.map_err(DataFusionError::from).transpose());
        self.metrics.record_poll(next)
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
