//! One client, once it is logged in: its messages in their order, and what it is told for each.
//!
//! - After an error in the extended protocol, messages are skipped until the client asks where things stand (`Sync`).
//! - An error within a transaction has it fail, wherever it comes from: also one of the server's own, of which the engine would
//!   not know.
//! - Portals end with their transaction: where there is none, at `Sync`.

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

/// Why something was not done.
#[derive(Debug)]
pub enum Failure {
    /// The client is told.
    Problem(Problem),
    /// There is no client to be told.
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

/// What comes of what a client asks for.
pub type Outcome<T> = Result<T, Failure>;

/// A client, logged in.
#[derive(Debug)]
pub struct Client {
    pub link: Link,
    pub incoming: Incoming,
    pub interrupt: Arc<Interrupt>,
    pub session: Arc<Session>,
    pub shared: Arc<Shared>,
    pub style: Style,
    /// Parameters that it knows of.
    pub reported: Reported,
    /// What it has parsed, by name.
    pub statements: HashMap<String, Arc<Statement>>,
    /// What it has bound, by name.
    pub portals: HashMap<String, Portal>,
    /// The threads of its statements, and with them a place among those that run, while one does.
    pub place: Option<Executor>,
    /// Its transaction is one of several statements, which it has not begun itself.
    pub is_block: bool,
    /// An error has come, and no `Sync` since.
    pub is_skipping: bool,
    /// The log tells of its end.
    pub _visit: Visit,
    /// Until it is gone others find it.
    pub registered: Registered,
    /// Free when everything else of it is gone.
    pub _seat: Seat,
}

/// Whether a connection goes on.
enum Flow {
    On,
    End,
}

impl Client {
    /// Serves it until it goes, or has to.
    pub async fn serve(mut self) {
        self.link.put_ready(self.status());
        let ended = self.serve_all().await;
        // Before anybody waits for a slow client to read its last words.
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
            // Those that are short make way for the next, which they may want to look at.
            let _room = room.filter(|_| !matches!(message, Message::Execute(_)));
            if let Flow::End = self.answer(message).await? {
                return Ok(());
            }
        }
    }

    /// Deals with a message. An error is one that ends the connection.
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
            // What is left of a COPY that has failed.
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

    /// The client is told of an error, and its transaction.
    fn failed(&mut self, problem: Problem) {
        Counters::count(&self.shared.counters.errors, 1);
        self.fail_block();
        self.notices();
        self.link.put_problem(problem);
        self.leave();
    }

    /// The session's statement before another one begins, for [`noted`](Self::noted); none if nobody is told of any.
    pub fn last_statement(&self) -> Option<Arc<Query>> {
        self.shared.witness.is_any().then(|| self.session.query())
    }

    /// Tells of a statement that has failed although there was none: the session's is still the one that was there `before`. Of
    /// all others the engine tells.
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

    /// What it says when the next statement may come.
    pub fn ready(&mut self) {
        self.reported.put_changed(&self.session, &mut self.link);
        self.style.zone = self.reported.zone();
        if self.session.transaction() == TransactionState::None {
            self.portals.retain(|_, portal| portal.outlives());
        }
        self.leave();
        self.link.put_ready(self.status());
    }

    /// Gives the place back if nothing runs any more.
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

    /// Says what the statement has to say beside its outcome.
    pub fn notices(&mut self) {
        for notice in self.session.query().notices() {
            self.link.put_notice(Problem::new(Severity::Notice, code::SUCCESS, notice));
        }
    }

    /// Refuses what cannot be done in a transaction that has failed.
    pub fn refuse_failed(&self, prepared: &Prepared) -> Result<(), Problem> {
        match self.session.transaction() {
            TransactionState::Failed if *prepared.kind() != StatementKind::End => Err(Problem::in_failed_transaction()),
            _ => Ok(()),
        }
    }
}

/// What it comes to that a statement was ended.
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
