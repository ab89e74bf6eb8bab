//! One client, once it is logged in: its messages in order, and the answer to each.
//!
//! - After an error in the extended protocol, the server skips messages until the client sends
//!   `Sync`.
//! - An error within a transaction makes it fail, regardless of its origin. The server reports its
//!   own errors to the engine, which would not know of them.
//! - Portals end with their transaction. Outside of one, they end at `Sync`.

use std::collections::HashMap;
use std::sync::Arc;

use onehop_engine::{Error, ErrorKind, Executor, Prepared, Query, Session, StatementKind, TransactionState};
use pgwire::messages::PgWireFrontendMessage as Message;
use pgwire::messages::response::TransactionStatus;

use crate::connections::Registered;
use crate::encode::Style;
use crate::extended::{self, Portal, Statement};
use crate::interrupt::{Interrupt, Reason};
use crate::link::{Gone, Link};
use crate::metrics::Counters;
use crate::observe::Visit;
use crate::problem::{Problem, Severity, code};
use crate::read::{Incoming, Received};
use crate::reported::Reported;
use crate::server::Shared;
use crate::slots::Seat;

/// The reason an operation failed.
#[derive(Debug)]
pub enum Failure {
    /// The client is told of the problem.
    Problem(Problem),
    /// The client is gone.
    Gone,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Problem(e.into())
    }
}

impl From<Gone> for Failure {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

/// The result of an operation of a client.
pub type Outcome<T> = Result<T, Failure>;

/// A client that is logged in.
#[derive(Debug)]
pub struct Client {
    pub link: Link,
    pub incoming: Incoming,
    pub interrupt: Arc<Interrupt>,
    pub session: Arc<Session>,
    pub shared: Arc<Shared>,
    pub style: Style,
    /// The parameters that the client was told.
    pub reported: Reported,
    /// The parsed statements, by name.
    pub statements: HashMap<String, Arc<Statement>>,
    /// The portals, by name.
    pub portals: HashMap<String, Portal>,
    /// The executor of the client's statements, and with it a place among the running ones, while a
    /// statement runs.
    pub place: Option<Executor>,
    /// True if the transaction is an implicit one of several statements, which the client has not
    /// begun itself.
    pub is_block: bool,
    /// True after an error, until the next `Sync`.
    pub is_skipping: bool,
    /// Logs the end of the connection when dropped.
    pub _visit: Visit,
    /// The registration, by which other clients find this one.
    pub registered: Registered,
    /// The seat. Declared last, so that it is freed after everything else.
    pub _seat: Seat,
}

/// True if a connection continues.
enum Flow {
    On,
    End,
}

impl Client {
    /// Serves the client until it disconnects or has to end.
    pub async fn serve(mut self) {
        self.link.put_ready(self.status());
        let ended = self.serve_all().await;
        // Released before the wait for a slow client to read its last messages.
        self.portals.clear();
        self.place = None;
        if let Err(Failure::Problem(problem)) = ended {
            self.link.put_problem(Problem { severity: Severity::Fatal, ..problem });
        }
        let _ = tokio::time::timeout(self.shared.options.farewell, self.link.close()).await;
    }

    async fn serve_all(&mut self) -> Outcome<()> {
        loop {
            if self.incoming.is_empty() {
                self.link.flush().await?;
            }
            let interrupt = Arc::clone(&self.interrupt);
            let received = tokio::select! {
                biased;
                received = self.incoming.next() => received,
                _ = interrupt.connection_ends() => return Err(closing().into()),
                (name, error) = extended::stopped(&self.portals) => {
                    if let Some(portal) = self.portals.get_mut(&name) {
                        portal.stop(error);
                    }
                    self.leave();
                    continue;
                }
            };
            let Some(Received { message, room }) = received else { return Err(Failure::Gone) };
            let message = message?;
            // An `Execute` message releases its reservation early, because its statement may have
            // to peek at the next message.
            let _room = room.filter(|_| !matches!(message, Message::Execute(_)));
            if let Flow::End = self.answer(message).await? {
                return Ok(());
            }
        }
    }

    /// Handles a message. Returns only errors that end the connection.
    async fn answer(&mut self, message: Message) -> Outcome<Flow> {
        let is_extended = message.is_extended_query();
        match message {
            Message::Terminate(_) => return Ok(Flow::End),
            Message::Sync(_) => {
                self.sync().await?;
                self.link.flush().await?;
                return Ok(Flow::On);
            }
            _ if self.is_skipping => return Ok(Flow::On),
            // The rest of a COPY that has failed.
            Message::CopyData(_) | Message::CopyDone(_) | Message::CopyFail(_) => return Ok(Flow::On),
            _ => {}
        }
        match self.carry_out(message).await {
            Ok(()) => Ok(Flow::On),
            Err(Failure::Problem(problem)) if problem.severity == Severity::Error => {
                self.failed(problem);
                match is_extended {
                    true => self.is_skipping = true,
                    false => self.ready(),
                }
                Ok(Flow::On)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn carry_out(&mut self, message: Message) -> Outcome<()> {
        let interrupt = Arc::clone(&self.interrupt);
        let _busy = interrupt.busy();
        self.session.statement_came();
        match message {
            Message::Query(query) => self.simple_query(&query.query).await,
            Message::Parse(parse) => self.parse(parse).await,
            Message::Bind(bind) => self.bind(bind).await,
            Message::Describe(describe) => self.describe(describe).await,
            Message::Execute(execute) => self.execute(execute).await,
            Message::Close(close) => self.close(&close),
            Message::Flush(_) => Ok(self.link.flush().await?),
            _ => {
                let message = "a message came that has no place after the log-in";
                Err(Problem::fatal(code::PROTOCOL_VIOLATION, message).into())
            }
        }
    }

    /// Reports an error to the client, and fails its transaction.
    fn failed(&mut self, problem: Problem) {
        Counters::count(&self.shared.counters.errors, 1);
        self.fail_block();
        self.notices();
        self.link.put_problem(problem);
        self.leave();
    }

    /// Returns the session's statement before another one begins, for [`noted`](Self::noted).
    /// Returns `None` if nothing observes statements.
    pub fn last_statement(&self) -> Option<Arc<Query>> {
        self.shared.witness.is_any().then(|| self.session.query())
    }

    /// Reports a statement that failed before it began: the session's statement is still the one
    /// that was there `before`. The engine reports all others.
    pub fn noted<T>(&self, text: &str, before: Option<Arc<Query>>, outcome: Outcome<T>) -> Outcome<T> {
        if let (Err(Failure::Problem(problem)), Some(before)) = (&outcome, before)
            && Arc::ptr_eq(&before, &self.session.query())
        {
            self.shared.witness.not_begun(&self.registered.connection, text, problem);
        }
        outcome
    }

    async fn sync(&mut self) -> Outcome<()> {
        self.is_skipping = false;
        if self.is_block {
            let interrupt = Arc::clone(&self.interrupt);
            let _busy = interrupt.busy();
            match self.end_block().await {
                Err(Failure::Problem(problem)) if problem.severity == Severity::Error => self.failed(problem),
                ended => ended?,
            }
        }
        self.ready();
        Ok(())
    }

    /// Completes a statement: sends changed parameters and `ReadyForQuery`.
    pub fn ready(&mut self) {
        self.reported.put_changed(&self.session, &mut self.link);
        self.style.zone = self.reported.zone();
        if self.session.transaction() == TransactionState::None {
            self.portals.retain(|_, portal| portal.outlives());
        }
        self.leave();
        self.link.put_ready(self.status());
    }

    /// Releases the place if no portal is running.
    pub fn leave(&mut self) {
        if !self.portals.values().any(Portal::is_running) {
            self.place = None;
        }
    }

    fn status(&self) -> TransactionStatus {
        match self.session.transaction() {
            TransactionState::None => TransactionStatus::Idle,
            TransactionState::Open => TransactionStatus::Transaction,
            TransactionState::Failed => TransactionStatus::Error,
        }
    }

    /// Sends the notices of the statement.
    pub fn notices(&mut self) {
        for notice in self.session.query().notices() {
            self.link.put_notice(Problem::new(Severity::Notice, code::SUCCESS, notice));
        }
    }

    /// Refuses statements other than an end in a transaction that has failed.
    pub fn refuse_failed(&self, prepared: &Prepared) -> Result<(), Problem> {
        match self.session.transaction() {
            TransactionState::Failed if *prepared.kind() != StatementKind::End => Err(Problem::in_failed_transaction()),
            _ => Ok(()),
        }
    }
}

/// Returns the failure of a statement that was ended.
pub fn ended(reason: Reason) -> Failure {
    match reason {
        Reason::Gone => Failure::Gone,
        Reason::Cancelled => {
            Problem::from(Error::new(ErrorKind::Cancelled, "canceling statement due to user request")).into()
        }
        Reason::Closing | Reason::Killed => closing().into(),
    }
}

fn closing() -> Problem {
    Problem::fatal(code::ADMIN_SHUTDOWN, "terminating connection: the server shuts down")
}
