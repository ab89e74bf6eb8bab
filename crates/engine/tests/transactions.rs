//! Transactions, and rows that change: what sessions see of each other's, and what is left of them.
//!
//! Claims:
//! - a transaction sees its own changes and nobody else does before it is committed; then all do;
//! - readers see a consistent sum at any time, however many transactions commit meanwhile;
//! - one changes the database at a time; who comes second waits, or learns why not; nothing is overwritten unseen;
//! - a failed transaction leaves nothing, and says so until it is rolled back;
//! - tables and views are made and dropped as rows are: undone, seen by nobody else before, and by everybody after;
//! - CHECKPOINT changes no answer, and a database that is closed and opened again holds what was committed.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use futures::StreamExt;
use onehop_engine::{Database, DatabaseOptions, ErrorKind, Output, Session, TransactionState};
use support::{dump, fails, files_on_disk, known_files, options, random, rows, run, runtime};

async fn memory() -> Database {
    Database::memory(&DatabaseOptions::default()).unwrap()
}

async fn all(session: &Session, statements: &[&str]) {
    for statement in statements {
        run(session, statement).await;
    }
}

async fn affected(session: &Session, sql: &str) -> (String, Option<u64>) {
    match session.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")) {
        Output::Done(done) => (done.tag.to_string(), done.rows),
        Output::Rows(_) => panic!("{sql} gave rows"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_say_how_many_rows_they_changed() {
    let session = memory().await.session().unwrap();
    run(&session, "CREATE TABLE t (a INTEGER, b VARCHAR)").await;
    let tag = |tag: &str, rows| (tag.to_string(), rows);
    assert_eq!(affected(&session, "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL)").await, tag("INSERT", Some(3)));
    assert_eq!(affected(&session, "UPDATE t SET b = 'z' WHERE a > 1").await, tag("UPDATE", Some(2)));
    assert_eq!(affected(&session, "UPDATE t SET a = 0 WHERE a > 100").await, tag("UPDATE", Some(0)));
    assert_eq!(affected(&session, "DELETE FROM t WHERE b = 'z'").await, tag("DELETE", Some(2)));
    assert_eq!(affected(&session, "BEGIN").await, tag("BEGIN", None));
    assert_eq!(affected(&session, "DELETE FROM t").await, tag("DELETE", Some(1)));
    assert_eq!(affected(&session, "ABORT").await, tag("ROLLBACK", None));
    assert_eq!(run(&session, "SELECT * FROM t").await, ["1|x"]);
    assert_eq!(affected(&session, "CHECKPOINT t").await, tag("CHECKPOINT", None));
    assert_eq!(affected(&session, "TRUNCATE TABLE t").await, tag("TRUNCATE TABLE", None));
    assert_eq!(run(&session, "SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_its_own_until_it_is_committed() {
    let database = memory().await;
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TABLE t (x BIGINT)", "INSERT INTO t VALUES (1), (2)", "BEGIN", "INSERT INTO t VALUES (10)"])
        .await;
    let sum = "SELECT sum(x), count(*) FROM t";
    run(&a, "DELETE FROM t WHERE x = 1").await;
    assert_eq!(run(&a, sum).await, ["12|2"]);
    assert_eq!(run(&b, sum).await, ["3|2"]);
    // What it began with is what it sees, whatever others do: they wait for it if they want to write.
    run(&a, "COMMIT").await;
    assert_eq!(run(&b, sum).await, ["12|2"]);

    all(&b, &["BEGIN", "SELECT * FROM t"]).await;
    run(&a, "INSERT INTO t VALUES (100)").await;
    assert_eq!(run(&b, sum).await, ["12|2"]);
    // Adding rows is no conflict; removing some of a table that has changed is one.
    run(&b, "INSERT INTO t VALUES (1000)").await;
    assert_eq!(run(&b, sum).await, ["1012|3"]);
    run(&b, "COMMIT").await;
    assert_eq!(run(&b, sum).await, ["1112|4"]);
    all(&b, &["BEGIN", "SELECT * FROM t"]).await;
    run(&a, "UPDATE t SET x = x + 1 WHERE x = 2").await;
    let e = fails(&b, "DELETE FROM t WHERE x = 10").await;
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert_eq!(fails(&b, "SELECT 1").await.kind(), ErrorKind::Invalid);
    assert_eq!(affected(&b, "COMMIT").await.0, "ROLLBACK");
    assert_eq!(run(&b, sum).await, ["1113|4"]);
    // A first statement that waited for another transaction sees what that left.
    run(&b, "BEGIN").await;
    run(&a, "UPDATE t SET x = x + 1 WHERE x = 3").await;
    all(&b, &["DELETE FROM t WHERE x = 4", "COMMIT"]).await;
    assert_eq!(run(&a, sum).await, ["1110|3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_writer_waits_as_long_as_it_is_told_to() {
    let database = memory().await;
    let (a, b) = (database.session().unwrap(), Arc::new(database.session().unwrap()));
    all(&a, &["CREATE TABLE t (x BIGINT)", "BEGIN IMMEDIATE"]).await;
    run(&b, "SET lock_timeout = '1ms'").await;
    for statement in ["INSERT INTO t VALUES (1)", "DELETE FROM t", "CREATE TABLE u (x BIGINT)", "BEGIN IMMEDIATE"] {
        let e = fails(&b, statement).await;
        assert_eq!(e.kind(), ErrorKind::Locked, "{statement}: {e}");
        assert!(e.hint().is_some_and(|hint| hint.contains("lock_timeout")), "{e}");
    }
    assert!(!b.in_transaction());
    run(&b, "SET lock_timeout = 0").await;
    let waiting = tokio::spawn({
        let b = Arc::clone(&b);
        async move { rows(&b, "INSERT INTO t VALUES (1)").await }
    });
    all(&a, &["INSERT INTO t VALUES (2)", "COMMIT"]).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(run(&a, "SELECT sum(x) FROM t").await, ["3"]);
    // A session that goes away leaves nothing, and nobody waiting.
    run(&a, "BEGIN").await;
    run(&a, "DELETE FROM t").await;
    drop(a);
    run(&b, "INSERT INTO t VALUES (3)").await;
    assert_eq!(run(&b, "SELECT sum(x) FROM t").await, ["6"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_locked_stay_as_they_are_until_the_transaction_ends() {
    let database = memory().await;
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TABLE t (x BIGINT)", "INSERT INTO t VALUES (1), (2)", "CREATE VIEW v AS SELECT x FROM t"]).await;
    run(&b, "SET lock_timeout = '1ms'").await;
    // By itself it locks nothing for longer than it runs, and reads what any query reads.
    assert_eq!(run(&a, "SELECT x FROM t WHERE x > 1 FOR UPDATE").await, ["2"]);
    run(&b, "INSERT INTO t VALUES (3)").await;
    for locking in [
        "SELECT x FROM t WHERE x = 3 FOR UPDATE",
        "SELECT x FROM t WHERE x = 3 FOR SHARE OF t NOWAIT",
        "SELECT x FROM (SELECT x FROM t FOR UPDATE SKIP LOCKED) AS s WHERE x = 3",
        "WITH s AS (SELECT x FROM v) SELECT x FROM s WHERE x = 3 FOR UPDATE",
    ] {
        all(&a, &["BEGIN"]).await;
        assert_eq!(run(&a, locking).await, ["3"], "{locking}");
        for waiting in ["UPDATE t SET x = 4", "INSERT INTO t VALUES (4)"] {
            assert_eq!(fails(&b, waiting).await.kind(), ErrorKind::Locked, "{locking}, {waiting}");
        }
        run(&b, "BEGIN").await;
        let e = fails(&b, "SELECT x FROM t FOR UPDATE NOWAIT").await;
        assert_eq!(e.kind(), ErrorKind::Locked, "{locking}: {e}");
        run(&b, "ROLLBACK").await;
        assert_eq!(run(&b, "SELECT count(*) FROM t").await, ["3"], "{locking}");
        run(&a, "COMMIT").await;
    }
    // The first query of a transaction sees what is newest; a later one fails if rows are others by then.
    all(&a, &["BEGIN", "SELECT count(*) FROM t"]).await;
    run(&b, "UPDATE t SET x = 30 WHERE x = 3").await;
    let e = fails(&a, "SELECT x FROM t FOR UPDATE").await;
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    all(&a, &["ROLLBACK", "BEGIN"]).await;
    run(&b, "UPDATE t SET x = 3 WHERE x = 30").await;
    assert_eq!(run(&a, "SELECT max(x) FROM t FOR UPDATE").await, ["3"]);
    run(&a, "ROLLBACK").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_locked_where_a_statement_can_lock_them() {
    let database = memory().await;
    let session = database.session().unwrap();
    all(&session, &["CREATE TABLE jobs (id BIGINT, state VARCHAR)", "INSERT INTO jobs VALUES (1, 'new'), (2, 'new')"])
        .await;
    let next = "UPDATE jobs SET state = 'taken' WHERE id = (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1 \
                FOR UPDATE SKIP LOCKED) RETURNING id";
    assert_eq!(run(&session, next).await, ["1"]);
    run(&session, "BEGIN").await;
    assert_eq!(run(&session, next).await, ["2"]);
    assert!(run(&session, next).await.is_empty());
    all(&session, &["COMMIT", "CREATE TEMP TABLE own (x BIGINT)", "BEGIN", "SELECT x FROM own FOR UPDATE", "COMMIT"])
        .await;
    run(&session, "EXPLAIN SELECT id FROM jobs FOR UPDATE").await;
    for refused in [
        "COPY (SELECT id FROM jobs FOR UPDATE) TO 'x.csv'",
        "CREATE TABLE u AS SELECT id FROM jobs FOR UPDATE",
        "INSERT INTO jobs SELECT id, state FROM jobs FOR UPDATE",
        "CREATE VIEW u AS SELECT id FROM jobs FOR SHARE",
        "SELECT table_name FROM information_schema.tables FOR UPDATE",
    ] {
        let e = fails(&session, refused).await;
        assert!(e.message().contains("FOR UPDATE or FOR SHARE"), "{refused}: {e}");
    }
    all(&session, &["BEGIN READ ONLY", "SELECT id FROM jobs"]).await;
    let e = fails(&session, "SELECT id FROM jobs FOR UPDATE").await;
    assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoints_undo_a_part() {
    let session = memory().await.session().unwrap();
    all(&session, &["CREATE TABLE t (x BIGINT)", "BEGIN", "INSERT INTO t VALUES (1)", "SAVEPOINT a"]).await;
    all(&session, &["INSERT INTO t VALUES (2)", "SAVEPOINT b", "DELETE FROM t"]).await;
    let sum = "SELECT coalesce(sum(x), 0) FROM t";
    assert_eq!(run(&session, sum).await, ["0"]);
    run(&session, "ROLLBACK TO SAVEPOINT b").await;
    assert_eq!(run(&session, sum).await, ["3"]);
    fails(&session, "SELECT nothing FROM t").await;
    fails(&session, "SELECT 1").await;
    fails(&session, "SAVEPOINT c").await;
    run(&session, "ROLLBACK TO a").await;
    assert_eq!(run(&session, sum).await, ["1"]);
    run(&session, "RELEASE SAVEPOINT a").await;
    assert_eq!(fails(&session, "ROLLBACK TO a").await.kind(), ErrorKind::NotFound);
    run(&session, "ROLLBACK").await;
    assert_eq!(run(&session, sum).await, ["0"]);
    for outside in ["SAVEPOINT a", "RELEASE a", "ROLLBACK TO a"] {
        assert_eq!(fails(&session, outside).await.kind(), ErrorKind::Invalid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_fail_while_they_are_read_fail_the_transaction() {
    let session = memory().await.session().unwrap();
    let late = "SELECT 1 / (50000 - value) FROM generate_series(1, 100000)";
    all(&session, &["CREATE TABLE t (x BIGINT)", "BEGIN", "INSERT INTO t VALUES (1)"]).await;
    fails(&session, late).await;
    assert_eq!(session.transaction(), TransactionState::Failed);
    fails(&session, "SELECT 1").await;
    run(&session, "COMMIT").await;
    assert_eq!(run(&session, "SELECT count(*) FROM t").await, ["0"]);
    // A statement that is stopped; and a savepoint before rows that fail.
    all(&session, &["BEGIN", "INSERT INTO t VALUES (2)", "SAVEPOINT a"]).await;
    let Output::Rows(mut rows) = session.sql("SELECT * FROM generate_series(1, 100000000)").await.unwrap() else {
        panic!("no rows");
    };
    assert!(rows.next().await.unwrap().is_ok());
    assert!(session.query().try_stop());
    assert_eq!(rows.next().await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(session.transaction(), TransactionState::Failed);
    run(&session, "ROLLBACK TO a").await;
    // Work that changes rows is dropped when it is stopped.
    run(&session, "SET statement_timeout = '50ms'").await;
    let slow = "INSERT INTO t SELECT value FROM generate_series(1, 10000000000) WHERE value < 0";
    assert_eq!(fails(&session, slow).await.kind(), ErrorKind::Timeout);
    assert_eq!(session.transaction(), TransactionState::Failed);
    all(&session, &["ROLLBACK TO a", "SET statement_timeout = 0", "INSERT INTO t VALUES (3)", "COMMIT"]).await;
    assert_eq!(run(&session, "SELECT sum(x) FROM t").await, ["5"]);
    // Rows that are not read to their end fail nothing, and those of an earlier transaction not the next.
    all(&session, &["BEGIN", "INSERT INTO t VALUES (4)"]).await;
    let Output::Rows(rows) = session.sql(late).await.unwrap() else { panic!("no rows") };
    all(&session, &["COMMIT", "BEGIN", "INSERT INTO t VALUES (5)"]).await;
    assert!(rows.collect::<Vec<_>>().await.iter().any(Result::is_err));
    assert_eq!(session.transaction(), TransactionState::Open);
    run(&session, "COMMIT").await;
    assert_eq!(run(&session, "SELECT sum(x) FROM t").await, ["14"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_part_of_a_transaction_says_so() {
    let session = memory().await.session().unwrap();
    all(&session, &["CREATE TABLE t (x BIGINT)"]).await;
    for statement in ["DROP FUNCTION f", "DROP MODEL m", "ALTER TABLE t SET (residence = 'cuda:0')", "CHECKPOINT"] {
        run(&session, "BEGIN").await;
        let e = fails(&session, statement).await;
        assert!(e.message().contains("cannot be part of a transaction"), "{e}");
        run(&session, "ROLLBACK").await;
    }
    for refused in ["BEGIN ISOLATION LEVEL SERIALIZABLE", "DELETE FROM t USING t AS u"] {
        assert_eq!(fails(&session, refused).await.kind(), ErrorKind::Invalid, "{refused}");
    }
    all(&session, &["BEGIN", "ROLLBACK", "ROLLBACK", "COMMIT"]).await;
    run(&session, "BEGIN").await;
    assert_eq!(fails(&session, "BEGIN").await.kind(), ErrorKind::Invalid);
    for bad in ["UPDATE t SET x = 1, x = 2", "UPDATE t SET y = 1", "UPDATE t SET (x) = (1)", "DELETE FROM t, t"] {
        run(&session, "ROLLBACK").await;
        fails(&session, bad).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_only_reads_changes_nothing_but_temporary_tables() {
    let session = memory().await.session().unwrap();
    all(&session, &["CREATE TABLE t (x BIGINT)", "INSERT INTO t VALUES (1)"]).await;
    let changes = [
        "INSERT INTO t VALUES (2)",
        "INSERT INTO t SELECT 2",
        "INSERT INTO t VALUES (2) RETURNING x",
        "UPDATE t SET x = 2",
        "DELETE FROM t",
        "TRUNCATE t",
        "CREATE TABLE u (x BIGINT)",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE t",
    ];
    let begins: [&[&str]; 4] = [
        &["BEGIN READ ONLY"],
        &["START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"],
        &["BEGIN", "SET TRANSACTION READ ONLY"],
        &["SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "BEGIN"],
    ];
    for begin in begins {
        for change in changes {
            all(&session, begin).await;
            assert_eq!(run(&session, "SHOW transaction_read_only").await, ["on"]);
            assert_eq!(fails(&session, change).await.kind(), ErrorKind::ReadOnly, "{change}");
            run(&session, "ROLLBACK").await;
        }
    }
    // The last of these holds for the session, with a transaction or without.
    assert_eq!(fails(&session, changes[0]).await.kind(), ErrorKind::ReadOnly);
    all(&session, &["CREATE TEMP TABLE own (x BIGINT)", "INSERT INTO own VALUES (1)"]).await;
    all(&session, &["BEGIN READ WRITE", changes[0], "COMMIT", "SET default_transaction_read_only = off", changes[1]])
        .await;
    all(&session, &["BEGIN READ ONLY", "INSERT INTO own SELECT x FROM t", "COMMIT"]).await;
    assert_eq!(run(&session, "SELECT count(*) FROM t").await, ["3"]);
    assert_eq!(run(&session, "SELECT count(*) FROM own").await, ["4"]);
    assert_eq!(run(&session, "SHOW transaction_read_only").await, ["off"]);
}

const ACCOUNTS: u64 = 20;
/// Sessions that change them at the same time.
const WRITERS: u64 = 3;

/// How many transactions there are in all: `ONEHOP_TRANSACTIONS`, or a few (`make test-crash` has 10,000).
fn transactions() -> u64 {
    std::env::var("ONEHOP_TRANSACTIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(180)
}

/// Transfers between accounts by several sessions, each a transaction; readers add up all accounts all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_see_a_consistent_sum_during_transactions() {
    let each = transactions() / WRITERS;
    let database = memory().await;
    let setup = database.session().unwrap();
    all(&setup, &["CREATE TABLE accounts (id BIGINT, balance BIGINT)", "CREATE TABLE transfers (amount BIGINT)"]).await;
    run(&setup, &format!("INSERT INTO accounts SELECT value, 1000 FROM generate_series(1, {ACCOUNTS})")).await;
    run(&setup, "CHECKPOINT accounts").await;
    run(&setup, "SET storage.checkpoint_rows = 300").await;
    let (is_done, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (session, is_done, reads) = (database.session().unwrap(), Arc::clone(&is_done), Arc::clone(&reads));
            tokio::spawn(async move {
                while !is_done.load(SeqCst) {
                    let sum = run(&session, "SELECT sum(balance), count(*) FROM accounts").await;
                    assert_eq!(sum, [format!("{}|{ACCOUNTS}", 1000 * ACCOUNTS)]);
                    reads.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let session = database.session().unwrap();
            tokio::spawn(async move {
                let mut seed = 77 + writer;
                for number in 0..each {
                    let (from, to) = (random(&mut seed) % ACCOUNTS + 1, random(&mut seed) % ACCOUNTS + 1);
                    let amount = random(&mut seed) % 50;
                    let begin = if number % 2 == 0 { "BEGIN" } else { "BEGIN IMMEDIATE" };
                    let debit = format!("UPDATE accounts SET balance = balance - {amount} WHERE id = {from}");
                    let credit = format!("UPDATE accounts SET balance = balance + {amount} WHERE id = {to}");
                    let log = format!("INSERT INTO transfers VALUES ({amount})");
                    let end = if number % 5 == 4 { "ROLLBACK" } else { "COMMIT" };
                    all(&session, &[begin, &debit, &credit, &log, end]).await;
                    if number % 20 == 19 {
                        run(&session, "CHECKPOINT").await;
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    is_done.store(true, SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(reads.load(SeqCst) > 20, "readers hardly ran");
    assert_eq!(run(&setup, "SELECT count(*) FROM transfers").await, [(WRITERS * (each - each / 5)).to_string()]);
    println!("{} transactions, {} sums", WRITERS * each, reads.load(SeqCst));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_come_one_by_one_are_all_there() {
    let database = memory().await;
    let session = database.session().unwrap();
    run(&session, "CREATE TABLE t (x BIGINT, t VARCHAR)").await;
    run(&session, "BEGIN").await;
    for x in 0..700 {
        run(&session, &format!("INSERT INTO t VALUES ({x}, 'row {x}')")).await;
        if x == 350 {
            run(&session, "COMMIT").await;
        }
    }
    let answer = run(&session, "SELECT sum(x), count(DISTINCT t), max(t) FROM t").await;
    assert_eq!(answer, [format!("{}|700|row 99", (0..700).sum::<u64>())]);
    run(&session, "CHECKPOINT").await;
    assert_eq!(run(&session, "SELECT sum(x), count(DISTINCT t), max(t) FROM t").await, answer);
}

/// Rows of literals are stored without a plan: as the plan of the same rows would have, or, where there is something to say about
/// them, by it.
#[tokio::test(flavor = "multi_thread")]
async fn written_rows_are_stored_as_planned_ones() {
    let session = memory().await.session().unwrap();
    let columns = "(a BIGINT, b INTEGER NOT NULL, c SMALLINT, d DOUBLE, e DECIMAL(9,2), f VARCHAR, g DATE, h BOOLEAN, i TIMESTAMP)";
    all(&session, &[&format!("CREATE TABLE written {columns}"), &format!("CREATE TABLE planned {columns}")]).await;
    let rows = [
        "(1, 2, 3, 4, 5, 'six', '2024-02-29', true, '2024-02-29 01:02:03')",
        "(-9223372036854775808, -2147483648, -32768, -9007199254740993, -9999999, '', '0001-01-01', false, NULL)",
        "(NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "(9223372036854775807, -0, 32767, -0, 9999999, 'it''s; (not) \\n', '9999-12-31', TRUE, NULL)",
        "(1, 1, 1, 1.5, 1.25, 'x', DATE '2024-01-01', NULL, NULL)",
        "(1 + 1, 2, 3, 1e3, 0.5, 'a' || 'b', NULL, 1 < 2, NULL)",
        "('12', '13', '14', '15', '16', '17', '2024-1-5', 'true', NULL)",
        "(1, 2, 3, 4, 5, 6, NULL, NULL, NULL)",
    ];
    for rows in rows.iter().map(std::slice::from_ref).chain([&rows[..4], &rows]) {
        run(&session, &format!("INSERT INTO written VALUES {}", rows.join(", "))).await;
        // The same literals, where nothing is written out: a query, of each row by itself.
        for row in rows {
            let values = row.trim_start_matches('(').trim_end_matches(')');
            run(&session, &format!("INSERT INTO planned SELECT {values}")).await;
        }
    }
    all(
        &session,
        &[
            "INSERT INTO written (F, b, \"a\") VALUES ('named', 7, 8), (NULL, 9, NULL)",
            "INSERT INTO planned (F, b, \"a\") SELECT * FROM (VALUES ('named', 7, 8), (NULL, 9, NULL)) AS rows",
        ],
    )
    .await;
    let order = "ORDER BY a, b, c, d, e, f, g, h, i";
    let written = run(&session, &format!("SELECT * FROM written {order}")).await;
    assert!(written.len() > 12, "{written:?}");
    assert_eq!(written, run(&session, &format!("SELECT * FROM planned {order}")).await);
    for bad in [
        "INSERT INTO written VALUES (1, 2, 32768, 4, 5, '6', NULL, NULL, NULL)",
        "INSERT INTO written VALUES (1, NULL, 3, 4, 5, '6', NULL, NULL, NULL)",
        "INSERT INTO written VALUES (1, 2, 3, 4, 99999999, '6', NULL, NULL, NULL)",
        "INSERT INTO written VALUES (1, 2, 3, 4, 5, '6', '2024-02-30', NULL, NULL)",
        "INSERT INTO written VALUES (1, 2)",
        "INSERT INTO written VALUES (1, 2, 3, 4, 5, '6', NULL, NULL, NULL, 10)",
        "INSERT INTO written (a) VALUES (1)",
        "INSERT INTO written (b, b) VALUES (1, 2)",
        "INSERT INTO written (b, nothing) VALUES (1, 2)",
        "INSERT INTO \"Written\" (b) VALUES (1)",
        "INSERT INTO written (b) VALUES (1) RETURNING nothing",
    ] {
        fails(&session, bad).await;
    }
    assert_eq!(run(&session, "SELECT count(*) FROM written").await, [written.len().to_string()]);
}

/// Random statements on tables of all layouts: before and after a checkpoint, and after opening again, the rows are those
/// that a table in plain segments has after the same statements.
#[test]
fn layouts_and_checkpoints_change_no_answer() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let settings = [("storage.block_rows", "1024"), ("storage.segment_rows", "2048"), ("storage.fresh_rows", "300")];
    let mut database = Database::open(dir.path(), &options(&settings)).unwrap();
    let mut session = database.session().unwrap();
    let model = Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap();
    let tables = [
        ("plain", ""),
        ("parts", " PARTITION BY HASH (a) PARTITIONS 3"),
        ("lists", " PARTITION BY LIST (c) (PARTITION x VALUES IN ('c1', NULL), PARTITION y DEFAULT)"),
        ("sorted", " CLUSTER BY (c, a)"),
    ];
    for (name, clauses) in tables {
        runtime.block_on(run(&session, &format!("CREATE TABLE {name} (a INTEGER, b BIGINT, c VARCHAR){clauses}")));
    }
    runtime.block_on(run(&model, "CREATE TABLE model (a INTEGER, b BIGINT, c VARCHAR)"));
    let mut seed = 4242;
    println!("seed {seed}");
    for step in 0..60 {
        let (x, y) = (random(&mut seed) % 3000, random(&mut seed) % 500);
        let source = "(SELECT value AS v FROM generate_series";
        let statement = match random(&mut seed) % 7 {
            0 => format!("INSERT INTO $t SELECT v, v * 2, 'c' || (v % 4) FROM {source}({x}, {x} + {y}))"),
            1 => format!("INSERT INTO $t VALUES ({x}, NULL, 'c1'), (NULL, {y}, NULL)"),
            2 => format!("DELETE FROM $t WHERE a >= {x} AND a < {x} + {y}"),
            3 => format!("UPDATE $t SET b = b + {y}, c = 'u' || (a % 3) WHERE a % 17 = {y} % 17"),
            4 => format!("UPDATE $t SET a = a + 1 WHERE b < {y} OR b IS NULL"),
            5 => format!("DELETE FROM $t WHERE c = 'c{}' AND a % 5 = {}", y % 4, x % 5),
            _ => format!("INSERT INTO $t SELECT a, b, 'i' FROM $t WHERE a < {y} AND c IS NOT NULL"),
        };
        let model_rows = runtime.block_on(async {
            run(&model, &statement.replace("$t", "model")).await;
            run(&model, "SELECT * FROM model").await
        });
        for (name, _) in tables {
            let failed = format!("step {step}: {statement} on {name}");
            let select = format!("SELECT * FROM {name}");
            let found = runtime.block_on(async {
                run(&session, &statement.replace("$t", name)).await;
                run(&session, &select).await
            });
            assert_eq!(found, model_rows, "{failed}");
            if step % 5 == 4 {
                runtime.block_on(run(&session, &format!("CHECKPOINT {name}")));
                assert_eq!(runtime.block_on(run(&session, &select)), model_rows, "checkpoint after {failed}");
            }
        }
        if step % 7 == 6 {
            drop((session, database));
            database = Database::open(dir.path(), &options(&settings)).unwrap();
            session = database.session().unwrap();
            for (name, _) in tables {
                let found = runtime.block_on(run(&session, &format!("SELECT * FROM {name}")));
                assert_eq!(found, model_rows, "{name}, opened again after step {step}");
            }
        }
    }
    assert_eq!(files_on_disk(dir.path()), known_files(&database));
}

#[test]
fn what_was_committed_is_there_again() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let before = {
        let database = Database::open(dir.path(), &DatabaseOptions::default()).unwrap();
        let session = database.session().unwrap();
        runtime.block_on(all(
            &session,
            &[
                "CREATE TABLE t (a INTEGER, b VARCHAR)",
                "INSERT INTO t SELECT value, 'row ' || value FROM generate_series(1, 20000)",
                "INSERT INTO t VALUES (-1, 'fresh'), (-2, NULL)",
                "DELETE FROM t WHERE a % 3 = 0",
                "UPDATE t SET b = 'changed' WHERE a = 5",
                "BEGIN",
                "DELETE FROM t",
            ],
        ));
        runtime.block_on(dump(&database)).unwrap()
    };
    for _ in 0..2 {
        let database = Database::open(dir.path(), &DatabaseOptions::default()).unwrap();
        assert_eq!(runtime.block_on(dump(&database)).unwrap(), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_and_views_are_made_and_dropped_in_transactions() {
    let database = memory().await;
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TABLE t (x BIGINT)", "INSERT INTO t VALUES (1)"]).await;
    let made =
        ["BEGIN", "CREATE TABLE u AS SELECT x + 1 AS x FROM t", "INSERT INTO u VALUES (7)", "CREATE VIEW v AS FROM u"];
    all(&a, &made).await;
    all(&a, &["UPDATE u SET x = x * 10 WHERE x < 5", "DROP TABLE t"]).await;
    assert_eq!(run(&a, "SELECT x FROM v").await, ["20", "7"]);
    assert_eq!(fails(&b, "SELECT x FROM v").await.kind(), ErrorKind::NotFound);
    assert_eq!(run(&b, "SELECT x FROM t").await, ["1"]);
    run(&a, "COMMIT").await;
    assert_eq!(run(&b, "SELECT x FROM v").await, ["20", "7"]);
    assert_eq!(fails(&b, "SELECT x FROM t").await.kind(), ErrorKind::NotFound);
    // What is undone has not been.
    all(&a, &["BEGIN", "DROP VIEW v", "DROP TABLE u", "CREATE TABLE u (y VARCHAR)", "INSERT INTO u VALUES ('y')"])
        .await;
    assert_eq!(run(&a, "SELECT * FROM u").await, ["y"]);
    run(&a, "ROLLBACK").await;
    assert_eq!(run(&a, "SELECT x FROM v").await, ["20", "7"]);
    // A failed one leaves nothing either.
    all(&a, &["BEGIN", "CREATE TABLE w (x BIGINT)"]).await;
    assert_eq!(fails(&a, "CREATE TABLE w (x BIGINT)").await.kind(), ErrorKind::AlreadyExists);
    assert_eq!(affected(&a, "COMMIT").await.0, "ROLLBACK");
    assert_eq!(fails(&a, "SELECT x FROM w").await.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_a_name_first_has_it() {
    let database = memory().await;
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TABLE t (x BIGINT)", "BEGIN", "SELECT x FROM t"]).await;
    all(&b, &["CREATE TABLE u (x BIGINT)", "INSERT INTO u VALUES (1)", "DROP TABLE t", "CREATE TABLE t (x BIGINT)"])
        .await;
    // It does not see what came after its beginning, and must not write over it.
    assert_eq!(fails(&a, "SELECT x FROM u").await.kind(), ErrorKind::NotFound);
    all(&a, &["ROLLBACK", "BEGIN", "SELECT x FROM t"]).await;
    run(&b, "CREATE VIEW v AS FROM t").await;
    run(&a, "CREATE TABLE w (x BIGINT)").await;
    assert_eq!(fails(&a, "CREATE TABLE v (x BIGINT)").await.kind(), ErrorKind::AlreadyExists);
    all(&a, &["ROLLBACK", "BEGIN", "SELECT x FROM t"]).await;
    all(&b, &["DROP TABLE u", "CREATE TABLE u (x BIGINT)", "INSERT INTO u VALUES (2)"]).await;
    // Another table than the one that it sees.
    assert_eq!(fails(&a, "INSERT INTO u VALUES (3)").await.kind(), ErrorKind::NotFound);
    run(&a, "ROLLBACK").await;
    assert_eq!(run(&a, "SELECT x FROM u").await, ["2"]);
}

/// What transactions should come to: tables by name, each with its numbers.
type Model = std::collections::BTreeMap<String, Vec<i64>>;

async fn holds(session: &Session, model: &Model, step: &str) {
    // A name that is not there would have the transaction fail.
    let names = run(session, "SELECT table_name FROM onehop_tables").await;
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>(), "{step}");
    for (name, numbers) in model {
        let mut numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
        numbers.sort();
        assert_eq!(run(session, &format!("SELECT x FROM {name}")).await, numbers, "{name} after {step}");
    }
}

/// One random statement, carried out on the model as well.
fn step(next: &mut impl FnMut(usize) -> usize, model: &mut Model, saved: &mut Vec<Model>) -> String {
    let name = ["a", "b", "c"][next(3)];
    let number = next(10) as i64;
    match (next(9), model.get_mut(name)) {
        (0, _) => {
            saved.push(model.clone());
            format!("SAVEPOINT s{}", saved.len())
        }
        (1, _) if !saved.is_empty() => {
            let place = next(saved.len());
            saved.truncate(place + 1);
            *model = saved[place].clone();
            format!("ROLLBACK TO s{}", place + 1)
        }
        (2, Some(_)) => {
            model.remove(name);
            format!("DROP TABLE {name}")
        }
        (3, Some(numbers)) => {
            numbers.retain(|there| *there >= number);
            format!("DELETE FROM {name} WHERE x < {number}")
        }
        (4, Some(numbers)) => {
            numbers.iter_mut().for_each(|there| *there += number);
            format!("UPDATE {name} SET x = x + {number}")
        }
        (_, Some(numbers)) => {
            numbers.extend([number, number + 1]);
            format!("INSERT INTO {name} VALUES ({number}), ({})", number + 1)
        }
        (5.., None) => {
            model.insert(name.into(), (0..=number).collect());
            format!("CREATE TABLE {name} AS SELECT value AS x FROM generate_series(0, {number})")
        }
        (_, None) => {
            model.insert(name.into(), Vec::new());
            format!("CREATE TABLE {name} (x BIGINT)")
        }
    }
}

/// Random transactions over tables that come and go, against a model; what is durable is looked at by opening it again.
#[test]
fn transactions_of_tables_and_rows_do_what_a_model_does() {
    for seed in 1..=2 {
        let mut state = seed;
        let mut next = |below: usize| (random(&mut state) % below as u64) as usize;
        let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
        let (path, mut model) = (dir.path().join("db"), Model::new());
        for round in 0..5 {
            // Rows as they are, and in segments.
            let settings: &[(&str, &str)] = if next(2) == 0 { &[] } else { &support::TINY };
            let database = Database::open(&path, &options(settings)).unwrap();
            let (session, other) = (database.session().unwrap(), database.session().unwrap());
            runtime.block_on(async {
                let (before, mut saved) = (model.clone(), Vec::new());
                holds(&session, &model, &format!("opening, seed {seed}, round {round}")).await;
                run(&session, "BEGIN").await;
                for _ in 0..12 {
                    let statement = step(&mut next, &mut model, &mut saved);
                    run(&session, &statement).await;
                    let place = format!("{statement}, seed {seed}, round {round}");
                    holds(&session, &model, &place).await;
                    holds(&other, &before, &place).await;
                }
                match next(3) {
                    0 => {
                        run(&session, "ROLLBACK").await;
                        model = before;
                    }
                    _ => drop(run(&session, "COMMIT").await),
                }
                holds(&other, &model, &format!("the end, seed {seed}, round {round}")).await;
            });
            drop((session, other, database));
        }
        // Nothing is left of tables that were made and dropped again.
        let database = Database::open(&path, &options(&[])).unwrap();
        assert_eq!(files_on_disk(&path), known_files(&database));
    }
}
