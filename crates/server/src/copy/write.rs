//! Writes rows as lines of PostgreSQL's text format or CSV, or in its binary format. Each message
//! has one row, because some clients assume that.

use std::ops::Range;

use bytes::{BufMut, BytesMut};
use onehop_engine::arrow::array::ArrayRef;
use onehop_engine::arrow::datatypes::SchemaRef;
use onehop_engine::{ClientCopy, CopyFormat, Result};

use super::tuples;
use crate::client::{Client, Outcome};
use crate::encode::{Cells, Format, Style, put_fields, put_message};
use crate::run::Running;

/// The number of lines to write before the task yields.
const LINES_AT_ONCE: usize = 256;

/// Writes the rows of a COPY.
#[derive(Debug)]
pub struct LineWriter<'a> {
    copy: &'a ClientCopy,
    value: BytesMut,
    /// True until the header is written. As in PostgreSQL, it shares the message of the first row.
    needs_head: bool,
}

impl<'a> LineWriter<'a> {
    /// Creates the writer of a COPY.
    pub fn new(copy: &'a ClientCopy) -> Self {
        Self { copy, value: BytesMut::new(), needs_head: copy.format == CopyFormat::Binary }
    }

    /// Writes the names of the columns, if requested.
    pub fn header(&mut self, schema: &SchemaRef, out: &mut BytesMut) -> Result<()> {
        if !self.copy.has_header {
            return Ok(());
        }
        put_message(b'd', out, |out| {
            for (at, field) in schema.fields().iter().enumerate() {
                if at > 0 {
                    out.put_u8(self.copy.delimiter);
                }
                self.value.clear();
                self.value.put_slice(field.name().as_bytes());
                self.put_value(out, schema.fields().len() == 1);
            }
            out.put_u8(b'\n');
            Ok(())
        })
    }

    /// Writes the trailer.
    pub fn footer(&mut self, out: &mut BytesMut) -> Result<()> {
        if self.copy.format != CopyFormat::Binary {
            return Ok(());
        }
        let needs_head = std::mem::take(&mut self.needs_head);
        put_message(b'd', out, |out| {
            if needs_head {
                tuples::put_head(out);
            }
            tuples::put_end(out);
            Ok(())
        })
    }

    fn lines(&mut self, columns: &[ArrayRef], rows: Range<usize>, style: &Style, out: &mut BytesMut) -> Result<()> {
        let cells = columns.iter().map(|column| Cells::new(column)).collect::<Result<Vec<_>>>()?;
        rows.into_iter().try_for_each(|row| self.line(&cells, row, style, out))
    }

    fn line(&mut self, cells: &[Cells<'_>], row: usize, style: &Style, out: &mut BytesMut) -> Result<()> {
        if self.copy.format == CopyFormat::Binary {
            let needs_head = std::mem::take(&mut self.needs_head);
            return put_message(b'd', out, |out| {
                if needs_head {
                    tuples::put_head(out);
                }
                put_fields(cells, Format::Binary, row, style, out)
            });
        }
        put_message(b'd', out, |out| {
            for (at, cell) in cells.iter().enumerate() {
                if at > 0 {
                    out.put_u8(self.copy.delimiter);
                }
                if cell.is_null(row) {
                    out.put_slice(self.copy.null.as_bytes());
                    continue;
                }
                self.value.clear();
                cell.write_text(row, style, &mut self.value)?;
                self.put_value(out, cells.len() == 1);
            }
            out.put_u8(b'\n');
            Ok(())
        })
    }

    fn put_value(&self, out: &mut BytesMut, is_alone: bool) {
        match self.copy.format {
            CopyFormat::Csv => self.put_quoted(out, is_alone),
            CopyFormat::Text | CopyFormat::Binary => self.put_escaped(out),
        }
    }

    fn put_escaped(&self, out: &mut BytesMut) {
        for byte in &self.value {
            let escape = match byte {
                b'\\' => Some(b'\\'),
                b'\n' => Some(b'n'),
                b'\r' => Some(b'r'),
                b'\t' => Some(b't'),
                0x08 => Some(b'b'),
                0x0b => Some(b'v'),
                0x0c => Some(b'f'),
                byte if *byte == self.copy.delimiter => Some(*byte),
                _ => None,
            };
            match escape {
                Some(letter) => out.put_slice(&[b'\\', letter]),
                None => out.put_u8(*byte),
            }
        }
    }

    fn put_quoted(&self, out: &mut BytesMut, is_alone: bool) {
        let ClientCopy { quote, escape, delimiter, null, .. } = self.copy;
        let is_special = |byte: &u8| [*quote, *delimiter, b'\n', b'\r'].contains(byte);
        let value = &self.value[..];
        // Clients may take a line of `\.` for the end of the data.
        let needs = value.iter().any(is_special) || value == null.as_bytes() || (is_alone && value == b"\\.");
        if !needs {
            out.put_slice(value);
            return;
        }
        out.put_u8(*quote);
        for byte in value {
            if byte == quote || byte == escape {
                out.put_u8(*escape);
            }
            out.put_u8(*byte);
        }
        out.put_u8(*quote);
    }
}

impl Client {
    /// Sends rows as lines. Returns their number.
    pub async fn send_lines(&mut self, running: &mut Running, writer: &mut LineWriter<'_>) -> Outcome<u64> {
        let mut count = 0;
        while let Some(columns) = self.next_batch(running).await? {
            let rows = columns.first().map_or(0, |column| column.len());
            for from in (0..rows).step_by(LINES_AT_ONCE) {
                let until = rows.min(from + LINES_AT_ONCE);
                writer.lines(&columns, from..until, &self.style, self.link.buffer())?;
                if self.link.is_full() {
                    self.flush().await?;
                }
            }
            count += rows as u64;
        }
        Ok(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use onehop_engine::CopyDirection;
    use onehop_engine::arrow::array::{ArrayRef, StringViewArray};

    use super::*;

    fn lines(format: CopyFormat, values: &[Option<&str>]) -> Vec<String> {
        let copy = ClientCopy::new(CopyDirection::Out { query: String::new() }, format);
        let column: ArrayRef = Arc::new(StringViewArray::from_iter(values.iter().copied()));
        let cells = [Cells::new(&column).unwrap(), Cells::new(&column).unwrap()];
        let mut writer = LineWriter::new(&copy);
        let write = |row| {
            let mut out = BytesMut::new();
            writer.line(&cells, row, &Style::default(), &mut out).unwrap();
            assert_eq!((&out[1..5], out[0]), (&(out.len() as u32 - 1).to_be_bytes()[..], b'd'));
            String::from_utf8(out[5..].to_vec()).unwrap()
        };
        (0..values.len()).map(write).collect()
    }

    /// The output of PostgreSQL 15.
    #[test]
    fn values_are_escaped_or_quoted() {
        let values = [None, Some(""), Some("a\tb\\c\nd"), Some("\\N"), Some("x,\"y\"")];
        assert_eq!(
            lines(CopyFormat::Text, &values),
            ["\\N\t\\N\n", "\t\n", "a\\tb\\\\c\\nd\ta\\tb\\\\c\\nd\n", "\\\\N\t\\\\N\n", "x,\"y\"\tx,\"y\"\n"]
        );
        assert_eq!(
            lines(CopyFormat::Csv, &values),
            [",\n", "\"\",\"\"\n", "\"a\tb\\c\nd\",\"a\tb\\c\nd\"\n", "\\N,\\N\n", "\"x,\"\"y\"\"\",\"x,\"\"y\"\"\"\n"]
        );
    }
}
