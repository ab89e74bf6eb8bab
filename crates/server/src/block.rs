//! Several statements as one: those of one text of the simple protocol, or of the extended protocol up to its `Sync`.
//!
//! 1. The first of them that may change anything begins a transaction, unless it is the last: that is one by itself.
//! 2. It commits before the client is told that the last of them is done. An error undoes all of them.
//! 3. A `BEGIN` among them makes it the client's own, with what came before. `COMMIT` and `ROLLBACK` end it where they stand, with
//!    a warning, and what comes after begins another.
//!
//! As in PostgreSQL. Whether a statement of the extended protocol is the last is seen by the message behind it, which is waited
//! for: no client may wait for an answer before it has sent `Flush` or `Sync`.

use std::sync::Arc;

use onehop_engine::{StatementKind, TransactionState};
use pgwire::messages::PgWireFrontendMessage as Message;

use crate::client::{Client, Failure, Outcome, ended};
use crate::problem::{Problem, Severity, code};

/// Where a statement stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Others come after it.
    Before,
    /// None do.
    Last,
}

/// Whether there is nothing that an error in a later statement would have to undo.
fn only_reads(kind: &StatementKind) -> bool {
    matches!(kind, StatementKind::Query | StatementKind::Explain | StatementKind::Show(_))
}

impl Client {
    /// Begins a transaction for a statement that others come after.
    pub async fn begin_block(&mut self, kind: &StatementKind, place: Place) -> Outcome<()> {
        let is_needed = place == Place::Before && !only_reads(kind) && !matches!(kind, StatementKind::Begin { .. });
        if is_needed && self.session.transaction() == TransactionState::None {
            // Who waits to run something must not be in anybody's way meanwhile.
            self.enter().await?;
            self.session.begin();
            self.is_block = true;
        }
        Ok(())
    }

    /// The place of a statement of the extended protocol that is about to run.
    pub async fn place(&mut self, kind: &StatementKind) -> Outcome<Place> {
        if only_reads(kind) || self.session.transaction() != TransactionState::None {
            return Ok(Place::Last);
        }
        let next = tokio::select! {
            biased;
            reason = self.interrupt.statement_ends() => return Err(ended(reason)),
            next = self.incoming.peek() => next,
        };
        match next.map(|received| &received.message) {
            Some(Ok(Message::Sync(_))) => Ok(Place::Last),
            Some(_) => Ok(Place::Before),
            None => Err(Failure::Gone),
        }
    }

    /// Whether a `BEGIN` has nothing left to do: there is a transaction, which is the client's own from now on.
    pub fn is_begun(&mut self, kind: &StatementKind) -> Outcome<bool> {
        let StatementKind::Begin { is_immediate, is_read_only } = *kind else { return Ok(false) };
        if self.session.transaction() != TransactionState::Open {
            return Ok(false);
        }
        if !std::mem::take(&mut self.is_block) {
            let message = "there is already a transaction in progress";
            self.link.put_notice(Problem::new(Severity::Warning, code::ACTIVE_TRANSACTION, message));
        } else if is_immediate || is_read_only == Some(true) {
            let message = "this BEGIN comes behind statements that are part of the same transaction";
            let error = Problem::error(code::ACTIVE_TRANSACTION, message);
            return Err(error.with_hint("send it by itself, or before them").into());
        }
        Ok(true)
    }

    /// Warns if a statement ends a transaction that the client has not begun.
    pub fn warn_of_end(&mut self, kind: &StatementKind) {
        if self.is_block && *kind == StatementKind::End {
            let message = "there is no transaction in progress";
            self.link.put_notice(Problem::new(Severity::Warning, code::NO_TRANSACTION, message));
        }
    }

    /// Commits what was begun here, if that is still going on.
    pub async fn end_block(&mut self) -> Outcome<()> {
        if self.is_block && self.session.transaction() != TransactionState::None {
            let session = Arc::clone(&self.session);
            // If it fails, or is cancelled before it begins, there is still what `fail_block` has to undo.
            self.on_workers(async move { session.sql("COMMIT").await }).await?;
            self.transaction_ended("COMMIT");
        }
        self.is_block = false;
        Ok(())
    }

    /// An error has come: what was begun here is undone, and the client's own transaction has failed.
    pub fn fail_block(&mut self) {
        match std::mem::take(&mut self.is_block) {
            true => {
                self.session.roll_back();
                self.transaction_ended("ROLLBACK");
            }
            false => self.session.fail_transaction(),
        }
    }
}
