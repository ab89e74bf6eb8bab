//! Output formats of results: one writer per format. Each consumes batches, and none keeps more
//! than a page.

mod arrow_ipc;
mod boxed;
mod csv;
mod json;
mod jsonl;
mod layout;
mod markdown;
mod plan;
mod text;
mod tsv;

use std::io::{self, BufWriter, Stdout, Write};

use clap::ValueEnum;
use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;
use onehop_engine::{rows_in_zone, schema_in_zone};

use crate::exit::Stop;
use crate::view::View;

/// The format of results. `--help` describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lowercase")]
pub enum Format {
    Auto,
    Box,
    Csv,
    Tsv,
    Json,
    Jsonl,
    Markdown,
    Arrow,
}

impl Format {
    /// Returns the name of the format on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    /// Returns all names.
    pub fn names() -> Vec<String> {
        Self::value_variants().iter().map(|format| format.name()).collect()
    }
}

/// Writes one result. `begin` is called first and once, then any number of `batch`, then `finish`
/// unless an error occurred: a truncated result must not look complete.
trait RowWriter {
    /// Writes the text before the rows.
    fn begin(&mut self, out: &mut dyn Write) -> Result<(), Stop>;
    /// Writes some rows.
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop>;
    /// Writes the text after the rows.
    fn finish(&mut self, out: &mut dyn Write) -> Result<(), Stop>;
}

fn writer(schema: &SchemaRef, view: &View) -> Result<Box<dyn RowWriter>, Stop> {
    let terminal = &view.terminal;
    Ok(match view.format {
        Format::Auto if !terminal.stdout => Box::new(csv::Csv::new(schema)),
        Format::Auto | Format::Box if plan::is_plan(schema) => Box::new(plan::Plan::default()),
        Format::Auto | Format::Box => Box::new(boxed::Boxed::new(
            schema,
            boxed::Look {
                width: terminal.stdout_width(),
                max_rows: (terminal.stdout && view.max_rows > 0).then_some(view.max_rows),
                color: terminal.stdout_color(),
            },
        )),
        Format::Csv => Box::new(csv::Csv::new(schema)),
        Format::Tsv => Box::new(tsv::Tsv::new(schema)),
        Format::Json => Box::new(json::Json::new(schema)),
        Format::Jsonl => Box::new(jsonl::JsonLines::new(schema)),
        Format::Markdown => Box::new(markdown::Markdown::new(schema)),
        Format::Arrow if terminal.stdout => {
            return Err(Stop::Usage("arrow is a binary format and standard output is a terminal; add `> FILE`".into()));
        }
        Format::Arrow => Box::new(arrow_ipc::ArrowIpc::new(schema)?),
    })
}

/// Standard output, with the writer of the view.
pub struct Sink {
    writer: Box<dyn RowWriter>,
    /// The schema, with timestamps in the session's zone.
    schema: SchemaRef,
    out: BufWriter<Stdout>,
    rows: u64,
    /// True once output has begun. Nothing is written before the first rows arrive, so that a query
    /// that fails at once leaves no header behind.
    has_begun: bool,
}

impl Sink {
    /// Creates a sink for one result, in a session of this zone.
    pub fn new(schema: &SchemaRef, zone: Option<&str>, view: &View) -> Result<Self, Stop> {
        let out = BufWriter::with_capacity(64 << 10, io::stdout());
        let schema = schema_in_zone(schema, zone);
        Ok(Self { writer: writer(&schema, view)?, schema, out, rows: 0, has_begun: false })
    }

    /// Writes some rows and flushes.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), Stop> {
        self.begin()?;
        self.rows += batch.num_rows() as u64;
        self.writer.batch(&rows_in_zone(batch, &self.schema)?, &mut self.out)?;
        Ok(self.out.flush()?)
    }

    /// Writes the end. Returns the total number of rows.
    pub fn finish(mut self) -> Result<u64, Stop> {
        self.begin()?;
        self.writer.finish(&mut self.out)?;
        self.out.flush()?;
        Ok(self.rows)
    }

    fn begin(&mut self) -> Result<(), Stop> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.writer.begin(&mut self.out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
