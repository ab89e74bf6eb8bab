//! Queries, EXPLAIN, and whatever else DataFusion plans.

use std::sync::Arc;

use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::sql::parser::Statement as DataFusionStatement;

use super::{Context, whole_file};
use crate::lower::Optimized;
use crate::query::{Output, Rows};
use crate::query_planner::in_order;
use crate::{Error, ErrorKind, Result};

/// `text` is the statement's, if it says all: then it may be asked again.
pub(super) async fn run(statement: DataFusionStatement, text: Option<&str>, context: &Context<'_>) -> Result<Output> {
    if let Some(physical) = whole_file::plan(&statement, context).await? {
        return rows(physical, context).map(Output::Rows);
    }
    let plan = context.plan(statement).await?;
    match plan {
        LogicalPlan::Dml(dml) => unsupported(&format!("this form of {}", dml.op)),
        LogicalPlan::Ddl(ddl) => unsupported(ddl.name()),
        // It would write past the checks and the care of our own COPY.
        LogicalPlan::Analyze(analyze) if matches!(*analyze.input, LogicalPlan::Copy(_)) => {
            unsupported("EXPLAIN ANALYZE of COPY")
        }
        LogicalPlan::Statement(statement) => unsupported(statement.name()),
        plan => {
            // In a transaction, it is about what that has changed.
            let in_transaction = context.transaction().is_some();
            let physical = match text {
                Some(text) if !in_transaction => context.physical_plan_to_keep(plan, text).await?,
                _ => context.physical_plan(plan).await?,
            };
            rows(physical, context).map(Output::Rows)
        }
    }
}

fn unsupported(what: &str) -> Result<Output> {
    Err(Error::new(ErrorKind::Invalid, format!("not supported: {what}")))
}

/// Runs a plan as a stream.
pub(super) async fn query(plan: LogicalPlan, context: &Context<'_>) -> Result<Rows> {
    rows(context.physical_plan(plan).await?, context)
}

/// Runs a plan that was optimized before.
pub(super) async fn known(plan: Arc<Optimized>, context: &Context<'_>) -> Result<Rows> {
    rows(context.physical_plan_of_optimized(plan).await?, context)
}

fn rows(physical: Arc<dyn ExecutionPlan>, context: &Context<'_>) -> Result<Rows> {
    context.query.planned();
    let state = context.state()?;
    let stream = execute_stream(in_order::one_stream(physical, state), state.task_ctx())?;
    Ok(Rows::new(stream, &context.query))
}
