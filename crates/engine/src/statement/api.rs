//! The statement methods of a session: run, prepare, describe and explain.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use arrow::datatypes::DataType;

use super::{ClientCopy, Context, Described};
use crate::explanation::{ExplainMode, Explanation};
use crate::limits::Limits;
use crate::parameter::Value;
use crate::prepared::Prepared;
use crate::session::{Session, watched};
use crate::{Output, Query, Result, resolve};

impl Session {
    /// Runs one statement. Must be called within a tokio runtime. Dropping the future (or the rows)
    /// cancels it.
    pub async fn sql(&self, statement: &str) -> Result<Output> {
        let statement = &*self.named_here(statement);
        let context = self.context(statement);
        let output = watched(&context.query, pin!(super::run(statement, &context))).await?;
        Ok(told(output, &context))
    }

    /// Parses one statement. Its parameters, `$1`, `$2` ... or `?`, get values when it runs.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] if the statement cannot be parsed. A missing table is reported when
    /// the statement runs.
    pub fn prepare(&self, statement: &str) -> Result<Prepared> {
        super::prepare(&self.named_here(statement))
    }

    /// Runs a prepared statement of any session, as [`Session::sql`] does, with a value for each of
    /// its parameters.
    pub async fn execute(&self, prepared: &Prepared, values: &[Value]) -> Result<Output> {
        let context = self.context(prepared.text());
        let output = watched(&context.query, pin!(super::run_prepared(prepared, values, &context))).await?;
        Ok(told(output, &context))
    }

    /// Parses any statement, as [`Session::prepare`] does, including statements that begin or end a
    /// transaction or manage prepared ones.
    ///
    /// # Errors
    /// The errors of [`Session::prepare`].
    pub fn parse(&self, statement: &str) -> Result<Prepared> {
        self.templates().parse(&self.named_here(statement), super::client)
    }

    /// Parses a `COPY ... FROM STDIN` or `TO STDOUT` for a caller that moves the rows between its
    /// client and the database. Returns `None` for any other statement.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] and [`ErrorKind::Invalid`] if such a statement is malformed.
    pub fn client_copy(&self, statement: &str) -> Result<Option<ClientCopy>> {
        super::client_copy(&self.named_here(statement))
    }

    /// Returns the parameters and columns of a prepared statement without running it. `declared`
    /// holds the types of its first parameters, as far as the client declares them.
    ///
    /// # Errors
    /// The errors of its plan.
    pub async fn describe(&self, prepared: &Prepared, declared: &[Option<DataType>]) -> Result<Described> {
        let limits = Limits::of(&self.current_settings());
        // A description is no statement of its own: `query` keeps reporting the one that runs.
        let context = self.context_of(Query::start(0, self.id(), prepared.text(), limits));
        watched(&context.query, pin!(super::describe(prepared, declared, &context))).await
    }

    /// Returns the plan of a query or, if the mode runs it, its statistics. Takes the query, or
    /// `EXPLAIN` of it. Dropping the future cancels it.
    ///
    /// # Errors
    /// The errors of the query; [`crate::ErrorKind::Invalid`] if the statement is no query.
    pub async fn explain(&self, statement: &str, mode: ExplainMode) -> Result<Explanation> {
        let statement = &*self.named_here(statement);
        let context = self.context(statement);
        let explained = watched(&context.query, pin!(super::explain(statement, mode, &context))).await?;
        context.query.made_rows(1);
        context.query.done();
        Ok(explained)
    }

    /// Rewrites qualified names to those of the database.
    fn named_here<'a>(&self, statement: &'a str) -> Cow<'a, str> {
        resolve::named_here(statement, &self.client().database)
    }

    /// Builds the context of a statement that begins now.
    fn context(&self, statement: &str) -> Context<'_> {
        let limits = self.limits();
        // A later statement of the same text arrives only after this one is done.
        self.forget_arrival();
        self.context_of(self.start_query(statement, limits))
    }

    fn context_of(&self, query: Arc<Query>) -> Context<'_> {
        Context::new(self, self.snapshot(), query)
    }
}

/// Records the outcome in the query's statistics and returns the output.
fn told(output: Output, context: &Context<'_>) -> Output {
    if let Output::Done(done) = &output {
        context.query.made_rows(done.rows.unwrap_or(0));
        context.query.done();
    }
    output
}
