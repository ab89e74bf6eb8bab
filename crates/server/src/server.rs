//! The server: it listens, bounds its connections, and shuts down in order.
//!
//! A connection holds a slot until it has logged in, and a seat from then on ([`crate::slots`]).
//! Slots and seats are separate pools: connections that do not log in keep no client out, and the
//! server reads a cancel request while all seats are taken. Shutdown has three steps. The server
//! accepts no new client and closes idle ones. Running statements get a grace period. The server
//! then cancels the rest.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use onehop_engine::{Activity, Database, Executors, Observer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::admission::Admission;
use crate::connections::Connections;
use crate::http;
use crate::interrupt::Reason;
use crate::login::Gate;
use crate::metrics::{Counters, Figures};
use crate::observe::{LogTo, Witness};
use crate::page::Page;
use crate::slots::{Seats, Slots};
use crate::startup;
use crate::tls;
pub use crate::tls::TlsFiles;
use crate::users::Users;

/// The minimum number of concurrent log-ins.
const LEAST_LOGINS: usize = 256;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address of the listener.
    pub listen: SocketAddr,
    /// The users that may log in. Without it, every client may log in as an admin.
    pub users: Option<Users>,
    /// The TLS files. Without them, connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// The address of the Prometheus endpoint; `None` disables it. Its metrics reveal no data, and
    /// it requires no password.
    pub metrics: Option<SocketAddr>,
    /// The address of the web page; `None` disables it. Users log in as clients do, and see the
    /// contents of `onehop_activity` and `onehop_queries`.
    pub http: Option<SocketAddr>,
    /// The log of connections, disconnections and statement results; `None` disables it.
    pub log: Option<LogTo>,
    /// The audit log of log-ins, refusals, and statements that act outside of the database; `None`
    /// disables it.
    pub audit: Option<LogTo>,
    /// The minimum duration of a logged statement. Failed statements are logged regardless.
    pub log_min_duration: Duration,
    /// The URL of the collector that receives statement spans by OTLP over HTTP; `None` disables
    /// them.
    pub otlp: Option<String>,
    /// The maximum number of concurrent clients.
    pub max_connections: usize,
    /// The number of connections, out of `max_connections`, that only admins get if users log in.
    /// At least one connection remains for any client.
    pub reserved_connections: usize,
    /// The maximum number of concurrent connections that have not logged in, besides the clients.
    /// `None` means 256, or twice `max_connections` if that is more, so that all clients may log in
    /// at the same time.
    pub max_logins: Option<usize>,
    /// The maximum number of concurrent statements.
    pub max_queries: usize,
    /// The maximum number of queued statements.
    pub max_queued: usize,
    /// The maximum size of a client message, in bytes.
    pub max_message_bytes: usize,
    /// The grace period of running statements at shutdown.
    pub grace: Duration,
    /// The maximum duration of a log-in.
    pub login_timeout: Duration,
    /// The time a cancelled statement gets to stop before its client is told. A statement that
    /// computes on holds its place until it ends.
    pub patience: Duration,
    /// The time a client gets to read its last messages.
    pub farewell: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 5488)),
            users: None,
            tls: None,
            metrics: None,
            http: None,
            log: None,
            audit: None,
            log_min_duration: Duration::ZERO,
            otlp: None,
            max_connections: 100,
            reserved_connections: 3,
            max_logins: None,
            max_queries: 16,
            max_queued: 256,
            max_message_bytes: 64 << 20,
            grace: Duration::from_secs(30),
            login_timeout: Duration::from_secs(30),
            patience: Duration::from_millis(50),
            farewell: Duration::from_secs(2),
        }
    }
}

/// The reason a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot listen at the address.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A log cannot be opened.
    #[error("cannot open {name} {}: {source}", path.display())]
    Log {
        /// The name of the log: the log or the audit log.
        name: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The configuration is unsafe or impossible.
    #[error("{0}")]
    Refused(String),
}

/// The result of starting a server.
pub type Result<T> = std::result::Result<T, Error>;

/// The state that all connections share.
pub struct Shared {
    pub database: Database,
    pub executors: Executors,
    pub options: Options,
    pub admission: Admission,
    pub connections: Arc<Connections>,
    pub gate: Gate,
    /// The slots of connections that have not logged in.
    pub logins: Arc<Slots>,
    /// The seats of clients that have logged in.
    pub seats: Arc<Seats>,
    pub counters: Arc<Counters>,
    pub witness: Arc<Witness>,
    pub since: SystemTime,
    pub tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("database", &self.database)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    metrics: Option<TcpListener>,
    http: Option<TcpListener>,
    shared: Arc<Shared>,
}

impl Server {
    /// Starts to listen. Statements run on `executors`, everything else on the calling runtime.
    ///
    /// # Errors
    /// Fails if the address cannot be listened at, if other machines can reach it without users and
    /// TLS, if a log cannot be opened, or if the span collector cannot be used.
    pub async fn bind(database: Database, options: Options, executors: Executors) -> Result<Self> {
        for address in [Some(options.listen), options.http].into_iter().flatten() {
            if !address.ip().is_loopback() && (options.users.is_none() || options.tls.is_none()) {
                let message =
                    format!("{address} can be reached by other machines: that needs both users who log in and TLS");
                return Err(Error::Refused(message));
            }
        }
        // TLS and user errors surface here rather than at the first log-in.
        let tls = options.tls.as_ref().map(tls::acceptor).transpose().map_err(Error::Refused)?;
        let (connections, counters) = (Arc::<Connections>::default(), Arc::<Counters>::default());
        let witness = Arc::new(Witness::new(&options, &connections, &counters)?);
        let gate = Gate::new(options.users.clone(), &witness).map_err(Error::Refused)?;
        // Without log-ins, every client is an admin.
        let reserved = if gate.is_open() { 0 } else { options.reserved_connections };
        let seats = Seats::new(options.max_connections, reserved);
        let max_logins = options.max_logins.unwrap_or_else(|| LEAST_LOGINS.max(2 * options.max_connections));
        let logins = Slots::new(max_logins, Duration::ZERO);
        let listener = listen(options.listen).await?;
        let metrics = listen_if(options.metrics).await?;
        let http = listen_if(options.http).await?;
        if http.is_some() {
            database.watch_plans();
        }
        let admission = Admission::new(options.max_queries, options.max_queued);
        let shared = Shared {
            database,
            executors,
            options,
            admission,
            connections,
            gate,
            logins,
            seats,
            tls,
            counters,
            witness,
            since: SystemTime::now(),
        };
        let activity: Arc<dyn Activity> = Arc::clone(&shared.connections) as _;
        shared.database.watch(&activity);
        if shared.witness.is_any() {
            let observer: Arc<dyn Observer> = Arc::clone(&shared.witness) as _;
            shared.database.observe(&observer);
        }
        Ok(Self { listener, metrics, http, shared: Arc::new(shared) })
    }

    /// Returns the address of the listener, with the port that the system chose if none was given.
    ///
    /// # Errors
    /// Fails if the operating system does not report the address.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the address of the Prometheus endpoint.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Returns the address of the web page.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves clients until `stop` completes, then shuts down in order.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        self.run_until(stop, std::future::pending()).await;
    }

    /// Like [`Self::run`]; the grace period also ends when `hurry` completes.
    pub async fn run_until(self, stop: impl Future<Output = ()>, hurry: impl Future<Output = ()>) {
        let Self { listener, metrics, http, shared } = self;
        shared.witness.started(listener.local_addr().ok(), shared.database.path());
        let mut clients = JoinSet::new();
        // A separate set, which is dropped with this function.
        let mut others = JoinSet::new();
        if let Some(listener) = metrics {
            others.spawn(http::serve(listener, None, Figures(Arc::clone(&shared))));
        }
        if let Some(listener) = http {
            others.spawn(http::serve(listener, shared.tls.clone(), Page::new(&shared)));
        }
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_) = clients.join_next(), if !clients.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        if let Some(slot) = shared.logins.enter(address.ip(), Instant::now()) {
                            clients.spawn(startup::serve(stream, address, slot, Arc::clone(&shared)));
                        }
                    }
                    // Most likely too many open files; some close meanwhile.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
        drop(listener);
        end(clients, &shared, hurry).await;
        shared.witness.end().await;
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

async fn listen_if(address: Option<SocketAddr>) -> Result<Option<TcpListener>> {
    match address {
        Some(address) => listen(address).await.map(Some),
        None => Ok(None),
    }
}

async fn end(mut clients: JoinSet<()>, shared: &Shared, hurry: impl Future<Output = ()>) {
    let grace = shared.options.grace;
    shared.logins.drop_silent();
    shared.connections.raise(Reason::Closing);
    tokio::select! {
        () = empty(&mut clients, shared, Reason::Closing) => return,
        () = tokio::time::sleep(grace) => {}
        () = hurry => {}
    }
    let most = shared.options.patience + shared.options.farewell;
    let _ = tokio::time::timeout(most, empty(&mut clients, shared, Reason::Killed)).await;
    clients.shutdown().await;
}

/// Waits until all clients are gone. Repeats the signal, so that connections that logged in after
/// it receive it as well.
async fn empty(clients: &mut JoinSet<()>, shared: &Shared, reason: Reason) {
    while !clients.is_empty() {
        shared.connections.raise(reason);
        let _ = tokio::time::timeout(Duration::from_millis(100), clients.join_next()).await;
    }
}

/// Sets the socket options of a connection, before it may be encrypted.
pub fn prepare(stream: &TcpStream) {
    // `Link` already gathers answers. Keep-alive detects a machine that is gone.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(60));
    let _ = rustix::net::sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10));
    let _ = rustix::net::sockopt::set_tcp_keepcnt(stream, 6);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, 120_000);
}
