//! RFC 4180 with a header and LF line ends. NULL is empty and the empty string is `""`, as in
//! PostgreSQL and DuckDB, so that a load restores the same values.

use std::io::{self, Write};

use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;

use super::RowWriter;
use super::text::columns;
use crate::exit::Stop;

/// The writer.
pub struct Csv {
    names: Vec<String>,
}

impl Csv {
    /// Creates a writer for results of this schema.
    pub fn new(schema: &SchemaRef) -> Self {
        Self { names: schema.fields().iter().map(|field| field.name().clone()).collect() }
    }
}

impl RowWriter for Csv {
    fn begin(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        for (i, name) in self.names.iter().enumerate() {
            separate(i, out)?;
            field(name, out)?;
        }
        Ok(out.write_all(b"\n")?)
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop> {
        let columns = columns(batch)?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            for (i, column) in columns.iter().enumerate() {
                separate(i, out)?;
                if column.read(row, &mut text)? {
                    field(&text, out)?;
                }
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn finish(&mut self, _out: &mut dyn Write) -> Result<(), Stop> {
        Ok(())
    }
}

fn separate(i: usize, out: &mut dyn Write) -> io::Result<()> {
    if i > 0 { out.write_all(b",") } else { Ok(()) }
}

fn field(text: &str, out: &mut dyn Write) -> io::Result<()> {
    if text.is_empty() || text.contains([',', '"', '\n', '\r']) {
        write!(out, "\"{}\"", text.replace('"', "\"\""))
    } else {
        out.write_all(text.as_bytes())
    }
}
