//! PostgreSQL's system catalogs, the functions on them, and the parameters of a session, for its
//! clients. Names and OIDs are PostgreSQL 15's; the contents describe the engine.
//!
//! - [`catalogs`]: `pg_class`, `pg_attribute`, `pg_type` and so on, built from a statement's
//!   snapshot on demand. A kind of object that the engine lacks, such as indexes, has a catalog
//!   without rows.
//! - [`information_schema`]: SQL's own catalogs, from the same snapshot.
//! - [`functions`]: `pg_table_is_visible`, `format_type`, `current_schema` ...
//! - [`column_names`]: the names of a result's unnamed columns.
//! - [`parameters`]: `server_version`, `client_encoding` ... beside the settings.
//!
//! The OID of an object is the same for all sessions during the object's life. A table's OID
//! follows from its id, and objects without an id are numbered by name.

pub(crate) mod catalogs;
pub(crate) mod column_names;
pub(crate) mod functions;
pub(crate) mod information_schema;
pub(crate) mod objects;
pub(crate) mod parameters;
pub(crate) mod patterns;

use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::settings::Settings;
use crate::snapshot::Snapshot;

/// The schema of the catalogs.
pub(crate) const SCHEMA: &str = "pg_catalog";
/// The schema of SQL's own catalogs.
pub(crate) const INFORMATION_SCHEMA: &str = "information_schema";

/// The client of a session, or the defaults if none is connected.
#[derive(Clone, Debug)]
pub struct ClientFacts {
    /// The user's name.
    pub user: String,
    /// The name by which the client calls the database.
    pub database: String,
    /// The number of the connection.
    pub number: i32,
}

impl Default for ClientFacts {
    fn default() -> Self {
        Self { user: "onehop".into(), database: "onehop".into(), number: 0 }
    }
}

/// The state of a statement that catalogs and functions read.
#[derive(Debug)]
pub(crate) struct Scope {
    /// The snapshot of the statement.
    pub snapshot: Arc<Snapshot>,
    /// The settings of the session.
    pub settings: Settings,
    /// The client of the session.
    pub client: ClientFacts,
    /// The parameters of the session.
    pub parameters: parameters::Shared,
    /// The start of the transaction, if there is one.
    pub transaction_since: Option<DateTime<Utc>>,
}
