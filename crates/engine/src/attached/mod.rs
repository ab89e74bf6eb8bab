//! PostgreSQL databases that a session has attached: their tables by name, `pg.schema.table`, or `pg.table` of the schema `public`.
//!
//! ```text
//! a name ── Schema::table ──► View of the statement ── Table ──► AttachedTable ── scan ──► AttachedExec
//!           (onehop-postgres)  one for each database                 filters that PostgreSQL    a connection for each thread,
//!                              that it names                         can answer as we would     a range of pages at a time
//! ```
//! - All that a statement reads of a database is of one moment: the view is the statement's, and ends with it.
//! - What a filter leaves is filtered again here. PostgreSQL is only given those that it answers as we do ([`filters`]).

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

/// Databases by the names that the session has given them.
pub(crate) type Attached = BTreeMap<String, Arc<Server>>;

/// The schema of names of two parts.
pub(crate) const SCHEMA: &str = "public";

/// A database, for one statement.
#[derive(Clone, Debug)]
pub(crate) struct AttachedCatalog {
    pub server: Arc<Server>,
    /// The statement, which has the view.
    pub query: Option<Arc<Query>>,
}

/// A schema of it, of whatever name: whether it is there is seen when something in it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct AttachedSchema {
    of: AttachedCatalog,
    name: String,
}

impl AttachedCatalog {
    /// A schema by its name.
    pub fn schema_named(&self, name: &str) -> Arc<dyn SchemaProvider> {
        Arc::new(AttachedSchema { of: self.clone(), name: name.into() })
    }
}

impl CatalogProvider for AttachedCatalog {
    /// Lists are of what is here; the other database has lists of its own, `pg.information_schema.tables`.
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
