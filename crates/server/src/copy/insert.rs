//! `COPY ... FROM STDIN`: lines or binary rows of a client, as the rows of an `INSERT`.
//!
//! ```text
//! CopyData ─► Lines or Tuples ─► Batches, cast to the table's types ─► a short channel
//!          ─► Relation ─► INSERT INTO t SELECT ..
//! ```
//! The INSERT is an ordinary statement: it is part of the session's transaction, and inserts all of
//! its rows or none. A client that sends faster than rows are written waits.

use std::pin::pin;
use std::sync::Arc;

use onehop_engine::arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchReader};
use onehop_engine::arrow::compute::{CastOptions, cast_with_options};
use onehop_engine::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use onehop_engine::arrow::error::ArrowError;
use onehop_engine::{ClientCopy, CopyFormat, Output, Prepared, Relation};
use pgwire::messages::copy::CopyInResponse;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage as Message};
use tokio::sync::mpsc;

use super::columns::Column;
use super::lines::{Lines, Row};
use super::tuples::Tuples;
use crate::client::{Client, Failure, Outcome};
use crate::problem::{Problem, code};
use crate::run::on_workers;

/// The number of rows to cast at once.
const BATCH_ROWS: usize = 8192;
/// The text size in bytes that ends a batch early.
const BATCH_BYTES: usize = 4 << 20;
/// The number of batches that wait for the INSERT.
const BATCHES_AHEAD: usize = 2;

type Sender = mpsc::Sender<Result<RecordBatch, ArrowError>>;

/// A stream of batches. If the channel closes before the end marker, the stream fails.
struct FromClient {
    schema: SchemaRef,
    batches: mpsc::Receiver<Result<RecordBatch, ArrowError>>,
}

impl Iterator for FromClient {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.batches.blocking_recv() {
            // An empty batch is the end marker.
            Some(Ok(batch)) if batch.num_rows() == 0 => None,
            Some(next) => Some(next),
            None => Some(Err(ArrowError::ExternalError("the client has broken off".into()))),
        }
    }
}

impl RecordBatchReader for FromClient {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// The name of the rows in the INSERT. A session has one COPY at a time.
const ROWS: &str = "__onehop_copied";

/// Unregisters the name when dropped, regardless of the COPY's outcome.
struct Registered<'a>(&'a onehop_engine::Session);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.unregister(ROWS);
    }
}

impl Client {
    pub(super) async fn copy_in(&mut self, copy: &ClientCopy, table: &str, columns: &[String]) -> Outcome<String> {
        // Checked before the client sends anything.
        self.session.may_add_to(table)?;
        let schema = self.columns_of(table, columns).await?;
        self.enter().await?;
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let session = Arc::clone(&self.session);
        let _registered = Registered(&session);
        let reader = FromClient { schema: Arc::clone(&schema), batches };
        session.register(ROWS, Relation::of_reader(Box::new(reader)))?;
        let insert = insert(table, &schema);
        let prepared = Arc::new(session.parse(&insert)?);
        self.refuse_failed(&prepared)?;
        let count = schema.fields().len();
        let most_bytes = super::most_bytes(self.shared.database.memory_limit_bytes());
        let batches = Batches::new(copy, table, schema, most_bytes)?;
        let format = super::format(copy).code();
        let formats = CopyInResponse::new(format as i8, i16::try_from(count).unwrap_or(i16::MAX), vec![format; count]);
        self.link.put(PgWireBackendMessage::CopyInResponse(formats));
        self.link.flush().await?;
        let rows = self.feed(&prepared, batches, sender).await?;
        self.notices();
        Ok(format!("COPY {rows}"))
    }

    /// Returns the columns of the COPY, with the table's types.
    async fn columns_of(&mut self, table: &str, columns: &[String]) -> Outcome<SchemaRef> {
        let names: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
        let names = if names.is_empty() { "*".into() } else { names.join(", ") };
        let prepared = Arc::new(self.session.parse(&format!("SELECT {names} FROM {}", quoted(table)))?);
        self.refuse_failed(&prepared)?;
        let session = Arc::clone(&self.session);
        let described = self.on_workers(async move { session.describe(&prepared, &[]).await }).await?;
        let Some(columns) = described.columns else {
            return Err(Problem::error(code::BAD_COPY, "the table has no columns").into());
        };
        let zone = self.session.zone();
        let data_type = |field: &Field| match (field.data_type(), &zone) {
            // A time without an offset is in the session's zone.
            (DataType::Timestamp(unit, Some(_)), Some(zone)) => DataType::Timestamp(*unit, Some(zone.as_str().into())),
            (other, _) => other.clone(),
        };
        // The INSERT checks for NULLs.
        let fields = columns.fields().iter().map(|field| Field::new(field.name(), data_type(field), true));
        Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
    }

    /// Runs the INSERT and feeds it the client's rows. Returns the number of rows.
    async fn feed(&mut self, prepared: &Arc<Prepared>, batches: Batches, sender: Sender) -> Outcome<u64> {
        let executor = self.executor()?;
        let Self { incoming, shared, session, interrupt, .. } = self;
        let (inserting, prepared) = (Arc::clone(session), Arc::clone(prepared));
        let insert =
            on_workers(shared, &executor, session, interrupt, async move { inserting.sql(prepared.text()).await });
        let (mut insert, mut fed) = (pin!(insert), pin!(feed_all(incoming, batches, sender)));
        let inserted = tokio::select! {
            biased;
            // An INSERT that completes before it has all rows has failed, and no further rows are
            // read.
            inserted = &mut insert => inserted,
            fed = &mut fed => {
                let inserted = insert.await;
                // An error of the input takes precedence over the INSERT's error, which repeats it
                // in other words.
                fed?;
                inserted
            }
        };
        match inserted? {
            Output::Done(done) => Ok(done.rows.unwrap_or(0)),
            Output::Rows(_) => Err(Problem::error("XX000", "an INSERT has returned rows").into()),
        }
    }
}

/// Reads the client's messages up to the end of its rows. Tells the INSERT if they are malformed.
/// Stops if the receiver is closed, because the INSERT then reports the reason.
async fn feed_all(incoming: &mut crate::read::Incoming, mut batches: Batches, sender: Sender) -> Outcome<()> {
    let fail = |problem: Problem| async {
        let told: Result<RecordBatch, ArrowError> = Err(ArrowError::ExternalError(problem.message.clone().into()));
        let _ = sender.send(told).await;
        Failure::Problem(problem)
    };
    loop {
        let received = tokio::select! {
            biased;
            () = sender.closed() => return Ok(()),
            received = incoming.next() => received,
        };
        // The interrupt reports the disconnect, also to the INSERT.
        let Some(received) = received else { return Ok(()) };
        let is_done = matches!(received.message, Ok(Message::CopyDone(_)));
        let full = match received.message {
            Ok(Message::CopyData(data)) => batches.read(&data.data),
            Ok(Message::CopyDone(_)) => batches.finish(),
            Ok(Message::CopyFail(failed)) => {
                let message = format!("COPY from stdin failed: {}", failed.message);
                Err(Problem::error(code::QUERY_CANCELED, message))
            }
            Ok(Message::Flush(_) | Message::Sync(_)) => Ok(Vec::new()),
            Ok(_) => Err(Problem::fatal(code::PROTOCOL_VIOLATION, "unexpected message type during COPY from stdin")),
            Err(problem) => Err(problem),
        };
        match full {
            Ok(full) => {
                for batch in full {
                    if sender.send(Ok(batch)).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Err(problem) => return Err(fail(problem).await),
        }
        if is_done {
            return Ok(());
        }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn insert(table: &str, schema: &SchemaRef) -> String {
    let columns: Vec<String> = schema.fields().iter().map(|field| quoted(field.name())).collect();
    let columns = columns.join(", ");
    format!("INSERT INTO {} ({columns}) SELECT {columns} FROM {}", quoted(table), quoted(ROWS))
}

/// The rows on their way into batches.
struct Batches {
    source: Source,
    rows: Rows,
}

/// The parser of rows.
enum Source {
    Lines(Lines),
    Tuples(Tuples),
}

struct Rows {
    table: String,
    schema: SchemaRef,
    columns: Vec<Column>,
    /// The first line of each row.
    lines: Vec<u64>,
    bytes: usize,
    full: Vec<RecordBatch>,
}

impl Batches {
    fn new(copy: &ClientCopy, table: &str, schema: SchemaRef, most_bytes: usize) -> Result<Self, Problem> {
        let (fields, count) = (schema.fields().iter(), schema.fields().len());
        let (source, columns) = match copy.format {
            CopyFormat::Binary => {
                let columns = fields.map(|field| Column::of_binary(field)).collect::<Result<_, _>>()?;
                (Source::Tuples(Tuples::new(count, most_bytes)), columns)
            }
            CopyFormat::Text | CopyFormat::Csv => {
                (Source::Lines(Lines::new(copy, count, most_bytes)), fields.map(|_| Column::of_texts()).collect())
            }
        };
        let rows = Rows { table: table.into(), schema, columns, lines: Vec::new(), bytes: 0, full: Vec::new() };
        Ok(Self { source, rows })
    }

    /// Parses a piece. Returns the batches that it completes.
    fn read(&mut self, bytes: &[u8]) -> Result<Vec<RecordBatch>, Problem> {
        let Self { source, rows } = self;
        let read = match source {
            Source::Lines(lines) => lines.read(bytes, &mut |row, line| rows.add(row, line)),
            Source::Tuples(tuples) => tuples.read(bytes, &mut |fields, row| rows.add_fields(fields, row)),
        };
        read.map_err(|problem| rows.about(problem))?;
        Ok(std::mem::take(&mut rows.full))
    }

    /// Returns the remaining rows, and an empty batch as the end marker.
    fn finish(&mut self) -> Result<Vec<RecordBatch>, Problem> {
        let Self { source, rows } = self;
        let finished = match source {
            Source::Lines(lines) => lines.finish(&mut |row, line| rows.add(row, line)),
            Source::Tuples(tuples) => tuples.finish(),
        };
        finished.map_err(|problem| rows.about(problem))?;
        if !rows.lines.is_empty() {
            rows.complete()?;
        }
        let mut last = std::mem::take(&mut rows.full);
        last.push(RecordBatch::new_empty(Arc::clone(&rows.schema)));
        Ok(last)
    }
}

impl Rows {
    fn add(&mut self, row: Row, line: u64) -> Result<(), Problem> {
        for (builder, value) in self.columns.iter_mut().zip(row) {
            self.bytes += value.as_ref().map_or(0, String::len);
            builder.push_text(value);
        }
        self.added(line)
    }

    /// Like [`add`](Self::add), for binary values.
    fn add_fields(&mut self, fields: &[Option<&[u8]>], row: u64) -> Result<(), Problem> {
        for (at, (column, value)) in self.columns.iter_mut().zip(fields).enumerate() {
            self.bytes += value.map_or(0, <[u8]>::len);
            column.push(*value).ok_or_else(|| {
                let field = self.schema.field(at);
                let pg_type = crate::types::pg_type(&crate::types::wire_type(field.data_type()));
                let message = format!("incorrect binary data format for type {}", pg_type.name());
                Problem::error(code::INVALID_BINARY, message).with_context(format!(
                    "COPY {}, line {row}, column {}",
                    self.table,
                    field.name()
                ))
            })?;
        }
        self.added(row)
    }

    fn added(&mut self, line: u64) -> Result<(), Problem> {
        self.lines.push(line);
        match self.lines.len() == BATCH_ROWS || self.bytes >= BATCH_BYTES {
            true => self.complete(),
            false => Ok(()),
        }
    }

    fn about(&self, mut problem: Problem) -> Problem {
        problem.context = problem.context.map(|context| match context.starts_with("COPY") {
            true => context,
            false => format!("COPY {}, {context}", self.table),
        });
        problem
    }

    fn complete(&mut self) -> Result<(), Problem> {
        let texts: Vec<ArrayRef> = self.columns.iter_mut().map(Column::finish).collect();
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let mut columns = Vec::with_capacity(texts.len());
        for (at, text) in texts.iter().enumerate() {
            let column = cast_with_options(text, self.schema.field(at).data_type(), &strict);
            columns.push(column.map_err(|e| self.wrong_value(at, text, &e))?);
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        self.full.push(batch.map_err(|e| Problem::error(code::BAD_COPY, e.to_string()))?);
        self.lines.clear();
        self.bytes = 0;
        Ok(())
    }

    /// Returns the error for the value that failed to cast.
    fn wrong_value(&self, column: usize, text: &ArrayRef, e: &ArrowError) -> Problem {
        use onehop_engine::arrow::array::AsArray;
        let field = self.schema.field(column);
        let problem = Problem::error(code::INVALID_TEXT, e.to_string());
        let loose = CastOptions { safe: true, ..CastOptions::default() };
        let Ok(cast) = cast_with_options(text, field.data_type(), &loose) else { return problem };
        // A binary column reports its value in its own error.
        let Some(text) = text.as_string_opt::<i32>() else { return problem };
        let row = (0..text.len()).find(|row| text.is_valid(*row) && cast.is_null(*row));
        let Some(row) = row else { return problem };
        let (value, line) = (text.value(row), self.lines.get(row).copied().unwrap_or(0));
        let shown: String = value.chars().take(80).collect();
        let type_name = crate::types::pg_type(&crate::types::wire_type(field.data_type()));
        Problem::error(code::INVALID_TEXT, format!("invalid input syntax for type {}: \"{shown}\"", type_name.name()))
            .with_context(format!("COPY {}, line {line}, column {}: \"{shown}\"", self.table, field.name()))
    }
}
