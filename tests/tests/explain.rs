//! EXPLAIN of the Star Schema Benchmark: the operator trees of its queries, and figures that agree
//! with counts.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use futures::StreamExt;
use onehop_engine::arrow::array::AsArray;
use onehop_engine::arrow::datatypes::Int64Type;
use onehop_engine::{Database, DatabaseOptions, ExplainMode, Facts, Node, Output, Session};
use onehop_lab::generate::segments::load_table;
use onehop_lab::generate::{Generator, Ssb};

async fn ssb() -> Session {
    let settings = vec![("storage.block_rows".to_string(), "4096".to_string())];
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let session = database.session().unwrap();
    let ssb = Ssb::new(0.01).unwrap();
    for table in ssb.tables() {
        session.sql(&table.ddl).await.unwrap();
        load_table(&ssb, &table, &session, NonZeroUsize::MIN, &|_| {}, &AtomicBool::new(false)).unwrap();
    }
    session
}

async fn count(session: &Session, sql: &str) -> u64 {
    session.sql("SET exec.mode = 'datafusion'").await.unwrap();
    let Output::Rows(mut rows) = session.sql(sql).await.unwrap() else { panic!("no rows") };
    let batch = rows.next().await.unwrap().unwrap();
    session.sql("SET exec.mode = 'fused'").await.unwrap();
    batch.column(0).as_primitive::<Int64Type>().value(0) as u64
}

const Q21_FROM: &str = "FROM lineorder, date, part, supplier WHERE lo_orderdate = d_datekey \
    AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey AND p_category = 'MFGR#12' AND s_region = 'AMERICA'";

#[tokio::test]
async fn query_2_1_is_a_star_of_three_tables() {
    let session = ssb().await;
    let sql = format!(
        "SELECT sum(lo_revenue) AS lo_revenue, d_year, p_brand1 {Q21_FROM} GROUP BY d_year, p_brand1 ORDER BY 2, 3"
    );
    let text = session.explain(&sql, ExplainMode::Plan).await.unwrap().text();
    let operators: Vec<&str> = text.lines().filter(|line| line.contains("Cpu")).collect();
    let expected = [
        "   └─ CpuPreAgg by d_year, p_brand1: sum(CAST(lo_revenue AS BIGINT))",
        "      └─ CpuJoin inner on lo_suppkey = s_suppkey",
        "         ├─ CpuJoin inner on lo_partkey = p_partkey",
        "         │  ├─ CpuJoin inner on lo_orderdate = d_datekey",
        "         │  │  ├─ CpuScan lineorder",
        "         │  │  └─ build: CpuScan date",
        "         │  └─ build: CpuFilter p_category = 'MFGR#12'",
        "         │     └─ CpuScan part",
        "         └─ build: CpuFilter s_region = 'AMERICA'",
        "            └─ CpuScan supplier",
    ];
    assert_eq!(operators.iter().map(|line| line.trim_end()).collect::<Vec<_>>(), expected, "{text}");
    assert!(text.contains("table by p_partkey with p_brand1") && text.contains("blocks 15 of 15"), "{text}");

    let explanation = session.explain(&sql, ExplainMode::Analyze).await.unwrap();
    let groups = count(&session, &format!("SELECT count(*) FROM (SELECT DISTINCT d_year, p_brand1 {Q21_FROM})")).await;
    let joined = count(&session, &format!("SELECT count(*) {Q21_FROM}")).await;
    let parts = count(&session, "SELECT count(*) FROM part WHERE p_category = 'MFGR#12'").await;
    let lines = count(&session, "SELECT count(*) FROM lineorder").await;
    let (mut aggregates, mut tables, mut scanned) = (Vec::new(), Vec::new(), Vec::new());
    explanation.plan.for_each(&mut |node: &Node| match &node.facts {
        Facts::Groups(_) => aggregates.push((node.rows_in.unwrap(), node.rows_out.unwrap())),
        Facts::Join(join) => tables.push((join.keys.join(", "), join.built.unwrap().rows as u64)),
        Facts::Scan(scan) => scanned.push((scan.table.clone(), node.rows_out.unwrap())),
        Facts::Filter(_) | Facts::Rows(_) | Facts::Top(_) | Facts::Other(_) => {}
    });
    assert_eq!(aggregates, [(joined, groups)]);
    assert!(tables.contains(&("p_partkey".into(), parts)), "{tables:?}");
    assert!(scanned.contains(&("lineorder".into(), lines)), "{scanned:?}");
    assert_eq!(explanation.totals.unwrap().rows, groups);
}
