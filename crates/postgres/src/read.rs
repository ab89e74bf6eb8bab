//! Reads a table: COPY of a selection of it, a range of pages at a time, as batches of columns.

use std::pin::Pin;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::StreamExt;
use tokio_postgres::CopyOutStream;

use crate::decode::Rows;
use crate::server::{Connection, Server};
use crate::table::Table;
use crate::{Error, Result};

/// The maximum rows of a batch, or, if they are wide, the maximum bytes.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 4 << 20;

/// The first version that reads a range of pages without those before it.
const RANGES_SINCE: i32 = 140_000;

/// The selected part of a table.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The columns, by their places.
    pub columns: Vec<usize>,
    /// A condition, in PostgreSQL's SQL.
    pub condition: Option<String>,
    /// The maximum number of rows.
    pub limit: Option<u64>,
}

/// A part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The whole table.
    All,
    /// From a page on, up to another one; without one to the current end.
    Range(u64, Option<u64>),
}

impl Pages {
    /// Divides a table into parts of `each` pages, for a server of this version.
    pub fn of(table: &Table, version: i32, each: u64) -> Vec<Self> {
        let each = each.max(1);
        match table.pages {
            Some(pages) if version >= RANGES_SINCE && pages > each => {
                let count = pages.div_ceil(each);
                let end = |n: u64| (n + 1 < count).then_some((n + 1) * each);
                (0..count).map(|n| Self::Range(n * each, end(n))).collect()
            }
            _ => vec![Self::All],
        }
    }

    fn condition(self) -> Option<String> {
        match self {
            Self::All => None,
            Self::Range(from, None) => Some(format!("ctid >= '({from},0)'::pg_catalog.tid")),
            Self::Range(from, Some(to)) => {
                Some(format!("ctid >= '({from},0)'::pg_catalog.tid AND ctid < '({to},0)'::pg_catalog.tid"))
            }
        }
    }
}

impl Selection {
    /// Returns the schema of the selected columns.
    pub fn schema(&self, table: &Table) -> SchemaRef {
        let fields: Vec<_> =
            self.columns.iter().map(|column| Arc::clone(&table.arrow_schema().fields()[*column])).collect();
        Arc::new(Schema::new(fields))
    }

    /// Returns the query for PostgreSQL.
    fn query(&self, table: &Table) -> Result<Query> {
        let columns = self.columns.iter().map(|column| table.sql_of(*column)).collect::<Result<Vec<_>>>()?;
        let limit = self.limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
        let only = match table.pages {
            Some(_) => "ONLY ",
            None => "",
        };
        Ok(Query {
            select: format!("SELECT {} FROM {only}{}", columns.join(", "), table.sql_name()),
            condition: self.condition.clone(),
            limit,
        })
    }
}

/// A query without its pages.
#[derive(Debug)]
struct Query {
    select: String,
    condition: Option<String>,
    limit: String,
}

impl Query {
    fn copy(&self, pages: Pages) -> String {
        let conditions: Vec<String> = pages
            .condition()
            .into_iter()
            .chain(self.condition.as_ref().map(|condition| format!("({condition})")))
            .collect();
        let condition =
            if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        format!("COPY ({}{condition}{}) TO STDOUT (FORMAT binary)", self.select, self.limit)
    }
}

/// A connection that reads a table.
pub struct Reader {
    server: Arc<Server>,
    /// The connection, until this is dropped.
    connection: Option<Connection>,
    query: Query,
    rows: Rows,
    copy: Option<Pin<Box<CopyOutStream>>>,
    /// True from the request of a COPY to its end, also before the first message.
    is_copying: bool,
    received: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("query", &self.query).finish_non_exhaustive()
    }
}

impl Reader {
    pub(crate) fn new(
        server: Arc<Server>,
        connection: Connection,
        table: &Table,
        selection: &Selection,
    ) -> Result<Self> {
        let query = match selection.query(table) {
            Ok(query) => query,
            Err(e) => {
                server.give_back(connection);
                return Err(e);
            }
        };
        let rows = Rows::new(selection.schema(table), server.place(), table.sql_name());
        Ok(Self { server, connection: Some(connection), query, rows, copy: None, is_copying: false, received: 0 })
    }

    /// Returns the number of bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Begins to read a part. Earlier rows that were not taken are returned with it.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn begin(&mut self, pages: Pages) -> Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        self.rows.restart();
        self.is_copying = true;
        let copy = connection.client.copy_out(&self.query.copy(pages)).await;
        self.copy = Some(Box::pin(copy.map_err(|e| self.failed(e))?));
        Ok(())
    }

    /// Returns the next rows, or `None` at the end of the current part. The remaining rows are
    /// returned with the next part, or by [`finish`](Self::finish).
    ///
    /// # Errors
    /// If the server refuses or is gone, or a value cannot be read.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(copy) = &mut self.copy {
            match copy.next().await {
                Some(Ok(message)) => {
                    self.received += message.len() as u64;
                    self.rows.read(&message)?;
                }
                Some(Err(e)) => return Err(self.failed(e)),
                None => {
                    (self.copy, self.is_copying) = (None, false);
                    self.rows.end()?;
                }
            }
            if self.rows.rows() >= BATCH_ROWS || self.rows.bytes() >= BATCH_BYTES {
                return self.rows.take().map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the last rows, if there are any.
    ///
    /// # Errors
    /// If they do not form a batch.
    pub fn finish(mut self) -> Result<Option<RecordBatch>> {
        match self.rows.rows() {
            0 => Ok(None),
            _ => self.rows.take().map(Some),
        }
    }

    fn failed(&self, source: tokio_postgres::Error) -> Error {
        Error::Server { place: self.server.place().into(), source }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        match self.connection.take() {
            Some(connection) if self.is_copying => Server::stop(connection),
            Some(connection) => self.server.give_back(connection),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_next_to_each_other_and_the_last_has_no_end() {
        assert_eq!(Pages::Range(3, None).condition().as_deref(), Some("ctid >= '(3,0)'::pg_catalog.tid"));
        let query =
            Query { select: "SELECT FROM t".into(), condition: Some("a OR b".into()), limit: " LIMIT 5".into() };
        assert_eq!(
            query.copy(Pages::Range(3, Some(7))),
            "COPY (SELECT FROM t WHERE ctid >= '(3,0)'::pg_catalog.tid AND ctid < '(7,0)'::pg_catalog.tid AND (a OR b) \
             LIMIT 5) TO STDOUT (FORMAT binary)"
        );
        assert_eq!(query.copy(Pages::All), "COPY (SELECT FROM t WHERE (a OR b) LIMIT 5) TO STDOUT (FORMAT binary)");
    }
}
