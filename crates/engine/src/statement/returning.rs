//! `RETURNING expression, ...` of INSERT, UPDATE and DELETE: what rows have become or, of those that are gone, were.
//!
//! 1. The statement's rows are kept as it goes through them, in the table's types, and what they take is asked for.
//! 2. `SELECT expression, ... FROM rows AS table` is run over them, with other tables as the statement has seen them, before
//!    anything is changed: an expression that fails leaves nothing behind.
//! 3. Its rows are handed out when the change is made: durable, or part of the transaction.

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

/// The parsed clause.
#[derive(Debug)]
pub(super) struct Returning {
    items: Vec<SelectItem>,
    /// What its expressions call the table.
    alias: TableAlias,
}

/// What comes back, and is not handed out yet.
#[derive(Debug)]
pub(super) struct Returned {
    schema: SchemaRef,
    rows: KeptRows,
}

impl Returning {
    pub fn new(items: Vec<SelectItem>, alias: TableAlias) -> Self {
        Self { items, alias }
    }

    /// What PostgreSQL's clients know the columns as.
    pub fn column_names(&self) -> ColumnNames {
        ColumnNames::of_items(&self.items)
    }

    pub fn settle(&mut self) -> Result<()> {
        planner::settle(&mut self.items)
    }

    /// The columns that come back.
    pub async fn columns(self, table: &Table, seen: &Arc<Snapshot>, context: &Context<'_>) -> Result<SchemaRef> {
        let of_rows = context.of_rows(seen, rows_of(table, Vec::new())?)?;
        Ok(Arc::clone(self.plan(&of_rows).await?.schema().inner()))
    }

    /// What comes back of these rows, in the table's types.
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

    /// `SELECT items FROM rows AS alias`
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

/// Each row says something by itself: what would put several together is no part of it. Subqueries are their own affair.
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

/// Rows as a table of theirs. Whether NULL may be among them is not looked at again.
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
    /// Hands them out.
    pub fn into_output(self, context: &Context<'_>) -> Result<Output> {
        let Self { schema, rows } = self;
        let batches = rows.take();
        // What they take is given back when the last is gone.
        let stream = futures::stream::iter(batches).map(move |batch| {
            let _rows = &rows;
            Ok(batch)
        });
        let stream = Box::pin(RecordBatchStreamAdapter::new(schema, stream));
        Ok(Output::Rows(Rows::new(stream, &context.query)))
    }
}
