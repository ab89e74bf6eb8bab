//! Statements as a process runs them: on threads of their own, within limits of memory and time.

use futures::TryStreamExt;
use onehop_engine::{DatabaseOptions, Error, Executors, Output, Prepared, Session, Value};

/// The memory that a statement over a damaged input may use.
const MEMORY_LIMIT: &str = "256MiB";

/// Options of a database whose statements have limits.
pub(super) fn options(timeout: &str, more: &[(&str, &str)]) -> DatabaseOptions {
    let limits = [("memory_limit", MEMORY_LIMIT), ("threads", "2"), ("statement_timeout", timeout)];
    let settings = limits.iter().chain(more).map(|(name, value)| ((*name).to_string(), (*value).to_string()));
    DatabaseOptions { settings: settings.collect(), ..DatabaseOptions::default() }
}

/// Runs statements.
pub(super) struct Engine(Executors);

impl Engine {
    pub fn new() -> Result<Self, Error> {
        Ok(Self(Executors::new(Some(2))?))
    }

    /// Runs a statement to its end: the number of its rows.
    pub fn run(&self, session: &Session, sql: &str) -> Result<usize, Error> {
        self.drive(async { rows(session.sql(sql).await?).await })
    }

    /// Runs a prepared statement to its end.
    pub fn execute(&self, session: &Session, prepared: &Prepared, values: &[Value]) -> Result<usize, Error> {
        self.drive(async { rows(session.execute(prepared, values).await?).await })
    }

    /// Runs work on threads of its own.
    pub fn drive<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let executor = self.0.lend(())?;
        executor.handle().block_on(executor.scope().future(work))
    }
}

async fn rows(output: Output) -> Result<usize, Error> {
    match output {
        Output::Done(_) => Ok(0),
        Output::Rows(rows) => rows.try_fold(0, |sum, batch| async move { Ok(sum + batch.num_rows()) }).await,
    }
}
