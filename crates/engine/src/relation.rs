//! Rows that a program has in its memory, or makes as they are read, as tables of one session.
//!
//! - Batches are read where they are: what is scanned has the columns' own buffers.
//! - A reader is read once, by a thread that may wait for it, and no faster than the statement takes its rows.
//! - A source is opened anew by each scan, so that it can be read any number of times.
//! - Encoded columns are decoded, but for dictionaries of texts: see [`encoded`](crate::encoded).
//! - Metadata of a schema describes the rows as they were handed over, not what a query makes of them: pandas', for one, has
//!   the types and the index of columns by their names. It ends here. Metadata of a column is part of its type, and stays.
//! - A relation is its session's, as a setting is: no view stands on it, no other session sees it, and nothing is written to
//!   it. A name is either a relation's or the database's: where it has come to be both, it is an error.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{RecordBatch, RecordBatchOptions, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;

use crate::encoded::{entered_batch, entered_schema};
use crate::{Error, ErrorKind, Result};

/// Batches of a reader that wait for the statement.
const BATCHES_AHEAD: usize = 1;

/// The relations of a session, by name.
pub(crate) type Relations = BTreeMap<String, Relation>;

type Reader = Box<dyn RecordBatchReader + Send>;

/// Opens a source.
type Opener = dyn Fn() -> std::result::Result<Reader, ArrowError> + Send + Sync;

/// Rows from outside of the database. Clones are the same relation.
#[derive(Clone)]
pub struct Relation {
    schema: SchemaRef,
    rows: Rows,
}

#[derive(Clone)]
enum Rows {
    Batches(Vec<RecordBatch>),
    /// `None` once it has been read.
    Reader(Arc<Mutex<Option<Reader>>>),
    Source(Arc<Opener>),
}

impl fmt::Debug for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relation").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Relation {
    /// Rows that are in memory. They are not copied.
    pub fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        let schema = plain(&schema);
        let batches = batches.into_iter().map(|batch| labelled(batch, &schema)).collect();
        Self { schema, rows: Rows::Batches(batches) }
    }

    /// Rows that are made as they are read, which is once. The reader may block; it is dropped when it has been read, or its
    /// statement has ended.
    pub fn of_reader(reader: Box<dyn RecordBatchReader + Send>) -> Self {
        Self { schema: plain(&reader.schema()), rows: Rows::Reader(Arc::new(Mutex::new(Some(reader)))) }
    }

    /// Rows of a source that can be opened any number of times. Its readers may block, as those of [`Relation::of_reader`].
    pub fn of_source(
        schema: &Schema,
        open: impl Fn() -> std::result::Result<Box<dyn RecordBatchReader + Send>, ArrowError> + Send + Sync + 'static,
    ) -> Self {
        Self { schema: plain(schema), rows: Rows::Source(Arc::new(open)) }
    }

    /// Under its name, to DataFusion.
    pub(crate) fn table(&self, name: &str) -> Result<Arc<dyn TableProvider>> {
        let schema = Arc::clone(&self.schema);
        Ok(match &self.rows {
            Rows::Batches(batches) => Arc::new(MemTable::try_new(schema, vec![batches.clone()])?),
            Rows::Reader(_) | Rows::Source(_) => {
                let read = Read { name: name.into(), schema: Arc::clone(&schema), rows: self.rows.clone() };
                Arc::new(StreamingTable::try_new(schema, vec![Arc::new(read)])?)
            }
        })
    }
}

/// A schema without metadata of its own, and without encodings.
fn plain(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new(entered_schema(schema).fields().clone()))
}

/// The same rows under this schema, whose columns they have.
fn labelled(batch: RecordBatch, schema: &SchemaRef) -> RecordBatch {
    // A column that cannot be decoded is of another schema as well.
    let batch = entered_batch(batch.clone()).unwrap_or(batch);
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let labelled = RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options);
    // Rows of another schema are refused by those that scan them.
    labelled.unwrap_or(batch)
}

/// The one partition of a reader's rows.
struct Read {
    name: String,
    schema: SchemaRef,
    rows: Rows,
}

impl Read {
    /// The reader of one scan.
    fn open(&self) -> Result<Reader> {
        match &self.rows {
            Rows::Source(open) => open().map_err(|e| failed(&self.name, e)),
            Rows::Reader(reader) => {
                let reader = reader.lock().unwrap_or_else(PoisonError::into_inner).take();
                reader.ok_or_else(|| read_before(&self.name))
            }
            Rows::Batches(_) => Err(Error::new(ErrorKind::Internal, "batches in memory have no reader")),
        }
    }
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartitionStream for Read {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut stream = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), BATCHES_AHEAD);
        let read = Self { name: self.name.clone(), schema: Arc::clone(&self.schema), rows: self.rows.clone() };
        let rows = stream.tx();
        // A thread of its own: the reader may wait for whatever it likes.
        stream.spawn_blocking(move || {
            for batch in read.open()? {
                let batch = batch.map_err(|e| failed(&read.name, e).into());
                let batch = batch.map(|batch| labelled(batch, &read.schema));
                let is_last = batch.is_err();
                // Without anybody who wants more, or after an error, there is no more.
                if rows.blocking_send(batch).is_err() || is_last {
                    break;
                }
            }
            Ok(())
        });
        stream.build()
    }
}

fn failed(name: &str, e: ArrowError) -> Error {
    Error::new(ErrorKind::Data, format!("the reader \"{name}\" failed: {e}")).with_source(e)
}

fn read_before(name: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the reader \"{name}\" has been read, and can be read once"))
        .with_hint("read it into a table first, and register that")
}
