//! Connections to a server, and transactions that see the same.
//!
//! A connection that has ended its transaction is kept for the next one. One that is dropped in the middle of something is told to
//! stop and closed: what it would still send is nobody's.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};

use crate::table::Table;
use crate::{Error, Result, Selection};

pub use crate::read::Reader;

/// How long the server may take to answer to a connection, if the address does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
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
        let (client, connection) = self.config.connect(NoTls).await.map_err(failed)?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer hears of it.
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
                Err(_) if connection.client.is_closed() => {}
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
        let Ok(runtime) = Handle::try_current() else { return };
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
        if let Ok(runtime) = Handle::try_current() {
            let token = connection.client.cancel_token();
            runtime.spawn(async move {
                // It may be done, or gone: then there is nothing to stop.
                let _ = tokio::time::timeout(CONNECT_TIMEOUT, token.cancel_query(NoTls)).await;
            });
        }
        drop(connection);
    }

    /// What the server has committed now, for as long as this is kept.
    ///
    /// # Errors
    /// There is no connection, or the server refuses.
    pub async fn snapshot(self: &Arc<Self>) -> Result<Snapshot> {
        let connection = self.connection("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let failed = |source| Error::Server { place: self.place.clone(), source };
        let facts = "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.current_setting('server_version_num')::int";
        let row = connection.client.query_one(facts, &[]).await.map_err(failed)?;
        let (id, version) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        Ok(Snapshot {
            server: Arc::clone(self),
            connection: Some(connection),
            id,
            version,
            is_asking: AtomicBool::new(false),
        })
    }
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

/// What a server has committed at a moment.
#[derive(Debug)]
pub struct Snapshot {
    server: Arc<Server>,
    /// Gone when this is dropped.
    connection: Option<Connection>,
    id: String,
    version: i32,
    /// Somebody has asked for something, and has no answer yet.
    is_asking: AtomicBool,
}

impl Snapshot {
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

    /// Another connection that sees the same, to read a table by.
    ///
    /// # Errors
    /// There is no connection, the server refuses, or a column is of a type that cannot be read.
    pub async fn reader(&self, table: &Table, selection: &Selection) -> Result<Reader> {
        // Its id is the server's own word.
        let beginning = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'",
            self.id.replace('\'', "''")
        );
        let connection = self.server.connection(&beginning).await?;
        Reader::new(Arc::clone(&self.server), connection, table, selection)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        match self.connection.take() {
            Some(connection) if self.is_asking.load(Relaxed) => Server::stop(connection),
            Some(connection) => self.server.give_back(connection),
            None => {}
        }
    }
}

/// A text, such as a statement, without the passwords of addresses in it.
pub fn without_passwords(text: &str) -> std::borrow::Cow<'_, str> {
    let is_suspect = text.contains("://") || text.contains("assword") || text.contains("ASSWORD");
    if !is_suspect {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, secret, after)) = next_password(rest) {
        clean.push_str(before);
        clean.push_str("***");
        rest = &rest[before.len() + secret.len()..];
        debug_assert_eq!(rest, after);
    }
    clean.push_str(rest);
    clean.into()
}

/// What ends a word of an address.
fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\'' | '"' | '$' | ';' | ')')
}

/// The text before the first password, the password, and what is behind it.
fn next_password(text: &str) -> Option<(&str, &str, &str)> {
    let found = [in_user_part(text), behind_word(text)];
    let (from, to) = found.into_iter().flatten().min()?;
    Some((&text[..from], &text[from..to], &text[to..]))
}

/// In `scheme://user:password@host`.
fn in_user_part(text: &str) -> Option<(usize, usize)> {
    let mut at = 0;
    while let Some(found) = text[at..].find("://") {
        let start = at + found + 3;
        let end = text[start..].find(is_end).map_or(text.len(), |end| start + end);
        let authority = &text[start..end];
        // A password may have a slash in it that nobody has encoded: the last @ ends it.
        if let Some(host) = authority.rfind('@')
            && let Some(colon) = authority[..host].find(':')
            && &authority[colon + 1..host] != "***"
            && colon + 1 < host
        {
            return Some((start + colon + 1, start + host));
        }
        at = start;
    }
    None
}

/// In `password=...`, in quotes or not.
fn behind_word(text: &str) -> Option<(usize, usize)> {
    let small = text.to_ascii_lowercase();
    let mut at = 0;
    while let Some(found) = small[at..].find("password") {
        let mut start = at + found + "password".len();
        at = start;
        start += small[start..].len() - small[start..].trim_start().len();
        let Some(rest) = small[start..].strip_prefix('=') else { continue };
        start += 1 + rest.len() - rest.trim_start().len();
        let rest = &text[start..];
        // A quote of the value's own is escaped by one more where the address is in quotes itself.
        let quotes = rest.len() - rest.trim_start_matches(['\'', '\\']).len();
        let value = &rest[quotes..];
        let end = match quotes {
            0 => value.find(|c: char| is_end(c) || c == '&'),
            _ => value.find(['\'', '\\']),
        };
        let (from, to) = (start + quotes, start + quotes + end.unwrap_or(value.len()));
        if from < to && &text[from..to] != "***" {
            return Some((from, to));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_left_in_a_text() {
        for (text, clean) in [
            ("SELECT 1", "SELECT 1"),
            ("ATTACH 'postgresql://ada:s3cret@h:5432/db' AS pg", "ATTACH 'postgresql://ada:***@h:5432/db' AS pg"),
            ("ATTACH 'postgres://ada:a@b/c@h/db'", "ATTACH 'postgres://ada:***@h/db'"),
            ("ATTACH 'postgresql://ada@h/db?password=s3&x=1'", "ATTACH 'postgresql://ada@h/db?password=***&x=1'"),
            ("ATTACH 'host=h password = s3 dbname=d'", "ATTACH 'host=h password = *** dbname=d'"),
            ("ATTACH 'host=h PASSWORD=''s 3'' dbname=d'", "ATTACH 'host=h PASSWORD=''***'' dbname=d'"),
            ("a://u:p@h b://u:q@h password=x", "a://u:***@h b://u:***@h password=***"),
            ("FROM 'https://host/a:b/c@d'", "FROM 'https://host/a:***@d'"),
            ("SELECT password FROM users", "SELECT password FROM users"),
            ("ATTACH 'postgresql://ada:@h/db'", "ATTACH 'postgresql://ada:@h/db'"),
        ] {
            assert_eq!(without_passwords(text), clean);
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
