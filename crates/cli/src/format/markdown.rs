//! A table in GitHub's Markdown. Columns are not padded, so that rows stream; the renderer aligns
//! them.

use std::fmt::Write as _;
use std::io::Write;

use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;

use super::RowWriter;
use super::text::{columns, is_number};
use crate::exit::Stop;

/// The writer.
pub struct Markdown {
    schema: SchemaRef,
}

impl Markdown {
    /// Creates a writer for results of this schema.
    pub fn new(schema: &SchemaRef) -> Self {
        Self { schema: SchemaRef::clone(schema) }
    }
}

impl RowWriter for Markdown {
    fn begin(&mut self, out: &mut dyn Write) -> Result<(), Stop> {
        for field in self.schema.fields() {
            write!(out, "| {} ", escaped(field.name()))?;
        }
        out.write_all(b"|\n")?;
        for field in self.schema.fields() {
            out.write_all(if is_number(field.data_type()) { b"| ---: " } else { b"| --- " })?;
        }
        Ok(out.write_all(b"|\n")?)
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop> {
        let columns = columns(batch)?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            for column in &columns {
                match column.read(row, &mut text)? {
                    true => write!(out, "| {} ", escaped(&text))?,
                    false => write!(out, "| *NULL* ")?,
                }
            }
            out.write_all(b"|\n")?;
        }
        Ok(())
    }

    fn finish(&mut self, _out: &mut dyn Write) -> Result<(), Stop> {
        Ok(())
    }
}

/// Escapes a cell to one line without markup or HTML. Control characters are shown by their
/// numbers.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("<br>"),
            '\r' => out.push_str("\\\\r"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => {
                let _ = write!(out, "\\\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}
