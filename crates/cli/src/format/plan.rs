//! Plans: multi-line text, which a box would put on one line.

use std::io::Write;

use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::arrow::record_batch::RecordBatch;

use super::RowWriter;
use super::text::columns;
use crate::exit::Stop;

/// Returns true if the schema is that of an EXPLAIN result.
pub fn is_plan(schema: &SchemaRef) -> bool {
    schema.fields().iter().map(|field| field.name().as_str()).eq(["plan_type", "plan"])
}

/// The writer.
#[derive(Default)]
pub struct Plan {
    has_parts: bool,
}

impl RowWriter for Plan {
    fn begin(&mut self, _out: &mut dyn Write) -> Result<(), Stop> {
        Ok(())
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), Stop> {
        let columns = columns(batch)?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            if self.has_parts {
                writeln!(out)?;
            }
            self.has_parts = true;
            columns[0].read(row, &mut text)?;
            writeln!(out, "{}", text.replace('_', " "))?;
            columns[1].read(row, &mut text)?;
            for line in text.trim_end().lines() {
                writeln!(out, "  {line}")?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, _out: &mut dyn Write) -> Result<(), Stop> {
        Ok(())
    }
}
