//! Reading a table: COPY of a selection of it, a range of pages at a time, as batches of columns.

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

/// A batch has so many rows, or, where these are wide, so many bytes.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 4 << 20;

/// From this version on a range of pages is read without those before it.
const RANGES_SINCE: i32 = 140_000;

/// What is wanted of a table.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Its columns, by their places.
    pub columns: Vec<usize>,
    /// A condition, in PostgreSQL's words.
    pub condition: Option<String>,
    /// So many rows are enough.
    pub limit: Option<u64>,
}

/// A part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All of it.
    All,
    /// From a page on, up to another one; without one to the end, wherever that is by now.
    Range(u64, Option<u64>),
}

impl Pages {
    /// A table in parts of so many pages, for a server of this version.
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
    /// The columns, as they come.
    pub fn schema(&self, table: &Table) -> SchemaRef {
        let fields: Vec<_> =
            self.columns.iter().map(|column| Arc::clone(&table.arrow_schema().fields()[*column])).collect();
        Arc::new(Schema::new(fields))
    }

    /// What PostgreSQL is asked for.
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

/// A query but for its pages.
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
    /// Gone when this is dropped.
    connection: Option<Connection>,
    query: Query,
    rows: Rows,
    copy: Option<Pin<Box<CopyOutStream>>>,
    /// From when it is asked for to its end, also while nothing has come.
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

    /// Bytes that came so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Begins to read a part. What came before it and has not been taken comes with it.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn begin(&mut self, pages: Pages) -> Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        self.rows.restart();
        self.is_copying = true;
        let copy = connection.client.copy_out(&self.query.copy(pages)).await;
        self.copy = Some(Box::pin(copy.map_err(|e| self.failed(e))?));
        Ok(())
    }

    /// The next rows; `None` when the part that was begun is at its end. What is left then comes with the next part, or by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// The server refuses or is gone, or a value cannot be read.
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

    /// The last rows, if there are any.
    ///
    /// # Errors
    /// They are no rows.
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
