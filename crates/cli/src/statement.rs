//! Runs one statement, from its text to its last row on standard output.
//!
//! The engine runs on a separate runtime and sends batches over a short channel to this thread,
//! which writes them. A computation that does not yield therefore cannot delay Ctrl-C or the
//! progress bar, writing overlaps computing, and a slow reader of our output slows the query down
//! instead of filling memory.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;
use onehop_engine::{Done, Engine, Error, ErrorKind, Executors, LedgerSnapshot, Output, Query, Session};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::{JoinError, JoinHandle};

use crate::exit::Stop;
use crate::format::Sink;
use crate::interrupt::{Busy, Interrupts};
use crate::progress::{Bar, Meter, TICK};
use crate::view::View;

/// The number of batches between the engine and the writer.
const QUEUED_BATCHES: usize = 2;

/// The time a cancelled statement gets to release its resources before the client continues without
/// it.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);

/// The report of a finished statement.
#[derive(Debug)]
pub struct Finished {
    /// The outcome.
    pub outcome: Outcome,
    /// The time from its text to its last written row.
    pub elapsed: Duration,
    /// The planning time, a part of `elapsed`.
    pub plan_time: Duration,
    /// The bytes moved.
    pub ledger: LedgerSnapshot,
    /// The devices that ran it.
    pub engine: Engine,
}

/// The outcome of a statement.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The number of rows returned.
    Rows(u64),
    /// Completion without rows.
    Done(Done),
}

enum Piece {
    Schema(SchemaRef),
    Batch(RecordBatch),
}

/// Runs one statement on the engine's workers and prints its rows. Must be awaited on another
/// runtime, because it blocks while output blocks.
pub async fn run(
    executors: &Executors,
    session: &Arc<Session>,
    sql: &str,
    view: &View,
    interrupts: &Interrupts,
) -> Result<Finished, Stop> {
    let busy = interrupts.busy();
    let before = session.query();
    let (sender, mut pieces) = mpsc::channel(QUEUED_BATCHES);
    let mut task = executors.lend(())?.spawn(execute(Arc::clone(session), sql.to_string(), sender));
    let began = std::time::Instant::now();
    let written = write_all(&mut pieces, session, &before, view, &busy).await;
    let sink = match written {
        Ok(sink) => sink,
        Err(stop) => {
            cancel(&mut task, &busy).await;
            return Err(match stop {
                Written::Interrupted => Stop::Interrupted(began.elapsed()),
                Written::Failed(stop) => stop,
            });
        }
    };
    // The rows are known to be complete only now. Until then, nothing may make the result look
    // complete.
    let done = task.await.map_err(panicked)??;
    let rows = sink.map_or(Ok(0), Sink::finish)?;
    let query = session.query();
    Ok(Finished {
        outcome: done.map_or(Outcome::Rows(rows), Outcome::Done),
        elapsed: query.elapsed(),
        plan_time: query.plan_time(),
        ledger: query.ledger(),
        engine: query.engine(),
    })
}

/// The reason writing ended before the rows did.
enum Written {
    Interrupted,
    Failed(Stop),
}

impl<T: Into<Stop>> From<T> for Written {
    fn from(stop: T) -> Self {
        Written::Failed(stop.into())
    }
}

/// Writes rows as they arrive, until the rows end or fail. Returns `None` if there was no schema.
async fn write_all(
    pieces: &mut mpsc::Receiver<Piece>,
    session: &Session,
    before: &Arc<Query>,
    view: &View,
    busy: &Busy<'_>,
) -> Result<Option<Sink>, Written> {
    let (mut sink, mut may_stop) = (None, true);
    let mut overdue = pin!(session.overdue(before));
    let mut meter = Meter::new(if view.progress { Bar::Allowed } else { Bar::Off });
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        let piece = tokio::select! {
            biased;
            () = busy.pressed(), if may_stop => {
                if session.stop_after(before) {
                    return Err(Written::Interrupted);
                }
                // The changes are being committed, so that the statement completes soon.
                may_stop = false;
                continue;
            }
            error = &mut overdue => return Err(Stop::from(error).into()),
            _ = ticks.tick() => {
                meter.tick(&session.query());
                continue;
            }
            piece = pieces.recv() => piece,
        };
        match (piece, &mut sink) {
            (Some(Piece::Schema(schema)), _) => sink = Some(Sink::new(&schema, session.zone().as_deref(), view)?),
            (Some(Piece::Batch(batch)), Some(sink)) => meter.aside(|| sink.write(&batch))?,
            (Some(Piece::Batch(_)), None) => {}
            (None, _) => return Ok(sink),
        }
    }
}

/// Runs the statement on the engine's side. The rows and the channel end when this returns. Its
/// result tells whether they are complete.
async fn execute(session: Arc<Session>, sql: String, sender: Sender<Piece>) -> Result<Option<Done>, Error> {
    let mut rows = match session.sql(&sql).await? {
        Output::Done(done) => return Ok(Some(done)),
        Output::Rows(rows) => rows,
    };
    let gone = |_| Error::new(ErrorKind::Cancelled, "the reader of the rows is gone");
    sender.send(Piece::Schema(Arc::clone(rows.schema()))).await.map_err(gone)?;
    while let Some(batch) = rows.next().await {
        sender.send(Piece::Batch(batch?)).await.map_err(gone)?;
    }
    Ok(None)
}

/// Aborts the statement and waits a moment for it to release memory and files. A second Ctrl-C ends
/// the process meanwhile.
async fn cancel(task: &mut JoinHandle<Result<Option<Done>, Error>>, _busy: &Busy<'_>) {
    task.abort();
    let _ = tokio::time::timeout(CANCEL_PATIENCE, task).await;
}

/// Converts a panic of the engine's side.
pub fn panicked(e: JoinError) -> Stop {
    let error = Error::new(ErrorKind::Internal, "the engine stopped at a bug of its own").with_source(e);
    Stop::Engine(error.with_hint("please report it with the statement and the lines above"))
}
