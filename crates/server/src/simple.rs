//! The simple protocol: a text of any number of statements, each carried out when the one before it is done; an error leaves out
//! the rest.

use std::sync::Arc;

use onehop_engine::arrow::array::{ArrayRef, StringViewArray};
use onehop_engine::{Error, Output, Script, StatementKind, TransactionState};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::EmptyQueryResponse;

use crate::client::{Client, Outcome};
use crate::encode::{Cells, Format, put_row};
use crate::extended::one_text;
use crate::problem::{Problem, Severity};
use crate::run::{Running, tag};

impl Client {
    /// `Query`.
    pub async fn simple_query(&mut self, text: &str) -> Outcome<()> {
        // The unnamed ones do not outlive it.
        self.statements.remove("");
        self.portals.remove("");
        let mut is_empty = true;
        for statement in Script::new(text) {
            is_empty = false;
            let before = &text[..statement.as_ptr() as usize - text.as_ptr() as usize];
            self.one(statement, before).await?;
        }
        if is_empty {
            self.link.put(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new()));
        }
        self.ready();
        Ok(())
    }

    async fn one(&mut self, text: &str, before: &str) -> Outcome<()> {
        let placed = |e: Error| {
            let place = e.place();
            Problem::from(e).at(place, before, text)
        };
        if let Some(copy) = self.session.client_copy(text).map_err(placed)? {
            return self.copy(&copy).await;
        }
        let prepared = Arc::new(self.session.parse(text).map_err(placed)?);
        self.refuse_failed(&prepared)?;
        if prepared.parameters() > 0 {
            return Err(no_values().into());
        }
        if self.is_begun(prepared.kind()) {
            return Ok(());
        }
        if let StatementKind::Show(Some(name)) = prepared.kind() {
            self.put_columns(&one_text(name), &[Format::Text]);
            return self.show(name, Format::Text);
        }
        match self.run(&prepared, Vec::new()).await? {
            Output::Done(done) => {
                self.notices();
                self.link.put_tag(tag(done.tag, done.rows));
            }
            Output::Rows(rows) => {
                let told = Arc::clone(rows.schema());
                let formats = vec![Format::Text; told.fields().len()];
                self.put_columns(&told, &formats);
                let mut running = Running::new(rows, told, formats);
                self.send_rows(&mut running, None).await?;
                self.notices();
                self.link.put_tag(tag(name(prepared.kind()), Some(running.sent)));
            }
        }
        Ok(())
    }

    /// A row with the value of a parameter.
    pub fn show(&mut self, name: &str, format: Format) -> Outcome<()> {
        let value: ArrayRef = Arc::new(StringViewArray::from_iter_values([self.session.parameter(name)?]));
        put_row(&[Cells::new(&value)?], &[format], 0, &self.style, self.link.buffer())?;
        self.link.put_tag("SHOW".into());
        Ok(())
    }

    /// Says so if a transaction is to begin and there is one: nothing is done then, and nothing has failed.
    pub fn is_begun(&mut self, kind: &StatementKind) -> bool {
        let is_begun = *kind == StatementKind::Begin && self.session.transaction() == TransactionState::Open;
        if is_begun {
            let message = "there is already a transaction in progress";
            self.link.put_notice(Problem::new(Severity::Warning, "25001", message));
            self.link.put_tag("BEGIN".into());
        }
        is_begun
    }
}

/// What a statement whose rows were sent is called.
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
