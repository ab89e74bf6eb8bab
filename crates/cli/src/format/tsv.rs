//! A header line, then PostgreSQL's COPY text rules: `\N` is NULL, and `\` escapes characters that
//! would end a field or a line.

use std::io::{self, Write};

use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;

use super::RowWriter;
use super::text::columns;
use crate::exit::Stop;

/// The writer.
pub struct Tsv {
    names: Vec<String>,
}

impl Tsv {
    /// Creates a writer for results of this schema.
    pub fn new(schema: &SchemaRef) -> Self {
        Self { names: schema.fields().iter().map(|field| field.name().clone()).collect() }
    }
}

impl RowWriter for Tsv {
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
                match column.read(row, &mut text)? {
                    true => field(&text, out)?,
                    false => out.write_all(b"\\N")?,
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
    if i > 0 { out.write_all(b"\t") } else { Ok(()) }
}

fn field(text: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = text;
    while let Some(at) = rest.find(['\t', '\n', '\r', '\\']) {
        out.write_all(&rest.as_bytes()[..at])?;
        out.write_all(match rest.as_bytes()[at] {
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        })?;
        rest = &rest[at + 1..];
    }
    out.write_all(rest.as_bytes())
}
