//! Connections to a server, and transactions that share a snapshot.
//!
//! A connection that has ended its transaction is kept for the next one. A connection that is
//! dropped during a request is cancelled and closed: its remaining data is discarded.

use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};

use crate::table::Table;
use crate::{Error, Result, Selection};

pub use crate::read::Reader;

/// The timeout of connecting, if the address does not specify one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Disables the timeout of idle connections, which a long statement keeps idle for as long as it
/// runs.
const PATIENT: &str = "SET LOCAL idle_in_transaction_session_timeout = 0";
/// The time that a reader waits for a lock that its view holds already, by another connection: a
/// transaction before it in the queue waits for the view.
const LOCK_TIMEOUT_MS: u32 = 1000;
/// The maximum number of idle connections that are kept.
const MOST_IDLE: usize = 32;

/// A server, and one of its databases.
#[derive(Debug)]
pub struct Server {
    config: Config,
    place: String,
    idle: Mutex<Vec<Connection>>,
}

/// A connection, and its background task.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The client of the connection.
    pub client: Client,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the runtime of all connections, with one thread, which is started on first use.
fn connections() -> io::Result<&'static Handle> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let start =
        || Builder::new_multi_thread().worker_threads(1).thread_name("onehop-postgres").enable_all().build().ok();
    let runtime = RUNTIME.get_or_init(start).as_ref();
    runtime.map(Runtime::handle).ok_or_else(|| io::Error::other("the system has no more threads"))
}

impl Server {
    /// Creates a server from an address: `postgresql://user:password@host:port/database`, or
    /// `host=... dbname=...`. If the address has no password, it is taken from `PGPASSWORD`. Does
    /// not connect yet.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn new(address: &str) -> Result<Self> {
        let mut config = Config::from_str(address)
            .map_err(|e| Error::Address(format!("this is no address of a PostgreSQL: {}", cause(&e))))?;
        if config.get_ssl_mode() == SslMode::Require {
            let message = "connections to PostgreSQL are not encrypted yet, and sslmode=require asks for it";
            return Err(Error::Address(message.into()));
        }
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_user().is_none() {
            return Err(Error::Address("the address has no user: postgresql://USER@HOST/DATABASE".into()));
        }
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("onehop");
        }
        let place = place(&config);
        Ok(Self { config, place, idle: Mutex::default() })
    }

    /// Returns the server's address for messages, without a password.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Connection> {
        let failed = |source| Error::Connect { place: self.place.clone(), source };
        let config = self.config.clone();
        // A statement's runtime may end with it, but its connection is kept for others.
        let runtime = connections().map_err(|source| Error::Threads { source })?;
        let connected = runtime.spawn(async move { config.connect(NoTls).await }).await;
        let connected = connected.map_err(|e| Error::Threads { source: io::Error::other(e) })?;
        let (client, connection) = connected.map_err(failed)?;
        let task = runtime.spawn(async move {
            // A statement that waits for an answer gets the error.
            let _ = connection.await;
        });
        Ok(Connection { client, task })
    }

    /// Returns a connection that has executed `beginning`: an idle one, unless it has been closed
    /// meanwhile.
    pub(crate) async fn connection(&self, beginning: &str) -> Result<Connection> {
        loop {
            let idle = self.idle().pop();
            let Some(connection) = idle else { break };
            match connection.client.batch_execute(beginning).await {
                Ok(()) => return Ok(connection),
                Err(e) if connection.client.is_closed() || is_gone(&e) => {}
                Err(source) => return Err(Error::Server { place: self.place.clone(), source }),
            }
        }
        let connection = self.connect().await?;
        let began = connection.client.batch_execute(beginning).await;
        began.map_err(|source| Error::Server { place: self.place.clone(), source })?;
        Ok(connection)
    }

    /// Ends the transaction of a connection, and keeps it for the next.
    pub(crate) fn give_back(self: &Arc<Self>, connection: Connection) {
        // Without a runtime the connection is closed.
        let Ok(runtime) = connections() else { return };
        let server = Arc::clone(self);
        runtime.spawn(async move {
            if connection.client.batch_execute("COMMIT").await.is_ok() {
                let mut idle = server.idle();
                if idle.len() < MOST_IDLE {
                    idle.push(connection);
                }
            }
        });
    }

    /// Cancels the request of a connection at the server, and closes it.
    pub(crate) fn stop(connection: Connection) {
        if let Ok(runtime) = connections() {
            let token = connection.client.cancel_token();
            runtime.spawn(async move {
                // The request may be complete, or the server gone: then there is nothing to cancel.
                let _ = tokio::time::timeout(CONNECT_TIMEOUT, token.cancel_query(NoTls)).await;
            });
        }
        drop(connection);
    }

    /// Begins the reads of a statement.
    ///
    /// # Errors
    /// If there is no connection, or the server refuses.
    pub async fn view(self: &Arc<Self>) -> Result<View> {
        // Each query of the catalogs sees their present state: locked definitions do not change.
        let connection = self.connection(&format!("BEGIN READ ONLY; {PATIENT}")).await?;
        let failed = |source| Error::Server { place: self.place.clone(), source };
        let version = "SELECT pg_catalog.current_setting('server_version_num')::int";
        let row = connection.client.query_one(version, &[]).await.map_err(failed)?;
        let version = row.try_get(0).map_err(failed)?;
        Ok(View {
            server: Arc::clone(self),
            connection: Some(connection),
            version,
            is_asking: AtomicBool::new(false),
            moment: OnceCell::new(),
        })
    }
}

/// Returns true if the error ends the connection: the server shuts down, or the connection was
/// terminated.
fn is_gone(e: &tokio_postgres::Error) -> bool {
    e.code().is_some_and(|code| matches!(code.code(), "57P01" | "57P02" | "57P03") || code.code().starts_with("08"))
}

/// Returns the last cause.
fn cause(e: &tokio_postgres::Error) -> String {
    std::iter::successors(std::error::Error::source(e), |e| e.source())
        .last()
        .map_or_else(|| e.to_string(), ToString::to_string)
}

fn place(config: &Config) -> String {
    let user = config.get_user().unwrap_or_default();
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => String::new(),
    };
    let port = config.get_ports().first().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{user}@{host}{port}/{}", config.get_dbname().unwrap_or(user))
}

/// The reads of a statement: tables whose columns cannot change, as of one snapshot taken
/// afterwards.
///
/// One transaction reads the definitions of tables and keeps them locked as readers do. Another one
/// owns the snapshot, which begins with the first reader. So changes of a table during the wait for
/// its lock are visible.
#[derive(Debug)]
pub struct View {
    server: Arc<Server>,
    /// The connection, until this is dropped.
    connection: Option<Connection>,
    version: i32,
    /// True while a request has no answer yet.
    is_asking: AtomicBool,
    moment: OnceCell<Moment>,
}

/// A transaction whose snapshot others share.
#[derive(Debug)]
struct Moment {
    server: Arc<Server>,
    /// The connection, until this is dropped.
    connection: Option<Connection>,
    id: String,
}

impl View {
    /// Returns the server's address for messages.
    pub fn place(&self) -> &str {
        &self.server.place
    }

    /// Returns true if the view is this server's.
    pub fn is_of(&self, server: &Arc<Server>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    /// Returns the server's version, in its numbering: 150018 is 15.18.
    pub fn version(&self) -> i32 {
        self.version
    }

    pub(crate) fn client(&self) -> &Client {
        match &self.connection {
            Some(connection) => &connection.client,
            None => unreachable!("it has a connection until it is dropped"),
        }
    }

    pub(crate) fn failed(&self, source: tokio_postgres::Error) -> Error {
        Error::Server { place: self.server.place.clone(), source }
    }

    /// Returns the definition of a table. Its columns cannot change until the view is dropped.
    ///
    /// # Errors
    /// [`Error::NoTable`], or if the server refuses: the table may not be readable. Then the view
    /// accepts no more requests.
    pub async fn table(&self, schema: &str, name: &str) -> Result<Table> {
        // The request may wait for a change of the table. If the caller drops it meanwhile, the
        // flag stays set.
        self.is_asking.store(true, Relaxed);
        let table = Table::of(self, schema, name).await;
        self.is_asking.store(false, Relaxed);
        table
    }

    async fn moment(&self) -> Result<&Moment> {
        let begun = self.moment.get_or_try_init(async || {
            let beginning = format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {PATIENT}");
            let connection = self.server.connection(&beginning).await?;
            let export = "SELECT pg_catalog.pg_export_snapshot()";
            let row = connection.client.query_one(export, &[]).await.map_err(|e| self.failed(e))?;
            let id = row.try_get(0).map_err(|e| self.failed(e))?;
            Ok(Moment { server: Arc::clone(&self.server), connection: Some(connection), id })
        });
        begun.await
    }

    /// Returns another connection, to read a table: all of them see the same snapshot.
    ///
    /// # Errors
    /// If there is no connection, the server refuses, or a column is of a type that cannot be read.
    pub async fn reader(&self, table: &Table, selection: &Selection) -> Result<Reader> {
        // The id is the server's own. A transaction between this one and the table waits for the
        // view to end: waiting for it would deadlock.
        let beginning = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'; {PATIENT}; \
             SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}",
            self.moment().await?.id.replace('\'', "''")
        );
        let connection = self.server.connection(&beginning).await?;
        Reader::new(Arc::clone(&self.server), connection, table, selection)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        match self.connection.take() {
            Some(connection) if self.is_asking.load(Relaxed) => Server::stop(connection),
            Some(connection) => self.server.give_back(connection),
            None => {}
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.server.give_back(connection);
        }
    }
}

/// Replaces the address in a statement. In a statement that attaches, the text between the first
/// and the last quote is replaced, or all of it if there are no quotes. The text is not parsed: an
/// address may be written in more ways than a search could cover.
pub fn without_addresses(text: &str) -> std::borrow::Cow<'_, str> {
    let Some(verb) = attach_at(text) else { return text.into() };
    let rest = &text[verb..];
    let is_quote = |c: char| matches!(c, '\'' | '$');
    let (from, to) = match (rest.find(is_quote), rest.rfind(is_quote)) {
        // The closing quote may be missing.
        (Some(first), Some(last)) if first < last => (first + 1, last),
        (Some(first), _) => (first + 1, rest.len()),
        _ => (0, rest.len()),
    };
    let space = if from == 0 { " " } else { "" };
    format!("{}{space}***{}", &text[..verb + from], &rest[to..]).into()
}

/// Returns the end of the keyword that begins an attaching statement.
fn attach_at(text: &str) -> Option<usize> {
    const VERB: &str = "attach";
    let bytes = text.as_bytes();
    let is_verb = |at: &usize| {
        let word = bytes.get(*at..*at + VERB.len());
        let is_whole = !bytes.get(at + VERB.len()).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        // Behind nothing, another statement, a comment, or at the beginning of a line.
        let before = text[..*at].trim_end_matches([' ', '\t']);
        let is_first = before.is_empty() || before.ends_with([';', '\n', '\r', '(', '/']);
        word.is_some_and(|word| word.eq_ignore_ascii_case(VERB.as_bytes())) && is_whole && is_first
    };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| matches!(byte, b'a' | b'A')).map(|(at, _)| at);
    starts.filter(|at| text.is_char_boundary(*at)).find(is_verb).map(|at| at + VERB.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_left_in_a_statement() {
        for (text, clean) in [
            ("SELECT 1", "SELECT 1"),
            ("SELECT attach FROM t WHERE x = 'a'", "SELECT attach FROM t WHERE x = 'a'"),
            ("ATTACHED 'x'", "ATTACHED 'x'"),
            ("ATTACH 'postgresql://ada:s3cret@h:5432/db' AS pg", "ATTACH '***' AS pg"),
            ("attach if not exists E'postgresql:\\x2f/u:s3cret@h' AS \"a'\"", "attach if not exists E'***'\""),
            ("ATTACH U&'x\\002Fs3cret' AS pg", "ATTACH U&'***' AS pg"),
            ("ATTACH 'a' 's3cret' AS pg", "ATTACH '***' AS pg"),
            ("ATTACH $x$s3cret$x$ AS pg", "ATTACH $***$ AS pg"),
            ("ATTACH 's3cret AS pg", "ATTACH '***"),
            ("ATTACH postgresql://u:s3cret@h AS pg", "ATTACH ***"),
            ("-- first\nATTACH 's3cret' AS pg", "-- first\nATTACH '***' AS pg"),
            ("/* x */ ATTACH 's3cret'", "/* x */ ATTACH '***'"),
            ("SELECT 1; attach 's3cret' AS pg", "SELECT 1; attach '***' AS pg"),
        ] {
            assert_eq!(without_addresses(text), clean);
        }
    }

    #[test]
    fn an_address_is_told_without_its_password() {
        let server = Server::new("postgresql://ada:s3cret@localhost:5433/shop").unwrap();
        assert_eq!(server.place(), "ada@localhost:5433/shop");
        assert!(!format!("{server:?}").contains("s3cret"));
        for (address, said) in [
            ("postgresql://", "no user"),
            ("nonsense", "no address"),
            ("postgresql://ada@h/db?sslmode=require", "encrypted"),
            ("postgresql://ada:s3cret@h:port/db", "no address"),
        ] {
            let error = Server::new(address).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("s3cret"), "{error}");
        }
    }
}
