//! Runs engine work on the engine's threads, and carries its rows to the client.
//!
//! Each wait here is for the engine or for the client to read, and ends early at an
//! [`Interrupt`](crate::interrupt::Interrupt). Interrupted work is aborted and then awaited,
//! because the session's next statement must not run beside it. A statement whose changes are being
//! committed is not interrupted: its client learns that they are committed.
//!
//! Work that takes no longer than a commit stays on its thread and waits for no place. Each thread
//! switch takes as long as a commit on some devices. Work that turns out longer moves to the
//! engine's threads by itself.

use std::sync::Arc;

use futures::StreamExt;
use onehop_engine::arrow::array::ArrayRef;
use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::{
    Ended, Error, ErrorKind, Executor, Output, Prepared, Rows, Session, StatementKind, Task, TransactionState, Value,
};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::RowDescription;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::client::{Client, Outcome, ended};
use crate::encode::{Format, put_rows, to_wire};
use crate::extended::spread;
use crate::interrupt::{Interrupt, Reason};
use crate::metrics::Counters;
use crate::problem::Problem;
use crate::server::Shared;
use crate::types::description;

/// The maximum size in bytes of a statement that is parsed on the front runtime. Parsing it takes
/// some hundred microseconds.
const LONG_TEXT: usize = 16 << 10;

/// The number of rows to encode before the task yields.
const ROWS_AT_ONCE: usize = 256;

/// The rows of a statement on their way to the client.
#[derive(Debug)]
pub struct Running {
    rows: Rows,
    /// The columns that the client was told.
    told: SchemaRef,
    formats: Vec<Format>,
    /// The columns of the batch that is being sent, and the next row of it.
    batch: Option<(Vec<ArrayRef>, usize)>,
    /// The number of rows sent.
    pub sent: u64,
}

/// The result of sending rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    All,
    /// The requested number of rows was sent.
    Some,
}

impl Running {
    /// Creates the rows of a statement that has not sent any.
    pub fn new(rows: Rows, told: SchemaRef, formats: Vec<Format>) -> Self {
        Self { rows, told, formats, batch: None, sent: 0 }
    }

    /// Waits until the statement is stopped.
    pub fn stopped(&self) -> impl Future<Output = Error> + Send + 'static {
        self.rows.stopped()
    }

    /// Sets the formats of further rows: one for all columns, or one for each.
    pub fn fetch_as(&mut self, formats: &[Format]) -> Result<(), Problem> {
        self.formats = spread(formats.to_vec(), self.told.fields().len(), "columns")?;
        Ok(())
    }
}

impl Client {
    /// Takes a place for a running statement.
    pub async fn enter(&mut self) -> Outcome<()> {
        if self.place.is_some() || self.session.transaction() != TransactionState::None {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let place = tokio::select! {
            biased;
            reason = self.interrupt.statement_ends() => return Err(ended(reason)),
            place = shared.admission.enter() => place?,
            error = self.session.out_of_time() => return Err(error.into()),
        };
        // The place is held until the last work of the statement ends, independent of the time its
        // client is told.
        self.place = Some(shared.executors.lend(place)?);
        Ok(())
    }

    /// Returns the executor of the client's place. In a transaction a client needs no place, and
    /// gets an executor for one statement.
    pub fn executor(&self) -> Outcome<Executor> {
        Ok(self.place.clone().map_or_else(|| self.shared.executors.lend(()), Ok)?)
    }

    /// Runs engine work on the engine's threads.
    pub async fn on_workers<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Outcome<T> {
        on_workers(&self.shared, &self.executor()?, &self.session, &self.interrupt, work).await
    }

    /// Parses a statement. A long one is parsed on the engine's threads, because that takes a
    /// while.
    pub async fn parsed(&self, text: &str) -> Outcome<Result<Prepared, Error>> {
        if text.len() <= LONG_TEXT {
            return Ok(self.session.parse(text));
        }
        let (session, text) = (Arc::clone(&self.session), text.to_string());
        self.on_workers(async move { Ok(session.parse(&text)) }).await
    }

    /// Runs a statement with values for its parameters.
    pub async fn run(&mut self, prepared: &Arc<Prepared>, values: Vec<Value>) -> Outcome<Output> {
        let (is_short, is_end) = (prepared.is_short(), *prepared.kind() == StatementKind::End);
        if !is_short {
            self.enter().await?;
        }
        Counters::count(&self.shared.counters.statements, 1);
        let (session, prepared) = (Arc::clone(&self.session), Arc::clone(prepared));
        let work = async move {
            match prepared.parameters() {
                0 if !is_short => session.sql(prepared.text()).await,
                _ => session.execute(&prepared, &values).await,
            }
        };
        let may_stay = is_short && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        let executor = self.executor()?;
        let begin = || if may_stay { Task::here(&executor, work) } else { Task::there(&executor, work) };
        let output = done(&self.shared, &self.session, &self.interrupt, begin).await?;
        if let (Output::Done(ended), true) = (&output, is_end) {
            self.transaction_ended(ended.tag);
        }
        Ok(output)
    }

    /// Sends the columns of the rows.
    pub fn put_columns(&mut self, schema: &SchemaRef, formats: &[Format]) {
        let fields = schema.fields().iter().zip(formats);
        let fields = fields.map(|(field, format)| description(field, format.code())).collect();
        self.link.put(PgWireBackendMessage::RowDescription(RowDescription::new(fields)));
    }

    /// Returns whether there are more rows. If so, `running.batch` has some.
    async fn has_rows(&mut self, running: &mut Running) -> Outcome<bool> {
        if running.batch.is_none() {
            running.batch = self.next_batch(running).await?.map(|columns| (columns, 0));
        }
        Ok(running.batch.is_some())
    }

    /// Skips all rows, or at most `most`.
    pub async fn skip_rows(&mut self, running: &mut Running, most: Option<u64>) -> Outcome<Sent> {
        let mut left = most.unwrap_or(u64::MAX);
        while left > 0 {
            if !self.has_rows(running).await? {
                return Ok(Sent::All);
            }
            let Some((columns, next)) = &mut running.batch else { continue };
            let rows = columns.first().map_or(0, |column| column.len());
            let count = (rows - *next).min(usize::try_from(left).unwrap_or(usize::MAX));
            (*next, left, running.sent) = (*next + count, left - count as u64, running.sent + count as u64);
            if *next == rows {
                running.batch = None;
            }
        }
        Ok(Sent::Some)
    }

    /// Sends all rows, or at most `most`.
    pub async fn send_rows(&mut self, running: &mut Running, most: Option<u64>) -> Outcome<Sent> {
        let mut left = most.unwrap_or(u64::MAX);
        loop {
            if left == 0 {
                return Ok(Sent::Some);
            }
            if !self.has_rows(running).await? {
                return Ok(Sent::All);
            }
            let Some((columns, next)) = &mut running.batch else { continue };
            let rows = columns.first().map_or(0, |column| column.len());
            let left_here = usize::try_from(left).unwrap_or(usize::MAX);
            let until = rows.min(*next + ROWS_AT_ONCE).min(next.saturating_add(left_here));
            put_rows(columns, &running.formats, *next..until, &self.style, self.link.buffer())?;
            let count = (until - *next) as u64;
            (running.sent, left) = (running.sent + count, left - count);
            Counters::count(&self.shared.counters.rows, count);
            match until == rows {
                true => running.batch = None,
                false => *next = until,
            }
            if self.link.is_full() {
                self.flush().await?;
            }
        }
    }

    /// Writes the gathered output, unless the statement has to end.
    pub async fn flush(&mut self) -> Outcome<()> {
        let (interrupt, session) = (Arc::clone(&self.interrupt), Arc::clone(&self.session));
        tokio::select! {
            biased;
            reason = rows_end(&interrupt, &session) => Err(ended(reason)),
            flushed = self.link.flush() => Ok(flushed?),
        }
    }

    /// Returns the columns of the next rows, as the client knows them.
    pub async fn next_batch(&mut self, running: &mut Running) -> Outcome<Option<Vec<ArrayRef>>> {
        let batch = tokio::select! {
            biased;
            reason = rows_end(&self.interrupt, &self.session) => return Err(ended(reason)),
            batch = running.rows.next() => batch,
        };
        match batch {
            None => Ok(None),
            // A batch without columns still has rows.
            Some(Ok(batch)) if batch.num_columns() == 0 => {
                let empty = onehop_engine::arrow::array::NullArray::new(batch.num_rows());
                running.formats.clear();
                Ok(Some(vec![Arc::new(empty)]))
            }
            Some(batch) => Ok(Some(to_wire(&batch?, &running.told)?)),
        }
    }
}

/// Waits until the rows of the running statement have to end. A cancellation of a settled statement
/// is ignored, because its changes are committed.
async fn rows_end(interrupt: &Interrupt, session: &Session) -> Reason {
    loop {
        match interrupt.statement_ends().await {
            Reason::Cancelled if session.query().is_settled() => interrupt.forget_request(),
            reason => return reason,
        }
    }
}

/// Runs engine work on the engine's threads, unless it is interrupted.
pub async fn on_workers<T: Send + 'static>(
    shared: &Shared,
    executor: &Executor,
    session: &Session,
    interrupt: &Interrupt,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Outcome<T> {
    done(shared, session, interrupt, || Task::there(executor, work)).await
}

/// Waits for engine work, unless it is interrupted.
async fn done<T: Send + 'static>(
    shared: &Shared,
    session: &Session,
    interrupt: &Interrupt,
    begin: impl FnOnce() -> Task<Result<T, Error>>,
) -> Outcome<T> {
    let before = session.query();
    let mut task = begin();
    let reason = tokio::select! {
        biased;
        outcome = &mut task => return told(outcome),
        reason = interrupt.statement_ends() => reason,
        error = session.overdue(&before) => {
            // The work continues with its threads and its place. Its client does not wait for it.
            task.stop();
            return Err(error.into());
        }
    };
    if !session.stop_after(&before) {
        return told(task.await);
    }
    task.stop();
    match tokio::time::timeout(shared.options.patience, &mut task).await {
        // The work completed before it could be stopped.
        Ok(Ok(outcome @ Ok(_))) => told(Ok(outcome)),
        Ok(_) => Err(ended(reason)),
        Err(_) => Err(ended(reason)),
    }
}

/// Converts the outcome of engine work.
fn told<T>(outcome: Result<Result<T, Error>, Ended>) -> Outcome<T> {
    match outcome {
        Ok(outcome) => Ok(outcome?),
        Err(Ended::Stopped | Ended::Panicked) => {
            let error = Error::new(ErrorKind::Internal, "the engine stopped at a bug of its own");
            Err(error.with_hint("please report it, with the statement").into())
        }
    }
}

/// Returns the command tag of a completed statement.
pub fn tag(tag: &str, rows: Option<u64>) -> String {
    match (tag, rows) {
        ("INSERT", Some(rows)) => format!("INSERT 0 {rows}"),
        ("UPDATE" | "DELETE" | "COPY" | "SELECT", Some(rows)) => format!("{tag} {rows}"),
        // The tag of `CREATE TABLE AS`.
        ("CREATE TABLE", Some(rows)) => format!("SELECT {rows}"),
        _ => tag.to_string(),
    }
}
