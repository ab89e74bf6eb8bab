//! Tables as DataFusion sees them: planning a scan, and the operator that carries it out.
//!
//! Planning turns the statement's filters into a zone predicate ([`prune`]) and tests it, before any data is read,
//! against partitions, then segments, then blocks. What is left is dealt to the scan's partitions in runs of
//! neighbouring blocks. Filters are pushed down inexactly: a block that may match is read whole, and the filter above
//! the scan has the last word.

mod exec;
mod prune;

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result as DataFusionResult, ScalarValue, Statistics};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use onehop_io::RequestedPath;
use onehop_segment::{ColumnType, Predicate, Segment};

use crate::Result;
use crate::catalog::definition::quoted;
use crate::database::Table;
use crate::explain::Printer;
use crate::load::partition;
use crate::lower::Fusing;
pub use exec::SegmentScanExec;
pub(crate) use prune::value_of;

/// A table of the database, as of one snapshot.
#[derive(Debug)]
pub struct SegmentTable {
    table: Arc<Table>,
}

impl SegmentTable {
    /// Makes a table known to DataFusion.
    pub fn new(table: Arc<Table>) -> Self {
        Self { table }
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
    /// The partition it is in; 0 where there are none.
    pub partition: u32,
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

/// What a scan will read, and what it got around.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanPlan {
    pub blocks: Vec<BlockRef>,
    pub blocks_considered: usize,
    /// Blocks in partitions that cannot match.
    pub skipped_by_partition: usize,
    /// Blocks whose zones rule them out.
    pub skipped_by_zone: usize,
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
        let prunes = predicate != Predicate::Unknown;
        let condition = prunes.then(|| tested(filters, &table.schema));
        let wanted = partition::matching(&table.entry, &table.schema, &predicate)?;
        let by = table.entry.partition_by.as_ref();
        let partition = |name| PartitionPlan { name, ..PartitionPlan::default() };
        let partitions = by.into_iter().flat_map(|by| (0..by.count()).map(|number| partition(by.name(number as u32))));
        let mut plan = Self { partitions: partitions.collect(), condition, ..Self::default() };
        for file in &table.segments {
            let segment = file.segment()?;
            let partition = file.entry.partition;
            let mut of_segment = PartitionPlan { blocks_considered: segment.blocks(), ..PartitionPlan::default() };
            let is_wanted = wanted.as_ref().is_none_or(|w| w.get(partition as usize).copied().unwrap_or(true));
            if !is_wanted {
                of_segment.skipped_by_partition = segment.blocks();
            } else if prunes && !segment.any_may_match(&predicate) {
                of_segment.skipped_by_zone = segment.blocks();
            } else {
                for block in 0..segment.blocks() {
                    if prunes && !segment.may_match(block, &predicate) {
                        of_segment.skipped_by_zone += 1;
                    } else {
                        plan.blocks.push(BlockRef { segment: Arc::clone(segment), block, partition });
                    }
                }
            }
            plan.count(partition, &of_segment);
        }
        Ok(plan)
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
        let Some(first) = self.blocks.first() else { return "none".into() };
        let file = first.segment.file_by(self.requested);
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
        write!(f, "{separator}path={}", self.path())
    }

    pub fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.segment.block_rows(block.block)).sum()
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
        Arc::clone(&self.table.schema)
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
            None => (0..self.table.schema.fields().len()).collect(),
        };
        let statistics = self.statistics_of(&plan, &projection)?;
        let partitions = state.config().target_partitions();
        let scan = SegmentScanExec::new(Arc::clone(&self.table), plan, projection, limit, partitions, statistics)?;
        Ok(Arc::new(scan))
    }
}

impl SegmentTable {
    /// What the planner may count on: exact when nothing was pruned.
    fn statistics_of(&self, plan: &ScanPlan, projection: &[usize]) -> Result<Statistics> {
        let is_whole = plan.blocks.len() == plan.blocks_considered && plan.condition.is_none();
        let exactly = |n: usize| if is_whole { Precision::Exact(n) } else { Precision::Inexact(n) };
        let rows = plan.rows();
        let mut columns = Vec::with_capacity(projection.len());
        for column in projection {
            columns.push(self.column_statistics(*column, rows, is_whole)?);
        }
        let bytes: u64 = plan
            .blocks
            .iter()
            .flat_map(|block| projection.iter().map(|column| block.segment.stored_bytes(*column, block.block)))
            .sum();
        Ok(Statistics {
            num_rows: exactly(rows),
            // What operators above will hold is decoded, about three times as large as what is stored.
            total_byte_size: Precision::Inexact(bytes as usize * 3),
            column_statistics: columns,
        })
    }

    fn column_statistics(&self, column: usize, rows: usize, is_whole: bool) -> Result<ColumnStatistics> {
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
        statistics.null_count = if is_whole { Precision::Exact(nulls) } else { Precision::Inexact(nulls.min(rows)) };
        let column_type = ColumnType::of("", self.table.schema.field(column).data_type())?;
        if let Some((min, max)) = whole.filter(|_| has_ends) {
            // Floats' zones may be wider than their values, and an unsigned or float key is not its value.
            let exact = |key: i128| prune::scalar_of_key(&column_type, key);
            if let (Some(min), Some(max)) = (exact(min), exact(max)) {
                let precision = |value: ScalarValue| {
                    if is_whole { Precision::Exact(value) } else { Precision::Inexact(value) }
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
