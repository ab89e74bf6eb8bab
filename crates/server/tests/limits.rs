//! Cancelled statements, disconnecting clients, and full or ending servers: no state leaks, and the
//! remaining clients are told.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use onehop_server::Options;
use support::{code, options, place, place_with};
use tokio_postgres::NoTls;

/// A statement that runs longer than any test. The tests end it.
const ENDLESS: &str =
    "SELECT count(*) FROM generate_series(1, 100000000) a, generate_series(1, 100000000) b WHERE a.a = -b.b";

async fn until(what: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !what().await {
        assert!(began.elapsed() < Duration::from_secs(120), "nothing has come of it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn running(client: &tokio_postgres::Client) -> i64 {
    let text = "SELECT count(*) FROM onehop_queries WHERE state = 'running' AND text LIKE '%100000000%' AND text NOT LIKE '%onehop_queries%'";
    client.query_one(text, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_statement_is_cancelled_by_its_key() {
    let place = place().await;
    let (client, other) = (place.connect().await, place.connect().await);
    let token = client.cancel_token();
    let endless = client.simple_query(ENDLESS);
    let cancel = async {
        until(async || running(&other).await == 1).await;
        token.cancel_query(NoTls).await.unwrap();
    };
    let (outcome, ()) = futures::join!(endless, cancel);
    assert_eq!(code(&outcome.unwrap_err()), "57014");
    // The next statement is not affected.
    assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i64>(0), 1);
    until(async || running(&other).await == 0).await;
}

#[tokio::test]
async fn a_statement_ends_at_its_timeout() {
    let place = place().await;
    let client = place.connect().await;
    client.batch_execute("SET statement_timeout = 200").await.unwrap();
    let e = client.simple_query(ENDLESS).await.unwrap_err();
    assert_eq!(code(&e), "57014");
    client.batch_execute("BEGIN").await.unwrap();
    assert_eq!(code(&client.simple_query(ENDLESS).await.unwrap_err()), "57014");
    assert_eq!(code(&client.simple_query("SELECT 1").await.unwrap_err()), "25P02");
}

#[tokio::test]
async fn a_client_that_goes_takes_its_statement_along() {
    let place = place().await;
    let other = place.connect().await;
    let (client, connection) = place.config().connect(NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let endless = tokio::spawn(async move {
        let _ = client.simple_query(ENDLESS).await;
    });
    until(async || running(&other).await == 1).await;
    connection.abort();
    until(async || running(&other).await == 0).await;
    endless.abort();
}

#[tokio::test]
async fn a_transaction_of_a_client_that_goes_is_rolled_back() {
    let place = place().await;
    let other = place.connect().await;
    other.batch_execute("CREATE TABLE t (a INTEGER)").await.unwrap();
    let (client, connection) = place.config().connect(NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    connection.abort();
    // The disconnected client held the writer's place.
    other.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    assert_eq!(other.query_one("SELECT sum(a) FROM t", &[]).await.unwrap().get::<_, i64>(0), 2);
}

#[tokio::test]
async fn a_full_server_says_so() {
    let place = place_with(Options { max_connections: 1, ..options() }).await;
    let client = place.connect().await;
    let Err(e) = place.connect_with(&place.config()).await else { panic!("there was room") };
    assert_eq!(code(&e), "53300");
    drop(client);
    until(async || place.connect_with(&place.config()).await.is_ok()).await;
}

#[tokio::test]
async fn statements_beyond_the_queue_are_refused() {
    let place = place_with(Options { max_queries: 1, max_queued: 1, ..options() }).await;
    let (first, second, third) = (place.connect().await, place.connect().await, place.connect().await);
    let fourth = place.connect().await;
    let token = first.cancel_token();
    let work = async {
        let e = first.simple_query(ENDLESS).await.unwrap_err();
        assert_eq!(code(&e), "57014");
    };
    let queued = async {
        // The later one is refused. The other waits until the first statement is cancelled.
        let outcomes = futures::future::select(
            Box::pin(second.query_one("SELECT 2", &[])),
            Box::pin(third.query_one("SELECT 2", &[])),
        );
        let (refused, waiting) = match outcomes.await {
            futures::future::Either::Left((outcome, waiting)) => (outcome, waiting),
            futures::future::Either::Right((outcome, waiting)) => (outcome, waiting),
        };
        assert_eq!(code(&refused.unwrap_err()), "53300");
        // Clients change settings when they connect.
        for text in ["SET statement_timeout = '1min'", "RESET statement_timeout"] {
            fourth.batch_execute(text).await.unwrap();
            fourth.execute(text, &[]).await.unwrap();
        }
        token.cancel_query(NoTls).await.unwrap();
        assert_eq!(waiting.await.unwrap().get::<_, i64>(0), 2);
    };
    let begun = async {
        until(async || place.database.session().unwrap().query().text().is_empty()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        queued.await;
    };
    futures::join!(work, begun);
}

#[tokio::test]
async fn a_server_ends_when_what_runs_has() {
    let mut place = place_with(Options { grace: Duration::from_millis(300), ..options() }).await;
    let (idle, busy) = (place.connect().await, place.connect().await);
    let endless = tokio::spawn(async move { busy.simple_query(ENDLESS).await });
    until(async || running(&idle).await == 1).await;
    place.ended().await;
    let e = endless.await.unwrap().unwrap_err();
    assert!(["57P01", "none"].contains(&code(&e)), "{e:?}");
    assert!(idle.simple_query("SELECT 1").await.is_err());
    assert!(place.connect_with(&place.config()).await.is_err());
}
