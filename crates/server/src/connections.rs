//! The open connections by number, for cancellation and for the activity view.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use onehop_engine::{Activity, ClientFacts, Connected, QueryState, Rights, Session};
use pgwire::messages::startup::SecretKey;

use crate::interrupt::{Interrupt, Reason};

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    /// The number that clients take for a process id.
    pub number: i32,
    secret: SecretKey,
    pub user: String,
    /// The database name, as the client spells it.
    pub database: String,
    pub address: SocketAddr,
    pub since: SystemTime,
    pub interrupt: Arc<Interrupt>,
    session: Arc<Session>,
}

impl Connection {
    /// Returns the rights of the user.
    pub fn rights(&self) -> Rights {
        self.session.rights()
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub struct Connections {
    last: AtomicI32,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_number: BTreeMap<i32, Arc<Connection>>,
    by_session: HashMap<u64, Arc<Connection>>,
}

/// A registered connection. Dropping it removes the registration.
#[derive(Debug)]
pub struct Registered {
    pub connection: Arc<Connection>,
    all: Arc<Connections>,
}

/// The result of a request to cancel a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The statement was told to end.
    Told,
    /// The statement belongs to another user.
    Denied,
    /// No client statement with this number is running.
    NotRunning,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other connection has.
    pub fn number(&self) -> i32 {
        loop {
            let number = self.last.fetch_add(1, Relaxed).wrapping_add(1);
            if number > 0 && !self.open().by_number.contains_key(&number) {
                return number;
            }
            let _ = self.last.compare_exchange(number, 0, Relaxed, Relaxed);
        }
    }

    /// Registers a connection.
    pub fn register(
        self: &Arc<Self>,
        client: ClientFacts,
        secret: SecretKey,
        address: SocketAddr,
        interrupt: Arc<Interrupt>,
        session: Arc<Session>,
    ) -> Registered {
        let since = SystemTime::now();
        let ClientFacts { user, database, number } = client;
        let id = session.id();
        let connection = Arc::new(Connection { number, secret, user, database, address, since, interrupt, session });
        let mut open = self.open();
        open.by_number.insert(number, Arc::clone(&connection));
        open.by_session.insert(id, Arc::clone(&connection));
        drop(open);
        Registered { connection, all: Arc::clone(self) }
    }

    /// Returns the connection of a session, if it is registered.
    pub fn of_session(&self, session: u64) -> Option<Arc<Connection>> {
        self.open().by_session.get(&session).cloned()
    }

    /// Cancels the statement of a connection if the secret matches. The requester learns nothing
    /// about the outcome.
    pub fn cancel(&self, number: i32, secret: &SecretKey) {
        let connection =
            self.open().by_number.get(&number).filter(|connection| connection.secret.eq_value(secret)).cloned();
        if let Some(connection) = connection {
            connection.interrupt.raise(Reason::Cancelled);
        }
    }

    /// Cancels a statement by its number, if `may` permits it for the connection that runs it.
    pub fn cancel_statement(&self, query: u64, may: impl Fn(&Connection) -> bool) -> Cancelled {
        let runs = |connection: &&Arc<Connection>| {
            let last = connection.session.query();
            connection.interrupt.is_busy() && last.id() == query && last.state() == QueryState::Running
        };
        let Some(connection) = self.open().by_number.values().find(runs).cloned() else { return Cancelled::NotRunning };
        if !may(&connection) {
            return Cancelled::Denied;
        }
        connection.interrupt.raise(Reason::Cancelled);
        Cancelled::Told
    }

    /// Interrupts all connections.
    pub fn raise(&self, reason: Reason) {
        self.open().by_number.values().for_each(|connection| connection.interrupt.raise(reason));
    }
}

impl Activity for Connections {
    fn connected(&self) -> Vec<Connected> {
        let all: Vec<Arc<Connection>> = self.open().by_number.values().cloned().collect();
        let known = |connection: &Arc<Connection>| Connected {
            number: connection.number.into(),
            user: connection.user.clone(),
            address: connection.address.to_string(),
            since: connection.since,
            session: connection.session.id(),
            query: connection.session.query(),
            transaction: connection.session.transaction(),
            application: connection.session.parameter("application_name").unwrap_or_default(),
            is_busy: connection.interrupt.is_busy(),
        };
        all.iter().map(known).collect()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut open = self.all.open();
        let last =
            (open.by_number.remove(&self.connection.number), open.by_session.remove(&self.connection.session.id()));
        // Sessions end outside of the lock.
        drop(open);
        drop(last);
    }
}
