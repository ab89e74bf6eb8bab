//! Sorts with little memory: what does not fit is spilled, and the answer is that of enough memory.
//!
//! The answer follows from how the rows are made: `z` has the order of `x`, whatever the order in
//! which the rows come.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::{Database, ErrorKind, Session};
use support::{fails, options, run, runtime};
use tokio::runtime::Runtime;

/// Rows of a text of some 60 letters that nothing orders, and its number in the order of all texts.
const ROWS: u32 = 400_003;

/// A session with so much memory, and a table `a` of [`ROWS`] rows.
fn session(memory: &str) -> (Runtime, Session) {
    session_of(&Database::memory(&options(&[("threads", "2")])).unwrap(), memory)
}

fn session_of(database: &Database, memory: &str) -> (Runtime, Session) {
    let runtime = runtime();
    let session = database.session().unwrap();
    let made = format!(
        "CREATE TABLE a AS SELECT x, lpad(CAST(x AS VARCHAR), 10, '0') || repeat('z', 50) AS z \
         FROM (SELECT value * 7919 % {ROWS} AS x FROM generate_series(1, {ROWS}))"
    );
    runtime.block_on(run(&session, &made));
    runtime.block_on(run(&session, &format!("SET memory_limit = '{memory}'")));
    (runtime, session)
}

#[test]
fn rows_far_down_an_order_are_spilled() {
    let (runtime, session) = session("16MiB");
    let far = ROWS - 5;
    let sql = format!("SELECT x FROM a ORDER BY z, x LIMIT 3 OFFSET {far}");
    let expected: Vec<String> = (far..far + 3).map(|x| x.to_string()).collect();
    assert_eq!(runtime.block_on(run(&session, &sql)), expected);
}

#[test]
fn rows_are_numbered_in_an_order_that_does_not_fit() {
    for memory in ["16MiB", "32MiB", "64MiB"] {
        let (runtime, session) = session(memory);
        let sql = "SELECT count(*), max(n), sum(CASE WHEN n = x + 1 THEN 0 ELSE 1 END) \
                   FROM (SELECT x, row_number() OVER (ORDER BY z) AS n FROM a)";
        assert_eq!(runtime.block_on(run(&session, sql)), [format!("{ROWS}|{ROWS}|0")], "{memory}");
    }
}

#[test]
fn a_join_by_nothing_but_a_condition_is_refused_if_its_left_side_does_not_fit() {
    let (runtime, session) = session("16MiB");
    for join in ["LEFT JOIN", "JOIN", "FULL JOIN"] {
        let sql = format!("SELECT count(*) FROM a {join} a AS b ON a.x + 1 < b.x AND a.z || 'y' > b.z");
        let error = runtime.block_on(fails(&session, &sql));
        assert_eq!(error.kind(), ErrorKind::Resources, "{join}: {error}");
    }
}

#[test]
fn the_first_rows_of_an_order_do_not_fit() {
    let (runtime, session) = session("16MiB");
    let first = ROWS - 5;
    let sql = format!("SELECT count(*), max(x), max(z) FROM (SELECT * FROM a ORDER BY z LIMIT {first})");
    let last = format!("{:010}{}", first - 1, "z".repeat(50));
    assert_eq!(runtime.block_on(run(&session, &sql)), [format!("{first}|{}|{last}", first - 1)]);
}

#[test]
fn a_table_in_an_order_that_does_not_fit_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(&directory.path().join("db"), &options(&[("threads", "2")])).unwrap();
    for memory in ["16MiB", "32MiB"] {
        let (runtime, session) = session_of(&database, memory);
        runtime.block_on(run(&session, "CREATE TABLE c CLUSTER BY (z) AS SELECT * FROM a"));
        let sql = "SELECT count(*), min(z), count(DISTINCT x) FROM c";
        let first = format!("{ROWS}|{}{}|{ROWS}", "0".repeat(10), "z".repeat(50));
        assert_eq!(runtime.block_on(run(&session, sql)), [first], "{memory}");
        for table in ["a", "c"] {
            runtime.block_on(run(&session, &format!("DROP TABLE {table}")));
        }
    }
}
