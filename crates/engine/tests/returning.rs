//! `RETURNING`: what comes back of rows that were changed, and when. What PostgreSQL 15 says for the same statements is what is
//! expected, in sorted order; more of it is compared with SQLite in `tests/server`.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::{Database, ErrorKind, Session, Value};
use support::{fails, options, rows_as_they_come, run};

async fn people(settings: &[(&str, &str)]) -> Session {
    let session = Database::memory(&options(settings)).unwrap().session().unwrap();
    run(&session, "CREATE TABLE people (id INTEGER NOT NULL, name VARCHAR, height DECIMAL(5,2))").await;
    run(&session, "INSERT INTO people VALUES (1, 'Ada', 1.65), (2, 'Bob', 1.9), (3, NULL, NULL)").await;
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_back_as_they_have_become_or_were() {
    // Rows as they are, and in segments.
    for settings in [&[][..], &support::TINY] {
        let session = people(settings).await;
        let insert = "INSERT INTO people (id, height) VALUES (4, 2), (5, 1.005) RETURNING *";
        assert_eq!(run(&session, insert).await, ["4|NULL|2.00", "5|NULL|1.01"]);
        let select = "INSERT INTO people SELECT id + 10, name, height FROM people WHERE id < 3 \
                      RETURNING id * 2 AS twice, people.name, (SELECT count(*) FROM people) AS before";
        assert_eq!(run(&session, select).await, ["22|Ada|5", "24|Bob|5"]);
        let update = "UPDATE people AS p SET height = height + 1, name = upper(name) WHERE id IN (1, 11) RETURNING p.*";
        assert_eq!(run(&session, update).await, ["11|ADA|2.65", "1|ADA|2.65"]);
        assert_eq!(run(&session, "DELETE FROM people WHERE id > 3 RETURNING id, name").await.len(), 4);
        assert_eq!(run(&session, "DELETE FROM people WHERE id > 3 RETURNING id").await, [""; 0]);
        let all = "DELETE FROM people RETURNING coalesce(people.name, 'nobody') || '!'";
        assert_eq!(run(&session, all).await, ["ADA!", "Bob!", "nobody!"]);
        assert_eq!(run(&session, "SELECT count(*) FROM people").await, ["0"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_come_back_leaves_nothing() {
    let session = people(&[]).await;
    for statement in [
        "INSERT INTO people VALUES (9, 'Zoe', 1) RETURNING 1 / (id - 9)",
        "UPDATE people SET id = 0 WHERE id = 1 RETURNING 1 / id",
        "DELETE FROM people RETURNING 1 / (id - 3)",
        "DELETE FROM people RETURNING missing",
        "DELETE FROM people RETURNING count(*)",
        "DELETE FROM people RETURNING row_number() OVER ()",
        "INSERT INTO people VALUES (NULL, 'x', 1) RETURNING id",
        "INSERT INTO nowhere VALUES (1) RETURNING 1",
    ] {
        fails(&session, statement).await;
        assert_eq!(run(&session, "SELECT id, name FROM people").await, ["1|Ada", "2|Bob", "3|NULL"], "{statement}");
    }
    let error = fails(&session, "DELETE FROM people RETURNING sum(id)").await;
    assert!(error.message().contains("aggregate functions are not allowed in RETURNING"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_sees_it_and_undoes_it() {
    let session = people(&[]).await;
    run(&session, "BEGIN").await;
    assert_eq!(run(&session, "INSERT INTO people VALUES (4, 'Dan', NULL) RETURNING name").await, ["Dan"]);
    assert_eq!(run(&session, "UPDATE people SET name = name || name WHERE id = 4 RETURNING name").await, ["DanDan"]);
    run(&session, "ROLLBACK").await;
    assert_eq!(run(&session, "SELECT count(*) FROM people WHERE id = 4").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_return_rows_too() {
    let session = people(&[]).await;
    let insert = session.parse("INSERT INTO people VALUES ($1, $2, $3) RETURNING id, height").unwrap();
    let described = session.describe(&insert, &[]).await.unwrap();
    let types: Vec<String> = described.parameters.iter().map(|t| t.as_ref().unwrap().to_string()).collect();
    assert_eq!(types, ["Int32", "Utf8View", "Decimal128(5, 2)"]);
    let columns = described.columns.unwrap();
    assert_eq!(columns.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["id", "height"]);
    let output = session.execute(&insert, &[4.into(), "Eve".into(), Value::Decimal("1.7".into())]).await.unwrap();
    assert!(matches!(output, onehop_engine::Output::Rows(_)));
    drop(output);
    run(&session, "PREPARE gone AS DELETE FROM people WHERE id >= $1 RETURNING id").await;
    let mut gone = rows_as_they_come(&session, "EXECUTE gone(3)").await.unwrap();
    gone.sort();
    assert_eq!(gone, ["3", "4"]);
}

/// Nothing is kept that there is no memory for.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_too_many_are_refused() {
    let session = people(&[("memory_limit", "32MB"), ("threads", "1")]).await;
    run(&session, "CREATE TABLE big (x BIGINT, t VARCHAR)").await;
    let rows =
        "SELECT value, 'some text that is not that short ' || CAST(value AS VARCHAR) FROM generate_series(1, 400000)";
    let error = fails(&session, &format!("INSERT INTO big {rows} RETURNING x, t, t || t, t || t || t")).await;
    assert_eq!(error.kind(), ErrorKind::Resources, "{error}");
    assert_eq!(run(&session, "SELECT count(*) FROM big").await, ["0"]);
    run(&session, &format!("INSERT INTO big {rows}")).await;
    assert_eq!(run(&session, "SELECT count(*) FROM big").await, ["400000"]);
}
