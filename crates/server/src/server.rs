//! The server: it listens, bounds its connections, and ends in order.
//!
//! A connection has a slot until it has logged in, and a seat from then on ([`crate::slots`]). The
//! slots are others than the seats: connections that do not log in keep no client out, and a
//! request to cancel is heard while all seats are taken. Ending has three steps: no client is let
//! in any more, and one that does nothing is sent away; what runs has a time of grace; what still
//! runs then is cancelled.

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

/// Connections that log in at once, at least.
const LEAST_LOGINS: usize = 256;

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Who may log in; without it everybody, as an admin.
    pub users: Option<Users>,
    /// What connections are encrypted with; without it none are.
    pub tls: Option<TlsFiles>,
    /// Where figures for Prometheus are to be had; without it nowhere. They say nothing about data, and nobody is asked for a
    /// password there.
    pub metrics: Option<SocketAddr>,
    /// Where the page is; without it nowhere. Who looks at it logs in as clients do, and sees what `onehop_activity` and
    /// `onehop_queries` tell.
    pub http: Option<SocketAddr>,
    /// Where it logs who comes and goes, and what statements came to; without it nowhere.
    pub log: Option<LogTo>,
    /// The place of an audit log of log-ins, refusals, and what statements do outside of the
    /// database; without it there is none.
    pub audit: Option<LogTo>,
    /// Statements that took less are logged only if they failed.
    pub log_min_duration: Duration,
    /// What takes spans of statements, by OTLP over HTTP: a URL. Without it there are none.
    pub otlp: Option<String>,
    /// Clients at once.
    pub max_connections: usize,
    /// The last of these, which only admins get, if users log in. One is for any client whatever
    /// this says.
    pub reserved_connections: usize,
    /// Connections at once that have not logged in, besides the clients; `None` for 256, or twice
    /// `max_connections` if that is more, so that all clients may log in at the same time.
    pub max_logins: Option<usize>,
    /// Statements that run at once.
    pub max_queries: usize,
    /// Statements that wait for others.
    pub max_queued: usize,
    /// Bytes of one message of a client.
    pub max_message_bytes: usize,
    /// What statements that run have to end in when the server does.
    pub grace: Duration,
    /// How long a log-in may take.
    pub login_timeout: Duration,
    /// How long a statement that was cancelled may take to let go, before its client is told. If it computes on, its
    /// place stays taken until it ends.
    pub patience: Duration,
    /// How long a client may take to read its last words.
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

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A log cannot be written.
    #[error("cannot open {name} {}: {source}", path.display())]
    Log {
        /// The log, or the audit log.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// What was asked for would be a danger, or cannot be.
    #[error("{0}")]
    Refused(String),
}

/// The result of making a server.
pub type Result<T> = std::result::Result<T, Error>;

/// What all connections share.
pub struct Shared {
    pub database: Database,
    pub executors: Executors,
    pub options: Options,
    pub admission: Admission,
    pub connections: Arc<Connections>,
    pub gate: Gate,
    /// Slots of connections that have not logged in.
    pub logins: Arc<Slots>,
    /// Seats of clients that have.
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
    /// Listens from now on. Statements run on `executors`, everything else on the runtime that this is
    /// called on.
    ///
    /// # Errors
    /// The address cannot be listened at, or is one that others can reach while nothing protects what they send; the log cannot be
    /// opened, or spans not be sent where they should.
    pub async fn bind(database: Database, options: Options, executors: Executors) -> Result<Self> {
        for address in [Some(options.listen), options.http].into_iter().flatten() {
            if !address.ip().is_loopback() && (options.users.is_none() || options.tls.is_none()) {
                let message =
                    format!("{address} can be reached by other machines: that needs both users who log in and TLS");
                return Err(Error::Refused(message));
            }
        }
        // What is wrong with these ends here, and not at the first log-in.
        let tls = options.tls.as_ref().map(tls::acceptor).transpose().map_err(Error::Refused)?;
        let (connections, counters) = (Arc::<Connections>::default(), Arc::<Counters>::default());
        let witness = Arc::new(Witness::new(&options, &connections, &counters)?);
        let gate = Gate::new(options.users.clone(), &witness).map_err(Error::Refused)?;
        // Without log-ins every client is an admin.
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

    /// Where it listens: with the port that the system chose, if none was given.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Where its figures are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Where its page is.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves clients until `stop` is done, then ends in order.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        self.run_until(stop, std::future::pending()).await;
    }

    /// The same; what runs has its time of grace until `hurry` is done.
    pub async fn run_until(self, stop: impl Future<Output = ()>, hurry: impl Future<Output = ()>) {
        let Self { listener, metrics, http, shared } = self;
        shared.witness.started(listener.local_addr().ok(), shared.database.path());
        let mut clients = JoinSet::new();
        // Of a set of its own, which ends with this.
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
                    // Too many open files, most likely: some are closed meanwhile.
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

/// Waits until all are gone. Who was logging in when the others were told is told as well.
async fn empty(clients: &mut JoinSet<()>, shared: &Shared, reason: Reason) {
    while !clients.is_empty() {
        shared.connections.raise(reason);
        let _ = tokio::time::timeout(Duration::from_millis(100), clients.join_next()).await;
    }
}

/// What a connection is made of, once it may be encrypted.
pub fn prepare(stream: &TcpStream) {
    // Answers are gathered here already; and a machine that is gone is found out about.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(60));
    let _ = rustix::net::sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10));
    let _ = rustix::net::sockopt::set_tcp_keepcnt(stream, 6);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, 120_000);
}
