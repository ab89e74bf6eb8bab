//! PostgreSQL databases that a session has attached. Their tables have names `pg.schema.table`, or
//! `pg.table` in the schema `public`.
//!
//! ```text
//! a name ─ Schema::table ─► View of the statement ─ Table ─► AttachedTable ─ scan ─► AttachedExec
//!          (onehop-postgres)  one for each database          filters that are safe   a connection
//!                             in the statement               to push to PostgreSQL   per thread
//! ```
//! - A statement reads a consistent snapshot of each database. The view belongs to the statement,
//!   and ends with it.
//! - A thread reads one range of pages at a time.
//! - Filters are applied again here. Only filters that PostgreSQL evaluates as Onehop does are sent
//!   to it ([`filters`]).

mod exec;
mod filters;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::Result as DataFusionResult;
use onehop_postgres::Server;

use self::table::AttachedTable;
use crate::error::Object;
use crate::query::Query;
use crate::{Error, ErrorKind};

/// The attached databases of a session by name.
pub(crate) type Attached = BTreeMap<String, Arc<Server>>;

/// The schema of two-part names.
pub(crate) const SCHEMA: &str = "public";

/// A database, for one statement.
#[derive(Clone, Debug)]
pub(crate) struct AttachedCatalog {
    pub server: Arc<Server>,
    /// The statement, which has the view.
    pub query: Option<Arc<Query>>,
}

/// A schema of the database. Any name is accepted: its existence is checked when a table in it is
/// resolved.
#[derive(Clone, Debug)]
pub(crate) struct AttachedSchema {
    of: AttachedCatalog,
    name: String,
}

impl AttachedCatalog {
    /// Returns a schema by name.
    pub fn schema_named(&self, name: &str) -> Arc<dyn SchemaProvider> {
        Arc::new(AttachedSchema { of: self.clone(), name: name.into() })
    }
}

impl CatalogProvider for AttachedCatalog {
    /// Lists contain the objects of this database. The attached one has its own lists,
    /// `pg.information_schema.tables`.
    fn schema_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        Some(self.schema_named(name))
    }
}

#[async_trait]
impl SchemaProvider for AttachedSchema {
    fn table_names(&self) -> Vec<String> {
        Vec::new()
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        let AttachedCatalog { server, query } = &self.of;
        let view = match query {
            Some(query) => query.view_of(server).await,
            None => server.view().await.map(Arc::new),
        };
        let view = view.map_err(Error::from)?;
        let table = view.table(&self.name, name).await.map_err(Error::from)?;
        Ok(Some(Arc::new(AttachedTable::new(view, table))))
    }

    fn table_exist(&self, _name: &str) -> bool {
        true
    }
}

impl From<onehop_postgres::Error> for Error {
    fn from(e: onehop_postgres::Error) -> Self {
        use onehop_postgres::Error as Other;
        let (kind, hint) = match (&e, e.sqlstate()) {
            (Other::Address(_), _) => (
                ErrorKind::Invalid,
                Some("an address is 'postgresql://USER@HOST:PORT/DATABASE', its password in PGPASSWORD"),
            ),
            (Other::Threads { .. }, _) => (ErrorKind::Resources, None),
            (Other::NoTable { .. }, _) => {
                (ErrorKind::NotFound, Some("names there are as in quotes: small letters stay small"))
            }
            (Other::Type { .. }, _) => (
                ErrorKind::Invalid,
                Some("leave the column out, or make a view there that unnests it or casts it to text"),
            ),
            (Other::Value { .. }, _) => (ErrorKind::Data, None),
            (_, Some("28P01" | "28000" | "42501")) => (ErrorKind::Denied, None),
            (_, Some("57014")) => {
                (ErrorKind::Timeout, Some("it was cancelled there, or took longer than statement_timeout there"))
            }
            (Other::Connect { .. } | Other::Server { .. } | Other::Format { .. } | Other::Arrow(_), _) => {
                (ErrorKind::Io, None)
            }
        };
        let error = Self::new(kind, e.to_string());
        let error = match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
        let error = if kind == ErrorKind::NotFound { error.of(Object::Table) } else { error };
        error.with_source(e)
    }
}
