//! `statement_timeout` ends what takes too long, whatever runs it, soon, and leaves nothing of it behind.

#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Write;
use std::time::{Duration, Instant};

use onehop_engine::{Database, DatabaseOptions, ErrorKind, Session};
use support::{eventually, fails, files_on_disk, known_files, run, runtime, tiny};
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_millis(200);
/// It is over within some milliseconds; the machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(3);

fn many(options: &DatabaseOptions) -> (Runtime, Session) {
    let runtime = runtime();
    let session = Database::memory(options).unwrap().session().unwrap();
    let table = "CREATE TABLE many AS SELECT v % 3 AS k, v AS x FROM (SELECT unnest(range(0, 200000)) AS v)";
    runtime.block_on(run(&session, table));
    (runtime, session)
}

/// Runs a statement of minutes with the timeout set, and then one that is in time.
fn times_out(runtime: &Runtime, session: &Session, sql: &str) {
    runtime.block_on(run(session, "SET statement_timeout = '200ms'"));
    let started = Instant::now();
    let e = runtime.block_on(fails(session, sql));
    let took = started.elapsed();
    assert_eq!(e.kind(), ErrorKind::Timeout, "{sql}: {e}");
    assert!(e.message().contains("statement_timeout = '200ms'") && e.hint().is_some(), "{e}");
    assert!(took >= LIMIT && took < LIMIT + PATIENCE, "{sql}: {took:?}");
    println!("{took:?}: {sql}");
    runtime.block_on(run(session, "SET statement_timeout = '1min'"));
    assert_eq!(runtime.block_on(run(session, "SELECT count(*) FROM many")), ["200000"]);
}

#[test]
fn a_long_query_ends_in_either_mode() {
    let (runtime, session) = many(&DatabaseOptions::default());
    // Some billions of pairs: in an aggregate, in rows that nobody has seen yet, in rows that are handed out.
    for mode in ["fused", "datafusion"] {
        runtime.block_on(run(&session, &format!("SET exec.mode = '{mode}'")));
        times_out(&runtime, &session, "SELECT count(*) FROM many a JOIN many b ON a.k = b.k");
        times_out(&runtime, &session, "SELECT a.k, sum(b.x) FROM many a JOIN many b ON a.k = b.k GROUP BY a.k");
    }
    times_out(&runtime, &session, "SELECT a.x FROM many a JOIN many b ON a.k = b.k AND a.x + b.x < 0");
    times_out(&runtime, &session, "SELECT count(*) FROM many a, many b WHERE a.x * b.x = -1");
}

#[test]
fn rows_that_come_one_after_the_other_end_too() {
    let (runtime, session) = many(&DatabaseOptions::default());
    times_out(
        &runtime,
        &session,
        "SELECT a.k FROM many a JOIN many b ON a.k = b.k AND a.x % 1000 = 0 AND b.x % 100 = 0 JOIN many c ON c.k = b.k AND c.x < 0 - a.x - b.x",
    );
    runtime.block_on(async {
        use futures::StreamExt;
        run(&session, "SET statement_timeout = '200ms'").await;
        let onehop_engine::Output::Rows(mut rows) =
            session.sql("SELECT a.k FROM many a JOIN many b ON a.k = b.k").await.unwrap()
        else {
            panic!("no rows")
        };
        let e = loop {
            match rows.next().await {
                Some(Ok(_)) => {}
                Some(Err(e)) => break e,
                None => panic!("billions of rows in no time"),
            }
        };
        assert_eq!(e.kind(), ErrorKind::Timeout, "{e}");
        assert!(rows.next().await.is_none());
    });
}

#[test]
fn a_load_that_took_too_long_leaves_nothing_behind() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &tiny()).unwrap();
    let session = database.session().unwrap();
    runtime.block_on(run(
        &session,
        "CREATE TABLE many AS SELECT v % 3 AS k, v AS x FROM (SELECT unnest(range(0, 200000)) AS v)",
    ));
    runtime.block_on(run(&session, "CREATE TABLE t (a BIGINT, b BIGINT)"));
    let mut text = String::from("a,b\n");
    (0..3_000_000).for_each(|i| _ = writeln!(text, "{i},{i}"));
    let csv = dir.path().join("large.csv");
    std::fs::write(&csv, text).unwrap();
    let target = dir.path().join("out");
    std::fs::create_dir(&target).unwrap();
    let before = known_files(&database);
    let pairs = "SELECT a.x AS a, b.x AS b FROM many a JOIN many b ON a.k = b.k";
    for sql in [
        format!("COPY t FROM '{}'", csv.display()),
        format!("INSERT INTO t {pairs}"),
        format!("CREATE TABLE pairs AS {pairs}"),
        format!("COPY ({pairs}) TO '{}'", target.join("pairs.csv").display()),
    ] {
        times_out(&runtime, &session, &sql);
        assert_eq!(known_files(&database), before, "{sql}");
        eventually(&sql, || files_on_disk(&path) == before && std::fs::read_dir(&target).unwrap().count() == 0);
    }
    assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM t")), ["0"]);
    assert!(runtime.block_on(run(&session, "SHOW TABLES")).iter().all(|table| !table.contains("pairs")));
}

#[test]
fn timeouts_are_durations() {
    let (runtime, session) = many(&tiny());
    let set = |value: &str| format!("SET statement_timeout = '{value}'");
    for (value, normal) in [
        ("0", "0"),
        ("500ms", "500ms"),
        ("5s", "5s"),
        ("2000 ms", "2s"),
        ("90s", "90s"),
        ("2min", "2min"),
        ("48h", "48h"),
    ] {
        runtime.block_on(run(&session, &set(value)));
        let shown = runtime.block_on(run(&session, "SHOW statement_timeout"));
        assert!(shown[0].split('|').any(|cell| cell == normal), "{value}: {shown:?}");
    }
    for value in ["5", "-1s", "soon", "1 week", "", "99999999999999999999h"] {
        let e = runtime.block_on(fails(&session, &set(value)));
        assert!(e.kind() == ErrorKind::Invalid && e.message().contains("5s"), "{value}: {e}");
    }
}
