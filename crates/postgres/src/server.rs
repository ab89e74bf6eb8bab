//! Connections to a server, and transactions that see the same.
//!
//! A connection that has ended its transaction is kept for the next one. One that is dropped in the middle of something is told to
//! stop and closed: what it would still send is nobody's.

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

/// How long the server may take to answer to a connection, if the address does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A statement that takes long keeps connections that do nothing for as long.
const PATIENT: &str = "SET LOCAL idle_in_transaction_session_timeout = 0";
/// How long a reader waits for a lock that it has already, by another connection: who is before it in the queue waits for that one.
const LOCK_TIMEOUT_MS: u32 = 1000;
/// Idle connections that are kept.
const MOST_IDLE: usize = 32;

/// A server, and a database of it.
#[derive(Debug)]
pub struct Server {
    config: Config,
    place: String,
    idle: Mutex<Vec<Connection>>,
}

/// A connection, and the task that looks after it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub client: Client,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The runtime of all connections, one thread: started with the first.
fn connections() -> io::Result<&'static Handle> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let start =
        || Builder::new_multi_thread().worker_threads(1).thread_name("onehop-postgres").enable_all().build().ok();
    let runtime = RUNTIME.get_or_init(start).as_ref();
    runtime.map(Runtime::handle).ok_or_else(|| io::Error::other("the system has no more threads"))
}

impl Server {
    /// Of an address: `postgresql://user:password@host:port/database`, or `host=... dbname=...`. A password that it does not have is
    /// taken from `PGPASSWORD`. Nothing is connected yet.
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

    /// Where it is, for people: without a password.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Connection> {
        let failed = |source| Error::Connect { place: self.place.clone(), source };
        let config = self.config.clone();
        // A statement's runtime may end with it; its connection is kept for others.
        let runtime = connections().map_err(|source| Error::Threads { source })?;
        let connected = runtime.spawn(async move { config.connect(NoTls).await }).await;
        let connected = connected.map_err(|e| Error::Threads { source: io::Error::other(e) })?;
        let (client, connection) = connected.map_err(failed)?;
        let task = runtime.spawn(async move {
            // A statement that waits for an answer hears of it.
            let _ = connection.await;
        });
        Ok(Connection { client, task })
    }

    /// A connection that has done this: one that was idle, unless it has been closed meanwhile.
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
        // Without a runtime it ends here.
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

    /// Tells the server that nobody wants what a connection is about to get, and closes it.
    pub(crate) fn stop(connection: Connection) {
        if let Ok(runtime) = connections() {
            let token = connection.client.cancel_token();
            runtime.spawn(async move {
                // It may be done, or gone: then there is nothing to stop.
                let _ = tokio::time::timeout(CONNECT_TIMEOUT, token.cancel_query(NoTls)).await;
            });
        }
        drop(connection);
    }

    /// What a statement reads of it.
    ///
    /// # Errors
    /// There is no connection, or the server refuses.
    pub async fn view(self: &Arc<Self>) -> Result<View> {
        // Each look at the catalogs sees them as they are: what is locked stays like that.
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

/// Whether it says that the connection ends: the server does, or somebody has ended this one.
fn is_gone(e: &tokio_postgres::Error) -> bool {
    e.code().is_some_and(|code| matches!(code.code(), "57P01" | "57P02" | "57P03") || code.code().starts_with("08"))
}

/// The last cause.
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

/// What a statement reads of a server: tables that nobody changes the columns of, as of one moment after that is so.
///
/// A transaction looks at tables and keeps them locked as readers do. The moment is another one's, which begins when the first
/// rows are wanted, so that what has become of a table while it was waited for is what is read.
#[derive(Debug)]
pub struct View {
    server: Arc<Server>,
    /// Gone when this is dropped.
    connection: Option<Connection>,
    version: i32,
    /// Somebody has asked for something, and has no answer yet.
    is_asking: AtomicBool,
    moment: OnceCell<Moment>,
}

/// A transaction whose snapshot others have, too.
#[derive(Debug)]
struct Moment {
    server: Arc<Server>,
    /// Gone when this is dropped.
    connection: Option<Connection>,
    id: String,
}

impl View {
    /// Where the server is, for people.
    pub fn place(&self) -> &str {
        &self.server.place
    }

    /// Whether it is this server's.
    pub fn is_of(&self, server: &Arc<Server>) -> bool {
        Arc::ptr_eq(&self.server, server)
    }

    /// The server's version, as it numbers them: 150018 is 15.18.
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

    /// What a table is. Nobody changes its columns until this is dropped.
    ///
    /// # Errors
    /// [`Error::NoTable`], or the server refuses: it may not be read. Then nothing more can be asked of this.
    pub async fn table(&self, schema: &str, name: &str) -> Result<Table> {
        // It may have to wait for somebody who changes the table; who does not wait any more leaves it like this.
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

    /// Another connection, to read a table by: all of them see the same.
    ///
    /// # Errors
    /// There is no connection, the server refuses, or a column is of a type that cannot be read.
    pub async fn reader(&self, table: &Table, selection: &Selection) -> Result<Reader> {
        // Its id is the server's own word. Whoever stands between this and the table waits for us to end: for them there is no
        // waiting.
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

/// A statement without the address that it may have in it: of one that attaches, whatever is in quotes, and all of it if nothing
/// is. Nothing is made of what is between them: an address may be written in more ways than could be looked for.
pub fn without_addresses(text: &str) -> std::borrow::Cow<'_, str> {
    let Some(verb) = attach_at(text) else { return text.into() };
    let rest = &text[verb..];
    let is_quote = |c: char| matches!(c, '\'' | '$');
    let (from, to) = match (rest.find(is_quote), rest.rfind(is_quote)) {
        // The last may be missing.
        (Some(first), Some(last)) if first < last => (first + 1, last),
        (Some(first), _) => (first + 1, rest.len()),
        _ => (0, rest.len()),
    };
    let space = if from == 0 { " " } else { "" };
    format!("{}{space}***{}", &text[..verb + from], &rest[to..]).into()
}

/// Where the word is over that begins a statement which attaches.
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
