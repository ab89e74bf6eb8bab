//! `RETURNING expression, ...` of INSERT, UPDATE and DELETE: the new rows or, of DELETE, the old
//! ones.
//!
//! 1. The statement keeps its rows as it processes them, in the table's types, and reserves their
//!    memory.
//! 2. `SELECT expression, ... FROM rows AS table` runs over them before anything changes, so a
//!    failing expression leaves nothing behind. Other tables are read from the statement's
//!    snapshot.
//! 3. Its rows are returned when the change is made: durable, or part of the transaction.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::sqlparser::ast::{SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins};
use futures::StreamExt;

use super::Context;
use super::modify::target_query;
use crate::load::KeptRows;
use crate::planner;
use crate::postgres::column_names::ColumnNames;
use crate::query::{Output, Rows};
use crate::snapshot::{Snapshot, Table};
use crate::{Error, ErrorKind, Result};

/// A parsed `RETURNING` clause.
#[derive(Debug)]
pub(super) struct Returning {
    items: Vec<SelectItem>,
    /// The name by which its expressions refer to the table.
    alias: TableAlias,
}

/// Computed rows that are not returned yet.
#[derive(Debug)]
pub(super) struct Returned {
    schema: SchemaRef,
    rows: KeptRows,
}

impl Returning {
    /// Creates the clause of these expressions.
    pub fn new(items: Vec<SelectItem>, alias: TableAlias) -> Self {
        Self { items, alias }
    }

    /// Returns the names by which PostgreSQL's clients know the columns.
    pub fn column_names(&self) -> ColumnNames {
        ColumnNames::of_items(&self.items)
    }

    /// Settles the expressions of the clause. See [`planner::settle`].
    pub fn settle(&mut self) -> Result<()> {
        planner::settle(&mut self.items)
    }

    /// Returns the schema of the returned rows.
    pub async fn columns(self, table: &Table, seen: &Arc<Snapshot>, context: &Context<'_>) -> Result<SchemaRef> {
        let of_rows = context.of_rows(seen, rows_of(table, Vec::new())?)?;
        Ok(Arc::clone(self.plan(&of_rows).await?.schema().inner()))
    }

    /// Evaluates the clause for these rows, which are in the table's types.
    pub async fn rows(
        self,
        kept: KeptRows,
        table: &Table,
        seen: &Arc<Snapshot>,
        context: &Context<'_>,
    ) -> Result<Returned> {
        let of_rows = context.of_rows(seen, rows_of(table, kept.take())?)?;
        let plan = self.plan(&of_rows).await?;
        let physical = of_rows.physical_plan(plan).await?;
        let task = of_rows.state()?.task_ctx();
        let (schema, rows) = (physical.schema(), KeptRows::new(&task));
        let mut stream = execute_stream(physical, task)?;
        while let Some(batch) = stream.next().await {
            rows.add(&batch?, &schema)?;
        }
        Ok(Returned { schema, rows })
    }

    /// Plans `SELECT items FROM rows AS alias`.
    async fn plan(self, of_rows: &Context<'_>) -> Result<LogicalPlan> {
        let mut query = target_query("0")?;
        let SetExpr::Select(select) = query.body.as_mut() else { return Err(no_template()) };
        select.projection = self.items;
        match select.from.as_mut_slice() {
            [TableWithJoins { relation: TableFactor::Table { alias, .. }, .. }] => *alias = Some(self.alias),
            _ => return Err(no_template()),
        }
        let plan = of_rows.plan_query(query).await?;
        refuse_more_than_a_row(&plan)?;
        Ok(plan)
    }
}

/// Refuses expressions that combine several rows: the clause applies to each row by itself.
/// Subqueries may have them.
fn refuse_more_than_a_row(plan: &LogicalPlan) -> Result<()> {
    let what = match plan {
        LogicalPlan::Aggregate(_) => "aggregate functions",
        LogicalPlan::Window(_) => "window functions",
        LogicalPlan::Unnest(_) => "unnest",
        _ => return plan.inputs().into_iter().try_for_each(refuse_more_than_a_row),
    };
    Err(Error::new(ErrorKind::Invalid, format!("{what} are not allowed in RETURNING"))
        .with_hint("a subquery in brackets may have them"))
}

/// Returns rows as a table of their own. NULLs were checked before.
fn rows_of(table: &Table, batches: Vec<RecordBatch>) -> Result<MemTable> {
    let fields = table.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<Field>>()));
    let named = |batch: RecordBatch| RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec());
    let batches = batches.into_iter().map(named).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(MemTable::try_new(schema, vec![batches])?)
}

fn no_template() -> Error {
    Error::new(ErrorKind::Internal, "a query of rows is not what it was written as")
}

impl Returned {
    /// Returns the rows to the client.
    pub fn into_output(self, context: &Context<'_>) -> Result<Output> {
        let Self { schema, rows } = self;
        let batches = rows.take();
        // The reservation of their memory ends with the last batch.
        let stream = futures::stream::iter(batches).map(move |batch| {
            let _rows = &rows;
            Ok(batch)
        });
        let stream = Box::pin(RecordBatchStreamAdapter::new(schema, stream));
        Ok(Output::Rows(Rows::new(stream, &context.query)))
    }
}
