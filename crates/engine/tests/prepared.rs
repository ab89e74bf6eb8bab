//! Statements with parameters.
//!
//! Claims:
//! - a value means what its literal would mean at its place, whatever is in a text;
//! - a statement that runs with other values gives other rows, also when it, or one of its name, ran before;
//! - what has no value, too many, or no literal, is an error that says so; nothing is changed by it;
//! - prepared statements belong to a session, and end with DEALLOCATE.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::{Database, DatabaseOptions, ErrorKind, Output, Prepared, Session, Temporal, Value};
use support::{fails, rows_of, run};

async fn session() -> Session {
    let session = Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap();
    run(&session, "CREATE TABLE t (a BIGINT, b VARCHAR, d DATE, x DOUBLE, m DECIMAL(9,2), p BOOLEAN)").await;
    session
}

async fn execute(session: &Session, prepared: &Prepared, values: &[Value]) -> Vec<String> {
    match session.execute(prepared, values).await.unwrap_or_else(|e| panic!("{}: {e}", prepared.text())) {
        Output::Done(done) => vec![format!("{} {:?}", done.tag, done.rows)],
        output => rows_of(output).await.unwrap_or_else(|e| panic!("{}: {e}", prepared.text())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_what_their_literals_are() {
    let session = session().await;
    let insert = session.prepare("INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6)").unwrap();
    assert_eq!(insert.parameters(), 6);
    let nasty = "it's; DROP TABLE t -- \\ \" $1 ? \u{1F980}\n";
    let values: Vec<Value> = vec![
        i64::MIN.into(),
        nasty.into(),
        "2024-02-29".into(),
        (-1.5e-300).into(),
        Value::Decimal("-12.50".into()),
        true.into(),
    ];
    assert_eq!(execute(&session, &insert, &values).await, ["INSERT Some(1)"]);
    assert_eq!(execute(&session, &insert, &vec![Value::Null; 6]).await, ["INSERT Some(1)"]);
    let of = session.prepare("SELECT b, d, x, m, p FROM t WHERE a = ? AND b = ?").unwrap();
    let found = execute(&session, &of, &[i64::MIN.into(), nasty.into()]).await;
    assert_eq!(found, [format!("{nasty}|2024-02-29|-1.5e-300|-12.50|true")]);
    assert_eq!(run(&session, "SELECT count(*) FROM t WHERE a IS NULL AND b IS NULL AND x IS NULL").await, ["1"]);
    // Where a literal may stand.
    for (text, value, expected) in [
        ("SELECT 10 - $1", Value::from(-3), "13"),
        ("SELECT $1::VARCHAR", Value::from(-3), "-3"),
        ("SELECT $1 + 1", Value::Decimal("0.1".into()), "1.1"),
        ("SELECT -$1", Value::from(-3), "3"),
        ("SELECT count(*) FROM t WHERE d > $1", Value::from("2024-01-01"), "1"),
        ("SELECT upper($1) || $1", Value::from("aß"), "ASSaß"),
        ("SELECT a FROM t ORDER BY a NULLS LAST LIMIT $1", Value::from(1), "-9223372036854775808"),
        ("SELECT coalesce($1, 'none')", Value::from(None::<i64>).clone(), "none"),
        ("SELECT CASE WHEN $1 THEN 'yes' ELSE 'no' END", Value::from(false), "no"),
        ("SELECT $1 = 'NaN'::DOUBLE", Value::from(f64::NAN), "true"),
        ("SELECT $1 > 1e308", Value::from(f64::INFINITY), "true"),
        ("WITH w AS (SELECT ? AS v) SELECT v FROM w", Value::from("?"), "?"),
    ] {
        let prepared = session.prepare(text).unwrap();
        assert_eq!(execute(&session, &prepared, std::slice::from_ref(&value)).await, [expected], "{text} {value:?}");
    }
    // In any order, more than once.
    let twice = session.prepare("SELECT $2, $1, $2").unwrap();
    assert_eq!(execute(&session, &twice, &[1.into(), "b".into()]).await, ["b|1|b"]);
}

/// Values go into a table as they are, and their literals by a plan.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_put_as_a_plan_puts_their_literals() {
    let types = "BOOLEAN TINYINT SMALLINT INTEGER BIGINT REAL DOUBLE DECIMAL(9,2) DECIMAL(38,0) DATE TIMESTAMP VARCHAR";
    let double = |number: f64| (Value::from(number), format!("CAST('{number:e}' AS DOUBLE)"));
    let values = [
        (Value::Null, "NULL".into()),
        (true.into(), "TRUE".into()),
        (0.into(), "0".into()),
        ((-1).into(), "-1".into()),
        (128.into(), "128".into()),
        (i64::MAX.into(), i64::MAX.to_string()),
        (i64::MIN.into(), format!("({})", i64::MIN)),
        double(1.5),
        double(-0.0),
        double(1e300),
        (f64::NAN.into(), "CAST('NaN' AS DOUBLE)".into()),
        ("".into(), "''".into()),
        ("7".into(), "'7'".into()),
        ("2024-02-29".into(), "'2024-02-29'".into()),
        ("2023-02-29".into(), "'2023-02-29'".into()),
        ("it's".into(), "'it''s'".into()),
        (Value::Decimal("1.25".into()), "1.25".into()),
    ];
    let session = session().await;
    let mut were_put = 0;
    for ty in types.split(' ') {
        for nullable in ["", " NOT NULL"] {
            run(&session, &format!("CREATE OR REPLACE TABLE given (v {ty}{nullable}, n BIGINT)")).await;
            run(&session, &format!("CREATE OR REPLACE TABLE written (v {ty}{nullable}, n BIGINT)")).await;
            let given = session.prepare("INSERT INTO given (n, v) VALUES (1, $1)").unwrap();
            for (value, literal) in &values {
                let outcome = session.execute(&given, std::slice::from_ref(value)).await;
                let planned = format!("INSERT INTO written (n, v) VALUES (1, {literal}) LIMIT 1");
                match session.sql(&planned).await {
                    Ok(_) => assert!(outcome.is_ok(), "{ty}{nullable} {literal}: {outcome:?}"),
                    Err(expected) => {
                        let error = outcome.err().unwrap_or_else(|| panic!("{ty}{nullable} {literal}: {expected}"));
                        assert_eq!(error.kind(), expected.kind(), "{ty}{nullable} {literal}: {error}, {expected}");
                    }
                }
            }
            let rows = run(&session, "SELECT v, n FROM given").await;
            assert_eq!(rows, run(&session, "SELECT v, n FROM written").await, "{ty}{nullable}");
            were_put += rows.len();
        }
    }
    assert!(were_put > 150, "{were_put}");
}

/// As PostgreSQL 15.18 answers.
#[tokio::test(flavor = "multi_thread")]
async fn patterns_with_escapes_of_their_own() {
    let session = session().await;
    let like = session.prepare("SELECT $1 LIKE $2 ESCAPE '/'").unwrap();
    for (text, pattern, answer) in [
        ("a_b", "a/_b", "true"),
        ("axb", "a/_b", "false"),
        ("a/b", "a//b", "true"),
        ("a\\b", "a\\b", "true"),
        ("a\\b", "a/\\b", "true"),
    ] {
        assert_eq!(execute(&session, &like, &[text.into(), pattern.into()]).await, [answer], "{text} {pattern}");
    }
    assert_eq!(run(&session, "SELECT 'axb' NOT LIKE 'a/_' || 'b' ESCAPE '/'").await, ["true"]);
    assert_eq!(run(&session, "SELECT ('a' LIKE NULL || '/' ESCAPE '/') IS NULL").await, ["true"]);
    for pattern in ["'a/'", "'a' || '/'"] {
        let e = fails(&session, &format!("SELECT b LIKE {pattern} ESCAPE '/' FROM (VALUES ('x')) AS v(b)")).await;
        assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_values_and_other_statements_are_others() {
    let session = session().await;
    run(&session, "INSERT INTO t (a, b) VALUES (1, 'one'), (2, 'two')").await;
    let of = session.prepare("SELECT b FROM t WHERE a = $1").unwrap();
    let all = session.prepare("SELECT count(*) FROM t").unwrap();
    for _ in 0..3 {
        assert_eq!(execute(&session, &of, &[1.into()]).await, ["one"]);
        assert_eq!(execute(&session, &of, &[2.into()]).await, ["two"]);
        assert_eq!(execute(&session, &all, &[]).await, ["2"]);
    }
    run(&session, "INSERT INTO t (a, b) VALUES (3, 'three')").await;
    assert_eq!(execute(&session, &of, &[3.into()]).await, ["three"]);
    assert_eq!(execute(&session, &all, &[]).await, ["3"]);
    // Another one of the same name.
    run(&session, "PREPARE q AS SELECT a FROM t WHERE b = $1").await;
    for _ in 0..2 {
        assert_eq!(run(&session, "EXECUTE q('one')").await, ["1"]);
    }
    let other = session.database().session().unwrap();
    assert_eq!(fails(&other, "EXECUTE q('one')").await.kind(), ErrorKind::NotFound);
    run(&other, "PREPARE q AS SELECT 'other', $1").await;
    assert_eq!(run(&other, "EXECUTE q('one')").await, ["other|one"]);
    assert_eq!(run(&session, "EXECUTE q('one')").await, ["1"]);
    run(&session, "DEALLOCATE PREPARE q").await;
    run(&session, "PREPARE q AS SELECT 'now', $1;").await;
    assert_eq!(run(&session, "EXECUTE q('one')").await, ["now|one"]);
    run(&session, "PREPARE one AS SELECT 1").await;
    assert_eq!(run(&session, "EXECUTE one").await, ["1"]);
    run(&session, "DEALLOCATE ALL").await;
    assert_eq!(fails(&session, "EXECUTE q('one')").await.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_in_sql() {
    let session = session().await;
    run(&session, "PREPARE put (BIGINT, VARCHAR, DECIMAL(9,2)) AS INSERT INTO t (a, b, m) VALUES ($1, $2, $3)").await;
    run(&session, "EXECUTE put('17', 5, -2.5)").await;
    run(&session, "EXECUTE put(NULL, 'it''s', NULL)").await;
    assert_eq!(run(&session, "SELECT a, b, m FROM t ORDER BY a NULLS LAST").await, ["17|5|-2.50", "NULL|it's|NULL"]);
    run(&session, "PREPARE \"Change\" AS UPDATE t SET b = ? WHERE a = ?").await;
    run(&session, "EXECUTE \"Change\"('new', 17)").await;
    run(&session, "PREPARE gone AS DELETE FROM t WHERE a IS NULL").await;
    run(&session, "EXECUTE gone").await;
    assert_eq!(run(&session, "SELECT a, b FROM t").await, ["17|new"]);
    // In a transaction, which it belongs to.
    run(&session, "BEGIN").await;
    run(&session, "EXECUTE put(18, 'b', 0)").await;
    assert_eq!(fails(&session, "EXECUTE put(18, 'b')").await.kind(), ErrorKind::Invalid);
    assert!(fails(&session, "EXECUTE put(18, 'b', 0)").await.message().contains("transaction"));
    run(&session, "ROLLBACK").await;
    assert_eq!(run(&session, "SELECT count(*) FROM t").await, ["1"]);
    run(&session, "PREPARE make AS CREATE TABLE u AS SELECT $1 AS n").await;
    run(&session, "EXECUTE make(5)").await;
    assert_eq!(run(&session, "SELECT n FROM u").await, ["5"]);
    // Also one that changes the catalog.
    for statement in ["BEGIN", "DROP TABLE u", "EXECUTE make(6)"] {
        run(&session, statement).await;
    }
    assert_eq!(run(&session, "SELECT n FROM u").await, ["6"]);
    run(&session, "ROLLBACK").await;
    assert_eq!(run(&session, "SELECT n FROM u").await, ["5"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_said() {
    let session = session().await;
    run(&session, "PREPARE two AS SELECT $1, $2").await;
    for (text, kind, says) in [
        ("SELECT $1", ErrorKind::Invalid, "nothing is given for the parameter $1"),
        ("SELECT a FROM t WHERE a = ?", ErrorKind::Invalid, "nothing is given for the parameter ?"),
        ("CREATE VIEW v AS SELECT $1 AS n", ErrorKind::Invalid, "nothing is given"),
        ("EXECUTE two(1)", ErrorKind::Invalid, "takes 2 values, and 1 came"),
        ("EXECUTE two(1, 2, 3)", ErrorKind::Invalid, "takes 2 values, and 3 came"),
        ("EXECUTE two", ErrorKind::Invalid, "takes 2 values, and 0 came"),
        ("EXECUTE two(1, now())", ErrorKind::Invalid, "cannot take now()"),
        ("EXECUTE two(1, (SELECT 1))", ErrorKind::Invalid, "cannot take (SELECT 1)"),
        ("EXECUTE none(1)", ErrorKind::NotFound, "no prepared statement \"none\""),
        ("DEALLOCATE none", ErrorKind::NotFound, "no prepared statement \"none\""),
        ("PREPARE two AS SELECT 1", ErrorKind::AlreadyExists, "\"two\" already"),
        ("PREPARE x AS SELECT $1, ?", ErrorKind::Invalid, "by number, by ? or by name"),
        ("PREPARE x AS SELECT $1, $n", ErrorKind::Invalid, "by number, by ? or by name"),
        ("PREPARE x AS SELECT $0", ErrorKind::Invalid, "$0 is no parameter"),
        ("PREPARE x AS SELECT $99999", ErrorKind::Invalid, "$99999 is no parameter"),
        ("SELECT $n", ErrorKind::Invalid, "nothing is given for the parameter $n"),
        ("PREPARE x AS SELEC 1", ErrorKind::Syntax, "SELEC"),
        ("PREPARE x AS", ErrorKind::Syntax, "there is no statement here"),
        ("PREPARE x SELECT 1", ErrorKind::Syntax, "PREPARE without AS"),
        ("PREPARE x (BIGINT AS SELECT $1", ErrorKind::Syntax, "the end of its types"),
        ("PREPARE x (NOTHING) AS SELECT $1; SELECT 2", ErrorKind::Syntax, "end of statement"),
        ("PREPARE x AS EXECUTE two(1, 2)", ErrorKind::Invalid, "cannot be about another one"),
        ("PREPARE x AS PREPARE y AS SELECT 1", ErrorKind::Invalid, "cannot be about another one"),
        ("PREPARE", ErrorKind::Syntax, "PREPARE without a name"),
        ("PREPARE x () AS SELECT 1", ErrorKind::Syntax, "without one of its types"),
        ("PREPARE x (BIGINT, /* none */) AS SELECT 1", ErrorKind::Syntax, "without one of its types"),
        ("EXECUTE two(1, 1e400)", ErrorKind::Invalid, "cannot take 1e400"),
        ("EXECUTE two(1, -1e309)", ErrorKind::Invalid, "cannot take -1e309"),
        ("EXPLAIN EXECUTE two(1, 2)", ErrorKind::Invalid, "EXPLAIN cannot explain"),
        ("EXPLAIN ANALYZE EXECUTE two(1, 2)", ErrorKind::Invalid, "EXPLAIN cannot explain"),
        ("PREPARE x AS EXPLAIN EXECUTE two(1, 2)", ErrorKind::Invalid, "EXPLAIN cannot explain"),
        ("PREPARE x AS ROLLBACK", ErrorKind::Invalid, "cannot be prepared"),
        ("PREPARE x AS BEGIN", ErrorKind::Invalid, "cannot be prepared"),
    ] {
        let e = fails(&session, text).await;
        assert!(e.kind() == kind && e.message().contains(says), "{text}: {:?} {e}", e.kind());
    }
    let decimal = session.prepare("SELECT $1").unwrap();
    for text in ["", "-", "1e5", "1 OR 1=1", "--1", "1.2.3", "0x10"] {
        let e = session.execute(&decimal, &[Value::Decimal(text.into())]).await.unwrap_err();
        assert!(e.message().contains("no decimal number"), "{text}: {e}");
    }
    assert!(session.prepare("SELECT (").is_err());
    // A table that is not there yet.
    let later = session.prepare("SELECT n FROM later WHERE n > $1").unwrap();
    assert_eq!(session.execute(&later, &[0.into()]).await.unwrap_err().kind(), ErrorKind::NotFound);
    run(&session, "CREATE TABLE later AS SELECT 1 AS n").await;
    assert_eq!(execute(&session, &later, &[0.into()]).await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_with_names() {
    let session = session().await;
    let of = session.prepare("SELECT $b || $a || $b, '$c', $tag$ $d $tag$").unwrap();
    assert_eq!((of.names(), of.parameters()), (["b".to_string(), "a".to_string()].as_slice(), 2));
    assert_eq!(execute(&session, &of, &["x".into(), "y".into()]).await, ["xyx|$c| $d "]);
    assert!(session.prepare("SELECT $1").unwrap().names().is_empty());
    run(&session, "PREPARE named AS SELECT $n + 1").await;
    assert_eq!(run(&session, "EXECUTE named(2)").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_are_times_and_bytes_that_are_none() {
    let session = session().await;
    let of = session.prepare("SELECT arrow_typeof($1), $1").unwrap();
    for (what, text, expected) in [
        (Temporal::Date, "2024-02-29", "Date32|2024-02-29"),
        (Temporal::Time, "23:59:59.999999", "Time64(ns)|23:59:59.999999"),
        (Temporal::Timestamp, "0001-01-01 00:00:00.000001", "Timestamp(µs)|0001-01-01T00:00:00.000001"),
        (Temporal::TimestampTz, "2024-02-29 12:00:00+01:00", "Timestamp(µs, \"UTC\")|2024-02-29T11:00:00Z"),
        (Temporal::Interval, "-3 days -1.5 seconds", "Interval(MonthDayNano)|-3 days -1.500000000 secs"),
    ] {
        assert_eq!(execute(&session, &of, &[Value::Temporal(what, text.into())]).await, [expected]);
    }
    assert_eq!(execute(&session, &of, &[Value::Binary(vec![0, 0xff])]).await, ["Binary|00ff"]);
    let wrong = session.execute(&of, &[Value::Temporal(Temporal::Date, "yesterday'".into())]).await;
    assert!(wrong.is_err());
}
