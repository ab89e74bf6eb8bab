//! `FROM t, neighbours(t.x, 'points') AS n`: a user's function that [returns
//! rows](crate::functions) in place of a table.
//!
//! To DataFusion it is a scalar function whose value is an array of structs. DataFusion receives a
//! query of the array's items: `LATERAL (SELECT r['id'] AS id, r['d'] AS d FROM (SELECT
//! unnest(neighbours(t.x, 'points')) AS r) AS ..) AS n`. LATERAL is added only if an argument
//! contains a column. The first table in FROM is never LATERAL, even if the user wrote it: no table
//! precedes it. A column of an outer query is an ordinary outer column of a subquery, which
//! DataFusion does not resolve behind LATERAL.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgumentList, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query,
    Select, TableAlias, TableFactor, TableFunctionArgs, TableWithJoins, VisitMut, VisitorMut, visit_expressions,
};

use super::{functions, template, visit_statement};
use crate::functions::columns_of_rows;
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result};

/// Replaces such functions by queries.
///
/// # Errors
/// Fails if an argument has a name, which these functions do not accept.
pub(super) fn rewrite(statement: &mut Statement, state: &SessionState) -> Result<()> {
    match visit_statement(statement, &mut Rows { state }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rows<'a> {
    state: &'a SessionState,
}

impl VisitorMut for Rows<'_> {
    type Break = Error;

    // This runs after the table's parts: arguments may contain queries.
    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Error> {
        match self.replaced(table) {
            Ok(Some(query)) => *table = query,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }
}

/// Removes LATERAL from the first table, which no table precedes.
pub(super) fn first_is_alone(select: &mut Select) {
    if let Some(TableWithJoins { relation: TableFactor::Derived { lateral, .. }, .. }) = select.from.first_mut() {
        *lateral = false;
    }
}

impl Rows<'_> {
    fn replaced(&self, table: &TableFactor) -> Result<Option<TableFactor>> {
        let (name, args, alias) = match table {
            TableFactor::Table { name, alias, args: Some(TableFunctionArgs { args, .. }), .. }
            | TableFactor::Function { name, args, alias, .. } => (name, args, alias),
            _ => return Ok(None),
        };
        let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return Ok(None) };
        let function = normal(ident);
        let known = self.state.scalar_functions().get(&function).and_then(|udf| columns_of_rows(udf));
        let Some(columns) = known else { return Ok(None) };
        let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("function {function}: {what}"));
        if columns.is_empty() {
            let hint =
                format!("SELECT {function}(...) has its value; RETURNS TABLE(...) makes one that stands in FROM");
            return Err(invalid("it returns a value, and no rows").with_hint(hint));
        }
        let aggregates = self.state.aggregate_functions();
        let is_of_rows = |name: &str, call: &Function| call.over.is_some() || aggregates.contains_key(name);
        if args.iter().any(|arg| functions::calls(arg, &is_of_rows)) {
            return Err(invalid("an aggregate or a window function is no argument in FROM")
                .with_hint("write it as a subquery: f((SELECT max(x) FROM t))"));
        }
        if args.iter().any(|arg| !matches!(arg, FunctionArg::Unnamed(_))) {
            return Err(invalid("its arguments have places, no names"));
        }
        let own_name =
            || TableAlias { explicit: true, name: Ident::with_quote('"', &function), columns: Vec::new(), at: None };
        Ok(Some(TableFactor::Derived {
            lateral: args.iter().any(has_column),
            subquery: query(&function, &columns, args)?,
            alias: Some(alias.clone().unwrap_or_else(own_name)),
            sample: None,
        }))
    }
}

/// Builds the query of a call's rows.
fn query(function: &str, columns: &[String], args: &[FunctionArg]) -> Result<Box<Query>> {
    let quoted = |name: &str| Ident::with_quote('"', name).to_string();
    let columns = columns.iter().map(|name| format!("r['{}'] AS {}", name.replace('\'', "''"), quoted(name)));
    let columns = columns.collect::<Vec<_>>().join(", ");
    let text = format!("SELECT {columns} FROM (SELECT unnest({}()) AS r) AS \"rows of it\"", quoted(function));
    let mut query = template(&text)?;
    let name = ObjectName::from(vec![Ident::with_quote('"', function)]);
    let _ = query.visit(&mut Arguments { name, args });
    Ok(query)
}

/// A visitor that inserts the arguments of a call.
struct Arguments<'a> {
    name: ObjectName,
    args: &'a [FunctionArg],
}

impl VisitorMut for Arguments<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(call) if call.name == self.name => {
                let args = self.args.to_vec();
                call.args = FunctionArguments::List(FunctionArgumentList {
                    duplicate_treatment: None,
                    args,
                    clauses: Vec::new(),
                });
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Returns whether an argument or an expression names a column.
pub(super) fn has_column(of: &impl datafusion::sql::sqlparser::ast::Visit) -> bool {
    let looked = visit_expressions(of, |expr| match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    looked.is_break()
}
