//! Zone maps skip blocks that a clustered table's condition rules out, and the ledger shows their
//! number.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use futures::StreamExt;
use onehop_engine::arrow::array::AsArray;
use onehop_engine::arrow::datatypes::Int64Type;
use onehop_engine::{Database, DatabaseOptions, LedgerSnapshot, Output, Session};
use onehop_lab::generate::segments::load_table;
use onehop_lab::generate::{Generator, Ssb};

async fn sum(session: &Session, table: &str) -> (i64, LedgerSnapshot) {
    let sql = format!("SELECT sum(lo_revenue) FROM {table} WHERE lo_orderdate BETWEEN 19930101 AND 19931231");
    let Output::Rows(mut rows) = session.sql(&sql).await.unwrap() else { panic!("no rows") };
    let batch = rows.next().await.unwrap().unwrap();
    (batch.column(0).as_primitive::<Int64Type>().value(0), session.query().ledger())
}

/// One year of about seven, 15 % of the rows: at most 20 % of the blocks of a table clustered by
/// the date.
#[tokio::test]
async fn a_year_of_a_clustered_lineorder_reads_a_fifth_of_its_blocks_at_most() {
    let settings = vec![("storage.block_rows".to_string(), "4096".to_string())];
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let session = database.session().unwrap();
    let ssb = Ssb::new(0.1).unwrap();
    let lineorder = ssb.table("lineorder").unwrap();
    session.sql(&lineorder.ddl).await.unwrap();
    load_table(&ssb, &lineorder, &session, NonZeroUsize::MIN, &|_| {}, &AtomicBool::new(false)).unwrap();
    session.sql("CREATE TABLE clustered CLUSTER BY (lo_orderdate) AS FROM lineorder").await.unwrap();

    let (expected, scattered) = sum(&session, "lineorder").await;
    let (got, clustered) = sum(&session, "clustered").await;
    assert_eq!(got, expected);
    assert_eq!(scattered.blocks_skipped, 0, "nothing to skip where every block has every date");
    assert_eq!(clustered.blocks_considered, scattered.blocks_considered);
    assert_eq!(clustered.blocks_read + clustered.blocks_skipped, clustered.blocks_considered);
    println!("{} of {} blocks read", clustered.blocks_read, clustered.blocks_considered);
    assert!(clustered.blocks_read * 5 <= clustered.blocks_considered, "{clustered:?}");
}
