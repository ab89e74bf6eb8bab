//! Parses and runs statements. This module implements the statements that Onehop adds to SQL;
//! DataFusion runs all others. Each file holds the syntax and the work of one kind of statement.

mod action;
mod api;
mod attach;
mod checkpoint;
mod copy;
mod create;
mod describe;
mod drop;
mod explain;
mod function;
mod housekeeping;
mod insert;
mod inspect;
mod locking;
mod modify;
mod prepare;
mod residence;
mod returning;
mod select;
mod set;
mod source;
mod transaction;
mod view;
mod whole_file;
mod write;

use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use datafusion::datasource::MemTable;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::{DFParser, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::ast::{
    DiscardObject, ObjectName, ObjectNamePart, ObjectType, Query as SqlQuery, ShowCreateObject, Statement as Sql,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

pub(crate) use self::copy::parse_client as client_copy;
pub use self::copy::{ClientCopy, CopyDirection, CopyFormat};
pub use self::describe::Described;
pub(crate) use self::describe::{client, describe};
pub(crate) use self::explain::explain;
pub(crate) use self::insert::{add_segments, writable_table};
use crate::database::Database;
use crate::identifiers::normal;
use crate::limits::may_keep;
use crate::load::Target;
use crate::lower::Optimized;
use crate::new_names::check_new_name;
use crate::parameter::Value;
use crate::plans;
use crate::prepared::{self, Prepared};
use crate::query::{Done, Output, Query};
use crate::resolve::{Names, TargetRows};
use crate::rights::Rights;
use crate::session::Work;
use crate::settings::Settings;
use crate::snapshot::{Snapshot, Table};
use crate::temporary::Temporary;
use crate::transaction::{Transaction, refuse_failed};
use crate::{Error, ErrorKind, Result, Rule, Session, task};
use crate::{planner, query_planner};

#[derive(Debug)]
enum Statement {
    CreateTable(Box<create::CreateTable>),
    CreateView(Box<view::CreateView>),
    CreateFunction(Box<function::CreateFunction>),
    Drop(drop::Drop),
    CopyFrom(copy::CopyFrom),
    CopyTo(copy::CopyTo),
    Set(set::SetValue),
    Show(inspect::Show),
    Residence(residence::Residence),
    Explain(explain::Explain),
    Modify(Box<modify::Modify>),
    Insert(Box<insert::Insert>),
    Truncate(modify::TruncateTables),
    Transaction(transaction::Control),
    Checkpoint(checkpoint::Checkpoint),
    Prepared(prepare::Control),
    DiscardTemporary,
    Housekeeping(housekeeping::Housekeeping),
    Attach(attach::Attach),
    Other(Box<DataFusionStatement>),
}

/// The state that a statement runs with.
pub(crate) struct Context<'a> {
    session: &'a Session,
    pub database: &'a Database,
    pub snapshot: Arc<Snapshot>,
    state: OnceLock<Arc<SessionState>>,
    pub settings: &'a Mutex<Arc<Settings>>,
    pub query: Arc<Query>,
    /// The session's transaction, if there is one.
    pub transaction: &'a Mutex<Option<Transaction>>,
    /// The temporary tables, if the statement changes them; `database`, `transaction` are theirs.
    temporary: Option<&'a Temporary>,
}

impl<'a> Context<'a> {
    /// Returns the context of a statement that reads `snapshot`.
    pub fn new(session: &'a Session, snapshot: Arc<Snapshot>, query: Arc<Query>) -> Self {
        let database = session.database();
        let (settings, transaction) = session.locks();
        Self { session, database, snapshot, state: OnceLock::new(), settings, query, transaction, temporary: None }
    }

    /// Returns the context that changes a temporary table, or `None` if the table is not temporary.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the database has something of this name as well.
    fn of_table(&self, name: &str) -> Result<Option<Self>> {
        if !self.snapshot.is_temporary(name) {
            return Ok(None);
        }
        self.snapshot.only_once(name)?;
        Ok(self.session.temporary().map(|temporary| self.of_temporary(temporary, false)))
    }

    /// Does the same for several tables. Either all or none are temporary.
    fn of_tables(&self, names: &[String]) -> Result<Option<Self>> {
        names.iter().try_fold(None, |found, name| Ok(self.of_table(name)?.or(found)))
    }

    /// Splits names into those of temporary tables and the others.
    fn apart(&self, names: Vec<String>) -> (Vec<String>, Vec<String>) {
        names.into_iter().partition(|name| self.snapshot.is_temporary(name))
    }

    /// Returns the context that changes temporary tables. `has_work`: the commit has work to do.
    fn of_temporary(&self, temporary: &'a Temporary, has_work: bool) -> Self {
        let transaction = self.session.transaction_slot();
        if transaction.is_some() || has_work || temporary.has_work_at_commits() {
            temporary.begin(transaction.as_ref());
        }
        self.beside(temporary)
    }

    /// Returns the same context without a transaction.
    fn beside(&self, temporary: &'a Temporary) -> Self {
        let (database, transaction) = (temporary.database(), temporary.transaction());
        Self { database, transaction, temporary: Some(temporary), ..self.another() }
    }

    fn another(&self) -> Self {
        Self {
            session: self.session,
            database: self.database,
            snapshot: Arc::clone(&self.snapshot),
            state: self.state.clone(),
            settings: self.settings,
            query: Arc::clone(&self.query),
            transaction: self.transaction,
            temporary: self.temporary,
        }
    }

    /// Returns the state that DataFusion plans and runs with: it resolves names in the snapshot and
    /// counts into the query's ledger. Created by the first call, since this is slow.
    ///
    /// # Errors
    /// Fails if the spill directory cannot be used.
    fn state(&self) -> Result<&Arc<SessionState>> {
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        let state = self.session.state(&self.query, &self.snapshot)?;
        Ok(self.state.get_or_init(|| Arc::new(state)))
    }

    /// Returns the cached optimized plan of a text, and sets a state that suffices to run it.
    fn known_plan(&self, text: &str) -> Result<Option<Arc<Optimized>>> {
        // A transaction sees its own changes, and may have failed.
        if self.transaction().is_some() {
            return Ok(None);
        }
        // A name of its text may be a relation's now. A plan that is kept has gone through all passes.
        if !self.session.relations().is_empty() || !self.settings().disabled_passes().is_empty() {
            return Ok(None);
        }
        // The current date may differ in the session's time zone.
        if self.session.zone().is_some() {
            return Ok(None);
        }
        let plan = self.database.plans().find(text, self.settings().threads(), &self.snapshot);
        if plan.is_some() {
            let state = self.session.state_of_known_plan(&self.query)?;
            self.state.get_or_init(|| Arc::new(state));
        }
        Ok(plan)
    }

    /// Returns a context with another state and the snapshot that this state reads.
    fn with_state(&self, snapshot: &Arc<Snapshot>, state: SessionState) -> Self {
        Self { snapshot: Arc::clone(snapshot), state: OnceLock::from(Arc::new(state)), ..self.another() }
    }

    /// Returns a context without the session's relations, for definitions that all sessions share.
    fn of_database(&self) -> Result<Self> {
        Ok(self.with_state(&self.snapshot, Names::of_database(self.state()?)))
    }

    /// Returns a context of a snapshot with (part of) a table as [`crate::identifiers::TARGET`].
    fn of_target(&self, snapshot: &Arc<Snapshot>, target: &Arc<Table>) -> Result<Self> {
        let target = TargetRows::Table(Arc::clone(target));
        Ok(self.with_state(snapshot, Names::rebind(self.state()?, snapshot, target)))
    }

    /// Does the same with rows in memory.
    fn of_rows(&self, snapshot: &Arc<Snapshot>, rows: MemTable) -> Result<Self> {
        let target = TargetRows::Memory(Arc::new(rows));
        Ok(self.with_state(snapshot, Names::rebind(self.state()?, snapshot, target)))
    }

    /// Returns the target to which rows for a table are written.
    fn load_target(&self, table: &Table) -> Target {
        let (schema, partition_by) = (Arc::clone(&table.schema), table.entry.partition_by.clone());
        Target::new(self.database, &self.settings(), table.entry.id, schema, partition_by, &self.query)
    }

    /// Returns whether there is a built-in function of this name.
    fn is_own_function(&self, name: &str) -> Result<bool> {
        let state = self.state()?;
        let is_scalar =
            state.scalar_functions().contains_key(name) && !self.snapshot.catalog.functions.contains_key(name);
        Ok(is_scalar
            || planner::IS_NO_NAME.contains(&name)
            || state.aggregate_functions().contains_key(name)
            || state.window_functions().contains_key(name)
            || state.table_functions().contains_key(name))
    }

    async fn plan_query(&self, query: Box<SqlQuery>) -> Result<LogicalPlan> {
        self.plan(DataFusionStatement::Statement(Box::new(Sql::Query(query)))).await
    }

    async fn plan(&self, statement: DataFusionStatement) -> Result<LogicalPlan> {
        let state = Arc::clone(self.state()?);
        self.query.apart(async move { Ok(planner::plan(&state, statement).await?) }).await
    }

    /// Plans the operators of a query that is about to run.
    async fn physical_plan(&self, plan: LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
        let (state, query) = (Arc::clone(self.state()?), Arc::clone(&self.query));
        self.query.apart(async move { Ok(query_planner::physical_plan(&state, &plan, &query).await?) }).await
    }

    /// Plans the operators of an optimized plan.
    async fn physical_plan_of_optimized(&self, plan: Arc<Optimized>) -> Result<Arc<dyn ExecutionPlan>> {
        let (state, query) = (Arc::clone(self.state()?), Arc::clone(&self.query));
        // The plan has run before, so it returns no error of its own.
        let work =
            async move { Ok(query_planner::physical_plan_of_optimized(&state, &plan, &plan.plan, &query).await?) };
        self.query.apart(work).await
    }

    /// Plans like [`physical_plan`](Self::physical_plan), and caches a reusable plan by its text.
    async fn physical_plan_to_keep(&self, plan: LogicalPlan, text: &str) -> Result<Arc<dyn ExecutionPlan>> {
        let (state, query, database) = (Arc::clone(self.state()?), Arc::clone(&self.query), self.database.clone());
        let (text, threads, snapshot) = (text.to_string(), self.settings().threads(), Arc::clone(&self.snapshot));
        let is_the_sessions = self.session.zone().is_some() || !self.settings().disabled_passes().is_empty();
        let work = async move {
            let is_repeatable = !is_the_sessions && plans::is_repeatable(&plan)?;
            let optimized = Arc::new(Optimized::new(planner::optimize(&state, &plan)?));
            let physical = query_planner::physical_plan_of_optimized(&state, &optimized, &plan, &query).await?;
            if is_repeatable {
                let is_current = || Arc::ptr_eq(&database.snapshot(), &snapshot);
                database.plans().keep(&text, threads, &snapshot, optimized, is_current);
            }
            Ok(physical)
        };
        self.query.apart(work).await
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Parses and runs one statement.
pub(crate) async fn run(text: &str, context: &Context<'_>) -> Result<Output> {
    if let Some(plan) = context.known_plan(text)? {
        return Box::pin(select::known(plan, context)).await.map(Output::Rows);
    }
    let work = pin!(async { carry_out(parse(text)?, Some(text), context).await });
    in_transaction(work, context).await
}

/// Runs a prepared statement with values, as [`run`] does.
pub(crate) async fn run_prepared(prepared: &Prepared, values: &[Value], context: &Context<'_>) -> Result<Output> {
    // With values it is another query each time.
    let text = (prepared.parameters() == 0).then(|| prepared.text());
    if let Some(text) = text
        && values.is_empty()
        && let Some(plan) = context.known_plan(text)?
    {
        return Box::pin(select::known(plan, context)).await.map(Output::Rows);
    }
    let work = pin!(async {
        if let Some((table, rows)) = prepared.rows(values, &context.snapshot) {
            refuse_if_failed(context)?;
            if !context.snapshot.is_temporary(&table.name) {
                context.settings().rights().need(Rights::Write, "to change rows")?;
                context.session.refuse_if_read_only()?;
            }
            may_keep(0, context.settings().memory_limit_bytes())?;
            if let Some(done) = insert::put(&table, rows, context).await? {
                return Ok(Output::Done(done));
            }
        }
        if prepared.template().is_some() {
            // The statement has to be planned after all.
            task::long().await;
        }
        Box::pin(carry_out(parse_tokens(prepared.bind(values)?)?, text, context)).await
    });
    in_transaction(work, context).await
}

/// Parses a statement with parameters, to run it later.
pub(crate) fn prepare(text: &str) -> Result<Prepared> {
    prepare::checked(Prepared::new(text)?)
}

/// Runs a statement's work. If the work or its rows fail, the transaction around it fails.
async fn in_transaction(work: Work<'_, Output>, context: &Context<'_>) -> Result<Output> {
    let was_in_one = context.transaction().is_some();
    let _ends = EndsTemporary(context);
    let mut in_one = InTransaction { context, is_under_way: was_in_one };
    let outcome = work.await;
    in_one.is_under_way = false;
    let outcome = match context.transaction().as_mut().filter(|_| was_in_one) {
        Some(transaction) => told(outcome, transaction),
        None => outcome,
    };
    // A statement by itself, whose commit has more work to do.
    if let Some(temporary) = context.session.temporary()
        && context.transaction().is_none()
        && let Some(transaction) = temporary.end()
        && outcome.is_ok()
    {
        context.query.settle()?;
        transaction::commit_temporary(temporary, transaction, context).await?;
    }
    outcome
}

/// Tells a transaction the outcome of a statement, now and while its rows are read.
fn told(outcome: Result<Output>, transaction: &mut Transaction) -> Result<Output> {
    match &outcome {
        Ok(_) => transaction.succeeded(),
        Err(_) => transaction.failed(),
    }
    outcome.map(|output| match output {
        Output::Rows(rows) => Output::Rows(rows.or_fail(transaction.failure())),
        done => done,
    })
}

/// Work of a statement in a transaction. A statement stopped under way fails its transaction.
struct InTransaction<'a, 'c> {
    context: &'a Context<'c>,
    is_under_way: bool,
}

impl Drop for InTransaction<'_, '_> {
    fn drop(&mut self) {
        if self.is_under_way
            && let Some(transaction) = self.context.transaction().as_mut()
        {
            transaction.failed();
        }
    }
}

/// Ends the temporary tables' part of a statement outside a transaction, whatever its outcome.
struct EndsTemporary<'a, 'c>(&'a Context<'c>);

impl Drop for EndsTemporary<'_, '_> {
    fn drop(&mut self) {
        let is_by_itself = self.0.transaction().is_none();
        drop(self.0.session.temporary().filter(|_| is_by_itself).and_then(Temporary::end));
    }
}

/// Runs a parsed statement. `text` is its source, if that determines it.
async fn carry_out(mut statement: Statement, mut text: Option<&str>, context: &Context<'_>) -> Result<Output> {
    // A transaction may be ended even if it has failed.
    if !matches!(statement, Statement::Transaction(_)) {
        let is_in_transaction = refuse_if_failed(context)?;
        if let Statement::Prepared(control) = statement {
            if control.is_discard() && !is_in_transaction {
                Box::pin(drop::all_temporary(context)).await?;
            }
            match control.run(context)? {
                prepare::Outcome::Done(done) => return Ok(Output::Done(done)),
                // The same name may refer to another statement the next time.
                prepare::Outcome::Instead(prepared) => (statement, text) = (*prepared, None),
            }
        }
        if is_in_transaction {
            refuse_in_transactions(&statement)?;
        }
    }
    if let Some(action) = action::of(&statement) {
        context.query.acts(action);
    }
    if !statement.changes_only_temporary(&context.snapshot) {
        check_rights(&statement, context)?;
    }
    if statement.keeps_memory() {
        may_keep(0, context.settings().memory_limit_bytes())?;
    }
    // Boxed: their futures are large, and each caller would hold and move space for the largest.
    match statement {
        Statement::CreateTable(create) => Box::pin(create.run(context)).await.map(Output::Done),
        Statement::CreateView(create) => Box::pin(create.run(context)).await.map(Output::Done),
        Statement::CreateFunction(create) => Box::pin(create.run(context)).await.map(Output::Done),
        Statement::Drop(drop) => Box::pin(drop.run(context)).await.map(Output::Done),
        Statement::CopyFrom(copy) => Box::pin(copy.run(context)).await.map(Output::Done),
        Statement::CopyTo(copy) => Box::pin(copy.run(context)).await.map(Output::Done),
        Statement::Set(set) => set.run(context).map(Output::Done),
        Statement::Show(show) => Box::pin(show.run(context)).await,
        Statement::Residence(residence) => Box::pin(residence.run(context)).await.map(Output::Done),
        Statement::Explain(explain) => Box::pin(explain.run(context)).await,
        Statement::Modify(modify) => Box::pin(modify.run(context)).await,
        Statement::Insert(insert) => Box::pin(insert.run(context)).await,
        Statement::Truncate(truncate) => Box::pin(truncate.run(context)).await.map(Output::Done),
        Statement::Checkpoint(checkpoint) => Box::pin(checkpoint.run(context)).await.map(Output::Done),
        Statement::Transaction(control) => Box::pin(control.run(context)).await.map(Output::Done),
        Statement::DiscardTemporary => Box::pin(drop::all_temporary(context)).await.map(Output::Done),
        Statement::Housekeeping(work) => work.run(context).map(Output::Done),
        Statement::Attach(attach) => Box::pin(attach.run(context)).await.map(Output::Done),
        Statement::Prepared(_) => Err(Error::new(ErrorKind::Internal, "a prepared statement came of one")),
        // In a format of DataFusion's.
        Statement::Other(statement) if matches!(&*statement, DataFusionStatement::Explain(e) if !e.options.analyze) => {
            Box::pin(select::run(*statement, text, &explain::planning(context)?)).await
        }
        Statement::Other(mut statement) => {
            if let Some(locks) = locking::take_out(&mut statement) {
                let locked = Box::pin(locks.take(context)).await?;
                return Box::pin(select::run(*statement, None, locked.as_ref().unwrap_or(context))).await;
            }
            Box::pin(select::run(*statement, text, context)).await
        }
    }
}

impl Statement {
    /// Returns whether its rows may stay in memory after it ends.
    fn keeps_memory(&self) -> bool {
        match self {
            Self::CreateTable(_) | Self::CopyFrom(_) | Self::Insert(_) => true,
            Self::Modify(modify) => !modify.is_delete(),
            _ => false,
        }
    }
}

/// Returns whether the statement is in a transaction. Fails if that transaction has failed.
fn refuse_if_failed(context: &Context<'_>) -> Result<bool> {
    match context.transaction().as_ref().map(Transaction::is_failed) {
        Some(true) => Err(refuse_failed()),
        is_failed => Ok(is_failed.is_some()),
    }
}

/// Refuses statements without the right. Sources of a query are checked as names are resolved.
fn check_rights(statement: &Statement, context: &Context<'_>) -> Result<()> {
    let (least, what) = match statement {
        Statement::CreateTable(_) => (Rights::Write, "CREATE TABLE"),
        Statement::CreateView(_) => (Rights::Write, "CREATE VIEW"),
        Statement::Drop(drop) if drop.is_of_functions() => (Rights::Admin, "DROP FUNCTION"),
        Statement::Drop(_) => (Rights::Write, "DROP"),
        Statement::Modify(_) | Statement::Insert(_) => (Rights::Write, "to change rows"),
        Statement::Truncate(_) => (Rights::Write, "TRUNCATE"),
        Statement::Checkpoint(_) => (Rights::Write, "CHECKPOINT"),
        Statement::CreateFunction(_) => (Rights::Admin, "CREATE FUNCTION"),
        Statement::Attach(_) => (Rights::Admin, "ATTACH"),
        Statement::CopyFrom(_) | Statement::CopyTo(_) => (Rights::Admin, "COPY of files"),
        Statement::Residence(_) => (Rights::Admin, "what is about the memory of devices"),
        Statement::Other(statement) => match &**statement {
            DataFusionStatement::Statement(sql) if !matches!(**sql, Sql::Query(_)) => (Rights::Write, "this statement"),
            DataFusionStatement::CopyTo(_) | DataFusionStatement::CreateExternalTable(_) => (Rights::Admin, "a file"),
            _ => return Ok(()),
        },
        Statement::Set(_) | Statement::Show(_) | Statement::Explain(_) => return Ok(()),
        Statement::Transaction(_) | Statement::Prepared(_) | Statement::DiscardTemporary => return Ok(()),
        Statement::Housekeeping(_) => return Ok(()),
    };
    context.settings().rights().need(least, what)?;
    match statement {
        // They change data outside the database, or nothing visible.
        Statement::CopyTo(_) | Statement::Checkpoint(_) | Statement::Attach(_) | Statement::Residence(_) => Ok(()),
        _ => context.session.refuse_if_read_only(),
    }
}

/// Refuses, in a transaction, statements beyond tables and views or that cannot be undone.
fn refuse_in_transactions(statement: &Statement) -> Result<()> {
    let what = match statement {
        Statement::CreateFunction(_) => "CREATE FUNCTION",
        Statement::Drop(drop) if !drop.is_of_tables_or_views() => "DROP of a function or model",
        Statement::Residence(_) => "what is about the memory of devices",
        Statement::Checkpoint(_) => "CHECKPOINT",
        Statement::Housekeeping(work) if work.is_by_itself() => "VACUUM",
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, format!("{what} cannot be part of a transaction"))
        .breaking(Rule::ByItself)
        .with_hint("COMMIT first; it is a transaction by itself"))
}

fn done(tag: &'static str, rows: Option<u64>) -> Done {
    Done { tag, rows }
}

fn parse(text: &str) -> Result<Statement> {
    let tokens = planner::tokens(text)?;
    if let Some((name, prepared)) = prepared::of_prepare(&tokens)? {
        return Ok(Statement::Prepared(prepare::Control::Prepare(name, Box::new(prepared))));
    }
    prepared::refuse_parameters(&tokens)?;
    parse_tokens(tokens)
}

fn parse_tokens(tokens: Vec<TokenWithSpan>) -> Result<Statement> {
    planner::parse_tokens(tokens, |parser| {
        let mut statement = parse_statement(parser)?;
        while parser.parser.consume_token(&Token::SemiColon) {}
        let next = parser.parser.peek_token();
        if next.token != Token::EOF {
            return Err(syntax(parser.parser.expected::<()>("end of statement", next)));
        }
        statement.settle()?;
        Ok(statement)
    })
}

impl Statement {
    /// Returns whether it changes only its session's own tables. The right to read permits that.
    fn changes_only_temporary(&self, snapshot: &Snapshot) -> bool {
        let is_temporary = |name: &str| snapshot.is_temporary(name);
        match self {
            Self::CreateTable(create) => create.is_temporary(),
            Self::Drop(drop) => drop.drops_only_temporary(snapshot),
            Self::Checkpoint(checkpoint) => {
                !checkpoint.tables().is_empty() && checkpoint.tables().iter().all(|name| is_temporary(name))
            }
            Self::Modify(modify) => is_temporary(modify.table()),
            Self::Insert(insert) => insert.table().is_some_and(|name| is_temporary(&name)),
            Self::Truncate(truncate) => truncate.tables().iter().all(|name| is_temporary(name)),
            _ => false,
        }
    }

    /// See [`planner::settle`].
    fn settle(&mut self) -> Result<()> {
        match self {
            Self::CreateTable(create) => create.settle(),
            Self::CreateView(create) => create.settle(),
            Self::CopyTo(copy) => copy.settle(),
            Self::Explain(explain) => {
                prepare::refuse_explained(&explain.query)?;
                planner::settle_statement(&mut explain.query)
            }
            Self::Other(statement) => {
                prepare::refuse_explained(statement)?;
                planner::settle_statement(statement)
            }
            Self::Modify(modify) => modify.settle(),
            Self::Insert(insert) => insert.settle(),
            Self::CreateFunction(_) | Self::Drop(_) | Self::CopyFrom(_) | Self::Set(_) => Ok(()),
            Self::Show(_) | Self::Residence(_) => Ok(()),
            Self::Truncate(_) | Self::Transaction(_) | Self::Checkpoint(_) | Self::Prepared(_) => Ok(()),
            Self::DiscardTemporary | Self::Housekeeping(_) | Self::Attach(_) => Ok(()),
        }
    }
}

fn syntax<T>(outcome: std::result::Result<T, ParserError>) -> Error {
    match outcome {
        Err(e) => datafusion::common::DataFusionError::from(e).into(),
        Ok(_) => Error::new(ErrorKind::Internal, "a parser error that is none"),
    }
}

fn parse_statement(parser: &mut DFParser<'_>) -> Result<Statement> {
    let inner = &mut parser.parser;
    match inner.peek_token().token {
        Token::EOF => return Err(Error::new(ErrorKind::Syntax, "there is no statement here")),
        Token::Word(word) => match word.keyword {
            Keyword::CREATE => {
                if let Some(create) = create::parse(inner)? {
                    return Ok(Statement::CreateTable(Box::new(create)));
                }
            }
            Keyword::COPY => return copy::parse(inner),
            Keyword::ALTER | Keyword::LOAD => {
                if let Some(residence) = residence::parse(inner)? {
                    return Ok(residence);
                }
            }
            _ if word.value.eq_ignore_ascii_case("checkpoint") => {
                inner.next_token();
                return Ok(Statement::Checkpoint(checkpoint::parse(inner)?));
            }
            _ if ["attach", "detach"].iter().any(|verb| word.value.eq_ignore_ascii_case(verb)) => {
                return attach::parse(inner);
            }
            _ if word.value.eq_ignore_ascii_case("abort") => {
                inner.next_token();
                return Ok(Statement::Transaction(transaction::Control::Rollback));
            }
            _ if word.value.eq_ignore_ascii_case("evict") => {
                if let Some(residence) = residence::parse(inner)? {
                    return Ok(residence);
                }
            }
            Keyword::DROP => {
                if let Some(drop) = drop::parse_model(inner)? {
                    return Ok(Statement::Drop(drop));
                }
            }
            Keyword::VACUUM | Keyword::ANALYZE | Keyword::UNLISTEN => {
                return Ok(Statement::Housekeeping(housekeeping::parse(word.keyword, inner)?));
            }
            Keyword::EXPLAIN => {
                if let Some(explain) = explain::parse(parser)? {
                    return Ok(explain);
                }
            }
            Keyword::SHOW => {
                if let Some(show) = inspect::parse_dotted(inner)? {
                    return Ok(Statement::Show(show));
                }
            }
            _ => {}
        },
        _ => {}
    }
    let statement = parser.parse_statement()?;
    match statement {
        DataFusionStatement::Statement(sql) => convert(*sql),
        DataFusionStatement::Reset(reset) => Ok(Statement::Set(set::reset(&reset))),
        DataFusionStatement::CreateExternalTable(_) => {
            let error = Error::new(ErrorKind::Invalid, "CREATE EXTERNAL TABLE is not needed here");
            Err(error.with_hint("select FROM 'path' directly, or CREATE VIEW name AS FROM 'path'"))
        }
        other => Ok(Statement::Other(Box::new(other))),
    }
}

fn convert(sql: Sql) -> Result<Statement> {
    if let Some(control) = transaction::convert(&sql)? {
        return Ok(Statement::Transaction(control));
    }
    if let Some(control) = prepare::convert(&sql)? {
        return Ok(Statement::Prepared(control));
    }
    Ok(match sql {
        Sql::CreateView(create) => Statement::CreateView(Box::new(view::convert(create)?)),
        Sql::Drop { object_type: object @ (ObjectType::Table | ObjectType::View), if_exists, names, .. } => {
            Statement::Drop(drop::Drop::new(object, if_exists, &names)?)
        }
        Sql::CreateFunction(create) => Statement::CreateFunction(Box::new(function::convert(create)?)),
        Sql::DropFunction(dropped) => Statement::Drop(drop::Drop::of_functions(&dropped)?),
        Sql::Set(set) => match set::convert(&set)? {
            Some(set) => Statement::Set(set),
            None => Statement::Other(Box::new(DataFusionStatement::Statement(Box::new(Sql::Set(set))))),
        },
        Sql::Discard { object_type: DiscardObject::ALL } => Statement::Prepared(prepare::Control::Discard),
        Sql::Discard { object_type: DiscardObject::TEMP } => Statement::DiscardTemporary,
        Sql::ShowVariable { variable } => Statement::Show(inspect::show_variable(&variable)),
        Sql::ShowTables { .. } => Statement::Show(inspect::Show::Tables),
        Sql::ShowColumns { show_options, .. } => Statement::Show(inspect::show_columns(show_options)?),
        Sql::ShowCreate { obj_type: ShowCreateObject::Table | ShowCreateObject::View, obj_name } => {
            Statement::Show(inspect::Show::Create(obj_name))
        }
        Sql::ShowCreate { obj_type, .. } => return Err(unsupported(&format!("SHOW CREATE {obj_type}"))),
        Sql::ExplainTable { table_name, .. } => Statement::Show(inspect::Show::Describe(table_name)),
        Sql::Insert(insert) => Statement::Insert(Box::new(insert::convert(insert)?)),
        Sql::Update(update) => Statement::Modify(Box::new(modify::update(update)?)),
        Sql::Delete(delete) => Statement::Modify(Box::new(modify::delete(delete)?)),
        Sql::Truncate(truncate) => Statement::Truncate(modify::truncate(truncate)?),
        Sql::Merge { .. } => {
            return Err(unsupported("MERGE").with_hint("an UPDATE and an INSERT within BEGIN and COMMIT do the same"));
        }
        Sql::CreateTable(_) => return Err(unsupported("this form of CREATE TABLE")),
        Sql::CreateIndex(_) => {
            return Err(
                unsupported("CREATE INDEX").with_hint("CLUSTER BY sorts a table, so that its blocks can be skipped")
            );
        }
        Sql::CreateSchema { .. } | Sql::CreateDatabase { .. } => return Err(unsupported("CREATE SCHEMA or DATABASE")),
        Sql::AlterTable(_) => {
            return Err(
                unsupported("ALTER TABLE").with_hint("CREATE OR REPLACE TABLE t AS SELECT ... FROM t rewrites a table")
            );
        }
        other => Statement::Other(Box::new(DataFusionStatement::Statement(Box::new(other)))),
    })
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{what} is not supported"))
}

/// Returns the table in `name`, `public.name` or `onehop.public.name`. Unquoted, in lower case.
fn table_name(name: &ObjectName) -> Result<String> {
    let mut parts = Vec::new();
    for part in &name.0 {
        match part {
            ObjectNamePart::Identifier(ident) => parts.push(normal(ident)),
            ObjectNamePart::Function(_) => return Err(bad_name(name)),
        }
    }
    let is_qualified_well = match parts.as_slice() {
        [_] => true,
        [schema, _] => schema == crate::identifiers::SCHEMA,
        [catalog, schema, _] => catalog == crate::identifiers::CATALOG && schema == crate::identifiers::SCHEMA,
        _ => false,
    };
    match parts.pop() {
        Some(last) if is_qualified_well && !last.is_empty() => Ok(last),
        _ => Err(bad_name(name)),
    }
}

/// Returns the table or view that a name refers to. An unquoted name matches in any case.
fn named(name: &ObjectName, snapshot: &Snapshot) -> Result<String> {
    let written = table_name(name)?;
    let catalog = &snapshot.catalog;
    let names = catalog.tables.keys().chain(catalog.views.keys()).map(String::as_str);
    match name.0.last() {
        Some(ObjectNamePart::Identifier(ident)) if snapshot.table(&written).is_none() => {
            planner::as_named(ident, names, "table")
        }
        _ => Ok(written),
    }
}

/// Returns a name for a new object. It must not read as a path or as a reserved name.
fn new_name(name: &ObjectName) -> Result<String> {
    let name = table_name(name)?;
    check_new_name(&name)?;
    Ok(name)
}

fn bad_name(name: &ObjectName) -> Error {
    // The name as it is written without quotes.
    let parts: Vec<&str> = name.0.iter().filter_map(ObjectNamePart::as_ident).map(|word| word.value.as_str()).collect();
    crate::resolve::no_schema(&parts.join("."))
}

fn parse_name_list(parser: &mut Parser<'_>) -> std::result::Result<Vec<String>, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let names = parser.parse_comma_separated(Parser::parse_identifier)?;
    parser.expect_token(&Token::RParen)?;
    Ok(names.iter().map(normal).collect())
}

/// Consumes a word that is no keyword of the parser, if it is next.
fn parse_word(parser: &mut Parser<'_>, word: &str) -> bool {
    let is_next = matches!(parser.peek_token().token, Token::Word(next) if next.value.eq_ignore_ascii_case(word));
    if is_next {
        parser.next_token();
    }
    is_next
}
