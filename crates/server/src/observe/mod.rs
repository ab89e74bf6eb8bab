//! Observability of a server: a log ([`log`]), an audit log ([`audit`]), and spans of statements
//! ([`trace`]).
//!
//! ```text
//! engine: completed statements ───┐
//! clients: connect, disconnect ───┼─► Witness ─► Log, a bounded queue ─► a thread ─► file
//! statements that never began ────┘         └──► spans, a bounded queue ─► a thread ─► OTLP
//! ```
//! A statement's connection is looked up by its session. No thread that serves clients waits for
//! writes or exports. Events that the two threads cannot keep up with are dropped and, in the log,
//! counted.

mod audit;
mod collector;
mod log;
mod sql;
mod trace;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use onehop_engine::{Error as EngineError, Observer, Query, QueryState, Rights, without_addresses};

use self::audit::Audit;
pub use self::log::LogTo;
use self::log::{Event, Log};
use self::trace::Traces;
use crate::connections::{Connection, Connections};
use crate::interrupt::Reason;
use crate::login::Failed;
use crate::metrics::Counters;
use crate::problem::{Problem, code, sqlstate};
use crate::server::{Options, Result};
use crate::users::User;

/// The time limit for the last lines and spans at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The maximum logged size of a statement that never began, in bytes: the same as the engine keeps
/// of others.
const TOLD_TEXT_BYTES: usize = 4096;

/// The maximum logged size of a name that a client claims, in bytes.
const TOLD_NAME_BYTES: usize = 128;

/// Writes events to all logs and traces.
#[derive(Debug)]
pub struct Witness {
    connections: Arc<Connections>,
    log: Option<Log>,
    audit: Option<Audit>,
    /// The minimum duration of a logged statement. Failed statements are logged regardless.
    least: Duration,
    traces: Option<Traces>,
    since: SystemTime,
}

/// An open connection. Dropping it logs the end of the connection.
#[derive(Debug)]
pub struct Visit {
    witness: Arc<Witness>,
    connection: Arc<Connection>,
}

/// A completed statement.
struct Statement<'a> {
    text: &'a str,
    /// The query; `None` if the statement failed before it began.
    query: Option<&'a Query>,
    connection: Option<&'a Connection>,
    error: Option<&'a str>,
    /// The SQLSTATE that the client was told, if the statement failed.
    sqlstate: Option<&'static str>,
}

impl Statement<'_> {
    fn state(&self) -> QueryState {
        self.query.map_or(QueryState::Failed, Query::state)
    }

    fn started_at(&self) -> SystemTime {
        self.query.map_or_else(SystemTime::now, Query::started_at)
    }

    fn total_time(&self) -> Duration {
        self.query.map_or(Duration::ZERO, Query::total_time)
    }

    fn has_failed(&self) -> bool {
        self.error.is_some() || self.sqlstate.is_some()
    }
}

impl Witness {
    /// Creates the witness of the options. Must be called on the runtime that exports spans.
    ///
    /// # Errors
    /// Fails if a log cannot be opened, or if the span collector cannot be used.
    pub fn new(options: &Options, connections: &Arc<Connections>, counters: &Arc<Counters>) -> Result<Self> {
        let traces = options.otlp.as_deref().map(|url| Traces::new(url, counters)).transpose()?;
        let log = options.log.as_ref().map(|to| Log::open(to, "the log")).transpose()?;
        let audit = options.audit.as_ref().map(Audit::open).transpose()?;
        let (connections, least, since) = (Arc::clone(connections), options.log_min_duration, SystemTime::now());
        Ok(Self { connections, log, audit, least, traces, since })
    }

    /// Returns true if any log or trace is enabled.
    pub fn is_any(&self) -> bool {
        self.log.is_some() || self.audit.is_some() || self.traces.is_some()
    }

    /// Returns the number of lines lost from the audit log.
    pub fn lost_of_audit(&self) -> u64 {
        self.audit.as_ref().map_or(0, Audit::lost)
    }

    /// Logs the start of the server.
    pub fn started(&self, address: Option<SocketAddr>, database: Option<&Path>) {
        let event = || {
            Event::new("server started")
                .with("version", env!("CARGO_PKG_VERSION"))
                .with("process", std::process::id())
                .with_some("address", address.map(|address| address.to_string()))
                .with("database", database.map_or(":memory:".into(), |path| path.display().to_string()))
        };
        self.logs().for_each(|log| log.say(event()));
    }

    /// Returns the enabled logs.
    fn logs(&self) -> impl Iterator<Item = &Log> {
        self.log.iter().chain(self.audit.iter().map(Audit::log))
    }

    /// Logs that a client is let in.
    pub fn connected(self: &Arc<Self>, connection: &Arc<Connection>) -> Visit {
        if let Some(log) = &self.log {
            log.say(of(Event::new("connected"), connection).with("database", &*connection.database));
        }
        if let Some(audit) = &self.audit {
            audit.logged_in(connection);
        }
        Visit { witness: Arc::clone(self), connection: Arc::clone(connection) }
    }

    /// Logs that a user sent a right password to the page.
    pub fn logged_in_to_page(&self, user: &str, rights: Rights, from: impl Display) {
        if let Some(audit) = &self.audit {
            audit.logged_in_to_page(user, rights, from);
        }
    }

    /// Logs a failed log-in. Its credentials are in no log.
    pub fn login_failed(&self, user: &str, from: impl Display, failed: &Failed) {
        let user = &user[..user.floor_char_boundary(TOLD_NAME_BYTES)];
        let event = || Event::new("login failed").with("user", user).with("client_address", from.to_string());
        if let Some(log) = &self.log {
            log.say(why(event(), &failed.problem));
        }
        if let Some(audit) = &self.audit {
            audit.login_failed(event(), failed);
        }
    }

    /// Logs that a client is refused, independent of its name.
    pub fn refused(&self, user: Option<&str>, from: SocketAddr, problem: &Problem) {
        let user = user.map(|user| &user[..user.floor_char_boundary(TOLD_NAME_BYTES)]);
        let event = || {
            let event = Event::new("refused").with_some("user", user).with("client_address", from.to_string());
            why(event, problem)
        };
        if let Some(log) = &self.log {
            log.say(event());
        }
        if let Some(audit) = &self.audit {
            audit.refused(event());
        }
    }

    /// Logs a change of the file of users since it was last read.
    pub fn users_changed(&self, before: &BTreeMap<String, User>, now: &BTreeMap<String, User>) {
        if let Some(audit) = &self.audit {
            audit.users_changed(before, now);
        }
    }

    /// Logs that a client changed a setting as it connected.
    pub fn set_at_login(&self, connection: &Connection, setting: &str) {
        if let Some(audit) = &self.audit {
            audit.set_at_login(connection, setting);
        }
    }

    /// Logs a statement that failed before the engine had one: it cannot be parsed, the server is
    /// full, or its transaction has failed.
    pub fn not_begun(&self, connection: &Connection, text: &str, problem: &Problem) {
        let text = without_addresses(text);
        self.over(&Statement {
            text: &text[..text.floor_char_boundary(TOLD_TEXT_BYTES)],
            query: None,
            connection: Some(connection),
            error: Some(&problem.message),
            sqlstate: Some(problem.code),
        });
    }

    fn over(&self, statement: &Statement<'_>) {
        if let Some(traces) = &self.traces {
            traces.tell(statement);
        }
        if let Some(log) = &self.log
            && (statement.has_failed() || statement.total_time() >= self.least)
        {
            log.say(line(statement));
        }
        if let Some(audit) = &self.audit {
            audit.over(statement);
        }
    }

    /// Ends the logs and traces at shutdown, with a time limit for their remaining output.
    pub async fn end(self: &Arc<Self>) {
        if !self.is_any() {
            return;
        }
        let witness = Arc::clone(self);
        let last = move || {
            if let Some(traces) = &witness.traces {
                traces.end(LAST_WORDS);
            }
            for log in witness.logs() {
                log.say(Event::new("server ends").with("seconds", seconds(since(witness.since))));
                log.end(LAST_WORDS);
            }
        };
        let _ = tokio::task::spawn_blocking(last).await;
    }
}

impl Observer for Witness {
    fn ended(&self, query: &Query, error: Option<&EngineError>) {
        let connection = self.connections.of_session(query.session());
        let connection = connection.as_deref();
        let sqlstate = match (error, query.state()) {
            (Some(error), _) => Some(sqlstate(error)),
            (None, QueryState::Cancelled) => connection.and_then(interrupted),
            (None, _) => None,
        };
        self.over(&Statement { text: query.text(), query: Some(query), connection, error: query.error(), sqlstate });
    }
}

/// Returns the SQLSTATE that the client of a cancelled statement is told. Returns `None` for a
/// client that is gone, and for one that wants no more rows.
fn interrupted(connection: &Connection) -> Option<&'static str> {
    match connection.interrupt.of_statement()? {
        Reason::Cancelled => Some(code::QUERY_CANCELED),
        Reason::Closing | Reason::Killed => Some(code::ADMIN_SHUTDOWN),
        Reason::Gone => None,
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(log) = &self.witness.log {
            let event = of(Event::new("disconnected"), &self.connection);
            log.say(event.with("seconds", seconds(since(self.connection.since))));
        }
    }
}

fn of(event: Event, connection: &Connection) -> Event {
    event
        .with("connection", connection.number)
        .with("user", &*connection.user)
        .with("client_address", connection.address.to_string())
}

fn why(event: Event, problem: &Problem) -> Event {
    event.with("error", &*problem.message).with("sqlstate", problem.code)
}

/// Returns the log line of a statement.
fn line(statement: &Statement<'_>) -> Event {
    let mut event = Event::new("statement");
    if let Some(connection) = statement.connection {
        event = of(event, connection);
    }
    let query = statement.query;
    event = event
        .with_some("id", query.map(Query::id))
        .with_some("session", query.map(Query::session))
        .with("text", statement.text)
        .with("state", statement.state().name())
        .with("seconds", seconds(statement.total_time()));
    if let Some(query) = query {
        let moved = query.ledger();
        event = event
            .with("plan_seconds", seconds(query.plan_time()))
            .with("rows", query.rows())
            .with("read_bytes", moved.read_bytes())
            .with("moved_bytes", moved.moved_bytes())
            .with("cached_bytes", moved.cached_bytes)
            .with("engine", query.engine().name());
    }
    event.with_some("error", statement.error).with_some("sqlstate", statement.sqlstate)
}

/// Returns the seconds, rounded to microseconds.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

/// Returns the time since a moment, or zero if the clock was set back.
fn since(moment: SystemTime) -> Duration {
    moment.elapsed().unwrap_or_default()
}
