//! Rows that a program has in its memory, or makes as they are read, as tables of one session.
//!
//! - Batches are read where they are: what is scanned has the columns' own buffers.
//! - A reader is read once, by a thread that may wait for it, and no faster than the statement takes its rows.
//! - A relation is its session's, as a setting is: no view stands on it, no other session sees it, and nothing is written to
//!   it. A name is either a relation's or the database's: where it has come to be both, it is an error.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;

use crate::{Error, ErrorKind, Result};

/// Batches of a reader that wait for the statement.
const BATCHES_AHEAD: usize = 1;

/// The relations of a session, by name.
pub(crate) type Relations = BTreeMap<String, Relation>;

type Reader = Box<dyn RecordBatchReader + Send>;

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
}

impl fmt::Debug for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relation").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Relation {
    /// Rows that are in memory. They are not copied.
    pub fn of_batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, rows: Rows::Batches(batches) }
    }

    /// Rows that are made as they are read, which is once. The reader may block; it is dropped when it has been read, or its
    /// statement has ended.
    pub fn of_reader(reader: Box<dyn RecordBatchReader + Send>) -> Self {
        Self { schema: reader.schema(), rows: Rows::Reader(Arc::new(Mutex::new(Some(reader)))) }
    }

    /// Under its name, to DataFusion.
    pub(crate) fn table(&self, name: &str) -> Result<Arc<dyn TableProvider>> {
        let schema = Arc::clone(&self.schema);
        Ok(match &self.rows {
            Rows::Batches(batches) => Arc::new(MemTable::try_new(schema, vec![batches.clone()])?),
            Rows::Reader(reader) => {
                let once = ReadOnce { name: name.into(), schema: Arc::clone(&schema), reader: Arc::clone(reader) };
                Arc::new(StreamingTable::try_new(schema, vec![Arc::new(once)])?)
            }
        })
    }
}

/// The one partition of a reader's rows.
struct ReadOnce {
    name: String,
    schema: SchemaRef,
    reader: Arc<Mutex<Option<Reader>>>,
}

impl fmt::Debug for ReadOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOnce").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartitionStream for ReadOnce {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut stream = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), BATCHES_AHEAD);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (name, rows) = (self.name.clone(), stream.tx());
        // A thread of its own: the reader may wait for whatever it likes.
        stream.spawn_blocking(move || {
            let Some(mut reader) = reader else { return Err(read_before(&name).into()) };
            for batch in &mut reader {
                let batch = batch.map_err(|e| failed(&name, e).into());
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
