//! `INSERT INTO table [(columns)] query [RETURNING ...]`: DataFusion plans the rows, this writes
//! and commits them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Column;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, SortExpr};
use datafusion::prelude::Expr;
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{self, Ident, ObjectName, Query, Statement as Sql, TableAlias, TableObject};

use super::returning::Returning;
use super::{Context, done, named, select, source, table_name};
use crate::catalog::SegmentEntry;
use crate::catalog::row::EncodedRows;
use crate::database::Database;
use crate::edit::TableEdit;
use crate::load::{self, Beside, KeptRows, Loaded, Target};
use crate::postgres::column_names::ColumnNames;
use crate::query::{Done, Output};
use crate::query_planner::in_order;
use crate::settings::Settings;
use crate::snapshot::{Snapshot, Table};
use crate::template::{Template, parts, rows_of};
use crate::{Error, ErrorKind, Result, Rule, files, planner};

/// The plan of the rows of an INSERT's query, as the table has them.
async fn plan(columns: &[ObjectName], source: &Query, table: &Table, context: &Context<'_>) -> Result<LogicalPlan> {
    let query = source::query(columns, source, table)?;
    let planned = context.plan_query(query).await;
    if planned.is_err()
        && let Ok(plan) = context.plan_query(Box::new(source.clone())).await
    {
        // The query is valid by itself, so its number of columns differs from the table's.
        let takes = if columns.is_empty() { table.entry.columns.len() } else { columns.len() };
        source::check_count(plan.schema().fields().len(), takes, None, table)?;
    }
    planned
}

/// `INSERT INTO table [(columns)] query [RETURNING items]`.
#[derive(Debug)]
pub(super) struct Insert {
    /// The parser's statement, without its RETURNING.
    statement: ast::Insert,
    returning: Option<Returned>,
}

/// The RETURNING of an INSERT.
#[derive(Debug)]
struct Returned {
    /// The table that its columns are of.
    table: String,
    items: Returning,
}

/// Takes the RETURNING out of the parser's statement.
///
/// # Errors
/// [`ErrorKind::Invalid`] if RETURNING is of something that is no table.
pub(super) fn convert(mut statement: ast::Insert) -> Result<Insert> {
    let Some(items) = statement.returning.take() else { return Ok(Insert { statement, returning: None }) };
    let TableObject::TableName(name) = &statement.table else {
        return Err(Error::new(ErrorKind::Invalid, "INSERT ... RETURNING is for tables"));
    };
    let table = table_name(name)?;
    let name = match &statement.table_alias {
        Some(alias) => alias.alias.clone(),
        None => Ident::with_quote('"', &table),
    };
    // The planner knows the table by its own name.
    statement.table_alias = None;
    let alias = TableAlias { explicit: true, name, columns: Vec::new(), at: None };
    Ok(Insert { statement, returning: Some(Returned { table, items: Returning::new(items, alias) }) })
}

impl Insert {
    /// Returns true if rows come back.
    pub fn returns(&self) -> bool {
        self.returning.is_some()
    }

    /// What PostgreSQL's clients know what comes back as.
    pub fn column_names(&self) -> ColumnNames {
        self.returning.as_ref().map(|returned| returned.items.column_names()).unwrap_or_default()
    }

    /// The table's name, as it is written; `None` for a form that is not supported.
    pub fn table(&self) -> Option<String> {
        let (name, _) = parts(&self.statement)?;
        table_name(name).ok()
    }

    /// The statement with its parameters as slots, if it is of literals and parameters alone.
    pub fn template(&self) -> Option<Template> {
        self.returning.is_none().then(|| Template::of(&self.statement)).flatten()
    }

    /// Settles the expressions of the statement. See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        planner::settle(&mut self.statement)?;
        self.returning.as_mut().map_or(Ok(()), |returned| returned.items.settle())
    }

    /// Returns the statement without `RETURNING`.
    pub fn into_statement(self) -> DataFusionStatement {
        DataFusionStatement::Statement(Box::new(Sql::Insert(self.statement)))
    }

    /// The columns that come back.
    pub async fn columns(self, context: &Context<'_>) -> Result<SchemaRef> {
        let (_, returned) = self.found(context)?;
        let table = own_table(&returned.table, context)?;
        returned.items.columns(&table, &context.snapshot, context).await
    }

    /// The statement and its RETURNING, whose table's name may be written in other letters.
    fn found(self, context: &Context<'_>) -> Result<(ast::Insert, Returned)> {
        let Self { statement, returning } = self;
        let mut returned = returning.ok_or_else(|| Error::new(ErrorKind::Internal, "an INSERT without RETURNING"))?;
        if let TableObject::TableName(name) = &statement.table {
            returned.table = named(name, &context.snapshot)?;
        }
        Ok((statement, returned))
    }

    /// Adds the rows.
    pub async fn run(self, context: &Context<'_>) -> Result<Output> {
        if self.returns() {
            let (statement, returned) = self.found(context)?;
            return run_returning(&statement, returned, context).await;
        }
        if let Some((table, rows)) = rows_of(&self.statement, &context.snapshot)
            && let Some(done) = put(&table, rows, context).await?
        {
            return Ok(Output::Done(done));
        }
        match parts(&self.statement) {
            Some((name, source)) => {
                let columns = &self.statement.columns;
                Box::pin(run_query(name, columns, source, context)).await.map(Output::Done)
            }
            // DataFusion says what is wrong with it, if anything is.
            None => Box::pin(select::run(self.into_statement(), None, context)).await,
        }
    }
}

/// Adds the rows of a query.
async fn run_query(name: &ObjectName, columns: &[ObjectName], source: &Query, context: &Context<'_>) -> Result<Done> {
    let name = named(name, &context.snapshot)?;
    let of_table = context.of_table(&name)?;
    let context = of_table.as_ref().unwrap_or(context);
    let table = own_table(&name, context)?;
    let plan = plan(columns, source, &table, context).await?;
    let rows = append(plan, &table, context).await?;
    Ok(done("INSERT", Some(rows)))
}

/// Adds the rows, and returns what RETURNING makes of them.
async fn run_returning(insert: &ast::Insert, returned: Returned, context: &Context<'_>) -> Result<Output> {
    let of_table = context.of_table(&returned.table)?;
    let context = of_table.as_ref().unwrap_or(context);
    let table = own_table(&returned.table, context)?;
    let kept = KeptRows::new(&context.state()?.task_ctx());
    let written = match rows_of(insert, &context.snapshot) {
        Some((_, rows)) => few(&table, rows, context)?,
        None => None,
    };
    let loaded = match written {
        Some(loaded) => {
            let mut rows = loaded.loaded.rows.iter();
            rows.try_for_each(|rows| kept.add(&rows.batch(&table.schema)?, &table.schema))?;
            loaded
        }
        None => {
            let Some((_, source)) = parts(insert) else { return Err(not_supported()) };
            let plan = plan(&insert.columns, source, &table, context).await?;
            let beside = Beside { rows: Some(kept.clone()), ..Beside::default() };
            load_rows(plan, &table, &beside, context).await?
        }
    };
    // Before anything is changed: it may fail.
    let returned = returned.items.rows(kept, &table, &context.snapshot, context).await?;
    commit(loaded, &table, context).await?;
    returned.into_output(context)
}

fn not_supported() -> Error {
    Error::new(ErrorKind::Invalid, "this form of INSERT is not supported")
        .with_hint("INSERT INTO table [(column, ...)] {VALUES ... | SELECT ...} [RETURNING ...]")
}

/// Adds the table's name to an error.
fn in_table(error: Error, table: &str) -> Error {
    use onehop_segment::Error::{Null, Value};
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
    match cause {
        Some(Value { column, reason }) => {
            Error::new(error.kind(), format!("column \"{column}\" of table \"{table}\": {reason}"))
        }
        Some(Null { column }) => {
            let message = format!("column \"{column}\" of table \"{table}\": NULL in a NOT NULL column");
            Error::new(error.kind(), message).breaking(Rule::NotNull)
        }
        _ => error,
    }
}

/// Returns a table that accepts rows.
pub(super) fn own_table(name: &str, context: &Context<'_>) -> Result<Arc<Table>> {
    writable_table(name, context.database, &context.snapshot)
}

/// Returns a table of a snapshot that accepts rows.
pub(crate) fn writable_table(name: &str, database: &Database, snapshot: &Snapshot) -> Result<Arc<Table>> {
    database.check_writable()?;
    match snapshot.table(name) {
        Some(table) => Ok(Arc::clone(table)),
        None if snapshot.catalog.views.contains_key(name) => {
            let error = Error::new(ErrorKind::Invalid, format!("\"{name}\" is a view"));
            Err(error.with_hint("rows go into the tables that it is made of"))
        }
        None => Err(Error::unknown_table(name, snapshot.catalog.tables.keys().map(String::as_str))),
    }
}

/// What was loaded for a table, and where its files are, if there may be any: they go with it,
/// unless they are kept.
#[derive(Debug)]
pub(super) struct LoadedRows {
    pub loaded: Loaded,
    pub target: Option<Target>,
}

/// Puts rows that are written in the statement into a table; `None` if they are too many to be kept
/// as they are, or would have to be sorted.
pub(super) async fn put(table: &Table, rows: EncodedRows, context: &Context<'_>) -> Result<Option<Done>> {
    let of_table = context.of_table(&table.name)?;
    let context = of_table.as_ref().unwrap_or(context);
    let Some(loaded) = few(table, rows, context)? else { return Ok(None) };
    let count = commit(loaded, table, context).await?;
    Ok(Some(done("INSERT", Some(count))))
}

/// Loads such rows without committing them.
fn few(table: &Table, rows: EncodedRows, context: &Context<'_>) -> Result<Option<LoadedRows>> {
    if rows.len() > 1 && !table.entry.cluster_by.is_empty() {
        return Ok(None);
    }
    context.database.check_writable()?;
    let loaded = load::few(rows, table, context.settings().fresh_rows(), &context.query);
    let Some(loaded) = loaded.map_err(|e| in_table(e, &table.name))? else { return Ok(None) };
    context.query.planned();
    Ok(Some(LoadedRows { loaded, target: None }))
}

/// Writes a plan's rows to a table and commits them. Returns their number.
pub(super) async fn append(plan: LogicalPlan, table: &Table, context: &Context<'_>) -> Result<u64> {
    commit(load_rows(plan, table, &Beside::default(), context).await?, table, context).await
}

async fn commit(rows: LoadedRows, table: &Table, context: &Context<'_>) -> Result<u64> {
    let count = rows.loaded.count();
    let write = context.write().await?;
    let mut edit = TableEdit::default();
    let target = write.add(rows, table, &mut edit, context)?;
    write.edit(&table.name, edit, target, context).await?;
    Ok(count)
}

/// Runs a plan for rows of a table. Rows go to segments or, if they are few, to memory.
pub(super) async fn load_rows(
    plan: LogicalPlan,
    table: &Table,
    beside: &Beside,
    context: &Context<'_>,
) -> Result<LoadedRows> {
    let target = context.load_target(table);
    let loaded = load(plan, &table.entry.cluster_by, &target, context.settings().fresh_rows(), beside, context).await;
    let loaded = loaded.map_err(|e| in_table(e, &table.name))?;
    Ok(LoadedRows { loaded, target: Some(target) })
}

/// Commits segments to the table, if it is still the one they were written for. For threads outside
/// of a runtime.
pub(crate) fn add_segments(
    database: &Database,
    settings: &Settings,
    table: &Arc<Table>,
    seen: &Snapshot,
    segments: Vec<SegmentEntry>,
    target: &Target,
) -> Result<()> {
    let segments = segments.into_iter().map(|entry| target.segment_file(entry, &table.name)).collect();
    let edit = TableEdit { segments, ..TableEdit::default() };
    let writing = database.writing_blocking(settings)?;
    target.query.settle()?;
    let commit = database.edit(writing, &[(table.name.clone(), edit)], seen)?;
    target.keep_files();
    commit.wait_blocking(target.query.shared_ledger())
}

/// Runs a plan into segments, or, if there are no more than `most_rows`, into memory; sorted by
/// `cluster_by`.
pub(super) async fn load(
    plan: LogicalPlan,
    cluster_by: &[String],
    target: &Target,
    most_rows: u64,
    beside: &Beside,
    context: &Context<'_>,
) -> Result<Loaded> {
    let first = usize::from(beside.addresses.is_some());
    let plan = match cluster_by {
        [] => plan,
        columns => sorted(plan, columns, target, first)?,
    };
    let (physical, state) = (context.physical_plan(plan).await?, context.state()?);
    let physical = match in_order::is_asked(state.config()) {
        true => physical,
        false => files::spread(physical, state.config().target_partitions())?,
    };
    context.query.planned();
    load::load(physical, context.state()?.task_ctx(), target, most_rows, beside).await
}

/// Sorts a plan by columns of the table. Columns go by position, beginning at `first`: the plan's
/// names need not be the table's.
fn sorted(plan: LogicalPlan, columns: &[String], target: &Target, first: usize) -> Result<LogicalPlan> {
    let mut keys = Vec::with_capacity(columns.len());
    for column in columns {
        let Some((index, _)) = target.schema.column_with_name(column) else {
            return Err(Error::new(ErrorKind::Internal, format!("no column \"{column}\" to cluster by")));
        };
        let (qualifier, field) = plan.schema().qualified_field(first + index);
        let key = Expr::Column(Column::new(qualifier.cloned(), field.name()));
        keys.push(SortExpr::new(key, true, true));
    }
    Ok(LogicalPlanBuilder::new(plan).sort(keys)?.build()?)
}
