//! The engine as a database of sqllogictest.

use async_trait::async_trait;
use futures::TryStreamExt;
use onehop_engine::{Error, Output, Session};
use sqllogictest::{AsyncDB, DBOutput};

use crate::canonical::{Kind, kinds, lines};

/// A session that answers in canonical form. A row is a single string, its line, so that
/// sqllogictest's own output shows lines as they are in the files.
pub struct Adapter {
    session: Session,
}

impl Adapter {
    /// Creates an adapter of a session.
    pub fn new(session: Session) -> Self {
        Self { session }
    }
}

#[async_trait]
impl AsyncDB for Adapter {
    type Error = Error;
    type ColumnType = Kind;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, Error> {
        match self.session.sql(sql).await? {
            Output::Rows(rows) => {
                let types = kinds(rows.schema());
                let batches: Vec<_> = rows.try_collect().await?;
                let mut all = Vec::new();
                for batch in &batches {
                    all.extend(lines(batch)?.into_iter().map(|line| vec![line]));
                }
                Ok(DBOutput::Rows { types, rows: all })
            }
            Output::Done(done) => Ok(DBOutput::StatementComplete(done.rows.unwrap_or(0))),
        }
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "onehop"
    }
}
