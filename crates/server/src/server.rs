//! The server: it listens, keeps count of who is there, and ends in order.
//!
//! A connection beyond those that are allowed is heard, so that it can cancel what another one does, and otherwise told that
//! there is no room; so many of these at once, and no more. Ending has three steps: nobody is let in any more, and whoever does
//! nothing is sent away; what runs has a time of grace; what still runs then is cancelled.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use onehop_engine::{Activity, Database, Observer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
use crate::startup;
use crate::tls;
pub use crate::tls::TlsFiles;
use crate::users::Users;

/// Connections at once that are there only to be told that there is no room.
const MOST_REFUSED: usize = 64;

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
    /// Statements that took less are logged only if they failed.
    pub log_min_duration: Duration,
    /// What takes spans of statements, by OTLP over HTTP: a URL. Without it there are none.
    pub otlp: Option<String>,
    /// Connections at once.
    pub max_connections: usize,
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
    /// How long a statement that was cancelled may take to let go.
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
            log_min_duration: Duration::ZERO,
            otlp: None,
            max_connections: 100,
            max_queries: 16,
            max_queued: 256,
            max_message_bytes: 64 << 20,
            grace: Duration::from_secs(30),
            login_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(10),
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
    /// The log cannot be written.
    #[error("cannot open the log {}: {source}", path.display())]
    Log {
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
    pub workers: Handle,
    pub options: Options,
    pub admission: Admission,
    pub connections: Arc<Connections>,
    pub gate: Gate,
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
    /// Listens from now on. Statements run on `workers`, whose threads need a stack of
    /// [`STACK_BYTES`](onehop_engine::STACK_BYTES); everything else on the runtime that this is called on.
    ///
    /// # Errors
    /// The address cannot be listened at, or is one that others can reach while nothing protects what they send; the log cannot be
    /// opened, or spans not be sent where they should.
    pub async fn bind(database: Database, options: Options, workers: Handle) -> Result<Self> {
        for address in [Some(options.listen), options.http].into_iter().flatten() {
            if !address.ip().is_loopback() && (options.users.is_none() || options.tls.is_none()) {
                let message =
                    format!("{address} can be reached by other machines: that needs both users who log in and TLS");
                return Err(Error::Refused(message));
            }
        }
        // What is wrong with these ends here, and not at the first log-in.
        let tls = options.tls.as_ref().map(tls::acceptor).transpose().map_err(Error::Refused)?;
        options.users.as_ref().map(Users::read).transpose().map_err(|e| Error::Refused(e.to_string()))?;
        let gate = Gate::new(options.users.clone());
        let gate = gate.ok_or_else(|| Error::Refused("the system gives no random numbers".into()))?;
        let (connections, counters) = (Arc::<Connections>::default(), Arc::<Counters>::default());
        let witness = Arc::new(Witness::new(&options, &connections, &counters)?);
        let listener = listen(options.listen).await?;
        let metrics = listen_if(options.metrics).await?;
        let http = listen_if(options.http).await?;
        if http.is_some() {
            database.watch_plans();
        }
        let admission = Admission::new(options.max_queries, options.max_queued);
        let shared = Shared {
            database,
            workers,
            options,
            admission,
            connections,
            gate,
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
        let rooms = Rooms::new(shared.options.max_connections);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_) = clients.join_next(), if !clients.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        if let Some(room) = rooms.take() {
                            clients.spawn(startup::serve(stream, address, room, Arc::clone(&shared)));
                        }
                    }
                    // Too many open files, most likely: some are closed meanwhile.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
        drop(listener);
        end(clients, &shared).await;
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

async fn end(mut clients: JoinSet<()>, shared: &Shared) {
    let grace = shared.options.grace;
    shared.connections.raise(Reason::Closing);
    if tokio::time::timeout(grace, empty(&mut clients, shared, Reason::Closing)).await.is_ok() {
        return;
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

/// Room for a connection, until it is dropped.
#[derive(Debug)]
pub struct Room {
    pub kind: RoomKind,
    _permit: OwnedSemaphorePermit,
}

/// What a connection is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomKind {
    Client,
    /// There is no room; it is only to be told so.
    Refused,
}

#[derive(Debug)]
struct Rooms {
    clients: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

impl Rooms {
    fn new(most: usize) -> Self {
        Self { clients: Arc::new(Semaphore::new(most)), refused: Arc::new(Semaphore::new(MOST_REFUSED)) }
    }

    fn take(&self) -> Option<Room> {
        let of = |rooms: &Arc<Semaphore>, kind| {
            let permit = Arc::clone(rooms).try_acquire_owned().ok()?;
            Some(Room { kind, _permit: permit })
        };
        of(&self.clients, RoomKind::Client).or_else(|| of(&self.refused, RoomKind::Refused))
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
