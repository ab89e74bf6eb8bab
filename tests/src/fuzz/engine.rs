//! Runs statements as a process does: on threads of their own, within limits of memory and time.

use futures::TryStreamExt;
use onehop_engine::{DatabaseOptions, Error, Executors, Output, Prepared, Session, Value};

/// The memory limit of a statement over a damaged input.
const MEMORY_LIMIT: &str = "256MiB";

/// Returns the options of a database whose statements have limits.
pub(super) fn options(timeout: &str, more: &[(&str, &str)]) -> DatabaseOptions {
    let limits = [("memory_limit", MEMORY_LIMIT), ("threads", "2"), ("statement_timeout", timeout)];
    let settings = limits.iter().chain(more).map(|(name, value)| ((*name).to_string(), (*value).to_string()));
    DatabaseOptions { settings: settings.collect(), ..DatabaseOptions::default() }
}

/// Runs statements.
pub(super) struct Engine(Executors);

impl Engine {
    /// Creates an engine of two threads.
    pub fn new() -> Result<Self, Error> {
        Ok(Self(Executors::new(Some(2))?))
    }

    /// Runs a statement to its end. Returns the number of its rows.
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
