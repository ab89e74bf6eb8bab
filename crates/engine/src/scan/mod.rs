//! Tables as DataFusion sees them: planning a scan, and the operator that carries it out.
//!
//! Planning turns the statement's filters into a zone predicate ([`prune`]) and tests it, before any data is read,
//! against partitions, then segments, then blocks. What is left is dealt to the scan's partitions in runs of
//! neighbouring blocks. Filters are pushed down inexactly: a block that may match is read whole, and the filter above
//! the scan has the last word. Deleted rows are taken out of blocks as they are decoded; fresh rows, which no zone map
//! knows, are all read.

mod exec;
mod facts;
mod prune;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result as DataFusionResult, ScalarValue, Statistics};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use onehop_io::RequestedPath;
use onehop_pipeline::Changes;
use onehop_segment::{BlockList, ColumnType, DeletedBlock, DeletedRows, Predicate, Segment};

use crate::Result;
use crate::fresh::{FreshRows, ROW_ADDRESS};
use crate::identifiers::quoted;
use crate::load::partition;
use crate::lower::Fusing;
use crate::planner::Printer;
use crate::snapshot::Table;
pub use exec::SegmentScanExec;
pub(crate) use facts::scan_facts;
pub(crate) use prune::value_of;

/// A table of the database, as of one snapshot.
#[derive(Debug)]
pub struct SegmentTable {
    table: Arc<Table>,
    /// The table's columns, and [`ROW_ADDRESS`] if that was asked for.
    schema: SchemaRef,
}

impl SegmentTable {
    /// Makes a table known to DataFusion.
    pub fn new(table: Arc<Table>) -> Self {
        Self { schema: Arc::clone(&table.schema), table }
    }

    /// The same with a further column, [`ROW_ADDRESS`], that says where rows are: a [`RowAddress`](crate::fresh::RowAddress)
    /// in this version of the table. Pipelines leave its scans to DataFusion.
    pub fn with_addresses(table: Arc<Table>) -> Self {
        let address: FieldRef = Arc::new(Field::new(ROW_ADDRESS, DataType::UInt64, false));
        let fields = table.schema.fields().iter().cloned().chain([address]);
        Self { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())), table }
    }

    /// Whether its scans say where rows are.
    pub fn has_addresses(&self) -> bool {
        self.schema.fields().len() > self.table.schema.fields().len()
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }
}

/// One block to read.
#[derive(Clone, Debug)]
pub(crate) struct BlockRef {
    pub segment: Arc<Segment>,
    pub block: usize,
    /// The place of the segment in the table.
    pub place: usize,
    /// Its rows that are deleted, if any are.
    pub deleted: Option<Arc<DeletedBlock>>,
}

impl BlockRef {
    /// Its rows that are not deleted.
    pub fn live_rows(&self) -> usize {
        let deleted = self.deleted.as_ref().map_or(0, |deleted| deleted.count());
        self.segment.block_rows(self.block).saturating_sub(deleted)
    }
}

/// A segment that is read, or a part of it.
#[derive(Clone, Debug)]
struct SegmentPart {
    /// The partition it is in; 0 where there are none.
    partition: u32,
    /// The place of the segment in the table.
    place: usize,
    /// Its rows that are deleted, if any of those that are read are.
    deleted: Option<Arc<DeletedRows>>,
}

/// What of a partition will be read, and what of it is got around.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionPlan {
    pub name: String,
    pub blocks_considered: usize,
    /// Its blocks, if rows that match cannot be in it.
    pub skipped_by_partition: usize,
    /// Blocks whose zones rule them out.
    pub skipped_by_zone: usize,
}

impl PartitionPlan {
    pub fn blocks_left(&self) -> usize {
        self.blocks_considered - self.skipped_by_partition - self.skipped_by_zone
    }
}

/// Plans of scans of one version of a table: a query asks several times, and is often asked again itself.
#[derive(Debug, Default)]
pub(crate) struct ScanPlans(Mutex<VecDeque<(Predicate, ScanPlan)>>);

impl ScanPlans {
    /// Plans that are kept, the last ones.
    const KEPT: usize = 8;

    fn find(&self, predicate: &Predicate) -> Option<ScanPlan> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(of, _)| of == predicate).map(|(_, plan)| plan.clone())
    }

    fn keep(&self, predicate: Predicate, plan: &ScanPlan) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(Self::KEPT - 1);
        kept.push_front((predicate, plan.clone()));
    }
}

/// Who makes another version of a table begins with a copy of this one, whose scans are not its own.
impl Clone for ScanPlans {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What a scan will read, and what it got around.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanPlan {
    pub blocks: Arc<BlockList>,
    /// Of each segment of these.
    parts: Arc<[SegmentPart]>,
    /// Rows of the blocks, deleted ones among them.
    block_rows: u64,
    /// Those of them that are deleted.
    deleted_rows: u64,
    pub blocks_considered: usize,
    /// Blocks in partitions that cannot match.
    pub skipped_by_partition: usize,
    /// Blocks whose zones rule them out.
    pub skipped_by_zone: usize,
    /// Rows that no segment holds yet. All of them are read: no zone map knows them.
    pub fresh: Arc<FreshRows>,
    /// Of each partition, if the table has any.
    pub partitions: Vec<PartitionPlan>,
    /// The condition that zones were tested with, for EXPLAIN.
    pub condition: Option<String>,
    /// The path that was asked for.
    pub requested: RequestedPath,
}

impl ScanPlan {
    pub fn new(table: &Table, filters: &[Expr]) -> Result<Self> {
        let predicate = prune::predicate(filters, &table.schema);
        if let Some(known) = table.scans.find(&predicate) {
            return Ok(known);
        }
        let prunes = predicate != Predicate::Unknown;
        let condition = prunes.then(|| tested(filters, &table.schema));
        let wanted = partition::matching(&table.entry, &table.schema, &predicate)?;
        let by = table.entry.partition_by.as_ref();
        let partition = |name| PartitionPlan { name, ..PartitionPlan::default() };
        let partitions = by.into_iter().flat_map(|by| (0..by.count()).map(|number| partition(by.name(number as u32))));
        let fresh = Arc::clone(&table.fresh);
        let mut plan = Self { partitions: partitions.collect(), condition, fresh, ..Self::default() };
        let (mut blocks, mut parts) = (BlockList::default(), Vec::new());
        for (place, file) in table.segments.iter().enumerate() {
            let segment = file.segment()?;
            let partition = file.entry.partition;
            let mut of_segment = PartitionPlan { blocks_considered: segment.blocks(), ..PartitionPlan::default() };
            let is_wanted = wanted.as_ref().is_none_or(|w| w.get(partition as usize).copied().unwrap_or(true));
            if !is_wanted {
                of_segment.skipped_by_partition = segment.blocks();
            } else if prunes && !segment.any_may_match(&predicate) {
                of_segment.skipped_by_zone = segment.blocks();
            } else {
                let before = blocks.len();
                match prunes {
                    false => blocks.push_all(segment, 0..segment.blocks()),
                    true => {
                        let may_match = segment.may_match(&predicate);
                        let left = may_match.into_iter().enumerate().filter(|(_, may_match)| *may_match);
                        blocks.push_all(segment, left.map(|(block, _)| block));
                    }
                }
                of_segment.skipped_by_zone = segment.blocks() - (blocks.len() - before);
                if blocks.len() > before {
                    let in_blocks = |deleted: &&Arc<DeletedRows>| {
                        let read = (before..blocks.len()).filter_map(|at| deleted.block(blocks.at(at).1));
                        read.map(|deleted| deleted.count() as u64).sum::<u64>()
                    };
                    let gone = file.deleted.as_ref().map_or(0, |deleted| in_blocks(&deleted));
                    let deleted = file.deleted.clone().filter(|_| gone > 0);
                    plan.deleted_rows += gone;
                    parts.push(SegmentPart { partition, place, deleted });
                }
            }
            plan.count(partition, &of_segment);
        }
        plan.block_rows = blocks.rows();
        (plan.blocks, plan.parts) = (Arc::new(blocks), parts.into());
        table.scans.keep(predicate, &plan);
        Ok(plan)
    }

    /// A block that is read.
    ///
    /// # Panics
    /// If there are not so many, as indexing does.
    pub fn block(&self, at: usize) -> BlockRef {
        let (segment, block) = self.blocks.at(at);
        let SegmentPart { place, deleted, .. } = &self.parts[self.blocks.segment_at(at)];
        let deleted = deleted.as_ref().and_then(|deleted| deleted.block(block).cloned());
        BlockRef { segment: Arc::clone(segment), block, place: *place, deleted }
    }

    /// The partition that a block is in; `None` if there are not so many.
    pub fn partition_of(&self, at: usize) -> Option<usize> {
        self.blocks.get(at)?;
        Some(self.parts[self.blocks.segment_at(at)].partition as usize)
    }

    fn count(&mut self, partition: u32, of_segment: &PartitionPlan) {
        let PartitionPlan { blocks_considered, skipped_by_partition, skipped_by_zone, .. } = of_segment;
        self.blocks_considered += blocks_considered;
        self.skipped_by_partition += skipped_by_partition;
        self.skipped_by_zone += skipped_by_zone;
        if let Some(plan) = self.partitions.get_mut(partition as usize) {
            plan.blocks_considered += blocks_considered;
            plan.skipped_by_partition += skipped_by_partition;
            plan.skipped_by_zone += skipped_by_zone;
        }
    }

    /// For who reads by this path.
    #[must_use]
    pub fn by_path(self, requested: RequestedPath) -> Self {
        Self { requested, ..self }
    }

    /// How bytes travel, from the first file that is read.
    pub fn path(&self) -> String {
        let Some((first, _)) = self.blocks.get(0) else { return "none".into() };
        let file = first.file_by(self.requested);
        file.map_or_else(|_| "not to be had".into(), |file| file.hints().path.to_string())
    }

    /// For EXPLAIN: what is read, what is got around and how, and the path that bytes take.
    pub fn describe(
        &self,
        f: &mut fmt::Formatter<'_>,
        table: &str,
        columns: &[impl AsRef<str>],
        separator: &str,
    ) -> fmt::Result {
        let columns: Vec<&str> = columns.iter().map(AsRef::as_ref).collect();
        write!(f, "{table}{separator}columns=[{}]", columns.join(", "))?;
        write!(f, "{separator}blocks={} -> {}", self.blocks_considered, self.blocks.len())?;
        if self.skipped_by_zone + self.skipped_by_partition > 0 {
            write!(f, " (skipped: zone map {}, partition {})", self.skipped_by_zone, self.skipped_by_partition)?;
        }
        if !self.partitions.is_empty() {
            let left = self.partitions.iter().filter(|partition| partition.blocks_left() > 0).count();
            write!(f, "{separator}partitions={left} of {}", self.partitions.len())?;
        }
        if let Some(condition) = &self.condition {
            write!(f, "{separator}zone_condition={condition}")?;
        }
        if self.fresh_rows() > 0 {
            write!(f, "{separator}fresh_rows={}", self.fresh_rows())?;
        }
        if self.deleted_rows() > 0 {
            write!(f, "{separator}deleted_rows={}", self.deleted_rows())?;
        }
        write!(f, "{separator}path={}", self.path())
    }

    /// Rows to read, fresh ones among them and deleted ones not.
    pub fn rows(&self) -> usize {
        (self.block_rows - self.deleted_rows + self.fresh_rows()) as usize
    }

    /// Those of them that no segment holds.
    pub fn fresh_rows(&self) -> u64 {
        self.fresh.rows()
    }

    /// Rows of the blocks that are deleted.
    pub fn deleted_rows(&self) -> u64 {
        self.deleted_rows
    }

    /// Whether what it reads is what segments hold, neither more nor less.
    pub fn is_settled(&self) -> bool {
        self.fresh_rows() == 0 && self.deleted_rows() == 0
    }

    /// What it reads besides, or not, for a pipeline's source.
    ///
    /// # Errors
    /// As of [`FreshRows::runs`].
    pub fn changes(&self) -> Result<Changes> {
        let blocks = 0..if self.deleted_rows > 0 { self.blocks.len() } else { 0 };
        Ok(Changes { deleted: blocks.map(|at| self.block(at).deleted).collect(), fresh: self.fresh.runs()? })
    }
}

/// The filters that zones can answer, as SQL.
fn tested(filters: &[Expr], schema: &SchemaRef) -> String {
    let printer = Printer::new(&|column| quoted(&column.name));
    let can_answer = |filter: &&Expr| prune::predicate(std::slice::from_ref(*filter), schema) != Predicate::Unknown;
    filters.iter().filter(can_answer).map(|filter| printer.print(filter)).collect::<Vec<_>>().join(" AND ")
}

#[async_trait]
impl TableProvider for SegmentTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        Ok(filters
            .iter()
            .map(|filter| match prune::predicate(&[(*filter).clone()], &self.table.schema) {
                Predicate::Unknown => TableProviderFilterPushDown::Unsupported,
                _ => TableProviderFilterPushDown::Inexact,
            })
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn DataFusionSession,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let fusing = state.config().get_extension::<Fusing>();
        let requested = fusing.map_or(RequestedPath::Auto, |fusing| fusing.cache.path());
        let plan = ScanPlan::new(&self.table, filters)?.by_path(requested);
        let projection = match projection {
            Some(columns) => columns.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let statistics = self.statistics_of(&plan, &projection)?;
        let partitions = state.config().target_partitions();
        let scan = SegmentScanExec::new(
            Arc::clone(&self.table),
            &self.schema,
            plan,
            projection,
            limit,
            partitions,
            statistics,
        )?;
        Ok(Arc::new(scan))
    }
}

impl SegmentTable {
    /// What the planner may count on: exact when nothing was pruned; of columns, only what zone maps know of all rows.
    fn statistics_of(&self, plan: &ScanPlan, projection: &[usize]) -> Result<Statistics> {
        let is_whole = plan.blocks.len() == plan.blocks_considered && plan.condition.is_none();
        let is_known = is_whole && plan.is_settled();
        let exactly = |n: usize| if is_whole { Precision::Exact(n) } else { Precision::Inexact(n) };
        let rows = plan.rows();
        let mut columns = Vec::with_capacity(projection.len());
        let stored = |column: &&usize| **column < self.table.schema.fields().len();
        for column in projection {
            columns.push(match stored(&column) {
                true => self.column_statistics(*column, rows, is_known)?,
                false => ColumnStatistics::new_unknown(),
            });
        }
        let bytes: u64 = projection.iter().filter(stored).map(|column| plan.blocks.stored_bytes(*column)).sum();
        Ok(Statistics {
            num_rows: exactly(rows),
            // What operators above will hold is decoded, about three times as large as what is stored.
            total_byte_size: Precision::Inexact(bytes as usize * 3),
            column_statistics: columns,
        })
    }

    fn column_statistics(&self, column: usize, rows: usize, is_known: bool) -> Result<ColumnStatistics> {
        let mut whole: Option<(i128, i128)> = None;
        let mut has_ends = true;
        let (mut nulls, mut distinct) = (0, 0);
        for file in &self.table.segments {
            let info = file.segment()?.column(column);
            nulls += info.zone.null_count as usize;
            distinct = distinct.max(info.dictionary_entries as usize);
            has_ends &= info.zone.keys().is_some();
            if let Some((min, max)) = info.zone.keys() {
                whole = Some(whole.map_or((min, max), |(a, b)| (a.min(min), b.max(max))));
            }
        }
        let mut statistics = ColumnStatistics::new_unknown();
        statistics.null_count = if is_known { Precision::Exact(nulls) } else { Precision::Inexact(nulls.min(rows)) };
        let column_type = ColumnType::of("", self.table.schema.field(column).data_type())?;
        if let Some((min, max)) = whole.filter(|_| has_ends) {
            // Floats' zones may be wider than their values, and an unsigned or float key is not its value.
            let exact = |key: i128| prune::scalar_of_key(&column_type, key);
            if let (Some(min), Some(max)) = (exact(min), exact(max)) {
                let precision = |value: ScalarValue| {
                    if is_known { Precision::Exact(value) } else { Precision::Inexact(value) }
                };
                (statistics.min_value, statistics.max_value) = (precision(min), precision(max));
            }
        }
        if distinct > 0 {
            statistics.distinct_count = Precision::Inexact(distinct);
        }
        Ok(statistics)
    }
}
