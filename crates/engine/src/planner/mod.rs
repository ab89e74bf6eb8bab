//! The differences between Onehop's planning and DataFusion's: corrections of wrong answers, and
//! further SQL syntax.
//!
//! A statement passes through this module twice. Our [`Dialect`] parses its text, and [`rewrite`]
//! turns the tree into SQL that DataFusion understands. The plan then meets the rules that
//! [`configure`] adds to a session's state. Each file implements one idea. Its header names the
//! failure that it prevents, so that the file can be removed when DataFusion no longer fails.

mod array_literals;
mod balanced_conditions;
mod batch_rows;
mod bounded_calls;
mod call_clauses;
mod call_sizes;
mod checked_arithmetic;
mod checked_sum;
mod coalesce;
mod cooperation;
mod correlated_names;
mod correlated_subqueries;
mod date_arithmetic;
mod decimal_division;
mod declared_as;
mod dialect;
mod dictionary_texts;
mod edit_distance;
mod equal_values;
mod exact_comparisons;
mod expressions;
mod file_functions;
mod filter_pushdown;
mod finite_casts;
mod float_extremes;
mod floats_beside_decimals;
mod folded_names;
mod from_first;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod function_types;
mod functions;
mod grouping;
mod grouping_set_keys;
mod grouping_sets;
mod guards;
mod in_lists;
mod interval_arithmetic;
mod interval_days;
mod interval_units;
mod item_names;
mod join_guards;
mod junk_tokens;
mod large_tops;
pub(crate) mod like_escapes;
mod list_concatenation;
mod list_functions;
mod list_lengths;
mod literal_casts;
mod literals;
mod long_texts;
mod looks;
mod lossy_casts;
mod map_lookups;
mod mapped;
mod moment_formats;
mod moment_medians;
mod moments_of_one_type;
mod monotone_functions;
mod named_arguments;
mod named_windows;
mod nested_casts;
mod nested_order;
mod nesting;
mod null_in_subqueries;
mod null_offsets;
mod null_safe_joins;
mod offset_orders;
mod one_nan;
mod one_row_aggregates;
mod only_values;
mod order_names;
mod ordered_aggregates;
mod ordinality;
mod outer_aggregates;
mod outer_constants;
mod output_names;
mod own_memory;
mod pass_log;
mod passes;
mod postgres_catalogs;
mod printer;
mod quantified;
mod recursive_limits;
mod refused;
mod refused_casts;
mod refused_operators;
mod regexp_replacement;
mod regexp_rows;
mod regressions;
mod regular_expressions;
mod retries;
mod rounded_averages;
mod rounding;
mod rounding_casts;
mod row_locks;
mod row_values;
mod rows_of_functions;
mod same_names;
mod scalar_subqueries;
mod scopes;
mod set_operations;
pub(crate) mod similar_to;
mod single_distinct;
mod single_precision;
mod sliding_aggregates;
mod spellings;
mod sql_types;
mod star_replace;
mod string_casts;
mod struct_types;
mod subqueries_as_values;
mod subqueries_in_values;
mod subquery_errors;
mod subquery_lists;
mod subquery_places;
mod table_names;
mod temporal;
mod temporal_types;
mod text_positions;
mod timestamps;
mod unbounded_windows;
mod unnest_slices;
mod unnesting;
mod unproved_keys;
mod unseen;
mod using_joins;
mod value_texts;
mod values_without_from;
mod volatile_filters;
mod volatile_values;
mod window_frames;
mod window_keys;
mod window_limits;
mod with_names;
mod without;
mod year_ranges;
mod zoned_moments;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{AggregateUDF, LogicalPlan, ScalarUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::{CopyToSource, DFParser, DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{
    Expr, Fetch, LimitClause, OrderBy, Query, Select, SetExpr, TableFactor, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{TokenWithSpan, Tokenizer};

pub(crate) use self::batch_rows::with_bounded_batches;
pub(crate) use self::checked_arithmetic::{Operation, operation_of, room_for};
use self::dialect::Dialect;
pub(crate) use self::equal_values::POSITIVE_ZERO;
pub(crate) use self::folded_names::{OtherLetters, as_named};
pub(crate) use self::functions::names as function_names;
pub(crate) use self::guards::{guarded, guarded_expression};
pub(crate) use self::lossy_casts::{as_any_cast, as_lossy_cast, recast};
pub(crate) use self::named_arguments::LEARNING;
pub(crate) use self::nesting::check_plan;
pub(crate) use self::nesting::settle;
pub(crate) use self::one_nan::ONE_NAN;
pub(crate) use self::pass_log::PassLog;
pub(crate) use self::passes::{Disabled as DisabledPasses, PhysicalPass, table as passes_table};
pub(crate) use self::printer::Printer;
pub(crate) use self::refused::check_table;
use self::retries::Hints;
pub(crate) use self::rounded_averages::average;
pub(crate) use self::row_values::row;
use self::scopes::LookUp;
pub(crate) use self::subquery_errors::explained as explained_subqueries;
pub(crate) use self::unseen::is_unseen;
pub(crate) use self::without::check as check_left_out;
use self::without::keeps;
use crate::error::MAX_NESTED;
use crate::{Error, ErrorKind, Result, query};

/// Adds our rules and options to DataFusion's defaults. `physical` maps each physical rule.
///
/// # Errors
/// Fails if DataFusion's rules are not those of [`passes`].
pub(crate) fn configure(
    mut config: SessionConfig,
    builder: SessionStateBuilder,
    disabled: &DisabledPasses,
    physical: fn(PhysicalPass) -> PhysicalPass,
) -> Result<SessionStateBuilder> {
    let of_operators = passes::physical(disabled)?.into_iter().map(physical).map(pass_log::logged);
    let options = config.options_mut();
    // 0.1 is a decimal, as in PostgreSQL and DuckDB: a double is not the value that a DECIMAL
    // column holds.
    options.sql_parser.parse_float_as_decimal = true;
    // DataFusion contradicts itself on whether coalesce(x, TRUE) can be NULL, and refuses `SELECT
    // coalesce(x, TRUE) .. UNION SELECT ..` for it.
    options.execution.skip_physical_aggregate_schema_check = true;
    let mut builder = builder
        .with_config(config)
        .with_analyzer_rules(passes::analyzer(disabled)?)
        .with_optimizer_rules(passes::optimizer(disabled)?)
        .with_physical_optimizer_rules(of_operators.collect())
        .with_type_planner(Arc::new(sql_types::SqlTypes))
        .with_default_features();
    let functions = builder.aggregate_functions().get_or_insert_default();
    functions.extend(aggregates());
    if keeps("temporal") {
        for function in functions.iter_mut() {
            *function = temporal::with_intervals(Arc::clone(function));
        }
    }
    let functions = builder.scalar_functions().get_or_insert_default();
    functions.extend(scalar_functions());
    // This step follows all replacements of functions.
    bounded_calls::bounded(functions);
    let planners = builder.expr_planners().get_or_insert_default();
    // This planner precedes DataFusion's, which reads any name after a column's as a field.
    if keeps("table_names") {
        planners.insert(0, Arc::new(table_names::Fields));
    }
    if keeps("decimal_division") {
        planners.push(Arc::new(decimal_division::DecimalDivision));
    }
    if keeps("interval_arithmetic") {
        planners.push(Arc::new(interval_arithmetic::IntervalArithmetic));
    }
    planners.push(Arc::new(using_joins::MergedColumns));
    // This planner precedes DataFusion's planner for lists.
    planners.insert(0, Arc::new(list_concatenation::ListOperators));
    planners.insert(0, Arc::new(exact_comparisons::BooleanTexts));
    let planners = builder.relation_planners().get_or_insert_default();
    planners.push(Arc::new(using_joins::UsingJoins));
    if keeps("unproved_keys") {
        planners.push(Arc::new(unproved_keys::Relations));
    }
    Ok(builder)
}

/// Returns the aggregates that replace DataFusion's of the same names.
fn aggregates() -> Vec<Arc<AggregateUDF>> {
    let of = |name: &str, function: AggregateUDF| keeps(name).then(|| Arc::new(function));
    let mut functions = Vec::new();
    functions.extend(of("checked_sum", AggregateUDF::from(checked_sum::CheckedSum::default())));
    functions.extend(of("moment_medians", AggregateUDF::from(moment_medians::MomentMedian::default())));
    functions.extend(of("rounded_averages", AggregateUDF::from(rounded_averages::RoundedAverage::default())));
    if keeps("float_extremes") {
        functions.extend(float_extremes::functions());
    }
    functions
}

/// Returns the functions that DataFusion lacks or defines otherwise.
fn scalar_functions() -> Vec<Arc<ScalarUDF>> {
    let mut functions: Vec<Arc<ScalarUDF>> = quantified::functions().collect();
    if keeps("temporal") {
        functions.extend(temporal::functions());
    }
    if keeps("regexp_replacement") {
        functions.push(regexp_replacement::regexp_replace());
    }
    if keeps("coalesce") {
        functions.extend(coalesce::functions());
    }
    functions.extend(subquery_lists::functions());
    functions.extend(long_texts::functions());
    functions.extend(list_functions::functions());
    functions.extend(monotone_functions::functions());
    if keeps("settled_rounding") {
        functions.extend(rounding::functions());
    }
    functions.extend(regexp_rows::functions());
    functions.push(edit_distance::levenshtein());
    functions.push(text_positions::strpos());
    functions
}

/// Splits a text into tokens with their locations.
pub(crate) fn tokens(text: &str) -> Result<Vec<TokenWithSpan>> {
    let tokens = Tokenizer::new(&Dialect::for_tokens(0), text).tokenize_with_location();
    let tokens = tokens.map_err(|e| DataFusionError::from(ParserError::from(e)))?;
    junk_tokens::refuse(&tokens)?;
    interval_units::complete(struct_types::complete(tokens))
}

/// Passes tokens to the parser and calls `parse` on it. The stack is large enough for the tree,
/// even if parsing fails.
///
/// A caller that keeps the tree calls [`settle`] on it within `parse`.
pub(crate) fn parse_tokens<T>(
    tokens: Vec<TokenWithSpan>,
    parse: impl FnOnce(&mut DFParser<'_>) -> Result<T>,
) -> Result<T> {
    let stack_bytes = nesting::of_tokens(&tokens)?;
    let dialect = Dialect::for_tokens(tokens.len());
    let parsed = stacker::maybe_grow(stack_bytes, stack_bytes, || {
        let builder = DFParserBuilder::new(row_locks::plain(from_first::complete(tokens)));
        parse(&mut builder.with_dialect(&dialect).with_recursion_limit(MAX_NESTED).build()?)
    });
    match parsed {
        Err(_) if dialect.gave_up() => Err(Error::new(ErrorKind::Syntax, "the statement cannot be parsed")
            .with_hint("something that is deep within CASE, CAST or the like is not closed, or not right")),
        parsed => parsed,
    }
}

/// Parses a query template of ours. The parser's structures have a field for every dialect's
/// clauses.
pub(crate) fn template(text: &str) -> Result<Box<Query>> {
    let parsed = Parser::new(&GenericDialect {}).try_with_sql(text).and_then(|mut parser| parser.parse_query());
    parsed.map_err(|e| Error::new(ErrorKind::Internal, format!("{text} cannot be parsed: {e}")))
}

/// The words that the parser or DataFusion's planner interprets before it looks for a function.
pub(crate) const IS_NO_NAME: [&str; 18] = [
    "all",
    "any",
    "array",
    "case",
    "cast",
    "date",
    "exists",
    "extract",
    "if",
    "interval",
    "not",
    "row",
    "some",
    "time",
    "timestamp",
    "try_cast",
    "unnest",
    "values",
];

/// Parses one statement.
pub(crate) fn parse_statement(text: &str) -> Result<Statement> {
    parse_tokens(tokens(text)?, |parser| {
        let mut statement = parser.parse_statement()?;
        settle_statement(&mut statement)?;
        Ok(statement)
    })
}

/// Settles the tree of a statement; see [`nesting`].
pub(crate) fn settle_statement(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::Statement(sql) => settle(sql.as_mut()),
        Statement::Explain(explain) => settle_statement(&mut explain.statement),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => settle(query.as_mut()),
            CopyToSource::Relation(_) => Ok(()),
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => Ok(()),
    }
}

/// Plans a statement and settles its types, which are those of the columns of a table that it
/// creates.
pub(crate) async fn plan(state: &SessionState, mut statement: Statement) -> DataFusionResult<LogicalPlan> {
    let named = item_names::rewrite(&mut statement).then(|| statement.clone());
    ordinality::rewrite(&mut statement)?;
    if keeps("refused") {
        refused::check(&statement)?;
    }
    call_clauses::check(&statement, state)?;
    let planned = match (self::planned(state, statement).await, named) {
        (Err(error), Some(mut named)) if item_names::is_asked_for_value(&error) => {
            item_names::undo(&mut named);
            ordinality::rewrite(&mut named)?;
            self::planned(state, named).await?
        }
        (planned, _) => planned?,
    };
    match planned {
        // EXPLAIN VERBOSE shows the analysis.
        plan @ (LogicalPlan::Explain(_) | LogicalPlan::Statement(_) | LogicalPlan::Ddl(_)) => Ok(plan),
        plan => pass_log::analyzed(state, plan),
    }
}

/// Rewrites a statement to SQL that DataFusion understands.
///
/// # Errors
/// Fails if a name or a position refers to nothing.
pub(crate) fn rewritten(mut statement: Statement) -> Result<Statement> {
    rewrite_statement(&mut statement, &Hints::default())?;
    Ok(statement)
}

/// Plans a statement with DataFusion's planner. Retries if the error tells more about the
/// statement's names; see [`retries`].
async fn planned(state: &SessionState, mut statement: Statement) -> DataFusionResult<LogicalPlan> {
    rows_of_functions::rewrite(&mut statement, state)?;
    if !retries::may_be_repeated(&statement) {
        return attempt(state, statement, &Hints::default()).await.map_err(|failed| failed.error);
    }
    let mut hints = Hints::default();
    let mut is_folded = false;
    loop {
        let failed = match attempt(state, statement.clone(), &hints).await {
            Ok(plan) => return Ok(plan),
            Err(failed) => failed,
        };
        if hints.learn(&failed.error, &failed.taken) {
            continue;
        }
        if is_folded || !may_be_of_names(&failed.error) {
            return Err(failed.error);
        }
        match folded_names::folded(&statement, state, LookUp::Anything).await? {
            Some(folded) => (statement, hints, is_folded) = (folded, Hints::default(), true),
            None => return Err(failed.error),
        }
    }
}

/// Returns whether another case of a name may fix an error. It cannot if a file or its system
/// reports the error.
fn may_be_of_names(error: &DataFusionError) -> bool {
    let DataFusionError::External(ours) = error.find_root() else { return true };
    let kind = ours.downcast_ref::<Error>().map(Error::kind);
    kind.is_none_or(|kind| matches!(kind, ErrorKind::Syntax | ErrorKind::NotFound | ErrorKind::Invalid))
}

/// The reason why a statement was not planned.
struct Failed {
    error: DataFusionError,
    /// The names in ORDER BY that were taken for columns of FROM.
    taken: HashSet<String>,
}

async fn attempt(
    state: &SessionState,
    mut statement: Statement,
    hints: &Hints,
) -> std::result::Result<LogicalPlan, Failed> {
    table_names::rename(&mut statement, &hints.tables);
    if keeps("nearest_names") && folded_names::may_look_out(&mut statement) {
        match folded_names::folded(&statement, state, LookUp::Nearest).await {
            Ok(Some(folded)) => statement = folded,
            Ok(None) => {}
            Err(error) => return Err(Failed { error: error.into(), taken: HashSet::new() }),
        }
    }
    let taken = match rewrite_statement(&mut statement, hints) {
        Ok(taken) => taken,
        Err(error) => return Err(Failed { error: error.into(), taken: HashSet::new() }),
    };
    let unknown = functions::unknown(&statement, state);
    let plan = state.statement_to_plan(statement).await;
    plan.map_err(|e| Failed { error: unknown.map_or(e, |name| functions::not_found(&name, state).into()), taken })
}

/// Returns the types of a statement's parameters by their names, as their context determines them.
/// A type is `None` if the context does not determine it.
pub(crate) async fn parameters(
    state: &SessionState,
    statement: Statement,
) -> DataFusionResult<HashMap<String, Option<DataType>>> {
    if keeps("refused") {
        refused::check(&statement)?;
    }
    planned(state, statement).await?.get_parameter_types()
}

/// Plans the text of one statement.
pub(crate) async fn plan_text(state: &SessionState, text: &str) -> DataFusionResult<LogicalPlan> {
    plan(state, parse_statement(text)?).await
}

/// Optimizes a plan.
pub(crate) fn optimize(state: &SessionState, plan: &LogicalPlan) -> DataFusionResult<LogicalPlan> {
    bounded_calls::folding_little(|| optimize_folding(state, plan))
}

/// Optimizes a plan for operators that run once. Constants are folded, however large they are.
pub(crate) fn optimize_folding(state: &SessionState, plan: &LogicalPlan) -> DataFusionResult<LogicalPlan> {
    pass_log::optimized(state, plan).map_err(|e| subquery_errors::explained(e, plan))
}

/// Makes operators ready to run: checks their depth, lets `query` cancel them, and counts the
/// memory that sorts keep.
pub(crate) fn runnable(
    plan: Arc<dyn ExecutionPlan>,
    query: &Arc<query::Query>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let plan = balanced_conditions::balance_filters(plan)?;
    nesting::check_operators(&plan)?;
    let plan = own_memory::of_sorts(cooperation::cancellable(plan, query)?)?;
    let plan = unnest_slices::sliced(plan)?;
    query.runs(&plan);
    Ok(plan)
}

/// Rewrites a statement. Returns the names in ORDER BY that are taken for columns of FROM.
fn rewrite_statement(statement: &mut Statement, hints: &Hints) -> Result<HashSet<String>> {
    let mut rewriter = Rewriter { hints, taken: HashSet::new(), with: with_names::Around::default() };
    match visit_statement(statement, &mut rewriter) {
        ControlFlow::Continue(()) => Ok(rewriter.taken),
        ControlFlow::Break(error) => Err(error),
    }
}

fn visit_statement<V: VisitorMut>(statement: &mut Statement, visitor: &mut V) -> ControlFlow<V::Break> {
    match statement {
        Statement::Statement(sql) => sql.as_mut().visit(visitor),
        Statement::Explain(explain) => visit_statement(&mut explain.statement, visitor),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => query.as_mut().visit(visitor),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => ControlFlow::Continue(()),
    }
}

/// Names the columns of a SELECT. A second call changes nothing.
fn name_columns(select: &mut Select, hints: &Hints) {
    from_first::rewrite(select);
    output_names::rewrite(select, &hints.in_star);
}

/// Rewrites `FETCH FIRST n ROWS ONLY` to `LIMIT n`. DataFusion has no equivalent of WITH TIES or
/// PERCENT.
fn fetch_first(query: &mut Query) {
    if !matches!(&query.fetch, Some(Fetch { with_ties: false, percent: false, .. })) {
        return;
    }
    let one = || Expr::Value(Value::Number("1".into(), false).into());
    let first = query.fetch.take().map(|fetch| fetch.quantity.unwrap_or_else(one));
    match &mut query.limit_clause {
        Some(LimitClause::LimitOffset { limit: limit @ None, .. }) => *limit = first,
        clause @ None => *clause = Some(LimitClause::LimitOffset { limit: first, offset: None, limit_by: Vec::new() }),
        // The query has both LIMIT and FETCH. DataFusion refuses the FETCH that stays.
        Some(_) => query.fetch = Some(Fetch { with_ties: false, percent: false, quantity: first }),
    }
}

/// Replaces the names and positions to which a SELECT refers: its windows, and the keys of its
/// groups and of DISTINCT ON.
fn resolve(select: &mut Select, mut order: Option<&mut OrderBy>) -> ControlFlow<Error> {
    let mut resolved = || {
        if keeps("named_windows") {
            named_windows::rewrite(select, order.as_deref_mut())?;
        }
        if keeps("grouping") {
            grouping::rewrite(select)?;
        }
        grouping::rewrite_distinct_on(select, order.as_deref_mut())
    };
    match resolved() {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

struct Rewriter<'h> {
    hints: &'h Hints,
    taken: HashSet<String>,
    with: with_names::Around,
}

impl VisitorMut for Rewriter<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Self::Break> {
        postgres_catalogs::rewrite_query(query);
        subqueries_in_values::rewrite(query);
        fetch_first(query);
        if keeps("with_names") {
            self.with.enter(query);
        }
        match query.body.as_mut() {
            SetExpr::Select(select) => {
                name_columns(select, self.hints);
                resolve(select, query.order_by.as_mut())?;
            }
            SetExpr::Values(values) => floats_beside_decimals::rewrite_values(values),
            _ => {}
        }
        output_names::rewrite_order(query);
        if keeps("subqueries_as_values") {
            subqueries_as_values::rewrite_order(query);
        }
        if keeps("order_names") {
            order_names::rewrite_of_set_operation(query);
            self.taken.extend(order_names::rewrite(query, &self.hints.outputs));
        }
        if keeps("same_names") {
            same_names::rewrite_query(query);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
        self.with.leave();
        ControlFlow::Continue(())
    }

    /// Runs before the expressions inside: columns are named after the original expressions.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        postgres_catalogs::rewrite_select(select);
        rows_of_functions::first_is_alone(select);
        star_replace::rewrite(select);
        name_columns(select, self.hints);
        regexp_rows::rewrite(select);
        resolve(select, None)?;
        if keeps("same_names") {
            same_names::rewrite(select);
        }
        using_joins::rewrite(select);
        if keeps("row_values") {
            row_values::rewrite_conditions(select);
        }
        if keeps("subqueries_as_values") {
            subqueries_as_values::rewrite(select);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Self::Break> {
        postgres_catalogs::rewrite_table(table);
        file_functions::rewrite_table(table);
        named_arguments::rewrite_table(table);
        output_names::rewrite_lateral(table);
        functions::rewrite_table(table);
        timestamps::rewrite_table(table);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        postgres_catalogs::rewrite_scalar(expr);
        if keeps("outer_aggregates") {
            outer_aggregates::rewrite(expr);
        }
        if keeps("subqueries_as_values") {
            subqueries_as_values::rewrite_rows(expr);
        }
        if keeps("quantified") {
            quantified::rewrite_to_in(expr);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        postgres_catalogs::rewrite(expr);
        if keeps("literals") {
            literals::rewrite(expr);
        }
        ordered_aggregates::rewrite(expr);
        if keeps("regressions") {
            regressions::rewrite(expr);
        }
        // This step runs before the names of functions change.
        moment_formats::rewrite(expr);
        functions::rewrite(expr);
        timestamps::rewrite(expr);
        if keeps("quantified") {
            quantified::rewrite(expr);
        }
        if keeps("array_literals") {
            array_literals::rewrite(expr);
        }
        subquery_lists::rewrite(expr);
        if keeps("row_values") {
            row_values::rewrite(expr);
        }
        if keeps("like_escapes") {
            like_escapes::rewrite(expr);
        }
        if keeps("similar_to") {
            similar_to::rewrite(expr);
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::RecordBatch;
    use arrow::util::display::{ArrayFormatter, FormatOptions};
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// Returns the session state of the tests.
    pub fn state() -> SessionState {
        crate::learn::configure(
            crate::query_planner::configure(
                SessionConfig::new(),
                SessionStateBuilder::new(),
                &DisabledPasses::default(),
            )
            .unwrap(),
        )
        .build()
    }

    /// Returns the statement as DataFusion receives it.
    pub fn rewritten(text: &str) -> String {
        let mut statement = parse_statement(text).unwrap();
        rewrite_statement(&mut statement, &Hints::default()).unwrap();
        statement.to_string()
    }

    async fn try_run(text: &str) -> Result<Vec<RecordBatch>> {
        let mut state = state();
        state.mark_start_execution();
        let plan = plan_text(&state, text).await?;
        let operators = crate::query_planner::operators(&state, &plan).await?;
        Ok(collect(operators, SessionContext::new_with_state(state).task_ctx()).await?)
    }

    /// Returns the batches of a query.
    pub async fn run(text: &str) -> Vec<RecordBatch> {
        try_run(text).await.unwrap()
    }

    /// Runs a statement that must fail, and returns its error.
    pub async fn fails(text: &str) -> crate::Error {
        match try_run(text).await {
            Ok(_) => panic!("{text} works"),
            Err(e) => e,
        }
    }

    /// Returns a query's rows, with spaces between values.
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
