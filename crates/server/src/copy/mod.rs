//! COPY between a client and the database: rows as lines of text or CSV, or in PostgreSQL's binary
//! format.

mod columns;
mod insert;
mod lines;
mod tuples;
mod write;

use std::sync::Arc;

use onehop_engine::{ClientCopy, CopyDirection, CopyFormat, Output};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::copy::{CopyDone, CopyOutResponse};

use self::write::LineWriter;
use crate::client::{Client, Outcome};
use crate::encode::Format;
use crate::problem::{Problem, code};
use crate::run::Running;

/// Returns the maximum size in bytes of a text value, or of a binary row: the same as for a record
/// of a file.
fn most_bytes(memory_limit_bytes: u64) -> usize {
    const MOST: usize = 256 << 20;
    usize::try_from(memory_limit_bytes / 8).map_or(MOST, |bytes| bytes.clamp(1 << 20, MOST))
}

fn mebibytes(bytes: usize) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Returns the format of values.
fn format(copy: &ClientCopy) -> Format {
    match copy.format {
        CopyFormat::Binary => Format::Binary,
        CopyFormat::Text | CopyFormat::Csv => Format::Text,
    }
}

impl Client {
    /// Executes a COPY and returns its command tag.
    pub async fn copy(&mut self, copy: &ClientCopy) -> Outcome<String> {
        match &copy.direction {
            CopyDirection::In { table, columns } => self.copy_in(copy, table, columns).await,
            CopyDirection::Out { query } => self.copy_out(copy, query).await,
        }
    }

    async fn copy_out(&mut self, copy: &ClientCopy, query: &str) -> Outcome<String> {
        let prepared = Arc::new(self.session.parse(query)?);
        self.refuse_failed(&prepared)?;
        if prepared.parameters() > 0 {
            return Err(Problem::error("42P02", "COPY takes no parameters").into());
        }
        let Output::Rows(rows) = self.run(&prepared, Vec::new()).await? else {
            return Err(Problem::error(code::FEATURE_NOT_SUPPORTED, "COPY TO takes a query that has rows").into());
        };
        let told = Arc::clone(rows.schema());
        let columns = told.fields().len();
        let format = format(copy).code();
        let formats =
            CopyOutResponse::new(format as i8, i16::try_from(columns).unwrap_or(i16::MAX), vec![format; columns]);
        self.link.put(PgWireBackendMessage::CopyOutResponse(formats));
        let mut writer = LineWriter::new(copy);
        writer.header(&told, self.link.buffer())?;
        let mut running = Running::new(rows, told, Vec::new());
        let count = self.send_lines(&mut running, &mut writer).await?;
        writer.footer(self.link.buffer())?;
        self.link.put(PgWireBackendMessage::CopyDone(CopyDone::new()));
        self.notices();
        Ok(format!("COPY {count}"))
    }
}
