//! `INSERT` of values and of queries.
//!
//! Claims:
//! - each value is cast to its column by itself, whatever else is in the statement: as one row of it would be;
//! - what is in a query means what it means in a query;
//! - rows of too many values, or of too few, and columns that are not there, are errors that name them; nothing is added then;
//! - what came by few rows and by many, and by whatever form of the statement, is the same.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::{Database, DatabaseOptions, ErrorKind, Session, Value};
use support::{fails, run};

fn session() -> Session {
    Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_within_a_query_are_not_the_table_s() {
    let session = session();
    run(&session, "CREATE TABLE t (a INT, b INT)").await;
    run(&session, "CREATE TABLE s (a INT, b VARCHAR)").await;
    for (insert, expected) in [
        ("INSERT INTO t SELECT x * 10, y FROM (VALUES (1.5, 2)) AS v(x, y)", "15|2"),
        ("INSERT INTO t WITH c(x, y) AS (VALUES (1.5, 2)) SELECT x * 10, y FROM c", "15|2"),
        ("INSERT INTO t SELECT 1, x FROM (VALUES (7)) AS v(x)", "1|7"),
        ("INSERT INTO t SELECT 1, 2 WHERE 3 IN (SELECT x FROM (VALUES (3)) AS v(x))", "1|2"),
        ("INSERT INTO t (b, a) SELECT x, y FROM (VALUES (1, 2)) AS v(x, y)", "2|1"),
        ("INSERT INTO t (b) VALUES (5)", "NULL|5"),
        ("INSERT INTO t VALUES ((SELECT 1), (SELECT max(x) FROM (VALUES (3), (4)) AS v(x)))", "1|4"),
    ] {
        run(&session, insert).await;
        assert_eq!(run(&session, "SELECT * FROM t").await, [expected], "{insert}");
        run(&session, "TRUNCATE t").await;
    }
    run(&session, "INSERT INTO s SELECT length(x), y FROM (VALUES ('abc', 2)) AS v(x, y)").await;
    assert_eq!(run(&session, "INSERT INTO s VALUES ((SELECT 9), 'q') RETURNING b, a").await, ["q|9"]);
    assert_eq!(run(&session, "SELECT * FROM s ORDER BY a").await, ["3|2", "9|q"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_value_is_cast_by_itself() {
    let session = session();
    for (data_type, values, expected) in [
        ("DECIMAL(20,2)", &["123456789012345678.91", "1e2", "'3.5'"][..], "100.00,123456789012345678.91,3.50"),
        ("DECIMAL(18,4)", &["99999999999999.9999", "1e13"], "10000000000000.0000,99999999999999.9999"),
        (
            "DECIMAL(38,0)",
            &["'99999999999999999999999999999999999999'", "1"],
            "1,99999999999999999999999999999999999999",
        ),
        ("BIGINT", &["9007199254740993", "1e0", "'7'", "2.5", "NULL"], "1,3,7,9007199254740993,NULL"),
        ("DOUBLE", &["1", "2.5", "1e-3"], "0.001,1.0,2.5"),
        ("DATE", &["'2024-02-29'", "DATE '2024-03-01'"], "2024-02-29,2024-03-01"),
    ] {
        let all: Vec<String> = values.iter().map(|value| format!("({value})")).collect();
        let one_by_one = all.iter().map(|value| format!("INSERT INTO t VALUES {value}"));
        let together = [format!("INSERT INTO t VALUES {}", all.join(", "))];
        for inserts in [one_by_one.collect::<Vec<_>>(), together.to_vec()] {
            run(&session, &format!("CREATE TABLE t (v {data_type})")).await;
            for insert in &inserts {
                run(&session, insert).await;
            }
            let mut rows = run(&session, "SELECT v FROM t").await;
            rows.sort();
            assert_eq!(rows.join(","), expected, "{inserts:?}");
            run(&session, "DROP TABLE t").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_says_so() {
    let session = session();
    run(&session, "CREATE TABLE t (a INT, \"B\" VARCHAR NOT NULL)").await;
    for (insert, kind, message) in [
        ("INSERT INTO t VALUES (1)", ErrorKind::Invalid, "INSERT INTO \"t\" takes 2 values a row, and row 1 has 1"),
        ("INSERT INTO t VALUES (1, 'x'), (2, 'y', 3)", ErrorKind::Invalid, "2 values a row, and row 2 has 3"),
        ("INSERT INTO t SELECT 1", ErrorKind::Invalid, "2 values a row, and the query has 1"),
        ("INSERT INTO t (a) SELECT 1, 2", ErrorKind::Invalid, "1 values a row, and the query has 2"),
        ("INSERT INTO t (a, a) VALUES (1, 2)", ErrorKind::Invalid, "names the column \"a\" twice"),
        ("INSERT INTO t (a, c) VALUES (1, 2)", ErrorKind::NotFound, "no column \"c\" in table \"t\""),
        (
            "INSERT INTO t VALUES (1, DEFAULT)",
            ErrorKind::Data,
            "column \"B\" of table \"t\": NULL in a NOT NULL column",
        ),
        ("INSERT INTO t VALUES (1, NULL)", ErrorKind::Data, "column \"B\" of table \"t\": NULL in a NOT NULL column"),
        ("INSERT INTO t (a) VALUES (1)", ErrorKind::Data, "column \"B\" of table \"t\": NULL in a NOT NULL column"),
        ("INSERT INTO u VALUES (1)", ErrorKind::NotFound, "\"u\""),
        ("INSERT INTO t VALUES (1 + 1, 'x') ON CONFLICT DO NOTHING", ErrorKind::Invalid, ""),
    ] {
        let error = fails(&session, insert).await;
        assert_eq!(error.kind(), kind, "{insert}: {error}");
        assert!(error.message().contains(message), "{insert}: {error}");
    }
    assert_eq!(run(&session, "SELECT count(*) FROM t").await, ["0"]);
    // What no column has is NULL.
    run(&session, "INSERT INTO t VALUES (1, 'x'), (DEFAULT, 'y')").await;
    run(&session, "UPDATE t SET a = DEFAULT WHERE a = 1").await;
    assert_eq!(run(&session, "SELECT count(*), count(a) FROM t").await, ["2|0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_come_one_by_one_are_what_they_would_be_together() {
    let session = session();
    for table in ["one", "many"] {
        run(&session, &format!("CREATE TABLE {table} (n INT, t VARCHAR, d DECIMAL(9,2), p BOOLEAN)")).await;
    }
    let one = session.prepare("INSERT INTO one VALUES ($1, $2, $3, $4)").unwrap();
    let mut rows = Vec::new();
    for n in 0..700i64 {
        let text = (n % 5 != 0).then(|| format!("{}{n}", "a text that is not short ".repeat((n % 4) as usize)));
        rows.push(format!(
            "({n}, {}, {}, {})",
            text.as_ref().map_or("NULL".into(), |t| format!("'{t}'")),
            -n,
            n % 2 == 0
        ));
        let values = [n.into(), Value::from(text), (-n).into(), (n % 2 == 0).into()];
        session.execute(&one, &values).await.unwrap();
        if [0, 1, 62, 63, 64, 65, 511, 512, 600].contains(&n) {
            // Rows of the last commits are deleted, and looked at, before others come.
            let gone = format!("DELETE FROM one WHERE n IN ({}, {})", n - 1, n / 2);
            run(&session, &gone).await;
            rows.retain(|row| ![n - 1, n / 2].iter().any(|gone| row.starts_with(&format!("({gone},"))));
        }
        if n % 97 == 0 {
            assert_eq!(run(&session, "SELECT count(*) FROM one").await, [rows.len().to_string()]);
        }
    }
    run(&session, &format!("INSERT INTO many VALUES {}", rows.join(", "))).await;
    let same = "SELECT count(*), count(t), sum(n), sum(length(t)), sum(d), count(*) FILTER (WHERE p), max(t) FROM";
    let expected = run(&session, &format!("{same} many")).await;
    assert_eq!(run(&session, &format!("{same} one")).await, expected);
    assert_eq!(run(&session, "SELECT * FROM one EXCEPT SELECT * FROM many").await, [] as [&str; 0]);
    run(&session, "CHECKPOINT").await;
    assert_eq!(run(&session, &format!("{same} one")).await, expected);
}
