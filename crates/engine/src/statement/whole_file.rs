//! Plans `SELECT * FROM 'file' [LIMIT n]` of very wide files without a logical plan.
//!
//! DataFusion's planner and optimizer look up each column among all others repeatedly: 20,000
//! columns take a minute and a half, and four times as many take sixteen times as long. A query
//! that reads a file as it is has nothing to optimize, so the file's own scan is the plan. Its
//! planning time is linear in the number of columns.

use std::sync::Arc;

use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, LimitClause, ObjectNamePart, Query, SetExpr, Statement as Sql, TableFactor, Value,
};

use super::Context;
use crate::files::functions::{self, FileCall};
use crate::identifiers::{CATALOG, SCHEMA, normal};
use crate::{Error, ErrorKind, Result, files, planner};

/// The number of columns from which this path plans a file.
const WIDE_COLUMNS: usize = 1000;

/// Returns the operators of such a query; `None` for any other.
pub(super) async fn plan(
    statement: &DataFusionStatement,
    context: &Context<'_>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some((name, limit)) = asked(statement) else { return Ok(None) };
    let state = context.state()?;
    let schema = state.catalog_list().catalog(CATALOG).and_then(|catalog| catalog.schema(SCHEMA));
    let Some(schema) = schema else { return Ok(None) };
    let table = match schema.table(&name).await.map_err(Error::from) {
        Ok(Some(table)) => table,
        // An unresponsive storage system is asked once. Planning reports all other errors.
        Err(e) if e.kind() == ErrorKind::Io => return Err(e),
        _ => return Ok(None),
    };
    if table.schema().fields().len() < WIDE_COLUMNS {
        return Ok(None);
    }
    let scan = table.scan(&**state, None, &[], limit).await?;
    let one: Arc<dyn ExecutionPlan> = match scan.output_partitioning().partition_count() {
        1 => scan,
        _ => Arc::new(CoalescePartitionsExec::new(scan)),
    };
    let plan: Arc<dyn ExecutionPlan> = match limit {
        Some(limit) => Arc::new(GlobalLimitExec::new(one, 0, Some(limit))),
        None => one,
    };
    Ok(Some(crate::query_planner::in_order::ordered(plan, state)?))
}

/// Returns whether a statement seems to read a single file, by its own words. This excludes most
/// statements cheaply.
fn reads_a_file(statement: &DataFusionStatement) -> bool {
    let DataFusionStatement::Statement(sql) = statement else { return false };
    let Sql::Query(query) = &**sql else { return false };
    let SetExpr::Select(select) = &*query.body else { return false };
    let [from] = select.from.as_slice() else { return false };
    let TableFactor::Table { name, .. } = &from.relation else { return false };
    let [ObjectNamePart::Identifier(word)] = name.0.as_slice() else { return false };
    from.joins.is_empty()
        && select.selection.is_none()
        && (functions::format(&normal(word)).is_some() || files::is_path(&word.value))
}

/// Returns the file that a statement reads as it is, and its number of rows, if it is limited.
fn asked(statement: &DataFusionStatement) -> Option<(String, Option<usize>)> {
    if !reads_a_file(statement) {
        return None;
    }
    let Ok(DataFusionStatement::Statement(sql)) = planner::rewritten(statement.clone()) else { return None };
    let Sql::Query(query) = *sql else { return None };
    let SetExpr::Select(select) = &*query.body else { return None };
    let [from] = select.from.as_slice() else { return None };
    let TableFactor::Table { name, .. } = &from.relation else { return None };
    let [ObjectNamePart::Identifier(word)] = name.0.as_slice() else { return None };
    let limit = limit(&query)?;
    // Any other clause of the query is part of its text.
    let text = match &query.limit_clause {
        Some(clause) => format!("SELECT * FROM {}{clause}", from.relation),
        None => format!("SELECT * FROM {}", from.relation),
    };
    let name = word.value.clone();
    let is_file = FileCall::of_name(&name).is_some() || files::is_path(&name);
    (is_file && query.to_string() == text).then_some((name, limit))
}

/// Returns the limit if it is a number or missing; `None` if it is something else.
fn limit(query: &Query) -> Option<Option<usize>> {
    match &query.limit_clause {
        None => Some(None),
        Some(LimitClause::LimitOffset { limit: Some(Expr::Value(value)), offset: None, limit_by })
            if limit_by.is_empty() =>
        {
            let Value::Number(number, _) = &value.value else { return None };
            number.parse().ok().map(Some)
        }
        Some(_) => None,
    }
}
