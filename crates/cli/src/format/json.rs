//! An array of objects, one to a line, valid JSON from the first byte to the last.
//!
//! NULL is `null` and never omitted. Integers of every width and decimals are JSON numbers with all
//! their digits, as in DuckDB: a reader that parses numbers as doubles must ask for strings
//! (`CAST(x AS VARCHAR)`). NaN and the infinities, which JSON numbers exclude, are strings:
//! `"NaN"`, `"Infinity"`. Timestamps are ISO 8601 with a `T`. Columns that share a name get `_1`,
//! `_2` ... appended, because an object keeps one value per name. `COPY .. TO` writes the same
//! values, except NaN and the infinities.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;

use onehop_engine::arrow::datatypes::{Field, Schema, SchemaRef};
use onehop_engine::arrow::json::writer::{JsonFormat, Writer};
use onehop_engine::arrow::record_batch::RecordBatch;
use onehop_engine::{json_writer, rows_with_far_texts};

use super::RowWriter;
use crate::exit::Stop;

/// The writer.
pub type Json = JsonRows<ArrayOfLines>;

/// A sequence of objects. `F` determines the text between and around them.
pub struct JsonRows<F: JsonFormat> {
    schema: SchemaRef,
    writer: Writer<Vec<u8>, F>,
}

/// Objects in an array, one to a line.
#[derive(Debug, Default)]
pub struct ArrayOfLines;

impl JsonFormat for ArrayOfLines {
    fn start_stream<W: Write>(&self, writer: &mut W) -> Result<(), onehop_engine::arrow::error::ArrowError> {
        Ok(writer.write_all(b"[")?)
    }

    fn start_row<W: Write>(
        &self,
        writer: &mut W,
        is_first_row: bool,
    ) -> Result<(), onehop_engine::arrow::error::ArrowError> {
        Ok(writer.write_all(if is_first_row { b"" } else { b",\n" })?)
    }

    fn end_stream<W: Write>(&self, writer: &mut W) -> Result<(), onehop_engine::arrow::error::ArrowError> {
        Ok(writer.write_all(b"]\n")?)
    }
}

impl<F: JsonFormat> JsonRows<F> {
    /// Creates a writer for results of this schema.
    pub fn new(schema: &SchemaRef) -> Self {
        Self { schema: distinct_names(schema), writer: json_writer().build::<_, F>(Vec::new()) }
    }

    fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.writer.get_ref())?;
        self.writer.get_mut().clear();
        Ok(())
    }
}

impl<F: JsonFormat> RowWriter for JsonRows<F> {
    fn begin(&mut self, _out: &mut dyn Write) -> Result<(), Stop> {
        Ok(())
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop> {
        self.writer.write(&rows_with_far_texts(batch, &self.schema)?)?;
        Ok(self.pass_on(out)?)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        self.writer.finish()?;
        Ok(self.pass_on(out)?)
    }
}

fn distinct_names(schema: &SchemaRef) -> SchemaRef {
    let taken: HashSet<&String> = schema.fields().iter().map(|field| field.name()).collect();
    let mut used = HashSet::new();
    let distinct = |field: &Arc<Field>| {
        let mut name = field.name().clone();
        let mut n = 0;
        while (n > 0 && taken.contains(&name)) || !used.insert(name.clone()) {
            n += 1;
            name = format!("{}_{n}", field.name());
        }
        // The nullability of a batch is irrelevant here.
        field.as_ref().clone().with_name(name).with_nullable(true)
    };
    Arc::new(Schema::new(schema.fields().iter().map(distinct).collect::<Vec<Field>>()))
}
