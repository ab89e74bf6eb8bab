//! The golden queries over a matrix of configurations: the same answers for every layout of the
//! tables.
//!
//! The answers in `golden/slt/` come from DuckDB (and SQLite), by `golden/fill.py`; nothing here
//! can write them. `ONEHOP_GOLDEN=join` runs only the files whose name contains `join`.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::Arc;

use onehop_cuda::fused::Options;
use onehop_cuda::{CudaDevices, fake};
use onehop_engine::backend::Devices;
use onehop_engine::{Database, DatabaseOptions, Session};
use onehop_tests::adapter::Adapter;
use onehop_tests::fixtures::{FIXTURES, Layout, execute, golden};
use onehop_tests::slt_files;
use sqllogictest::{Record, Runner, parse_file, strict_column_validator};

#[tokio::test(flavor = "multi_thread")]
async fn parquet() {
    let database = Database::memory(&DatabaseOptions::default()).unwrap();
    load(&database, Layout::Parquet, None).await;
    run("parquet", &database, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn segments() {
    let database = Database::memory(&DatabaseOptions::default()).unwrap();
    load(&database, Layout::Segments, None).await;
    run("segments", &database, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tiny_blocks() {
    let (_folder, database) = on_disk();
    let setting = Some("SET storage.block_rows = 1024");
    load(&database, Layout::Segments, setting).await;
    run("tiny-blocks", &database, setting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions() {
    let (_folder, database) = on_disk();
    load(&database, Layout::Partitions, None).await;
    run("partitions", &database, None).await;
}

/// Each session has tables of its own, beside those that the files create.
#[tokio::test(flavor = "multi_thread")]
async fn temporary() {
    let (_folder, database) = on_disk();
    let begin = async || {
        let session = database.session()?;
        load_in(&session, Layout::Temporary).await;
        Ok(session)
    };
    run_in("temporary", begin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clustered() {
    let (_folder, database) = on_disk();
    load(&database, Layout::Clustered, None).await;
    run("clustered", &database, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reopened() {
    let (folder, database) = on_disk();
    load(&database, Layout::Segments, None).await;
    drop(database);
    let database = Database::open(folder.path(), &DatabaseOptions::default()).unwrap();
    run("reopened", &database, None).await;
}

/// Every third row is fresh, and deleted at its old place.
#[tokio::test(flavor = "multi_thread")]
async fn changed() {
    let database = Database::memory(&DatabaseOptions::default()).unwrap();
    load(&database, Layout::Segments, None).await;
    database.unsettle(|row| row % 3 == 1).unwrap();
    run("changed", &database, None).await;
}

/// Some vectors and blocks are deleted completely, some lose single rows, and others are unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn changed_tiny_blocks() {
    let (_folder, database) = on_disk();
    let setting = Some("SET storage.block_rows = 1024");
    load(&database, Layout::Clustered, setting).await;
    database.unsettle(|row| matches!(row / 512 % 5, 0 | 3 | 4) || row % 1000 == 7).unwrap();
    run("changed-tiny-blocks", &database, setting).await;
}

/// All rows are fresh, and segments have none.
#[tokio::test(flavor = "multi_thread")]
async fn fresh_only() {
    let database = Database::memory(&DatabaseOptions::default()).unwrap();
    load(&database, Layout::Partitions, None).await;
    database.unsettle(|_| true).unwrap();
    run("fresh-only", &database, None).await;
}

/// Like `changed`, by DataFusion's operators alone.
#[tokio::test(flavor = "multi_thread")]
async fn changed_unfused() {
    let database = Database::memory(&DatabaseOptions::default()).unwrap();
    let setting = Some("SET exec.mode = 'datafusion'");
    load(&database, Layout::Segments, setting).await;
    database.unsettle(|row| row % 3 == 1).unwrap();
    run("changed-unfused", &database, setting).await;
}

/// The GPU runs all supported operators. `ONEHOP_GOLDEN_GPU=fake` selects the fake device of the
/// tests, for a few files at a time: `ONEHOP_GOLDEN=join`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a GPU; without one ONEHOP_GOLDEN_GPU=fake"]
async fn gpu() {
    let devices: Arc<dyn Devices> = match std::env::var("ONEHOP_GOLDEN_GPU").as_deref() {
        Ok("fake") => {
            let options =
                Options { threads: 64, wide_threads: 64, blocks: 2, many_rows: 0, counts: true, ..Options::default() };
            CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options)
        }
        _ => onehop_cuda::devices(None, onehop_cuda::Ending::WithHandlers),
    };
    let backends = devices.all().unwrap_or_else(|why| panic!("no GPU: {why}"));
    let settings = [("gpu.mode", "require"), ("exec.fallback", "silent")];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    database.register_devices(Arc::clone(&devices));
    load(&database, Layout::Segments, None).await;
    run("gpu", &database, None).await;
    let hits: u64 =
        backends.iter().filter_map(|backend| backend.residency()).flat_map(|r| r.list()).map(|r| r.hits).sum();
    assert!(hits > 0, "nothing has run on the GPU");
}

fn on_disk() -> (tempfile::TempDir, Database) {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(folder.path(), &DatabaseOptions::default()).unwrap();
    (folder, database)
}

async fn session(database: &Database, setting: Option<&str>) -> onehop_engine::Result<Session> {
    let session = database.session()?;
    if let Some(setting) = setting {
        execute(&session, setting).await?;
    }
    Ok(session)
}

async fn load(database: &Database, layout: Layout, setting: Option<&str>) {
    load_in(&session(database, setting).await.unwrap(), layout).await;
}

async fn load_in(session: &Session, layout: Layout) {
    for fixture in FIXTURES {
        if let Err(e) = fixture.load(session, layout).await {
            panic!("{layout}: cannot load {}: {e}", fixture.name);
        }
    }
}

/// Runs every file to its end, then fails with all errors.
async fn run(configuration: &str, database: &Database, setting: Option<&'static str>) {
    run_in(configuration, || session(database, setting)).await;
}

/// Like [`run`], with a new session for each file.
async fn run_in<S: Future<Output = onehop_engine::Result<Session>>>(configuration: &str, session: impl Fn() -> S) {
    let mut queries = 0;
    let mut statements = 0;
    let mut failures = Vec::new();
    for path in slt_files(&golden().join("slt"), "ONEHOP_GOLDEN").unwrap() {
        let mut runner = Runner::new(|| async { session().await.map(Adapter::new) });
        runner.add_label(configuration);
        runner.with_column_validator(strict_column_validator);
        runner.with_normalizer(String::clone);
        runner.set_var("FIXTURES".into(), golden().join("fixtures").display().to_string());
        for record in parse_file(&path).unwrap() {
            match record {
                Record::Query { .. } => queries += 1,
                Record::Statement { .. } => statements += 1,
                _ => {}
            }
            if let Err(e) = runner.run_async(record).await {
                failures.push(e.display(false).to_string());
            }
        }
    }
    // Bypasses the capture of the test harness, because the number of queries is part of the
    // result.
    let summary =
        format!("golden {configuration}: {queries} queries, {statements} statements, {} failed\n", failures.len());
    std::io::stderr().write_all(summary.as_bytes()).unwrap();
    assert!(queries > 0, "no golden file matches");
    assert!(failures.is_empty(), "{configuration}: {} failed\n\n{}", failures.len(), failures.join("\n\n"));
}
