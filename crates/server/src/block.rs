//! Implicit transactions: several statements as one, either those of one simple-protocol text, or
//! those of the extended protocol up to its `Sync`.
//!
//! 1. The first statement that may change anything begins a transaction, unless it is the last:
//!    that one is atomic by itself.
//! 2. The transaction commits before the client is told that the last statement is done. An error
//!    undoes all of them.
//! 3. A `BEGIN` among them makes the transaction the client's own, with the statements before it.
//!    `COMMIT` and `ROLLBACK` end it at their position, with a warning, and the statements after
//!    them begin another.
//!
//! This is PostgreSQL's behavior. To learn whether a statement of the extended protocol is the
//! last, the server waits for the next message. No client may wait for an answer before it has sent
//! `Flush` or `Sync`.

use std::sync::Arc;

use onehop_engine::{StatementKind, TransactionState};
use pgwire::messages::PgWireFrontendMessage as Message;

use crate::client::{Client, Failure, Outcome, ended};
use crate::problem::{Problem, Severity, code};

/// The position of a statement in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Other statements follow.
    Before,
    /// No statement follows.
    Last,
}

/// Returns true if an error in a later statement would have nothing to undo.
fn only_reads(kind: &StatementKind) -> bool {
    matches!(kind, StatementKind::Query | StatementKind::Explain | StatementKind::Show(_))
}

impl Client {
    /// Begins a transaction for a statement that others follow.
    pub async fn begin_block(&mut self, kind: &StatementKind, place: Place) -> Outcome<()> {
        let is_needed = place == Place::Before && !only_reads(kind) && !matches!(kind, StatementKind::Begin { .. });
        if is_needed && self.session.transaction() == TransactionState::None {
            // A client that waits for a place must not hold up others meanwhile.
            self.enter().await?;
            self.session.begin();
            self.is_block = true;
        }
        Ok(())
    }

    /// Returns the position of a statement of the extended protocol that is about to run.
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

    /// Returns true if a `BEGIN` has nothing left to do: there is a transaction, which becomes the
    /// client's own.
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

    /// Commits the implicit transaction, if it is still open.
    pub async fn end_block(&mut self) -> Outcome<()> {
        if self.is_block && self.session.transaction() != TransactionState::None {
            let session = Arc::clone(&self.session);
            // If the commit fails, or is cancelled before it begins, `fail_block` still has to undo
            // the transaction.
            self.on_workers(async move { session.sql("COMMIT").await }).await?;
            self.transaction_ended("COMMIT");
        }
        self.is_block = false;
        Ok(())
    }

    /// Handles an error: undoes an implicit transaction, and marks the client's own as failed.
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
