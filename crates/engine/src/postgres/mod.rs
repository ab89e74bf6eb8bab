//! What PostgreSQL's clients ask of a database beside its tables: its system catalogs, functions about them, and parameters of
//! a session. Names and numbers are PostgreSQL 15's; what they tell is what the engine has.
//!
//! - [`catalogs`]: `pg_class`, `pg_attribute`, `pg_type` and so on, made of a statement's snapshot when it asks for them. What
//!   the engine has none of, such as indexes, has its catalog all the same, without a row.
//! - [`information_schema`]: SQL's own catalogs, of the same snapshot.
//! - [`functions`]: `pg_table_is_visible`, `format_type`, `current_schema` ...
//! - [`column_names`]: what a result's columns are called that the statement does not name.
//! - [`parameters`]: `server_version`, `client_encoding` ... beside the settings.
//!
//! Numbers of objects are the same for as long as the objects are there, whoever asks: a table's follows from its id, what has
//! none is numbered by its name.

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

/// Who a session belongs to, if somebody is connected to it.
#[derive(Clone, Debug)]
pub struct ClientFacts {
    /// The user's name.
    pub user: String,
    /// The database's name, as the client calls it.
    pub database: String,
    /// The number of the connection.
    pub number: i32,
}

impl Default for ClientFacts {
    fn default() -> Self {
        Self { user: "onehop".into(), database: "onehop".into(), number: 0 }
    }
}

/// What a statement's catalogs and functions know.
#[derive(Debug)]
pub(crate) struct Scope {
    pub snapshot: Arc<Snapshot>,
    pub settings: Settings,
    pub client: ClientFacts,
    pub parameters: parameters::Shared,
    /// When the transaction began, if there is one.
    pub transaction_since: Option<DateTime<Utc>>,
}
