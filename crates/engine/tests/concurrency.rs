//! Several processes, sessions and statements on one database at a time.
//!
//! Model: real threads, a real directory, the operating system's lock. What is claimed:
//! - one writer or many readers have a database open; a process that dies leaves no lock;
//! - a statement sees the database as of one commit, whatever is committed while it runs, and reads the files of that
//!   commit to its end; files go away with their last reader;
//! - statements that add to one table all land, or say why not; what a statement wrote that is cancelled, or overtaken
//!   by another one, leaves neither a table nor files.
//!
//! Which interleavings happen is the scheduler's choice; the tests count those they need and fail without them.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures::StreamExt;
use onehop_engine::{Access, Database, DatabaseOptions, ErrorKind, Output, Session};
use support::{eventually, fails, files_on_disk, known_files, random, rows, run, runtime, tiny};
use tempfile::TempDir;

fn read_only() -> DatabaseOptions {
    DatabaseOptions { access: Access::ReadOnly, ..tiny() }
}

fn new_database() -> (TempDir, PathBuf, Database) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &tiny()).unwrap();
    (dir, path, database)
}

/// Nothing is on disk that the catalog does not mention, and the other way round.
fn is_tidy(path: &Path, database: &Database) -> bool {
    files_on_disk(path) == known_files(database)
}

/// Rows for hundreds of segments: a statement that writes them can be caught in the middle.
const MANY: &str = "(SELECT a.i * 1000 + b.i AS x FROM (SELECT unnest(range(0, 400)) AS i) a, \
                    (SELECT unnest(range(0, 1000)) AS i) b)";

/// Rows for more segments than anybody waits for: a statement that writes them ends by being cancelled.
const ENDLESS: &str = "(SELECT value AS x FROM generate_series(1, 1000000000000))";

// --- Processes ---------------------------------------------------------------------------------------------------

#[test]
fn one_writer_or_many_readers() {
    let (_dir, path, writer) = new_database();
    for options in [tiny(), read_only()] {
        let e = Database::open(&path, &options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
        assert!(e.message().contains("is open in this process already"), "{e}");
        assert!(e.hint().is_some(), "{e}");
    }
    // Sessions and clones keep it open.
    let session = writer.session().unwrap();
    let clone = writer.clone();
    drop(writer);
    assert!(Database::open(&path, &tiny()).is_err());
    drop(session);
    assert!(Database::open(&path, &tiny()).is_err());
    drop(clone);

    let readers = [Database::open(&path, &read_only()).unwrap(), Database::open(&path, &read_only()).unwrap()];
    assert_eq!(Database::open(&path, &tiny()).unwrap_err().kind(), ErrorKind::Locked);
    drop(readers);
    drop(Database::open(&path, &tiny()).unwrap());
}

const PLACE: &str = "ONEHOP_TEST_PLACE";

#[test]
fn a_process_keeps_others_out_and_leaves_no_lock_when_it_is_killed() {
    let (_dir, path, database) = new_database();
    runtime().block_on(run(&database.session().unwrap(), "CREATE TABLE t AS SELECT 1 AS x"));
    drop(database);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "body_that_keeps_the_database_open", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PLACE, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("open now")), "the other process did not come to it");
    for options in [tiny(), read_only()] {
        let e = Database::open(&path, &options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
        assert!(e.message().contains(&format!("process {}", child.id())), "{e}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let database = Database::open(&path, &tiny()).unwrap();
    assert!(is_tidy(&path, &database));
    assert_eq!(runtime().block_on(run(&database.session().unwrap(), "SELECT x FROM t")), ["1"]);
}

#[test]
#[ignore = "run by a_process_keeps_others_out_and_leaves_no_lock_when_it_is_killed"]
fn body_that_keeps_the_database_open() {
    let database = Database::open(Path::new(&std::env::var_os(PLACE).unwrap()), &tiny()).unwrap();
    let session = database.session().unwrap();
    // Killed in the middle of a load.
    let load = format!("CREATE TABLE half AS SELECT x FROM {ENDLESS}");
    runtime().block_on(async {
        let files = database.path().unwrap().to_path_buf();
        tokio::spawn(async move {
            while files_on_disk(&files).len() < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            println!("open now");
        });
        let _ = rows(&session, &load).await;
    });
}

// --- Snapshots ---------------------------------------------------------------------------------------------------

#[test]
fn readers_see_one_commit_while_a_writer_inserts_and_replaces() {
    const SEED: u64 = 7;
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    // Every statement keeps this: amounts add up to zero, and rows come in pairs.
    runtime.block_on(run(&session, "CREATE TABLE ledger (id BIGINT, amount BIGINT) CLUSTER BY (id)"));
    runtime.block_on(run(&session, "CREATE VIEW total AS SELECT sum(amount) AS s, count(*) AS c FROM ledger"));
    runtime.block_on(run(&session, "INSERT INTO ledger VALUES (0, 5), (0, -5)"));
    let is_over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (database, runtime, is_over, reads) = (&database, &runtime, &is_over, &reads);
            scope.spawn(move || {
                let session = database.session().unwrap();
                let mut last = 0;
                while !is_over.load(SeqCst) {
                    let row = match reader {
                        0 => run(&session, "SELECT sum(amount), count(*) FROM ledger"),
                        1 => run(&session, "SELECT s, c FROM total"),
                        // Two mentions of a table are the same table.
                        _ => run(
                            &session,
                            "SELECT (SELECT sum(amount) FROM ledger), count(*) FROM ledger a \
                             WHERE (SELECT count(*) FROM ledger) = (SELECT count(id) FROM ledger WHERE id >= 0)",
                        ),
                    };
                    let row = runtime.block_on(row).remove(0);
                    let (sum, count) = row.split_once('|').unwrap();
                    let count: u64 = count.parse().unwrap();
                    assert_eq!((sum, count % 2), ("0", 0), "reader {reader} after {last} rows");
                    assert!(count >= last, "reader {reader} saw {last} rows, then {count}");
                    last = count;
                    reads.fetch_add(1, SeqCst);
                }
            });
        }
        let mut dice = SEED;
        for step in 1..=120 {
            let amount = random(&mut dice) % 1000;
            let statement = match random(&mut dice) % 4 {
                0 => "CREATE OR REPLACE TABLE ledger CLUSTER BY (id) AS SELECT * FROM ledger".to_string(),
                1 => format!(
                    "INSERT INTO ledger SELECT i, CASE i % 2 WHEN 0 THEN {amount} ELSE -{amount} END \
                              FROM (SELECT unnest(range(0, 1500)) AS i)"
                ),
                2 => format!("CREATE TABLE aside{step} AS SELECT * FROM ledger"),
                _ => format!("INSERT INTO ledger VALUES ({step}, {amount}), ({step}, -{amount})"),
            };
            runtime.block_on(run(&session, &statement));
            if statement.starts_with("CREATE TABLE aside") {
                runtime.block_on(run(&session, &format!("DROP TABLE aside{step}")));
            }
        }
        is_over.store(true, SeqCst);
    });
    println!("seed {SEED}: {} reads beside 120 statements", reads.load(SeqCst));
    assert!(reads.load(SeqCst) > 60);
    eventually("only the files of the last commit are left", || is_tidy(&path, &database));
}

#[test]
fn a_stream_reads_its_table_to_the_end_after_the_table_is_dropped_or_replaced() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    let make = "CREATE OR REPLACE TABLE t AS SELECT unnest(range(0, 20000)) AS x";
    for change in ["DROP TABLE t", "CREATE OR REPLACE TABLE t AS SELECT 'other' AS y", "INSERT INTO t VALUES (-1)"] {
        runtime.block_on(run(&session, make));
        let seen: i64 = runtime.block_on(async {
            let reader = database.session().unwrap();
            let Output::Rows(mut stream) = reader.sql("SELECT x FROM t").await.unwrap() else { panic!("no rows") };
            let mut sum = 0;
            let mut is_first = true;
            while let Some(batch) = stream.next().await {
                let batch = batch.unwrap();
                let values = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(batch.column(0));
                sum += arrow::compute::sum(values).unwrap();
                if std::mem::take(&mut is_first) {
                    assert!(batch.num_rows() < 20_000);
                    run(&session, change).await;
                }
            }
            sum
        });
        assert_eq!(seen, 19_999 * 20_000 / 2, "{change}");
        eventually("the files of the old table are gone", || is_tidy(&path, &database));
    }
}

#[test]
fn files_of_a_dropped_table_go_with_its_last_reader() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 3000)) AS x"));
    let files = files_on_disk(&path);
    assert_eq!(files.len(), 3);
    let reader = database.snapshot();
    let second = database.snapshot();
    runtime.block_on(run(&session, "CREATE TABLE u AS SELECT 1 AS one"));
    runtime.block_on(run(&session, "DROP TABLE t"));
    drop(reader);
    assert!(files_on_disk(&path).is_superset(&files));
    assert_eq!(second.table("t").unwrap().segments[2].segment().unwrap().rows(), 3000 - 2048);
    drop(second);
    assert!(is_tidy(&path, &database));
    assert!(files_on_disk(&path).is_disjoint(&files));
}

// --- Statements that end early -----------------------------------------------------------------------------------

/// Starts a statement, lets it write some files, and drops it.
async fn cancel(session: &Session, path: &Path, statement: &str) {
    let before = files_on_disk(path).len();
    let wrote = async {
        while files_on_disk(path).len() < before + 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        done = session.sql(statement) => panic!("{statement} was over too early: {done:?}"),
        () = wrote => {}
    }
}

#[test]
fn a_cancelled_load_leaves_no_files_and_no_rows() {
    let (dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 10)) AS x"));
    let csv = dir.path().join("many.csv");
    std::fs::write(&csv, "x\n".to_string() + &"12345\n".repeat(400_000)).unwrap();
    for statement in [
        format!("CREATE TABLE new AS SELECT x FROM {ENDLESS}"),
        format!("CREATE TABLE new PARTITION BY HASH (x) PARTITIONS 3 AS SELECT x FROM {ENDLESS}"),
        format!("CREATE OR REPLACE TABLE t AS SELECT x FROM {ENDLESS}"),
        format!("INSERT INTO t SELECT x FROM {ENDLESS}"),
        format!("COPY t FROM '{}'", csv.display()),
    ] {
        runtime.block_on(cancel(&session, &path, &statement));
        eventually("a cancelled statement's files are gone", || is_tidy(&path, &database));
        assert_eq!(runtime.block_on(run(&session, "SELECT count(*), sum(x) FROM t")), ["10|45"], "{statement}");
        assert!(database.snapshot().table("new").is_none());
    }
    // Nothing that was cancelled keeps the database open.
    drop((session, database));
    eventually("the database can be opened again", || Database::open(&path, &tiny()).is_ok());
}

#[test]
fn a_load_that_fails_late_leaves_no_files_and_no_rows() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t (x BIGINT NOT NULL)"));
    for (statement, kind) in [
        (
            "CREATE TABLE new AS SELECT 100 / (90000 - x) AS y FROM (SELECT unnest(range(0, 100000)) AS x)",
            ErrorKind::Data,
        ),
        ("INSERT INTO t SELECT nullif(x, 90000) FROM (SELECT unnest(range(0, 100000)) AS x)", ErrorKind::Data),
        (
            "CREATE TABLE new PARTITION BY RANGE (x) (PARTITION p VALUES LESS THAN (90000)) AS \
             SELECT x FROM (SELECT unnest(range(0, 100000)) AS x)",
            ErrorKind::Data,
        ),
    ] {
        let e = runtime.block_on(fails(&session, statement));
        assert_eq!(e.kind(), kind, "{e}");
        eventually("a failed statement's files are gone", || is_tidy(&path, &database));
        assert!(database.snapshot().table("new").is_none());
    }
    assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM t")), ["0"]);
}

#[test]
fn a_bulk_load_that_is_dropped_leaves_nothing() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 5000)) AS x"));
    let Output::Rows(stream) = runtime.block_on(session.sql("SELECT x FROM t")).unwrap() else { panic!("no rows") };
    let batches: Vec<_> = runtime.block_on(stream.map(Result::unwrap).collect());
    for finishes in [false, true] {
        let load = session.bulk_load("t").unwrap();
        let mut writer = load.writer(0).unwrap();
        for batch in &batches {
            writer.append(batch).unwrap();
        }
        assert!(!is_tidy(&path, &database), "nothing was written yet");
        if finishes {
            writer.finish().unwrap();
        } else {
            drop(writer);
        }
        drop(load);
        assert!(is_tidy(&path, &database));
        assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM t")), ["5000"]);
    }
}

#[test]
fn dropping_rows_ends_the_query() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT unnest(range(0, 4000)) AS x"));
    for sql in ["SELECT x FROM t", "SELECT a.x FROM t a, t b", "SELECT a.x FROM t a, t b ORDER BY a.x + b.x LIMIT 5"] {
        runtime.block_on(async {
            let Output::Rows(mut stream) = session.sql(sql).await.unwrap() else { panic!("no rows") };
            // Into the middle of it, if it has one.
            let _ = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
        });
        assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM t")), ["4000"]);
    }
    runtime.block_on(run(&session, "DROP TABLE t"));
    eventually("nobody reads it any more", || files_on_disk(&path).is_empty());
}

/// Ctrl-C is a select between the query and a signal: the query must let go of the thread that waits for it, and end
/// soon after; each of these would take hours. A query that runs keeps the files that it reads.
#[test]
fn a_join_that_makes_much_of_little_can_be_cancelled() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    let many = "(SELECT value AS x FROM generate_series(1, 1000000) UNION ALL SELECT x FROM t)";
    for join in [
        format!("{many} a, {many} b"),
        format!("{many} a JOIN {many} b ON a.x + b.x < -1"),
        format!("{many} a JOIN {many} b ON a.x % 1 = b.x % 1"),
        format!("{many} a LEFT JOIN {many} b ON a.x * b.x = -1 AND a.x < b.x"),
    ] {
        for statement in [format!("SELECT max(a.x + b.x) FROM {join}"), format!("INSERT INTO u SELECT a.x FROM {join}")]
        {
            println!("{statement}");
            runtime.block_on(run(&session, "CREATE OR REPLACE TABLE t AS SELECT unnest(range(0, 2000)) AS x"));
            runtime.block_on(run(&session, "CREATE OR REPLACE TABLE u (x BIGINT)"));
            runtime.block_on(async {
                let running = async {
                    if let Output::Rows(mut stream) = session.sql(&statement).await.unwrap() {
                        stream.next().await;
                    }
                };
                let outcome = tokio::time::timeout(Duration::from_millis(100), running).await;
                assert!(outcome.is_err(), "it was over too early");
            });
            runtime.block_on(run(&session, "DROP TABLE t"));
            runtime.block_on(run(&session, "DROP TABLE u"));
            eventually("nobody reads it any more", || files_on_disk(&path).is_empty());
        }
    }
}

/// Who waits on the only thread there is gets it back, too.
#[test]
fn a_cross_join_lets_go_of_a_runtime_of_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let session = Database::memory(&tiny()).unwrap().session().unwrap();
    runtime.block_on(async {
        let sql = "SELECT max(a.a + b.b) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b";
        let Output::Rows(mut stream) = session.sql(sql).await.unwrap() else { panic!("no rows") };
        assert!(tokio::time::timeout(Duration::from_millis(50), stream.next()).await.is_err());
    });
}

// --- Statements beside each other --------------------------------------------------------------------------------

#[test]
fn inserts_of_many_sessions_all_land() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    runtime.block_on(run(&database.session().unwrap(), "CREATE TABLE t (who BIGINT, n BIGINT)"));
    std::thread::scope(|scope| {
        for who in 0..4 {
            let (database, runtime) = (&database, &runtime);
            scope.spawn(move || {
                let session = database.session().unwrap();
                for n in 0..15 {
                    runtime.block_on(run(&session, &format!("INSERT INTO t VALUES ({who}, {n})")));
                    let mine = format!("SELECT count(*) FROM t WHERE who = {who}");
                    assert_eq!(runtime.block_on(run(&session, &mine)), [(n + 1).to_string()]);
                }
            });
        }
    });
    let query = "SELECT count(*), sum(n), count(DISTINCT who * 100 + n) FROM t";
    assert_eq!(runtime.block_on(run(&database.session().unwrap(), query)), ["60|420|60"]);
    assert!(is_tidy(&path, &database));
    drop(database);
    let database = Database::open(&path, &tiny()).unwrap();
    assert_eq!(runtime.block_on(run(&database.session().unwrap(), query)), ["60|420|60"]);
}

/// Starts a long statement, runs others when it has begun to write, and gives its outcome.
async fn overtake(database: &Database, path: &Path, long: &str, others: &[&str]) -> onehop_engine::Result<Vec<String>> {
    let session = database.session().unwrap();
    let before = files_on_disk(path).len();
    let overtaking = async {
        let session = database.session().unwrap();
        while files_on_disk(path).len() < before + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for other in others {
            run(&session, other).await;
        }
        std::time::Instant::now()
    };
    let long = async {
        let outcome = rows(&session, long).await;
        (outcome, std::time::Instant::now())
    };
    let (overtaken, (outcome, ended)) = futures::join!(overtaking, long);
    assert!(overtaken < ended, "the long statement was over too early");
    outcome
}

#[test]
fn an_insert_into_a_table_that_was_dropped_meanwhile_says_so_and_leaves_nothing() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    let insert = format!("INSERT INTO t SELECT x FROM {MANY}");
    for others in [
        vec!["DROP TABLE t"],
        vec!["DROP TABLE t", "CREATE TABLE t (x BIGINT)"],
        vec!["CREATE OR REPLACE TABLE t (x BIGINT)"],
    ] {
        runtime.block_on(run(&session, "CREATE OR REPLACE TABLE t AS SELECT CAST(1 AS BIGINT) AS x"));
        let e = runtime.block_on(overtake(&database, &path, &insert, &others)).unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::NotFound, "table \"t\" was dropped meanwhile"));
        eventually("its files are gone", || is_tidy(&path, &database));
        if others.len() > 1 {
            assert_eq!(runtime.block_on(run(&session, "SELECT count(*) FROM t")), ["0"]);
        }
    }
}

#[test]
fn a_name_goes_to_whoever_commits_first() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let session = database.session().unwrap();
    let create = format!("CREATE TABLE t AS SELECT x FROM {MANY}");
    let others = ["CREATE TABLE t AS SELECT 'first' AS x"];
    let e = runtime.block_on(overtake(&database, &path, &create, &others)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    assert_eq!(runtime.block_on(run(&session, "SELECT x FROM t")), ["first"]);
    eventually("its files are gone", || is_tidy(&path, &database));
    runtime.block_on(run(&session, "DROP TABLE t"));

    let e =
        runtime.block_on(overtake(&database, &path, &create, &["CREATE VIEW t AS SELECT 'view' AS x"])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
    assert_eq!(runtime.block_on(run(&session, "SELECT x FROM t")), ["view"]);
    eventually("its files are gone", || is_tidy(&path, &database));
}

#[test]
fn create_if_not_exists_keeps_what_came_meanwhile() {
    let (_dir, path, database) = new_database();
    let runtime = runtime();
    let create = format!("CREATE TABLE IF NOT EXISTS t AS SELECT x FROM {MANY}");
    let others = ["CREATE TABLE t AS SELECT 'first' AS x"];
    let outcome = runtime.block_on(overtake(&database, &path, &create, &others));
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(runtime.block_on(run(&database.session().unwrap(), "SELECT x FROM t")), ["first"]);
    eventually("its files are gone", || is_tidy(&path, &database));
}
