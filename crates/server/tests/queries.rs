//! Results of statements through tokio-postgres, which uses the binary format, and their errors.
//! Expected values are those of PostgreSQL 15.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use futures::{SinkExt, StreamExt, TryStreamExt};
use support::{code, place};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::types::{ToSql, Type};

#[tokio::test]
async fn values_of_all_types_come_in_binary() {
    let place = place().await;
    let client = place.connect().await;
    let row = client
        .query_one(
            "SELECT TRUE, CAST(7 AS SMALLINT), CAST(-7 AS INTEGER), CAST(9007199254740993 AS BIGINT), CAST(1.5 AS REAL),
                    CAST(-2.25 AS DOUBLE), 'it''s \u{e4}', NULL, TIMESTAMP '2024-02-29 12:34:56.789'",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!((row.get::<_, i16>(1), row.get::<_, i32>(2), row.get::<_, i64>(3)), (7, -7, 9_007_199_254_740_993));
    assert_eq!((row.get::<_, f32>(4), row.get::<_, f64>(5), row.get::<_, &str>(6)), (1.5, -2.25, "it's \u{e4}"));
    assert_eq!(row.get::<_, Option<&str>>(7), None);
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_709_210_096_789);
    assert_eq!(row.get::<_, SystemTime>(8), at);
}

#[tokio::test]
async fn parameters_get_the_types_of_what_they_stand_beside() {
    let place = place().await;
    let client = place.connect().await;
    client.batch_execute("CREATE TABLE t (a INTEGER, b VARCHAR, c DOUBLE)").await.unwrap();
    let insert = client.prepare("INSERT INTO t VALUES ($1, $2, $3)").await.unwrap();
    assert_eq!(insert.params(), [Type::INT4, Type::TEXT, Type::FLOAT8]);
    for (a, b) in [(1, Some("x")), (2, None), (3, Some("z"))] {
        let values: [&(dyn ToSql + Sync); 3] = [&a, &b, &(f64::from(a) / 2.0)];
        assert_eq!(client.execute(&insert, &values).await.unwrap(), 1);
    }
    let select = client.prepare("SELECT a, b FROM t WHERE a > $1 AND c < $2 ORDER BY a LIMIT $3").await.unwrap();
    assert_eq!(select.params(), [Type::INT4, Type::FLOAT8, Type::INT8]);
    let rows = client.query(&select, &[&1, &1.2, &5_i64]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [2]);
    assert_eq!(rows[0].get::<_, Option<&str>>(1), None);
    let update = client.prepare("UPDATE t SET b = $1 WHERE a = $2").await.unwrap();
    assert_eq!(update.params(), [Type::TEXT, Type::INT4]);
    assert_eq!(client.execute(&update, &[&"y", &2]).await.unwrap(), 1);
    assert_eq!(client.execute("DELETE FROM t WHERE a < $1", &[&3]).await.unwrap(), 2);
    // A parameter with a cast has that type, and its column is sent as announced.
    let row = client.query_one("SELECT $1::int + 1, $2::text", &[&41, &"x"]).await.unwrap();
    assert_eq!(row.get::<_, &str>(1), "x");
}

#[tokio::test]
async fn tags_say_what_was_done() {
    let place = place().await;
    let client = place.connect().await;
    let text = "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (2), (3); UPDATE t SET a = 5 WHERE a = 1;
                DELETE FROM t WHERE a = 2; SELECT a FROM t";
    let messages = client.simple_query(text).await.unwrap();
    let counts: Vec<u64> = messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [0, 3, 1, 1, 2]);
    let nothing = client.simple_query(" ; -- nothing").await.unwrap();
    assert!(matches!(nothing[..], [SimpleQueryMessage::CommandComplete(0)]), "{nothing:?}");
}

#[tokio::test]
async fn errors_have_codes_and_leave_the_connection_as_it_was() {
    let place = place().await;
    let client = place.connect().await;
    client.batch_execute("CREATE TABLE t (a INTEGER NOT NULL)").await.unwrap();
    for (text, expected) in [
        ("SELEC 1", "42601"),
        ("SELECT * FROM missing", "42P01"),
        ("CREATE TABLE t (a INTEGER)", "42P07"),
        ("SELECT 1 / 0", "22012"),
        ("SELECT CAST('x' AS INTEGER)", "22P02"),
        ("SET threads = 'many'", "22023"),
        ("SET thread = 2", "42704"),
        ("SELECT b FROM t", "42703"),
        ("EXECUTE nothing", "26000"),
        // Patterns: constant, from a column, and too large when compiled.
        ("SELECT 'a' ~ '(('", "2201B"),
        ("SELECT 'a' ~ p FROM (VALUES ('((')) AS v(p)", "2201B"),
        ("SELECT c ~ '((a{0,100}){0,100}){0,100}' FROM (VALUES ('a')) AS v(c)", "2201B"),
        ("SELECT regexp_replace(c, '(', 'x') FROM (VALUES ('a')) AS v(c)", "2201B"),
        ("SELECT regexp_matches(c, '(') FROM (VALUES ('a')) AS v(c)", "2201B"),
        // Calls with wrong argument types.
        ("SELECT round(1.5, 'x', 3)", "42883"),
        ("SELECT round(1.5, a) FROM (VALUES (1.5)) AS v(a)", "42883"),
        ("SELECT trunc(CAST(1.5 AS DOUBLE PRECISION), 2.5)", "42883"),
        ("SELECT sqrt(ARRAY[1])", "42883"),
        ("SELECT nothing_of_the_kind(1)", "42883"),
    ] {
        let e = client.simple_query(text).await.unwrap_err();
        assert_eq!(code(&e), expected, "{text}: {e:?}");
        let e = client.query(text, &[]).await.unwrap_err();
        assert_eq!(code(&e), expected, "{text}, extended: {e:?}");
    }
    assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i64>(0), 1);
}

async fn count(client: &tokio_postgres::Client) -> i64 {
    client.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0)
}

async fn shown(client: &tokio_postgres::Client, name: &str) -> String {
    client.query_one(&format!("SHOW {name}"), &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_transaction_that_has_failed_takes_nothing_but_its_end() {
    let place = place().await;
    let mut client = place.connect().await;
    client.batch_execute("CREATE TABLE t (a INTEGER)").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
    transaction.query("SELECT * FROM missing", &[]).await.unwrap_err();
    let e = transaction.query("SELECT 1", &[]).await.unwrap_err();
    assert_eq!(code(&e), "25P02");
    transaction.rollback().await.unwrap();
    assert_eq!(count(&client).await, 0);
    // An error while rows are sent fails the transaction as well.
    client.batch_execute("BEGIN").await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (0)").await.unwrap();
    let e = client.simple_query("SELECT 1 / a FROM t").await.unwrap_err();
    assert_eq!(code(&e), "22012");
    assert_eq!(code(&client.simple_query("SELECT 1").await.unwrap_err()), "25P02");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(count(&client).await, 0);
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(count(&client).await, 1);
}

#[tokio::test]
async fn sessions_have_settings_of_their_own() {
    let place = place().await;
    let (one, other) = (place.connect().await, place.connect().await);
    one.batch_execute("SET threads = 1; SET application_name = 'x'").await.unwrap();
    assert_eq!((shown(&one, "threads").await, shown(&other, "threads").await), ("1".into(), "2".into()));
    assert_eq!(
        (shown(&one, "application_name").await, shown(&other, "application_name").await),
        ("x".into(), String::new())
    );
    assert_eq!(shown(&one, "server_version").await, format!("15.0 (Onehop {})", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn errors_of_syntax_say_where() {
    let place = place().await;
    let client = place.connect().await;
    let e = client.simple_query("SELECT 1; -- \u{e4}\nSELECT 2 WHERE )").await.unwrap_err();
    let position = e.as_db_error().unwrap().position();
    assert_eq!(position, Some(&tokio_postgres::error::ErrorPosition::Original(31)), "{e:?}");
}

#[tokio::test]
async fn connections_are_known_to_each_other() {
    let place = place().await;
    let mut config = place.config();
    config.application_name("watcher");
    let (one, _other) = (place.connect_with(&config).await.unwrap(), place.connect().await);
    let text = "SELECT user_name, application_name, state, query FROM onehop_activity ORDER BY connection";
    let rows = one.query(text, &[]).await.unwrap();
    let facts: Vec<(&str, &str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(facts, [("ada", "watcher", "active"), ("ada", "", "idle")]);
    assert_eq!(rows[0].get::<_, Option<&str>>(3), Some(text));
    assert_eq!(rows[1].get::<_, Option<&str>>(3), None);
}

#[tokio::test]
async fn figures_are_there_for_prometheus() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let place = support::place_with(onehop_server::Options { metrics, ..support::options() }).await;
    let client = place.connect().await;
    client.simple_query("SELECT 1").await.unwrap();
    client.simple_query("SELECT x").await.unwrap_err();
    let get = async |path: &str| {
        let mut stream = tokio::net::TcpStream::connect(place.metrics.unwrap()).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let text = get("/metrics").await;
    for line in ["HTTP/1.1 200 OK", "onehop_connections 1", "onehop_rows_sent_total 1", "onehop_errors_total 1"] {
        assert!(text.lines().any(|one| one == line), "{line} is not in {text}");
    }
    assert!(text.contains("onehop_moved_bytes_total{hop=\"storage_to_host\"} "), "{text}");
    assert!(get("/").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn portals_give_rows_as_they_are_asked_for() {
    let place = place().await;
    let mut client = place.connect().await;
    let transaction = client.transaction().await.unwrap();
    let portal = transaction.bind("SELECT value FROM generate_series(1, 10)", &[]).await.unwrap();
    let mut all = Vec::new();
    for expected in [4, 4, 2, 0] {
        let rows = transaction.query_portal(&portal, 4).await.unwrap();
        assert_eq!(rows.len(), expected);
        all.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    }
    assert_eq!(all, (1..=10).collect::<Vec<_>>());
    // Fetches some rows, and then the rest.
    let portal = transaction.bind("SELECT value FROM generate_series(1, 10)", &[]).await.unwrap();
    assert_eq!(transaction.query_portal(&portal, 4).await.unwrap().len(), 4);
    assert_eq!(transaction.query_portal(&portal, 0).await.unwrap().len(), 6);
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn copy_goes_both_ways() {
    let place = place().await;
    let client = place.connect().await;
    client.batch_execute("CREATE TABLE t (a INTEGER, b VARCHAR, c DATE, d DECIMAL(8,2))").await.unwrap();
    let lines = "1\tx\\ty\t2024-02-29\t1.50\n2\t\\N\t\\N\t-3\n";
    let sink = client.copy_in("COPY t FROM STDIN").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    for piece in lines.as_bytes().chunks(5) {
        sink.send(bytes::Bytes::copy_from_slice(piece)).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), 2);
    let read = |text: &'static str| {
        let client = &client;
        async move {
            let stream = client.copy_out(text).await.unwrap();
            let pieces: Vec<bytes::Bytes> = stream.try_collect().await.unwrap();
            String::from_utf8(pieces.concat()).unwrap()
        }
    };
    assert_eq!(read("COPY t TO STDOUT").await, "1\tx\\ty\t2024-02-29\t1.50\n2\t\\N\t\\N\t-3.00\n");
    assert_eq!(read("COPY (SELECT b, a FROM t ORDER BY a) TO STDOUT WITH CSV HEADER").await, "b,a\nx\ty,1\n,2\n");
    let e = {
        let sink = client.copy_in("COPY t (a) FROM STDIN").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        sink.send(bytes::Bytes::from_static(b"7\nseven\n")).await.unwrap();
        sink.finish().await.unwrap_err()
    };
    assert_eq!(code(&e), "22P02");
    assert_eq!(e.as_db_error().unwrap().where_(), Some("COPY t, line 2, column a: \"seven\""));
    assert_eq!(client.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get::<_, i64>(0), 2);
}

#[tokio::test]
async fn a_large_result_comes_whole() {
    let place = place().await;
    let client = place.connect().await;
    let rows =
        client.query_raw("SELECT value FROM generate_series(1, 300000)", std::iter::empty::<i32>()).await.unwrap();
    let mut rows = std::pin::pin!(rows);
    let (mut count, mut sum) = (0_i64, 0_i64);
    while let Some(row) = rows.next().await {
        count += 1;
        sum += row.unwrap().get::<_, i64>(0);
    }
    assert_eq!((count, sum), (300_000, 300_000 * 300_001 / 2));
}
