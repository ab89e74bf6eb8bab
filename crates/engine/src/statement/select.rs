//! Runs queries, EXPLAIN, and all other statements that DataFusion plans.

use std::sync::Arc;

use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::sql::parser::Statement as DataFusionStatement;

use super::{Context, whole_file};
use crate::lower::Optimized;
use crate::query::{Output, Rows};
use crate::query_planner::in_order;
use crate::{Error, ErrorKind, Result};

/// Runs a statement. `text` is its source, if that determines it: then the plan can be cached.
pub(super) async fn run(statement: DataFusionStatement, text: Option<&str>, context: &Context<'_>) -> Result<Output> {
    if let Some(physical) = whole_file::plan(&statement, context).await? {
        return rows(physical, context).map(Output::Rows);
    }
    let plan = context.plan(statement).await?;
    match plan {
        LogicalPlan::Dml(dml) => unsupported(&format!("this form of {}", dml.op)),
        LogicalPlan::Ddl(ddl) => unsupported(ddl.name()),
        // DataFusion's COPY would bypass the checks of `CopyTo`.
        LogicalPlan::Analyze(analyze) if matches!(*analyze.input, LogicalPlan::Copy(_)) => {
            unsupported("EXPLAIN ANALYZE of COPY")
        }
        LogicalPlan::Statement(statement) => unsupported(statement.name()),
        plan => {
            // In a transaction, the plan depends on its uncommitted changes.
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

/// Runs an optimized plan.
pub(super) async fn known(plan: Arc<Optimized>, context: &Context<'_>) -> Result<Rows> {
    rows(context.physical_plan_of_optimized(plan).await?, context)
}

fn rows(physical: Arc<dyn ExecutionPlan>, context: &Context<'_>) -> Result<Rows> {
    context.query.planned();
    let state = context.state()?;
    let stream = execute_stream(in_order::one_stream(physical, state), state.task_ctx())?;
    Ok(Rows::new(stream, &context.query))
}
