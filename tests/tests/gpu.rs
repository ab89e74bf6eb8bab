//! The Star Schema Benchmark through SQL on a device. Code is generated and compiled, and a driver
//! and a compiler of the host run it. The columns are moved for the query, remain from an earlier
//! one, or were loaded permanently. Every answer equals the CPU's, and only the device runs the
//! query.
#![allow(clippy::unwrap_used)]

use onehop_cuda::fused::Options;
use onehop_cuda::{CudaDevices, fake};
use onehop_engine::{Database, DatabaseOptions, Engine, ExplainMode, Facts, Hop, Session};
use onehop_lab::generate::{Generator, Ssb, Tpch};
use onehop_lab::queries::{SSB, TPCH};
use onehop_tests::generated::{self, load_all};

/// Settings that make several segments a table, with different dictionaries.
const SETTINGS: [(&str, &str); 4] =
    [("storage.block_rows", "4096"), ("storage.segment_rows", "16384"), ("threads", "1"), ("gpu.min_bytes", "0")];

async fn made(generator: &dyn Generator) -> Session {
    let settings = SETTINGS.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let options =
        Options { threads: 64, wide_threads: 64, blocks: 2, many_rows: 0, counts: true, ..Options::default() };
    database.register_devices(CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options));
    let session = database.session().unwrap();
    load_all(generator, &session).await.unwrap();
    session
}

async fn rows(session: &Session, sql: &str) -> Vec<String> {
    generated::rows(session, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// The contents of the device's memory, by table.
const RESIDENT: &str = "SELECT table_name, count(*), bool_and(is_kept), max(hits) > 0, bool_or(is_pinned) \
                        FROM onehop_resident GROUP BY 1 ORDER BY 1";

#[tokio::test]
async fn all_queries_run_on_the_device() {
    let session = made(&Ssb::new(0.01).unwrap()).await;
    let set = async |name: &str, value: &str| drop(session.sql(&format!("SET {name} = '{value}'")).await.unwrap());
    let mut expected = Vec::new();
    set("gpu.mode", "off").await;
    for query in SSB {
        expected.push(rows(&session, query.sql).await);
    }
    set("gpu.mode", "require").await;
    set("exec.fallback", "error").await;
    for pass in ["brought", "there", "loaded"] {
        if pass == "loaded" {
            session.sql("EVICT TABLE lineorder").await.unwrap();
            session.sql("LOAD TABLE lineorder INTO 'cuda:0'").await.unwrap();
            assert!(rows(&session, RESIDENT).await.iter().any(|row| row.starts_with("lineorder|")));
        }
        for (query, expected) in SSB.iter().zip(&expected) {
            assert_eq!(&rows(&session, query.sql).await, expected, "{} {pass}", query.id);
            assert_eq!(session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]), "{} {pass}", query.id);
        }
    }
    let resident = rows(&session, RESIDENT).await;
    assert!(
        resident.iter().any(|row| row.starts_with("lineorder|") && row.ends_with("|true|true|false")),
        "{resident:?}"
    );
    // No column of the table moves any more, and the ledger counts resident bytes. Kernels that
    // count the rows of every step differ from those of queries: the first explanation compiles
    // them.
    session.explain(SSB[0].sql, ExplainMode::Analyze).await.unwrap();
    let explanation = session.explain(SSB[0].sql, ExplainMode::Analyze).await.unwrap();
    let mut scans = 0;
    explanation.plan.for_each(&mut |node| {
        assert!(!node.operator.starts_with("Cpu"), "{}", explanation.text());
        if let Facts::Scan(scan) = &node.facts {
            scans += 1;
            let device = scan.device.as_ref().unwrap();
            assert!(device.resident_bytes > 0 && device.moved_bytes < device.resident_bytes, "{scan:?}");
            assert!(scan.ledger.unwrap().cached_bytes > 0, "{scan:?}");
        }
    });
    let ledger = explanation.totals.unwrap().ledger;
    assert!(scans == 2 && ledger.hop(Hop::StorageToHost) == 0 && ledger.hop(Hop::DeviceToHost) > 0, "{ledger:?}");
    assert!(explanation.text().contains("; compiled before"), "{}", explanation.text());
}

/// TPC-H runs on the device as well, as far as it has code for it.
#[tokio::test]
async fn what_the_device_cannot_do_the_cpu_does() {
    let session = made(&Tpch::new(0.002).unwrap()).await;
    let set = async |name: &str, value: &str| drop(session.sql(&format!("SET {name} = '{value}'")).await.unwrap());
    let mut on_device = 0;
    set("exec.fallback", "silent").await;
    for query in TPCH {
        set("gpu.mode", "off").await;
        let expected = rows(&session, query.sql).await;
        set("gpu.mode", "require").await;
        assert_eq!(rows(&session, query.sql).await, expected, "{}", query.id);
        let engine = session.query().engine();
        println!("{} {engine:?}", query.id);
        on_device += usize::from(engine != Engine::Cpu);
    }
    assert!(on_device > 0);
}
