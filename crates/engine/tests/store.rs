//! The store under a database as SQL sees it: what it does by itself, and what commits write.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;
use std::time::Duration;

use onehop_engine::{Database, DatabaseOptions, Session};
use support::{rows, runtime};

async fn number(session: &Session, sql: &str) -> u64 {
    rows(session, sql).await.unwrap().remove(0).parse().unwrap()
}

fn open(path: &Path) -> Session {
    Database::open(path, &DatabaseOptions::default()).unwrap().session().unwrap()
}

async fn insert(session: &Session, first: u64) {
    for n in first..first + 150 {
        rows(session, &format!("INSERT INTO t VALUES ({n}, 'row {n}')")).await.unwrap();
    }
}

const CHECKPOINTS: &str = "SELECT checkpoints FROM onehop_store";

#[test]
fn what_can_wait_is_done_when_nobody_commits() {
    let (directory, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let path = directory.path().join("db");
    runtime.block_on(async {
        let session = open(&path);
        rows(&session, "CREATE TABLE t (n BIGINT, v VARCHAR)").await.unwrap();
        for round in 0..3 {
            let before = number(&session, CHECKPOINTS).await;
            insert(&session, round * 150).await;
            // A query sees it and does not cause it.
            while number(&session, CHECKPOINTS).await == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(number(&session, "SELECT count(*) FROM t").await, (round + 1) * 150);
        }
        assert_eq!(rows(&session, "SELECT safe_in FROM onehop_store").await.unwrap().len(), 1);
    });
    let sum = runtime.block_on(number(&open(&path), "SELECT sum(n) FROM t"));
    assert_eq!(sum, 449 * 450 / 2);
}

#[test]
fn what_commits_write_is_in_the_ledger() {
    let (directory, runtime) = (tempfile::tempdir().unwrap(), runtime());
    runtime.block_on(async {
        let session = open(&directory.path().join("db"));
        rows(&session, "CREATE TABLE t (n BIGINT, v VARCHAR)").await.unwrap();
        for sql in ["INSERT INTO t VALUES (1, 'a')", "UPDATE t SET n = 2", "DELETE FROM t"] {
            let before = number(&session, "SELECT written_bytes FROM onehop_store").await;
            rows(&session, sql).await.unwrap();
            let written = number(&session, "SELECT written_bytes FROM onehop_store").await - before;
            let counted = "SELECT host_to_storage_bytes FROM onehop_queries WHERE text = ";
            assert!(written >= 4096, "{sql}: {written}");
            assert_eq!(number(&session, &format!("{counted}'{}'", sql.replace('\'', "''"))).await, written, "{sql}");
        }
        rows(&session, "BEGIN").await.unwrap();
        rows(&session, "INSERT INTO t VALUES (3, 'c')").await.unwrap();
        rows(&session, "COMMIT").await.unwrap();
        let of = |text: &str| format!("SELECT host_to_storage_bytes FROM onehop_queries WHERE text = '{text}'");
        assert_eq!(number(&session, &of("BEGIN")).await, 0);
        assert!(number(&session, &of("COMMIT")).await >= 4096);
        // Nothing reaches storage of a database that has none.
        let memory = Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap();
        rows(&memory, "CREATE TABLE t AS SELECT 1 AS n").await.unwrap();
        rows(&memory, "INSERT INTO t VALUES (2)").await.unwrap();
        assert_eq!(number(&memory, &of("INSERT INTO t VALUES (2)")).await, 0);
    });
}
