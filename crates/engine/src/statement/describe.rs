//! Determines the parameters and columns of a statement without running it, for clients that ask
//! before they run it.
//!
//! 1. A parameter has the type that the client declares. For one without a declaration, the context
//!    in the statement determines the type. A parameter that may have any type has none.
//! 2. The columns are those of its plan with a NULL of the right type for each parameter. A later
//!    run has values there, and its columns may have narrower or wider types. A client that was
//!    told these types has to cast.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::sql::parser::Statement as DataFusionStatement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Expr, LimitClause, Query as SqlQuery, Statement as Sql, Value as Literal, Visit, VisitMut,
    Visitor, VisitorMut,
};

use super::{Context, Statement, locking, parse_tokens, transaction};
use crate::postgres::column_names::ColumnNames;
use crate::prepared::{Prepared, StatementKind};
use crate::{Error, ErrorKind, Result, planner};

/// Parameters and columns of a statement.
#[derive(Clone, Debug)]
pub struct Described {
    /// The type of each parameter; `None` if it may be of any type.
    pub parameters: Vec<Option<DataType>>,
    /// The columns of its rows; `None` if it returns none.
    pub columns: Option<SchemaRef>,
}

impl Statement {
    /// Returns the names by which PostgreSQL's clients know the columns of its rows.
    fn column_names(&self) -> ColumnNames {
        match self {
            Self::Modify(modify) => modify.column_names(),
            Self::Insert(insert) => insert.column_names(),
            Self::Other(statement) => match &**statement {
                DataFusionStatement::Statement(sql) => match &**sql {
                    Sql::Query(query) => ColumnNames::of_query(query),
                    _ => ColumnNames::default(),
                },
                _ => ColumnNames::default(),
            },
            _ => ColumnNames::default(),
        }
    }

    pub(super) fn kind(&self) -> StatementKind {
        use super::inspect::Show;
        match self {
            Self::Explain(_) => StatementKind::Explain,
            Self::Show(Show::Setting(name)) => StatementKind::Show(Some(name.clone())),
            Self::Show(Show::AllSettings) => StatementKind::Show(None),
            Self::Show(_) => StatementKind::Query,
            Self::Set(_) => StatementKind::Set,
            &Self::Transaction(transaction::Control::Begin { is_immediate, is_read_only }) => {
                StatementKind::Begin { is_immediate, is_read_only }
            }
            Self::Modify(modify) => modify.returns().map_or(StatementKind::Other, StatementKind::Returning),
            Self::Insert(insert) if insert.returns() => StatementKind::Returning("INSERT"),
            Self::Transaction(
                transaction::Control::Commit | transaction::Control::Rollback | transaction::Control::RollbackTo(_),
            ) => StatementKind::End,
            Self::Other(statement) => match &**statement {
                DataFusionStatement::Explain(_) => StatementKind::Explain,
                DataFusionStatement::Statement(sql) if matches!(**sql, Sql::Query(_)) => StatementKind::Query,
                _ => StatementKind::Other,
            },
            _ => StatementKind::Other,
        }
    }
}

/// Returns the parameters and columns of a prepared statement. `declared` are the types that its
/// client declares for its first parameters.
pub(crate) async fn describe(
    prepared: &Prepared,
    declared: &[Option<DataType>],
    context: &Context<'_>,
) -> Result<Described> {
    let mut parameters = vec![None; prepared.parameters()];
    if parameters.len() < declared.len() {
        let (has, given) = (parameters.len(), declared.len());
        let message = format!("types of {given} parameters are given for a statement that has {has}");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    parameters[..declared.len()].clone_from_slice(declared);
    if parameters.contains(&None) {
        infer(prepared, &mut parameters, context).await;
    }
    let columns = match prepared.kind() {
        StatementKind::Query | StatementKind::Returning(_) => Some(columns(prepared, &parameters, context).await?),
        StatementKind::Explain => Some(explanation()),
        StatementKind::Show(_)
        | StatementKind::Begin { .. }
        | StatementKind::End
        | StatementKind::Set
        | StatementKind::Other => None,
    };
    Ok(Described { parameters, columns })
}

fn explanation() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("plan_type", DataType::Utf8, false),
        Field::new("plan", DataType::Utf8, false),
    ]))
}

async fn columns(prepared: &Prepared, parameters: &[Option<DataType>], context: &Context<'_>) -> Result<SchemaRef> {
    let statement = parse_tokens(prepared.with_nulls(parameters)?)?;
    match statement {
        Statement::Show(show) => Ok(show.batch(context).await?.schema()),
        Statement::Other(mut statement) => {
            locking::take_out(&mut statement);
            let plan = context.plan(*statement).await?;
            Ok(Arc::clone(plan.schema().inner()))
        }
        Statement::Modify(modify) => modify.columns(context).await,
        Statement::Insert(insert) => insert.columns(context).await,
        _ => Err(Error::new(ErrorKind::Internal, "a query came to be something else")),
    }
}

/// Fills in the types that the statement itself determines. An error is ignored here: the run
/// reports it if it persists.
async fn infer(prepared: &Prepared, parameters: &mut [Option<DataType>], context: &Context<'_>) {
    let Ok(statement) = prepared.unbound().and_then(parse_tokens) else { return };
    let mut statement = match statement {
        Statement::Other(mut statement) => {
            locking::take_out(&mut statement);
            *statement
        }
        Statement::Insert(insert) => insert.into_statement(),
        Statement::Modify(modify) => match modify.conditions() {
            Some(query) => DataFusionStatement::Statement(Box::new(Sql::Query(query))),
            None => return,
        },
        _ => return,
    };
    let mut fill = |number: usize, data_type: &DataType| {
        if let Some(slot @ None) = parameters.get_mut(number) {
            *slot = Some(data_type.clone());
        }
    };
    let mut written = Written::default();
    if let DataFusionStatement::Statement(sql) = &statement {
        let _ = sql.visit(&mut written);
    }
    for (number, type_name) in &written.casts {
        if let Some(data_type) = type_of(type_name, context).await {
            fill(*number, &data_type);
        }
    }
    written.counts.iter().for_each(|number| fill(*number, &DataType::Int64));
    if let DataFusionStatement::Statement(sql) = &mut statement {
        let _ = sql.visit(&mut WithoutLists);
    }
    for (number, data_type) in beside(statement, context).await {
        match written.lists.contains(&number) {
            true => fill(number, &DataType::List(Arc::new(Field::new_list_field(data_type, true)))),
            false => fill(number, &data_type),
        }
    }
}

/// Returns the types that parameters take from the expressions beside them.
async fn beside(statement: DataFusionStatement, context: &Context<'_>) -> Vec<(usize, DataType)> {
    let Ok(state) = context.state() else { return Vec::new() };
    let state = Arc::clone(state);
    let work = async move { Ok(planner::parameters(&state, statement).await?) };
    let types: HashMap<String, Option<DataType>> = context.query.apart(work).await.unwrap_or_default();
    types.into_iter().filter_map(|(name, data_type)| Some((number(&name)?, data_type?))).collect()
}

async fn type_of(name: &ast::DataType, context: &Context<'_>) -> Option<DataType> {
    let plan = planner::plan_text(context.state().ok()?, &format!("SELECT CAST(NULL AS {name})")).await.ok()?;
    plan.schema().fields().first().map(|field| field.data_type().clone())
}

/// Returns the index of a parameter: 0 for `$1`.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1)
}

fn parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Value(value) => match &value.value {
            Literal::Placeholder(name) => number(name),
            _ => None,
        },
        Expr::Nested(inner) => parameter(inner),
        _ => None,
    }
}

/// Parameters that are cast in place, and parameters that count rows.
#[derive(Default)]
struct Written {
    casts: Vec<(usize, ast::DataType)>,
    counts: Vec<usize>,
    /// Parameters that are lists, as in `x = ANY($1)`.
    lists: Vec<usize>,
}

/// Rewrites `x = ANY($1)` to `x = $1`, since an expression beside a list has the type of its items.
struct WithoutLists;

impl VisitorMut for WithoutLists {
    type Break = std::convert::Infallible;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::AnyOp { left, compare_op, right, .. } | Expr::AllOp { left, compare_op, right } = expr
            && parameter(right).is_some()
        {
            *expr = Expr::BinaryOp { left: left.clone(), op: compare_op.clone(), right: right.clone() };
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Written {
    type Break = std::convert::Infallible;

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Self::Break> {
        if let Expr::Cast { expr, data_type, .. } = expr
            && let Some(number) = parameter(expr)
        {
            self.casts.push((number, data_type.clone()));
        }
        if let Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } = expr {
            self.lists.extend(parameter(right));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &SqlQuery) -> ControlFlow<Self::Break> {
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause {
            let counts = limit.iter().chain(offset.iter().map(|offset| &offset.value));
            self.counts.extend(counts.filter_map(parameter));
        }
        ControlFlow::Continue(())
    }
}

/// Builds `column = value` for each pair, so that a parameter among the values gets the type of its
/// column.
pub(super) fn equalities<'a>(values: impl Iterator<Item = (&'a String, &'a Expr)>) -> impl Iterator<Item = Expr> {
    values.map(|(column, value)| Expr::BinaryOp {
        left: Box::new(Expr::Identifier(ast::Ident::with_quote('"', column))),
        op: BinaryOperator::Eq,
        right: Box::new(Expr::Nested(Box::new(value.clone()))),
    })
}

/// Parses any statement with parameters that a client may run.
pub(crate) fn client(text: &str) -> Result<Prepared> {
    let tokens = planner::tokens(text)?;
    if crate::prepared::of_prepare(&tokens)?.is_some() {
        return Ok(Prepared::of_tokens(text.to_string(), Vec::new(), Vec::new())?.with_kind(StatementKind::Other));
    }
    let prepared = Prepared::of_tokens(text.to_string(), tokens, Vec::new())?;
    let statement = parse_tokens(prepared.unbound()?)?;
    let (kind, columns) = (statement.kind(), statement.column_names());
    let prepared = match &statement {
        Statement::Insert(insert) => prepared.with_template(insert.template()),
        _ => prepared,
    };
    Ok(prepared.with_kind(kind).with_columns(columns))
}
