//! SSB and TPC-H over tables with fresh rows and deleted rows in segments. The answers are those of
//! the same rows in segments alone, by pipelines and by DataFusion's operators. EXPLAIN reports the
//! rows read, and no device reads them.
#![allow(clippy::unwrap_used)]

use onehop_cuda::fused::Options;
use onehop_cuda::{CudaDevices, fake};
use onehop_engine::{Database, DatabaseOptions, Engine, ExplainMode, Facts, Session};
use onehop_lab::generate::{Generator, Ssb, Tpch};
use onehop_lab::queries::{Query, SSB, TPCH};
use onehop_tests::generated::{self, load_all};

/// Settings that make several segments a table, with different dictionaries, of several blocks.
const SETTINGS: [(&str, &str); 3] =
    [("storage.block_rows", "4096"), ("storage.segment_rows", "16384"), ("threads", "2")];

async fn made(generator: &dyn Generator) -> (Database, Session) {
    let settings = SETTINGS.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let session = database.session().unwrap();
    load_all(generator, &session).await.unwrap();
    (database, session)
}

/// Returns the rows sorted, because `order by` may leave ties open, whose order depends on the
/// layout.
async fn rows(session: &Session, sql: &str) -> Vec<String> {
    let mut all = generated::rows(session, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    all.sort_unstable();
    all
}

/// Queries that are answered from statistics, if there are any.
const COUNTED: [Query; 3] = [
    Query { id: "count", sql: "SELECT count(*), count(n_name) FROM nation" },
    Query { id: "ends", sql: "SELECT min(n_nationkey), max(n_nationkey) FROM nation" },
    Query { id: "scan", sql: "SELECT n_name, n_regionkey FROM nation WHERE n_nationkey > 3" },
];

async fn same_answers(generator: &dyn Generator, queries: &[Query]) {
    let some = |row: u64| row.is_multiple_of(7) || row / 3000 % 3 == 1;
    let all = |_| true;
    let patterns: [(&str, &dyn Fn(u64) -> bool); 2] = [("some", &some), ("all", &all)];
    let mut expected = Vec::new();
    for (name, moves) in patterns {
        let (database, session) = made(generator).await;
        if expected.is_empty() {
            for query in queries {
                expected.push(rows(&session, query.sql).await);
            }
        }
        database.unsettle(moves).unwrap();
        for mode in ["fused", "datafusion"] {
            session.sql(&format!("SET exec.mode = '{mode}'")).await.unwrap();
            for (query, expected) in queries.iter().zip(&expected) {
                assert_eq!(&rows(&session, query.sql).await, expected, "{} {name} {mode}", query.id);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ssb_is_the_same() {
    same_answers(&Ssb::new(0.01).unwrap(), &SSB).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tpch_is_the_same() {
    same_answers(&Tpch::new(0.01).unwrap(), &[&TPCH[..], &COUNTED[..]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_what_is_read() {
    let (database, session) = made(&Ssb::new(0.01).unwrap()).await;
    let before = session.explain(SSB[0].sql, ExplainMode::Analyze).await.unwrap();
    assert!(!before.text().contains("fresh"), "{}", before.text());
    database.unsettle(|row| row % 3 == 1).unwrap();
    let after = session.explain(SSB[0].sql, ExplainMode::Analyze).await.unwrap();
    let rows = |scan: &onehop_engine::ScanFacts| (scan.fresh_rows, scan.deleted_rows);
    let mut seen = Vec::new();
    after.plan.for_each(&mut |node| {
        if let Facts::Scan(scan) = &node.facts {
            assert!(scan.blocks_left() <= scan.blocks);
            seen.push((scan.table.clone(), rows(scan), node.rows_out.unwrap()));
        }
    });
    let (_, (fresh, deleted), out) = seen.iter().find(|(table, ..)| table == "lineorder").unwrap();
    // Blocks that zone maps rule out have deleted rows as well, which are not counted.
    assert!(*fresh > 10_000 && *deleted > 0 && deleted <= fresh && *out > *fresh, "{seen:?}");
    assert!(after.text().contains(" fresh, "), "{}", after.text());
    let tables =
        self::rows(&session, "SELECT rows, fresh_rows, deleted_rows FROM onehop_tables WHERE table_name = 'date'");
    let counted = self::rows(&session, "SELECT count(*), 852, 852 FROM date");
    assert_eq!(tables.await, counted.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_device_reads_it() {
    let (database, session) = made(&Ssb::new(0.01).unwrap()).await;
    let options =
        Options { threads: 64, wide_threads: 64, blocks: 2, many_rows: 0, counts: true, ..Options::default() };
    database.register_devices(CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options));
    let set = async |name: &str, value: &str| drop(session.sql(&format!("SET {name} = '{value}'")).await.unwrap());
    let expected = rows(&session, SSB[0].sql).await;
    set("gpu.mode", "require").await;
    set("exec.fallback", "error").await;
    assert_eq!(rows(&session, SSB[0].sql).await, expected);
    assert_eq!(session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]));
    database.unsettle(|row| row % 1000 == 1).unwrap();
    let refused = generated::rows(&session, SSB[0].sql).await.unwrap_err().to_string();
    assert!(refused.contains("fresh and") && refused.contains("CHECKPOINT"), "{refused}");
    set("exec.fallback", "silent").await;
    assert_eq!(rows(&session, SSB[0].sql).await, expected);
    assert_eq!(session.query().engine(), Engine::Cpu);
    let explanation = session.explain(SSB[0].sql, ExplainMode::Plan).await.unwrap();
    assert!(explanation.text().contains("CHECKPOINT"), "{}", explanation.text());
}
