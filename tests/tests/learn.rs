//! Models whose passes run on a device: code is generated and compiled, and a driver and a compiler
//! of the host run it. The results equal those of the CPU's threads to nine digits, and are the
//! same bits each time. The CPU handles unsupported models and unsuitable rows.
#![allow(clippy::unwrap_used)]

use onehop_cuda::fused::Options;
use onehop_cuda::{CudaDevices, fake};
use onehop_engine::{Database, DatabaseOptions, Engine, Session};
use onehop_tests::generated;

/// Settings that make several segments.
const SETTINGS: [(&str, &str); 4] =
    [("storage.block_rows", "4096"), ("storage.segment_rows", "8192"), ("threads", "2"), ("gpu.min_bytes", "0")];

/// Features around 2,000, decimals, integers and booleans; some NULLs; labels that no feature
/// separates.
const ROWS: &str = "CREATE TABLE t AS SELECT v AS id, 2000 + sin(v * 12.9898) * 3 AS x1, \
    CASE WHEN v % 97 = 3 THEN NULL ELSE cos(v * 78.233) END AS x2, v % 1000 AS x3, \
    CAST((v % 313) / 100.0 AS DECIMAL(9, 2)) AS x4, v % 5 = 2 AS x5, \
    sin(v * 12.9898) + (v % 1000) / 500.0 - 1 + 2 * sin(v * 3.7717) > 0.2 AS y FROM (SELECT unnest(range(0, 20000)) AS v)";

async fn session() -> Session {
    let settings = SETTINGS.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    let options = Options { threads: 64, wide_threads: 64, blocks: 2, many_rows: 0, ..Options::default() };
    database.register_devices(CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options));
    let session = database.session().unwrap();
    session.sql(ROWS).await.unwrap();
    session
}

async fn set(session: &Session, name: &str, value: &str) {
    session.sql(&format!("SET {name} = '{value}'")).await.unwrap();
}

async fn on_device(session: &Session) {
    set(session, "gpu.mode", "require").await;
    set(session, "exec.fallback", "error").await;
}

async fn rows(session: &Session, sql: &str) -> Vec<String> {
    generated::rows(session, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

fn numbers(rows: &[String]) -> Vec<Option<f64>> {
    rows.iter().flat_map(|row| row.split('|').map(|value| value.parse().ok())).collect()
}

fn assert_near(got: &[String], expected: &[String], what: &str) {
    let (ours, theirs) = (numbers(got), numbers(expected));
    assert_eq!(ours.len(), theirs.len(), "{what}: {got:?} instead of {expected:?}");
    for (one, other) in ours.iter().zip(&theirs) {
        let is_near = match (one, other) {
            (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * other.abs().max(1e-6),
            (one, other) => one == other,
        };
        assert!(is_near, "{what}: {got:?} instead of {expected:?}");
    }
}

const FACTS: &str = "SELECT log_likelihood, r2, condition_no, num_rows_processed, num_missing_rows_skipped, num_iterations, \
                     converged, warnings FROM onehop_models WHERE model_name = 'm'";

#[tokio::test(flavor = "multi_thread")]
async fn a_device_comes_to_what_the_cpu_comes_to() {
    let session = session().await;
    let calls = [
        "logregr_train('t', 'm', label => 'y', features => 'x1, x2, x3, x4, x5')",
        "logregr_train('t', 'm', label => 'y', features => 'x1', intercept => false)",
        "logregr_train('t', 'm', label => 'y', features => 'x3, x3 * 2, x1', l2 => 2)",
        "logregr_train((SELECT * FROM t WHERE x3 < 400 AND x2 > 0), 'm', label => 'NOT y', features => 'x1, x3')",
        "logregr_train('t', 'm', label => 'x3 >= 500', features => 'x3', max_iter => 8)",
        "linregr_train('t', 'm', label => 'x1', features => 'x2, x3, x4, CASE WHEN y THEN 1 ELSE 0 END')",
        "linregr_train((SELECT * FROM t WHERE id % 3 = 1), 'm', label => 'x4', features => 'x1', intercept => false)",
    ];
    for call in calls {
        let train = format!("SELECT * FROM {call}");
        set(&session, "gpu.mode", "off").await;
        let (expected, expected_facts) = (rows(&session, &train).await, rows(&session, FACTS).await);
        on_device(&session).await;
        let got = rows(&session, &train).await;
        assert_eq!(session.query().engine(), Engine::Gpu(vec!["cuda:0".into()]), "{call}");
        assert_near(&got, &expected, call);
        assert_near(&rows(&session, FACTS).await, &expected_facts, call);
        assert_eq!(rows(&session, "SELECT device FROM onehop_models").await, ["cuda:0"], "{call}");
        assert_eq!(rows(&session, &train).await, got, "{call}: not the same bits");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_of_no_use_is_said_as_the_cpu_says_it() {
    let session = session().await;
    for call in [
        "logregr_train('t', NULL, label => 'y', features => 'x1 / 0')",
        // Only one such value, because with several threads any of several may be the first.
        "logregr_train('t', NULL, label => 'CASE WHEN id = 77 THEN 2 ELSE id % 2 END', features => 'x1')",
        "logregr_train('t', NULL, label => 'x3 >= 0', features => 'x1')",
        "linregr_train((SELECT * FROM t WHERE x3 > 5000), NULL, label => 'x1', features => 'x3')",
        "linregr_train('t', NULL, label => 'x1', features => 'x3 / (x3 - x3)')",
    ] {
        let train = format!("SELECT * FROM {call}");
        set(&session, "gpu.mode", "off").await;
        let expected = generated::rows(&session, &train).await.unwrap_err();
        on_device(&session).await;
        let got = generated::rows(&session, &train).await.unwrap_err();
        assert_eq!(got.kind(), expected.kind(), "{call}: {got:?}");
        // Pipelines add the expression to the error, as they do for queries.
        assert!(got.message().starts_with(expected.message()), "{call}: {got:?} instead of {expected:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_device_has_no_code_for_is_the_cpus() {
    let session = session().await;
    let join = "SELECT * FROM linregr_train((SELECT a.x1, b.x3 FROM t a JOIN t b USING (id)), 'm', 'x1', 'x3')";
    on_device(&session).await;
    let refused = generated::rows(&session, join).await.unwrap_err();
    assert!(refused.message().contains("no GPU learns from a join"), "{}", refused.message());
    set(&session, "exec.fallback", "warn").await;
    assert_eq!(rows(&session, join).await.len(), 2);
    assert!(
        session.query().notices().iter().any(|notice| notice.contains("a join")),
        "{:?}",
        session.query().notices()
    );
    assert_eq!(rows(&session, "SELECT device FROM onehop_models").await, ["cpu"]);
    // A session that has not asked for a device gets no notice.
    set(&session, "gpu.mode", "auto").await;
    assert_eq!(rows(&session, join).await.len(), 2);
    assert!(session.query().notices().is_empty(), "{:?}", session.query().notices());
    // Changed rows are not in the form of segments.
    session.sql("DELETE FROM t WHERE id = 7").await.unwrap();
    set(&session, "gpu.mode", "require").await;
    let train = "SELECT * FROM linregr_train('t', 'm', 'x1', 'x3')";
    assert_eq!(rows(&session, train).await.len(), 2);
    assert!(
        session.query().notices().iter().any(|notice| notice.contains("deleted rows")),
        "{:?}",
        session.query().notices()
    );
}
