//! A planned scan as EXPLAIN shows it.

use crate::explanation::{PartitionFacts, ScanFacts};
use crate::scan_plan::{PartitionPlan, ScanPlan};
use crate::snapshot::Table;

/// Returns a scan as planned. `columns` are the positions in the table of those that are read.
pub(crate) fn scan_facts(table: &Table, plan: &ScanPlan, columns: &[usize]) -> ScanFacts {
    // A segment that cannot be opened has failed the plan before.
    let segments = table.segments.iter().filter_map(|file| file.segment().ok());
    ScanFacts {
        table: table.name.clone(),
        alias: table.name.clone(),
        columns: columns.iter().map(|column| table.schema.field(*column).name().clone()).collect(),
        late_columns: Vec::new(),
        stored_bytes: segments
            .map(|segment| columns.iter().map(|column| segment.all_stored_bytes(*column)).sum::<u64>())
            .sum(),
        planned_bytes: columns.iter().map(|column| plan.blocks.stored_bytes(*column)).sum(),
        blocks: plan.blocks_considered as u64,
        skipped_by_zone_map: plan.skipped_by_zone as u64,
        skipped_by_partition: plan.skipped_by_partition as u64,
        skipped_by_joins: Vec::new(),
        skipped_by_top_k: 0,
        fresh_rows: plan.fresh_rows(),
        deleted_rows: plan.deleted_rows(),
        partitions: plan.partitions.iter().map(partition_facts).collect(),
        zone_condition: plan.condition.clone(),
        path: plan.path(),
        limit: None,
        ledger: None,
        ahead: None,
        read: None,
        device: None,
    }
}

fn partition_facts(plan: &PartitionPlan) -> PartitionFacts {
    PartitionFacts {
        name: plan.name.clone(),
        blocks: plan.blocks_considered as u64,
        skipped_by_partition: plan.skipped_by_partition as u64,
        skipped_by_zone_map: plan.skipped_by_zone as u64,
        skipped_by_joins: 0,
    }
}
