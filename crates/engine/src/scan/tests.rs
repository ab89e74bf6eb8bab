//! Tests scans of changed tables: the rows with their addresses, and the statistics.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt64Type};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::prelude::{SessionConfig, SessionContext, col, lit};

use super::*;
use crate::fresh::RowAddress;
use crate::{Database, DatabaseOptions};

/// Returns a table of 5,000 rows in blocks of 1,024 and segments of 2,048. The rows that `moves`
/// selects are fresh.
async fn table(moves: impl Fn(u64) -> bool) -> Arc<Table> {
    let settings = [("storage.block_rows", "1024"), ("storage.segment_rows", "2048"), ("threads", "1")];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let session = database.session().unwrap();
    session.sql("CREATE TABLE t AS SELECT unnest(range(0, 5000)) AS n").await.unwrap();
    database.unsettle(moves).unwrap();
    Arc::clone(database.snapshot().table("t").unwrap())
}

fn moves(row: u64) -> bool {
    row % 7 == 3 || (1024..2048).contains(&row)
}

async fn scanned(table: &Arc<Table>, partitions: usize) -> Vec<RecordBatch> {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(partitions));
    let frame = context.read_table(Arc::new(SegmentTable::with_addresses(Arc::clone(table)))).unwrap();
    frame.collect().await.unwrap()
}

#[tokio::test]
async fn addresses_lead_to_their_rows() {
    let table = table(moves).await;
    assert_eq!((table.rows(), table.is_settled()), (5000, false));
    for partitions in [1, 3, 64] {
        let mut seen = BTreeSet::new();
        for batch in scanned(&table, partitions).await {
            let numbers = batch.column_by_name("n").unwrap().as_primitive::<Int64Type>();
            let addresses = batch.column_by_name(ROW_ADDRESS).unwrap().as_primitive::<UInt64Type>();
            for (n, address) in numbers.values().iter().zip(addresses.values()) {
                assert!(seen.insert(*n), "{n} twice");
                match RowAddress::from(*address) {
                    RowAddress::Segment { segment, block, row } => {
                        let number = segment * 2048 + block * 1024 + usize::from(row);
                        assert_eq!((number as i64, moves(number as u64)), (*n, false));
                        assert!(!table.segments[segment].deleted.as_ref().is_some_and(|d| d.has(block, row.into())));
                    }
                    RowAddress::Fresh(id) => {
                        assert!(moves(*n as u64));
                        let left: u64 = table.fresh.without([id]).unwrap().rows();
                        assert_eq!(left, table.fresh.rows() - 1);
                        let there = table.fresh.batches().unwrap().into_iter().any(|(ids, batch)| {
                            let at = ids.binary_search(&id);
                            at.is_ok_and(|at| batch.column(0).as_primitive::<Int64Type>().value(at) == *n)
                        });
                        assert!(there, "{n} is not where its address says");
                    }
                }
            }
        }
        assert!(seen.into_iter().eq(0..5000));
    }
}

#[tokio::test]
async fn addresses_come_with_conditions_and_without_columns() {
    let table = table(moves).await;
    let context = SessionContext::new();
    let frame =
        |table: &Arc<Table>| context.read_table(Arc::new(SegmentTable::with_addresses(Arc::clone(table)))).unwrap();
    let some = frame(&table).filter(col("n").gt_eq(lit(4990))).unwrap().select_columns(&[ROW_ADDRESS]).unwrap();
    let rows: usize = some.collect().await.unwrap().iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, 10);
    assert_eq!(frame(&table).limit(0, Some(3)).unwrap().count().await.unwrap(), 3);
    assert_eq!(frame(&table).count().await.unwrap(), 5000);
}

#[tokio::test]
async fn only_what_is_known_is_exact() {
    let statistics = async |moves: fn(u64) -> bool| {
        let table = table(moves).await;
        let context = SessionContext::new();
        let scan = SegmentTable::new(table).scan(&context.state(), None, &[], None).await.unwrap();
        Arc::unwrap_or_clone(scan.statistics_from_inputs(&[], &StatisticsArgs::new()).unwrap())
    };
    let settled = statistics(|_| false).await;
    assert_eq!(settled.num_rows, Precision::Exact(5000));
    assert_eq!(settled.column_statistics[0].max_value, Precision::Exact(ScalarValue::Int64(Some(4999))));
    // The greatest value is deleted in its segment, so the zone map's maximum is not exact.
    let changed = statistics(|row| row > 4000).await;
    assert_eq!(changed.num_rows, Precision::Exact(5000));
    assert_eq!(changed.column_statistics[0].max_value.is_exact(), Some(false));
    assert_ne!(changed.column_statistics[0].null_count.is_exact(), Some(true));
}
