//! Tables as DataFusion's providers: planning a scan, and its operator.
//!
//! Planning turns the statement's filters into a zone predicate ([`prune`]). It tests the
//! predicate, before any data is read, against partitions, then segments, then blocks. The scan's
//! partitions get the remaining blocks in runs of neighbours. Filters are pushed down inexactly: a
//! block that may match is read whole, and the filter above the scan decides. Deleted rows are
//! removed from blocks as they are decoded. Fresh rows, which no zone map covers, are all read.

mod exec;
mod facts;
mod prune;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session as DataFusionSession, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result as DataFusionResult, ScalarValue, Statistics};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use onehop_io::RequestedPath;
use onehop_segment::{BlockList, ColumnType, DeletedRows, Predicate};

use crate::fresh::ROW_ADDRESS;
use crate::fusing::Fusing;
use crate::identifiers::quoted;
use crate::planner::Printer;
use crate::scan_plan::{PartitionPlan, ScanPlan, SegmentPart};
use crate::snapshot::Table;
use crate::{Result, partition};
pub use exec::SegmentScanExec;
pub(crate) use facts::scan_facts;
pub(crate) use prune::value_of;

/// A table of the database, as of one snapshot.
#[derive(Debug)]
pub struct SegmentTable {
    table: Arc<Table>,
    /// The table's columns, and [`ROW_ADDRESS`] if it was requested.
    schema: SchemaRef,
}

impl SegmentTable {
    /// Creates the provider of a table.
    pub fn new(table: Arc<Table>) -> Self {
        Self { schema: Arc::clone(&table.schema), table }
    }

    /// Creates a provider with a further column, [`ROW_ADDRESS`], the position of each row. It is a
    /// [`RowAddress`](crate::fresh::RowAddress) in this version of the table. DataFusion runs its
    /// scans, not pipelines.
    pub fn with_addresses(table: Arc<Table>) -> Self {
        let address: FieldRef = Arc::new(Field::new(ROW_ADDRESS, DataType::UInt64, false));
        let fields = table.schema.fields().iter().cloned().chain([address]);
        Self { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())), table }
    }

    /// Returns whether its scans provide row addresses.
    pub fn has_addresses(&self) -> bool {
        self.schema.fields().len() > self.table.schema.fields().len()
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }
}

impl ScanPlan {
    /// Plans a scan with filters, or returns the cached plan of the same predicate.
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
}

/// Returns the filters that zones can answer, as SQL.
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
    /// Returns statistics for the planner. The number of rows is exact if no blocks were pruned.
    /// Those of columns are exact if zone maps cover all rows.
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
            // Operators above hold decoded data, about three times as large as stored.
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
            // Zones of floats may be wider than their values, and an unsigned or float key is not
            // its value.
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
