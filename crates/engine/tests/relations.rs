//! Rows from outside as tables of a session.
//!
//! Claims:
//! - batches are scanned where they are;
//! - a reader is read once, as far as a statement wants, and what it fails with names it;
//! - a name is a relation's or the database's, never silently both; plans that are kept do not mix them up;
//! - relations are a session's: no view stands on them, nothing is written to them.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchIterator};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use futures::StreamExt;
use onehop_engine::{Database, DatabaseOptions, ErrorKind, Output, Relation, Session};
use support::{fails, run};

fn session() -> Session {
    Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap()
}

fn batch(numbers: impl IntoIterator<Item = i64>) -> RecordBatch {
    RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(numbers)) as ArrayRef)]).unwrap()
}

fn relation(numbers: impl IntoIterator<Item = i64>) -> Relation {
    let batch = batch(numbers);
    Relation::of_batches(batch.schema(), vec![batch])
}

/// A reader of these batches, and how many were asked for.
fn reader<I>(batches: I) -> (Relation, Arc<AtomicUsize>)
where
    I: IntoIterator<Item = Result<RecordBatch, ArrowError>>,
    I::IntoIter: Send + 'static,
{
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let batches = batches.into_iter().inspect(move |_| _ = counted.fetch_add(1, SeqCst));
    (Relation::of_reader(Box::new(RecordBatchIterator::new(batches, batch([]).schema()))), asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_scanned_where_they_are() {
    let session = session();
    let whole = batch(0..100_000);
    session.register("r", Relation::of_batches(whole.schema(), vec![whole.clone()])).unwrap();
    let Output::Rows(mut rows) = session.sql("SELECT n FROM r").await.unwrap() else { panic!("no rows") };
    let first = rows.next().await.unwrap().unwrap();
    let values = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().as_ptr();
    assert_eq!(values(&first), values(&whole));
    // As often as one likes.
    assert_eq!(run(&session, "SELECT sum(a.n), count(*) FROM r a JOIN r b ON a.n = b.n").await, ["4999950000|100000"]);
    run(&session, "CREATE TABLE kept AS SELECT * FROM r").await;
    assert!(session.unregister("r") && !session.unregister("r"));
    assert_eq!(run(&session, "SELECT count(*) FROM kept").await, ["100000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_read_once_and_as_far_as_wanted() {
    let session = session();
    session.register("r", reader((0..100).map(|n| Ok(batch([n])))).0).unwrap();
    assert_eq!(run(&session, "SELECT sum(n) FROM r").await, ["4950"]);
    assert!(fails(&session, "SELECT sum(n) FROM r").await.message().contains("\"r\" has been read"));
    let (endless, asked) = reader((0..).map(|n| Ok(batch([n]))));
    session.register("endless", endless).unwrap();
    assert_eq!(run(&session, "SELECT n FROM endless LIMIT 3").await, ["0", "1", "2"]);
    assert!(asked.load(SeqCst) < 50, "{asked:?}");
    let (twice, _) = reader((0..3).map(|n| Ok(batch([n]))));
    session.register("twice", twice).unwrap();
    assert_eq!(fails(&session, "SELECT * FROM twice a, twice b").await.kind(), ErrorKind::Invalid);
    let broken = [Ok(batch([1])), Err(ArrowError::ComputeError("out of ink".into()))];
    session.register("broken", reader(broken).0).unwrap();
    let error = fails(&session, "SELECT sum(n) FROM broken").await;
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().contains("\"broken\"") && error.message().contains("out of ink"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_one_thing() {
    let session = session();
    session.register("r", relation([1])).unwrap();
    let kind = |name: &str| session.register(name, relation([1])).map_err(|e| e.kind());
    run(&session, "CREATE TABLE t AS SELECT 5 AS n").await;
    run(&session, "CREATE VIEW v AS SELECT 5 AS n").await;
    for taken in ["r", "t", "v", "onehop_tables"] {
        assert_eq!(kind(taken), Err(ErrorKind::AlreadyExists), "{taken}");
    }
    for wrong in ["", "a.csv", "a/b"] {
        assert_eq!(kind(wrong), Err(ErrorKind::Invalid), "{wrong}");
    }
    // The same text, over the database's table, whose plan is kept, and over a relation.
    let other = session.database().session().unwrap();
    let sum = "SELECT sum(n) FROM late";
    session.register("late", relation([1, 2])).unwrap();
    assert_eq!(run(&session, sum).await, ["3"]);
    run(&other, "CREATE TABLE late AS SELECT 7 AS n").await;
    assert_eq!((run(&other, sum).await, run(&other, sum).await), (vec!["7".into()], vec!["7".into()]));
    assert!(fails(&session, sum).await.message().contains("registered by this session as well"));
    assert!(session.unregister("late"));
    assert_eq!(run(&session, sum).await, ["7"]);
    assert!(fails(&other, "SELECT * FROM r").await.hint().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stands_on_relations() {
    let session = session();
    session.register("r", relation([1])).unwrap();
    for text in ["CREATE VIEW v AS SELECT * FROM r", "INSERT INTO r VALUES (1)", "DELETE FROM r", "DROP TABLE r"] {
        assert_eq!(fails(&session, text).await.kind(), ErrorKind::NotFound, "{text}");
    }
    // Nor does what a view names become one.
    run(&session, "CREATE TABLE base AS SELECT 1 AS n").await;
    run(&session, "CREATE VIEW v AS SELECT n FROM base").await;
    run(&session, "DROP TABLE base").await;
    session.register("base", relation([2])).unwrap();
    assert!(fails(&session, "SELECT * FROM v").await.message().contains("no longer works"));
}
