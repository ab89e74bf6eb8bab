//! Temporary tables: a session's own tables beside those of its database.
//!
//! Claims:
//! - nobody else sees them, whatever is done with them, and two sessions may each have one of a name;
//! - all that can be done with tables can be done with these, together with others in one query, statement or transaction;
//! - a transaction is about both: ROLLBACK, savepoints and failures undo both, COMMIT keeps both, ON COMMIT does what it says;
//! - no name means two things, and nothing that all sessions have can stand on one;
//! - who changes them waits for no writer, and may have a database that is open for reading, or the right to read alone;
//! - they leave nothing behind: no row, no file, no name.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use onehop_engine::{Access, Database, DatabaseOptions, ErrorKind, Rights, Session};
use support::{fails, run, runtime};

fn memory() -> Database {
    Database::memory(&DatabaseOptions::default()).unwrap()
}

async fn all(session: &Session, statements: &[&str]) {
    for statement in statements {
        run(session, statement).await;
    }
}

fn with_spill(place: &Path) -> DatabaseOptions {
    let settings = vec![("temp_directory".to_string(), place.display().to_string())];
    DatabaseOptions { settings, ..DatabaseOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_seen_by_their_session_alone() {
    let database = memory();
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TEMP TABLE t (x BIGINT, y VARCHAR)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"]).await;
    assert_eq!(fails(&b, "SELECT * FROM t").await.kind(), ErrorKind::NotFound);
    assert_eq!(fails(&b, "INSERT INTO t VALUES (3, 'c')").await.kind(), ErrorKind::NotFound);
    assert_eq!(fails(&b, "DROP TABLE t").await.kind(), ErrorKind::NotFound);
    run(&b, "CREATE LOCAL TEMPORARY TABLE t AS SELECT 42 AS z").await;
    assert_eq!(run(&a, "SELECT * FROM t ORDER BY x").await, ["1|a", "2|b"]);
    assert_eq!(run(&b, "SELECT * FROM t").await, ["42"]);
    assert_eq!(run(&a, "SHOW TABLES").await, ["t|temporary table|2"]);
    assert_eq!(run(&a, "SELECT relpersistence FROM pg_class WHERE relname = 't'").await, ["t"]);
    let made = run(&a, "SHOW CREATE TABLE t").await;
    assert!(made[0].contains("CREATE TEMPORARY TABLE t"), "{made:?}");
    assert_eq!(database.snapshot().tables().count(), 0);
    run(&a, "DROP TABLE t").await;
    assert_eq!(fails(&a, "SELECT * FROM t").await.kind(), ErrorKind::NotFound);
    assert_eq!(run(&b, "SELECT * FROM t").await, ["42"]);
    run(&a, "CREATE TABLE t (k BIGINT)").await;
    // Each of the two would be meant.
    for statement in [
        "SELECT * FROM t",
        "INSERT INTO t VALUES (1)",
        "DELETE FROM t",
        "TRUNCATE t",
        "CREATE OR REPLACE TEMP TABLE t (x BIGINT)",
        "CREATE TEMP TABLE IF NOT EXISTS t (x BIGINT)",
        "CREATE OR REPLACE TABLE t (x BIGINT)",
    ] {
        let error = fails(&b, statement).await;
        assert!(error.to_string().contains("temporary") && error.kind() == ErrorKind::Invalid, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("DROP TABLE t")), "{error}");
    }
    // Lists do not stumble over it.
    run(&b, "CREATE TEMP TABLE u (x BIGINT) ON COMMIT DELETE ROWS").await;
    let listed =
        "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1";
    assert_eq!(run(&b, listed).await, ["t|LOCAL TEMPORARY", "u|LOCAL TEMPORARY"]);
    assert_eq!(run(&b, "SELECT table_name FROM information_schema.columns WHERE column_name = 'x'").await, ["u"]);
    let made = run(&b, "SHOW CREATE TABLE u").await;
    assert!(made[0].ends_with("ON COMMIT DELETE ROWS"), "{made:?}");
    run(&b, "DROP TABLE t").await;
    assert_eq!(run(&b, "SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_can_be_done_with_tables_can_be_done_with_them() {
    let database = memory();
    let session = database.session().unwrap();
    all(
        &session,
        &[
            "SET storage.fresh_rows = 4",
            "CREATE TABLE fact (k BIGINT, v BIGINT)",
            "INSERT INTO fact SELECT i % 10, i FROM generate_series(1, 1000) AS s(i)",
            "CREATE TEMP TABLE dim (k BIGINT NOT NULL, name VARCHAR) CLUSTER BY (k)",
            "INSERT INTO dim SELECT i, 'n' || CAST(i % 3 AS VARCHAR) FROM generate_series(0, 9) AS s(i)",
        ],
    )
    .await;
    let joined = "SELECT name, count(*), sum(v) FROM fact JOIN dim USING (k) GROUP BY name ORDER BY name";
    let line = |name: &str, keys: &[i64]| {
        let sum: i64 = (1..=1000).filter(|i| keys.contains(&(i % 10))).sum();
        format!("{name}|{}|{sum}", keys.len() * 100)
    };
    let expected = [line("n0", &[0, 3, 6, 9]), line("n1", &[1, 4, 7]), line("n2", &[2, 5, 8])];
    assert_eq!(run(&session, joined).await, expected);
    // Either changes by what is in the other.
    all(
        &session,
        &[
            "UPDATE dim SET name = (SELECT CAST(max(v) AS VARCHAR) FROM fact WHERE fact.k = dim.k) WHERE k < 3",
            "DELETE FROM fact WHERE k IN (SELECT k FROM dim WHERE k < 8)",
            "CHECKPOINT dim",
            "CHECKPOINT",
        ],
    )
    .await;
    assert_eq!(run(&session, "SELECT * FROM dim WHERE k < 4 ORDER BY k").await, ["0|1000", "1|991", "2|992", "3|n0"]);
    assert_eq!(run(&session, "SELECT count(*) FROM fact").await, ["200"]);
    let returned = "DELETE FROM dim WHERE k < 7 RETURNING k + 100";
    let mut gone = run(&session, returned).await;
    gone.sort();
    assert_eq!(gone, ["100", "101", "102", "103", "104", "105", "106"]);
    assert_eq!(run(&session, "INSERT INTO dim VALUES (70, 'x') RETURNING name").await, ["x"]);
    let prepared = session.prepare("INSERT INTO dim VALUES ($1, $2)").unwrap();
    let values = [onehop_engine::Value::Integer(71), onehop_engine::Value::Text("y".into())];
    session.execute(&prepared, &values).await.unwrap();
    all(&session, &["PREPARE p AS SELECT count(*) FROM dim WHERE k >= $1"]).await;
    assert_eq!(run(&session, "EXECUTE p(70)").await, ["2"]);
    assert_eq!(run(&session, "EXECUTE p(8)").await, ["4"]);
    // As tables are made of any rows, of these too, and these of any.
    all(
        &session,
        &["CREATE TABLE kept AS SELECT * FROM dim", "CREATE OR REPLACE TEMP TABLE dim AS SELECT * FROM kept"],
    )
    .await;
    assert_eq!(run(&session, "SELECT count(*), sum(k) FROM dim").await, ["5|165"]);
    all(&session, &["TRUNCATE dim, kept"]).await;
    assert_eq!(run(&session, "SELECT (SELECT count(*) FROM dim) + (SELECT count(*) FROM kept)").await, ["0"]);
    all(&session, &["CREATE TEMP TABLE IF NOT EXISTS dim (other BIGINT)", "DROP TABLE kept, dim, fact"]).await;
    assert_eq!(run(&session, "SHOW TABLES").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_about_both() {
    let database = memory();
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    let both = "SELECT (SELECT sum(x) FROM p), (SELECT sum(x) FROM t)";
    all(&a, &["CREATE TABLE p (x BIGINT)", "BEGIN", "INSERT INTO p VALUES (1)", "SAVEPOINT early"]).await;
    // Made after a savepoint, which it goes back to all the same.
    all(&a, &["CREATE TEMP TABLE t AS SELECT 10 AS x", "SAVEPOINT made", "INSERT INTO t VALUES (20)"]).await;
    all(&a, &["INSERT INTO p VALUES (2)"]).await;
    assert_eq!(run(&a, both).await, ["3|30"]);
    run(&a, "ROLLBACK TO made").await;
    assert_eq!(run(&a, both).await, ["1|10"]);
    run(&a, "ROLLBACK TO early").await;
    assert_eq!(fails(&a, "SELECT * FROM t").await.kind(), ErrorKind::NotFound);
    run(&a, "ROLLBACK").await;

    all(&a, &["CREATE TEMP TABLE t (x BIGINT)", "INSERT INTO t VALUES (10)", "INSERT INTO p VALUES (1)"]).await;
    all(&a, &["BEGIN", "UPDATE t SET x = x + 1", "UPDATE p SET x = x + 1"]).await;
    assert_eq!(run(&a, both).await, ["2|11"]);
    assert_eq!(run(&b, "SELECT sum(x) FROM p").await, ["1"]);
    run(&a, "ROLLBACK").await;
    assert_eq!(run(&a, both).await, ["1|10"]);
    all(&a, &["BEGIN", "UPDATE t SET x = x + 1", "UPDATE p SET x = x + 1", "COMMIT"]).await;
    assert_eq!(run(&a, both).await, ["2|11"]);
    // What fails takes all of it.
    all(&a, &["BEGIN", "DELETE FROM t"]).await;
    assert_eq!(fails(&a, "INSERT INTO t VALUES ('no number')").await.kind(), ErrorKind::Data);
    assert_eq!(fails(&a, "SELECT sum(x) FROM t").await.kind(), ErrorKind::Invalid);
    run(&a, "COMMIT").await;
    assert_eq!(run(&a, both).await, ["2|11"]);
    // A conflict over a table of the database is one for the temporary tables as well.
    all(&a, &["BEGIN", "SELECT * FROM p", "INSERT INTO t VALUES (1000)"]).await;
    run(&b, "UPDATE p SET x = 5").await;
    assert_eq!(fails(&a, "UPDATE p SET x = 6").await.kind(), ErrorKind::Conflict);
    run(&a, "ROLLBACK").await;
    assert_eq!(run(&a, both).await, ["5|11"]);
    // Released savepoints are gone for both.
    all(&a, &["BEGIN", "INSERT INTO t VALUES (1)", "SAVEPOINT s", "INSERT INTO t VALUES (1)", "RELEASE s"]).await;
    assert_eq!(fails(&a, "ROLLBACK TO s").await.kind(), ErrorKind::NotFound);
    run(&a, "ROLLBACK").await;
    all(&a, &["BEGIN", "DROP TABLE t", "ROLLBACK"]).await;
    assert_eq!(run(&a, both).await, ["5|11"]);
    all(&a, &["BEGIN", "INSERT INTO t VALUES (1)", "DISCARD TEMP"]).await;
    assert_eq!(fails(&a, "SELECT * FROM t").await.kind(), ErrorKind::NotFound);
    run(&a, "ROLLBACK").await;
    assert_eq!(run(&a, both).await, ["5|11"]);
    run(&a, "BEGIN").await;
    assert_eq!(fails(&a, "DISCARD ALL").await.kind(), ErrorKind::Invalid);
    all(&a, &["ROLLBACK", "DISCARD ALL"]).await;
    assert_eq!(fails(&a, "SELECT * FROM t").await.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_checkpoint_them_as_others() {
    let session = memory().session().unwrap();
    all(
        &session,
        &["SET storage.checkpoint_rows = 1000", "CREATE TABLE p (x BIGINT)", "CREATE TEMP TABLE t (x BIGINT)"],
    )
    .await;
    all(&session, &["CREATE TEMP TABLE u (x BIGINT) ON COMMIT DELETE ROWS"]).await;
    for _ in 0..5 {
        for table in ["p", "t", "u"] {
            let insert = format!("INSERT INTO {table} SELECT i FROM generate_series(1, 900) AS s(i)");
            all(&session, &["BEGIN", &insert, "COMMIT", &insert]).await;
        }
        all(&session, &["BEGIN", "UPDATE t SET x = x + 1", "UPDATE p SET x = x + 1", "COMMIT"]).await;
    }
    let facts = "SELECT table_name, rows, fresh_rows < 1000, deleted_rows < 2000 FROM onehop_tables ORDER BY 1";
    assert_eq!(run(&session, facts).await, ["p|9000|true|true", "t|9000|true|true", "u|0|true|true"]);
    assert_eq!(run(&session, "SELECT (SELECT sum(x) FROM p) = (SELECT sum(x) FROM t)").await, ["true"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_commit_does_what_it_says() {
    let session = memory().session().unwrap();
    all(
        &session,
        &[
            "BEGIN",
            "CREATE TEMP TABLE kept (x BIGINT) ON COMMIT PRESERVE ROWS",
            "CREATE TEMP TABLE emptied ON COMMIT DELETE ROWS AS SELECT 1 AS x",
            "CREATE TEMP TABLE dropped (x BIGINT) ON COMMIT DROP",
            "INSERT INTO kept VALUES (1)",
            "INSERT INTO dropped SELECT x FROM emptied",
        ],
    )
    .await;
    assert_eq!(run(&session, "SELECT x FROM dropped UNION ALL SELECT x FROM emptied").await, ["1", "1"]);
    run(&session, "COMMIT").await;
    assert_eq!(run(&session, "SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM emptied)").await, ["1|0"]);
    assert_eq!(fails(&session, "SELECT * FROM dropped").await.kind(), ErrorKind::NotFound);
    // A statement by itself is a transaction.
    all(&session, &["INSERT INTO emptied VALUES (1)", "INSERT INTO kept VALUES (2)"]).await;
    assert_eq!(run(&session, "SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM emptied)").await, ["2|0"]);
    run(&session, "CREATE TEMP TABLE dropped ON COMMIT DROP AS SELECT 1 AS x").await;
    assert_eq!(fails(&session, "SELECT * FROM dropped").await.kind(), ErrorKind::NotFound);
    // Undone to where it was made, and rolled back.
    all(&session, &["BEGIN", "INSERT INTO emptied VALUES (1)", "ROLLBACK", "BEGIN", "INSERT INTO emptied VALUES (7)"])
        .await;
    assert_eq!(run(&session, "SELECT * FROM emptied").await, ["7"]);
    run(&session, "COMMIT").await;
    assert_eq!(run(&session, "SELECT count(*) FROM emptied").await, ["0"]);
    // What fails leaves it as it was, and the next statement is none of its.
    assert_eq!(fails(&session, "INSERT INTO emptied VALUES ('x')").await.kind(), ErrorKind::Data);
    run(&session, "INSERT INTO kept VALUES (3)").await;
    assert_eq!(run(&session, "SELECT count(*) FROM kept").await, ["3"]);
    // Nor does one that nobody waits for.
    let slow =
        "INSERT INTO emptied SELECT a.i FROM generate_series(1, 20000) AS a(i), generate_series(1, 20000) AS b(i)";
    let soon = std::time::Duration::from_millis(5);
    assert!(tokio::time::timeout(soon, session.sql(slow)).await.is_err());
    assert_eq!(run(&session, "SELECT count(*) FROM emptied").await, ["0"]);
    run(&session, "INSERT INTO kept VALUES (4)").await;
    assert_eq!(run(&session, "SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM emptied)").await, ["4|0"]);
    for wrong in ["CREATE TABLE t (x BIGINT) ON COMMIT DROP", "CREATE LOCAL TABLE t (x BIGINT)"] {
        fails(&session, wrong).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_name_means_two_things() {
    let database = memory();
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TABLE p (x BIGINT)", "CREATE VIEW v AS SELECT 1 AS x", "CREATE TEMP TABLE t (x BIGINT)"]).await;
    for statement in [
        "CREATE TEMP TABLE p (y BIGINT)",
        "CREATE TEMP TABLE IF NOT EXISTS p (y BIGINT)",
        "CREATE OR REPLACE TEMP TABLE p (y BIGINT)",
        "CREATE TEMP TABLE v (y BIGINT)",
        "CREATE TABLE t (y BIGINT)",
        "CREATE TABLE IF NOT EXISTS t (y BIGINT)",
        "CREATE OR REPLACE TABLE t (y BIGINT)",
        "CREATE VIEW t AS SELECT 1",
        "CREATE TEMP TABLE t (y BIGINT)",
    ] {
        assert_eq!(fails(&a, statement).await.kind(), ErrorKind::AlreadyExists, "{statement}");
    }
    // Views are everybody's.
    let error = fails(&a, "CREATE VIEW w AS SELECT * FROM t").await;
    assert!(error.hint().is_some_and(|hint| hint.contains("temporary")), "{error}");
    run(&b, "CREATE VIEW w AS SELECT x + 1 AS x FROM v").await;
    run(&a, "CREATE TEMP TABLE u AS SELECT x FROM w").await;
    assert_eq!(run(&a, "SELECT * FROM u").await, ["2"]);
    // A view means the same to all, whatever tables a session has.
    run(&b, "CREATE TEMP TABLE own AS SELECT 3 AS x").await;
    run(&a, "CREATE TABLE own AS SELECT 4 AS x").await;
    run(&a, "CREATE VIEW over AS SELECT * FROM own").await;
    assert_eq!(run(&b, "SELECT * FROM over").await, ["4"]);
    assert_eq!(fails(&b, "SELECT * FROM own").await.kind(), ErrorKind::Invalid);
    // Who may change nothing does not come to it by a name.
    let reader = database.session_with(Rights::Read).unwrap();
    run(&reader, "CREATE TEMP TABLE later (x BIGINT)").await;
    run(&a, "CREATE VIEW later AS SELECT 1 AS x").await;
    for statement in ["DROP VIEW later", "CREATE OR REPLACE VIEW later AS SELECT 2 AS x"] {
        assert_eq!(fails(&reader, statement).await.kind(), ErrorKind::Denied, "{statement}");
    }
    for statement in ["INSERT INTO later VALUES (1)", "SELECT * FROM later", "CHECKPOINT later"] {
        assert!(
            matches!(fails(&reader, statement).await.kind(), ErrorKind::Invalid | ErrorKind::Denied),
            "{statement}"
        );
    }
    assert_eq!(run(&a, "SELECT * FROM later").await, ["1"]);
    run(&reader, "DROP TABLE later").await;
    assert_eq!(run(&reader, "SELECT * FROM later").await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_waited_for() {
    let database = memory();
    let (a, b) = (database.session().unwrap(), database.session().unwrap());
    all(&a, &["CREATE TABLE p (x BIGINT)", "BEGIN IMMEDIATE", "INSERT INTO p VALUES (1)"]).await;
    all(&b, &["SET lock_timeout = '1ms'", "CREATE TEMP TABLE t AS SELECT 1 AS x", "UPDATE t SET x = 2"]).await;
    all(&b, &["BEGIN", "INSERT INTO t SELECT count(*) FROM p", "COMMIT", "DELETE FROM t WHERE x = 0"]).await;
    assert_eq!(run(&b, "SELECT * FROM t").await, ["2"]);
    assert_eq!(fails(&b, "INSERT INTO p VALUES (2)").await.kind(), ErrorKind::Locked);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_read_may_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(folder.path(), &DatabaseOptions::default()).unwrap();
    run(&database.session().unwrap(), "CREATE TABLE p AS SELECT 1 AS x").await;
    let reader = database.session_with(Rights::Read).unwrap();
    let uses = [
        "CREATE TEMP TABLE t AS SELECT x + 1 AS x FROM p",
        "INSERT INTO t VALUES (5)",
        "INSERT INTO t SELECT * FROM p",
        "UPDATE t SET x = x * 2",
        "DELETE FROM t WHERE x = 10",
        "DROP TABLE IF EXISTS u, nothere",
        "CREATE TEMP TABLE u (x BIGINT)",
        "TRUNCATE u",
        "CHECKPOINT t, u",
        "DROP TABLE IF EXISTS nothere, u",
    ];
    all(&reader, &uses).await;
    assert_eq!(run(&reader, "SELECT * FROM t ORDER BY x").await, ["2", "4"]);
    for statement in
        ["INSERT INTO p VALUES (2)", "DROP TABLE p, t", "TRUNCATE t, p", "CREATE TABLE t2 AS SELECT * FROM t"]
    {
        assert_eq!(fails(&reader, statement).await.kind(), ErrorKind::Denied, "{statement}");
    }
    assert_eq!(run(&reader, "SELECT count(*) FROM t").await, ["2"]);
    drop((reader, database));
    let options = DatabaseOptions { access: Access::ReadOnly, ..DatabaseOptions::default() };
    let session = Database::open(folder.path(), &options).unwrap().session().unwrap();
    all(&session, &uses).await;
    assert_eq!(run(&session, "SELECT * FROM t ORDER BY x").await, ["2", "4"]);
    assert_eq!(fails(&session, "INSERT INTO p VALUES (2)").await.kind(), ErrorKind::ReadOnly);
}

#[test]
fn they_leave_nothing_behind() {
    let (folder, spill) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let count = |place: &Path| walk(place).into_iter().filter(|name| name.ends_with(".seg")).count();
    runtime().block_on(async {
        let database = Database::open(folder.path(), &with_spill(spill.path())).unwrap();
        let session = database.session().unwrap();
        run(&session, "CREATE TEMP TABLE small AS SELECT 1 AS x").await;
        let rows = "SELECT i AS x FROM generate_series(1, 300000) AS s(i)";
        run(&session, &format!("CREATE TEMP TABLE large AS {rows}")).await;
        assert!(count(spill.path()) > 0);
        assert_eq!(count(folder.path()), 0);
        assert_eq!(run(&session, "SELECT count(*), sum(x) FROM large").await, ["300000|45000150000"]);
        // Files of what was undone, failed or dropped go.
        let before = count(spill.path());
        all(&session, &["BEGIN", &format!("INSERT INTO large {rows}"), "ROLLBACK"]).await;
        assert_eq!(count(spill.path()), before);
        fails(&session, "INSERT INTO large SELECT 300000 / (150000 - i) FROM generate_series(1, 300000) AS s(i)").await;
        assert_eq!(count(spill.path()), before);
        run(&session, "DROP TABLE large").await;
        run(&session, &format!("CREATE TEMP TABLE large AS {rows}")).await;
        assert_eq!(count(spill.path()), before);
        // A session that has some keeps no files of others.
        run(&session, &format!("CREATE TABLE permanent AS {rows}")).await;
        assert_eq!(run(&session, "SELECT count(*) FROM permanent, small").await, ["300000"]);
        run(&database.session().unwrap(), "DROP TABLE permanent").await;
        assert_eq!(count(folder.path()), 0);
        // What came and went within a transaction.
        all(&session, &["CREATE TEMP TABLE emptied (x BIGINT) ON COMMIT DELETE ROWS"]).await;
        for _ in 0..3 {
            all(
                &session,
                &[
                    &format!("CREATE TEMP TABLE gone ON COMMIT DROP AS {rows}"),
                    &format!("INSERT INTO emptied {rows}"),
                    "BEGIN",
                    &format!("CREATE TEMP TABLE made AS {rows}"),
                    "SAVEPOINT s",
                    &format!("INSERT INTO made {rows}"),
                    "ROLLBACK TO s",
                    "DROP TABLE made",
                    &format!("CREATE TABLE permanent AS {rows}"),
                    "DELETE FROM permanent WHERE x > 5",
                    "TRUNCATE permanent",
                    "DROP TABLE permanent",
                    "INSERT INTO small VALUES (2)",
                    "COMMIT",
                ],
            )
            .await;
        }
        assert_eq!((count(spill.path()), count(folder.path())), (before, 0));
        assert_eq!(run(&session, "SELECT count(*) FROM small").await, ["4"]);
        // What reads goes on when the session is gone.
        let Ok(onehop_engine::Output::Rows(mut reading)) = session.sql("SELECT x FROM large").await else { panic!() };
        drop((session, database));
        let mut read = 0;
        while let Some(batch) = futures::StreamExt::next(&mut reading).await {
            read += batch.unwrap().num_rows();
        }
        assert_eq!(read, 300_000);
    });
    assert_eq!(walk(spill.path()), [""; 0]);
    let database = Database::open(folder.path(), &DatabaseOptions::default()).unwrap();
    assert_eq!(database.snapshot().tables().count(), 0);
}

fn walk(place: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(place).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.path().display().to_string());
        if entry.path().is_dir() {
            names.extend(walk(&entry.path()));
        }
    }
    names
}
