//! The simple protocol: a text of any number of statements, executed in order. An error skips the
//! rest, and undoes the statements before it ([`crate::block`]).

use std::sync::Arc;

use onehop_engine::arrow::array::{ArrayRef, StringViewArray};
use onehop_engine::{CopyDirection, Error, Output, Script, StatementKind};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::EmptyQueryResponse;

use crate::block::Place;
use crate::client::{Client, Outcome};
use crate::cursors::Cursor;
use crate::encode::{Cells, Format, put_row};
use crate::extended::one_text;
use crate::problem::Problem;
use crate::run::{Running, tag};

impl Client {
    /// Handles `Query`.
    pub async fn simple_query(&mut self, text: &str) -> Outcome<()> {
        // The unnamed statement and portal do not outlive a `Query`.
        self.statements.remove("");
        self.portals.remove("");
        let mut statements = Script::new(text).peekable();
        let is_empty = statements.peek().is_none();
        while let Some(statement) = statements.next() {
            let before = &text[..statement.as_ptr() as usize - text.as_ptr() as usize];
            let place = if statements.peek().is_some() { Place::Before } else { Place::Last };
            let last = self.last_statement();
            let tag = self.one(statement, before, place).await;
            let tag = self.noted(statement, last, tag)?;
            if place == Place::Last {
                self.end_block().await?;
            }
            self.link.put_tag(tag);
        }
        if is_empty {
            self.link.put(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()));
        }
        self.ready();
        Ok(())
    }

    /// Executes a statement and returns its command tag.
    async fn one(&mut self, text: &str, before: &str, place: Place) -> Outcome<String> {
        let placed = |e: Error| {
            let place = e.place();
            Problem::from(e).at(place, before, text)
        };
        if let Some(copy) = self.session.client_copy(text).map_err(placed)? {
            let kind = match copy.direction {
                CopyDirection::In { .. } => StatementKind::Other,
                CopyDirection::Out { .. } => StatementKind::Query,
            };
            self.begin_block(&kind, place).await?;
            return self.copy(&copy).await;
        }
        if let Some(cursor) = Cursor::parse(text)? {
            return self.cursor(&cursor, text, place).await;
        }
        let prepared = Arc::new(self.parsed(text).await?.map_err(placed)?);
        self.refuse_failed(&prepared)?;
        if prepared.parameters() > 0 {
            return Err(no_values().into());
        }
        if self.is_begun(prepared.kind())? {
            return Ok("BEGIN".into());
        }
        self.begin_block(prepared.kind(), place).await?;
        self.warn_of_end(prepared.kind());
        if let StatementKind::Show(Some(name)) = prepared.kind() {
            self.put_columns(&one_text(name), &[Format::Text]);
            return self.show(name, Format::Text);
        }
        match self.run(&prepared, Vec::new()).await? {
            Output::Done(done) => {
                self.notices();
                Ok(tag(done.tag, done.rows))
            }
            Output::Rows(rows) => {
                let told = prepared.named(rows.schema());
                let formats = vec![Format::Text; told.fields().len()];
                self.put_columns(&told, &formats);
                let mut running = Running::new(rows, told, formats);
                self.send_rows(&mut running, None).await?;
                self.notices();
                Ok(tag(name(prepared.kind()), Some(running.sent)))
            }
        }
    }

    /// Sends a row with the value of a parameter.
    pub fn show(&mut self, name: &str, format: Format) -> Outcome<String> {
        let value: ArrayRef = Arc::new(StringViewArray::from_iter_values([self.session.parameter(name)?]));
        put_row(&[Cells::new(&value)?], &[format], 0, &self.style, self.link.buffer())?;
        Ok("SHOW".into())
    }
}

/// Returns the tag of a statement whose rows were sent.
pub fn name(kind: &StatementKind) -> &'static str {
    match kind {
        StatementKind::Explain => "EXPLAIN",
        StatementKind::Show(_) => "SHOW",
        StatementKind::Returning(tag) => tag,
        _ => "SELECT",
    }
}

fn no_values() -> Problem {
    Problem::error("42P02", "a statement with parameters comes without values for them")
        .with_hint("the extended protocol has values; PREPARE and EXECUTE do the same in SQL")
}
