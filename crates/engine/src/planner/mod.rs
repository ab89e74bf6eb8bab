//! What Onehop plans differently from DataFusion: corrections of wrong answers, and SQL that people write.
//!
//! A statement passes through here twice. As text and tree it is parsed with our [`Dialect`] and [`rewrite`] puts its
//! tree into words that DataFusion understands; as a plan it meets the rules that [`configure`] adds to a session's
//! state. One file per idea; each says in its header which failure it prevents, so that it can go when DataFusion no
//! longer fails.

mod decimal_division;
mod dialect;
mod filter_pushdown;
mod floats_beside_decimals;
mod from_first;
mod functions;
mod in_lists;
mod literals;
mod output_names;
mod rounding_casts;
mod same_names;
mod scalar_subqueries;
mod single_distinct;
mod timestamps;

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::Result as DataFusionResult;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::{CopyToSource, DFParser, DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{Expr, Query, Select, SetExpr, VisitMut, VisitorMut};
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::Tokenizer;

use self::dialect::Dialect;
pub(crate) use self::functions::names as function_names;

/// Our rules and options, added to DataFusion's defaults.
pub(crate) fn configure(mut config: SessionConfig, builder: SessionStateBuilder) -> SessionStateBuilder {
    let options = config.options_mut();
    // 0.1 is a decimal, as in PostgreSQL and DuckDB: a double is not the value that a DECIMAL column holds.
    options.sql_parser.parse_float_as_decimal = true;
    // DataFusion disagrees with itself about whether coalesce(x, TRUE) can be NULL, and refuses
    // `SELECT coalesce(x, TRUE) .. UNION SELECT ..` for it.
    options.execution.skip_physical_aggregate_schema_check = true;
    let mut builder = builder
        .with_config(config)
        .with_analyzer_rules(analyzer_rules())
        .with_optimizer_rules(single_distinct::optimizer_rules())
        .with_physical_optimizer_rules(filter_pushdown::physical_rules())
        .with_default_features();
    builder.expr_planners().get_or_insert_default().push(Arc::new(decimal_division::DecimalDivision));
    builder
}

fn analyzer_rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    // Before DataFusion settles types.
    let mut rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>> = vec![
        Arc::new(scalar_subqueries::ScalarSubqueries),
        Arc::new(rounding_casts::RoundingCasts),
        Arc::new(floats_beside_decimals::FloatsBesideDecimals),
    ];
    rules.extend(Analyzer::new().rules);
    // After it: then the values of a list are of one type.
    rules.push(Arc::new(in_lists::InLists));
    rules
}

/// A parser of our SQL.
pub(crate) fn parser(text: &str) -> DataFusionResult<DFParser<'static>> {
    let tokens = Tokenizer::new(&Dialect, text).tokenize_with_location().map_err(ParserError::from)?;
    DFParserBuilder::new(from_first::complete(tokens)).with_dialect(&Dialect).build()
}

/// A statement as a plan, with its types settled: those of the columns of a table that is made of it.
pub(crate) async fn plan(state: &SessionState, mut statement: Statement) -> DataFusionResult<LogicalPlan> {
    rewrite_statement(&mut statement);
    let plan = state.statement_to_plan(statement).await?;
    match plan {
        // EXPLAIN VERBOSE shows the analysis.
        LogicalPlan::Explain(_) | LogicalPlan::Statement(_) | LogicalPlan::Ddl(_) => Ok(plan),
        plan => state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}),
    }
}

/// One statement's text as a plan.
pub(crate) async fn plan_text(state: &SessionState, text: &str) -> DataFusionResult<LogicalPlan> {
    let statement = parser(text)?.parse_statement()?;
    plan(state, statement).await
}

fn rewrite_statement(statement: &mut Statement) {
    match statement {
        Statement::Statement(sql) => rewrite(sql.as_mut()),
        Statement::Explain(explain) => rewrite_statement(&mut explain.statement),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => rewrite(query.as_mut()),
            CopyToSource::Relation(_) => {}
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => {}
    }
}

fn rewrite(tree: &mut impl VisitMut) {
    // Nothing breaks off the walk.
    let _ = tree.visit(&mut Rewriter);
}

/// Once more changes nothing.
fn name_columns(select: &mut Select) {
    from_first::rewrite(select);
    output_names::rewrite(select);
}

struct Rewriter;

impl VisitorMut for Rewriter {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Self::Break> {
        if let SetExpr::Select(select) = query.body.as_mut() {
            name_columns(select);
        }
        output_names::rewrite_order(query);
        same_names::rewrite_query(query);
        ControlFlow::Continue(())
    }

    /// Before the expressions inside: columns are named after what was written.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        name_columns(select);
        same_names::rewrite(select);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        literals::rewrite(expr);
        functions::rewrite(expr);
        timestamps::rewrite(expr);
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::RecordBatch;
    use arrow::util::display::{ArrayFormatter, FormatOptions};
    use datafusion::prelude::SessionContext;

    use super::*;

    pub fn state() -> SessionState {
        configure(SessionConfig::new(), SessionStateBuilder::new()).build()
    }

    /// The statement in the words that DataFusion gets.
    pub fn rewritten(text: &str) -> String {
        let mut statement = parser(text).unwrap().parse_statement().unwrap();
        rewrite_statement(&mut statement);
        statement.to_string()
    }

    pub async fn run(text: &str) -> Vec<RecordBatch> {
        let mut state = state();
        state.mark_start_execution();
        let plan = plan_text(&state, text).await.unwrap();
        SessionContext::new_with_state(state).execute_logical_plan(plan).await.unwrap().collect().await.unwrap()
    }

    /// A query's rows, with spaces between values.
    pub async fn rows(text: &str) -> Vec<String> {
        let options = FormatOptions::new().with_null("NULL");
        let mut rows = Vec::new();
        for batch in run(text).await {
            let columns: Vec<_> =
                batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options).unwrap()).collect();
            for row in 0..batch.num_rows() {
                rows.push(columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join(" "));
            }
        }
        rows
    }
}
