//! What a session does with statements: runs, prepares, describes and explains them.

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
    /// Runs one statement. Must be called within a tokio runtime. Dropping the future (or the rows) cancels it.
    pub async fn sql(&self, statement: &str) -> Result<Output> {
        let statement = &*self.named_here(statement);
        let context = self.context(statement);
        let output = watched(&context.query, pin!(super::run(statement, &context))).await?;
        Ok(told(output, &context))
    }

    /// Parses one statement, whose parameters, `$1`, `$2` ... or `?`, get values when it is run.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] for what cannot be parsed. Whether its tables are there is seen when it is run.
    pub fn prepare(&self, statement: &str) -> Result<Prepared> {
        super::prepare(&self.named_here(statement))
    }

    /// As [`Session::sql`], of a prepared statement, of whatever session, with a value for each of its parameters.
    pub async fn execute(&self, prepared: &Prepared, values: &[Value]) -> Result<Output> {
        let context = self.context(prepared.text());
        let output = watched(&context.query, pin!(super::run_prepared(prepared, values, &context))).await?;
        Ok(told(output, &context))
    }

    /// As [`Session::prepare`], of any statement: also such as begin or end a transaction, or are about prepared ones.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn parse(&self, statement: &str) -> Result<Prepared> {
        self.templates().parse(&self.named_here(statement), super::client)
    }

    /// A `COPY ... FROM STDIN` or `TO STDOUT`, for whoever carries it out between its client and the database; `None` for any
    /// other statement.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`] and [`ErrorKind::Invalid`]: what is wrong with such a statement.
    pub fn client_copy(&self, statement: &str) -> Result<Option<ClientCopy>> {
        super::client_copy(&self.named_here(statement))
    }

    /// What a prepared statement takes and gives, without running it. `declared` are types of its first parameters, as far
    /// as its client has some.
    ///
    /// # Errors
    /// Those that its plan would have.
    pub async fn describe(&self, prepared: &Prepared, declared: &[Option<DataType>]) -> Result<Described> {
        let limits = Limits::of(&self.current_settings());
        // It is no statement of its own: what runs goes on being what `query` tells of.
        let context = self.context_of(Query::start(0, self.id(), prepared.text(), limits));
        watched(&context.query, pin!(super::describe(prepared, declared, &context))).await
    }

    /// What a query will do or, if it is to be run for it, what it did. Takes the query, or `EXPLAIN` of it. Dropping
    /// the future cancels it.
    ///
    /// # Errors
    /// Those of the query; [`crate::ErrorKind::Invalid`] for what is no query.
    pub async fn explain(&self, statement: &str, mode: ExplainMode) -> Result<Explanation> {
        let statement = &*self.named_here(statement);
        let context = self.context(statement);
        let explained = watched(&context.query, pin!(super::explain(statement, mode, &context))).await?;
        context.query.made_rows(1);
        context.query.done();
        Ok(explained)
    }

    /// A statement whose names of several words are those of the database.
    fn named_here<'a>(&self, statement: &'a str) -> Cow<'a, str> {
        resolve::named_here(statement, &self.client().database)
    }

    /// What a statement that begins now is carried out with.
    fn context(&self, statement: &str) -> Context<'_> {
        let limits = self.limits();
        // The next one of the same text comes when this one is done.
        self.forget_arrival();
        self.context_of(self.start_query(statement, limits))
    }

    fn context_of(&self, query: Arc<Query>) -> Context<'_> {
        Context::new(self, self.snapshot(), query)
    }
}

/// The output, once its statement knows of it.
fn told(output: Output, context: &Context<'_>) -> Output {
    if let Output::Done(done) = &output {
        context.query.made_rows(done.rows.unwrap_or(0));
        context.query.done();
    }
    output
}
