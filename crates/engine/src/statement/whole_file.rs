//! `SELECT * FROM 'file' [LIMIT n]` of very wide files, planned without a logical plan.
//!
//! DataFusion's planner and optimizer look every column up among all others, again and again: 20,000 columns take a
//! minute and a half, and four times as many sixteen times as long. A query that asks for a file as it is has nothing
//! to optimize, so the file's own scan is the plan. The time is linear in columns.

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

/// Fewer columns are planned like those of any other table.
const WIDE_COLUMNS: usize = 1000;

/// The operators of such a query; nothing for any other.
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
        // A system that does not answer is asked once. Planning reports every other error.
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

/// Whether a statement reads a single file, as far as its own words say: most do not, and are not looked at any further.
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

/// The file that a statement asks for as it is, and how many of its rows.
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
    // Whatever else the query says is in its text.
    let text = match &query.limit_clause {
        Some(clause) => format!("SELECT * FROM {}{clause}", from.relation),
        None => format!("SELECT * FROM {}", from.relation),
    };
    let name = word.value.clone();
    let is_file = FileCall::of_name(&name).is_some() || files::is_path(&name);
    (is_file && query.to_string() == text).then_some((name, limit))
}

/// The limit, if it is a number; nothing if it is something else.
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
