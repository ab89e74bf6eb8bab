//! Queries, EXPLAIN, and whatever else DataFusion plans.

use datafusion::logical_expr::{LogicalPlan, Statement as PlanStatement};
use datafusion::physical_plan::execute_stream;
use datafusion::sql::parser::Statement as DataFusionStatement;

use super::{Context, insert};
use crate::query::{Output, Rows};
use crate::{Error, ErrorKind, Result};

pub(super) async fn run(statement: DataFusionStatement, context: &Context<'_>) -> Result<Output> {
    let plan = context.plan(statement).await?;
    match plan {
        LogicalPlan::Dml(dml) => insert::run(dml, context).await.map(Output::Done),
        LogicalPlan::Ddl(ddl) => unsupported(ddl.name()),
        // It would write past the checks and the care of our own COPY.
        LogicalPlan::Analyze(analyze) if matches!(*analyze.input, LogicalPlan::Copy(_)) => {
            unsupported("EXPLAIN ANALYZE of COPY")
        }
        LogicalPlan::Statement(statement) => match statement {
            PlanStatement::Prepare(_) | PlanStatement::Execute(_) | PlanStatement::Deallocate(_) => {
                unsupported("prepared statements")
            }
            other => unsupported(other.name()),
        },
        plan => query(plan, context).await.map(Output::Rows),
    }
}

fn unsupported(what: &str) -> Result<Output> {
    Err(Error::new(ErrorKind::Invalid, format!("not supported: {what}")))
}

/// Runs a plan as a stream.
pub(super) async fn query(plan: LogicalPlan, context: &Context<'_>) -> Result<Rows> {
    let physical = context.physical_plan(plan).await?;
    context.query.planned();
    Rows::new(execute_stream(physical, context.state.task_ctx())?, &context.query)
}
