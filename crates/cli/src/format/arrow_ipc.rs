//! The Arrow IPC stream format. Each result is a stream of its own, with its schema and its end. A
//! reader of several results opens one stream after the other on the same input.

use std::io::Write;

use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::ipc::writer::StreamWriter;
use onehop_engine::arrow::record_batch::RecordBatch;

use super::RowWriter;
use crate::exit::Stop;

/// The writer.
pub struct ArrowIpc {
    writer: StreamWriter<Vec<u8>>,
}

impl ArrowIpc {
    /// Creates a writer for results of this schema.
    pub fn new(schema: &SchemaRef) -> Result<Self, Stop> {
        Ok(Self { writer: StreamWriter::try_new(Vec::new(), schema)? })
    }

    fn pass_on(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        out.write_all(self.writer.get_ref())?;
        self.writer.get_mut().clear();
        Ok(())
    }
}

impl RowWriter for ArrowIpc {
    fn begin(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        self.pass_on(out)
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop> {
        self.writer.write(batch)?;
        self.pass_on(out)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        self.writer.finish()?;
        self.pass_on(out)
    }
}
