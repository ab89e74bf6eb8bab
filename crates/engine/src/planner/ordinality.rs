//! `FROM unnest(list) WITH ORDINALITY AS t (item, number)`: items of lists with their numbers.
//!
//! DataFusion (55.2.0) ignores the clause or refuses it (datafusion#22310 proposes it). Lists
//! beside each other in one SELECT list become rows side by side. So the function becomes `LATERAL
//! (SELECT unnest(l0) AS "unnest", unnest(generate_series(1, cardinality(l0))) AS ordinality FROM
//! (SELECT list AS l0) AS lists) AS t (item, number)`. Each list is computed once, whatever it
//! contains. LATERAL is added only if a list contains a column.
//!
//! `FROM unnest(list)` without the clause becomes `(SELECT unnest(list) AS "unnest") AS ..` if a
//! list contains a column and nothing precedes it in FROM. The column then belongs to an outer
//! query, and DataFusion does not resolve it within the function. An example is `SELECT (SELECT
//! max(x) FROM unnest(ARRAY[t.a, t.b]) AS u (x)) FROM t`. The same applies to a series.
//!
//! Django's introspection, psql's `\d+` and node's tools use it to number the columns of a
//! constraint.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName, Query,
    Select, SelectItem, SetExpr, TableAlias, TableFactor, TableFunctionArgs, TableWithJoins, VisitMut, VisitorMut,
};

use super::rows_of_functions::has_column;
use super::{template, visit_statement};
use crate::{Error, Result};

/// Replaces such functions by queries.
pub(super) fn rewrite(statement: &mut Statement) -> Result<()> {
    match visit_statement(statement, &mut Numbered) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Numbered;

impl VisitorMut for Numbered {
    type Break = Error;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let Some(TableWithJoins { relation, .. }) = select.from.first_mut() else { return ControlFlow::Continue(()) };
        match lists_of(relation) {
            Some(of) if !of.is_numbered && of.lists.iter().any(has_column) => replace(relation, of, false),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Error> {
        match lists_of(table) {
            Some(of) if of.is_numbered => {
                let lateral = of.lists.iter().any(has_column);
                replace(table, of, lateral)
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

fn replace(table: &mut TableFactor, of: Lists, lateral: bool) -> ControlFlow<Error> {
    match replaced(of, lateral) {
        Ok(query) => {
            *table = query;
            ControlFlow::Continue(())
        }
        Err(error) => ControlFlow::Break(error),
    }
}

/// The lists whose items become rows.
struct Lists {
    function: &'static str,
    lists: Vec<Expr>,
    alias: Option<TableAlias>,
    /// True if the function has WITH ORDINALITY.
    is_numbered: bool,
}

fn lists_of(table: &TableFactor) -> Option<Lists> {
    match table {
        TableFactor::UNNEST { alias, array_exprs, with_offset: false, with_offset_alias: None, with_ordinality } => {
            Some(Lists {
                function: "unnest",
                lists: array_exprs.clone(),
                alias: alias.clone(),
                is_numbered: *with_ordinality,
            })
        }
        TableFactor::Table {
            name,
            args: Some(TableFunctionArgs { args, settings: None }),
            with_ordinality,
            alias,
            ..
        }
        | TableFactor::Function { name, args, with_ordinality, alias, .. } => {
            let name_is = |known: &str| name.to_string().eq_ignore_ascii_case(known);
            if name_is("unnest") {
                let lists = args.iter().map(|arg| match arg {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(list)) => Some(list.clone()),
                    _ => None,
                });
                let lists = lists.collect::<Option<Vec<_>>>()?;
                return Some(Lists { function: "unnest", lists, alias: alias.clone(), is_numbered: *with_ordinality });
            }
            name_is("generate_series").then(|| Lists {
                function: "generate_series",
                lists: vec![series(name.clone(), args.clone())],
                alias: alias.clone(),
                is_numbered: *with_ordinality,
            })
        }
        _ => None,
    }
}

/// Returns the series as a list.
fn series(name: ObjectName, args: Vec<FunctionArg>) -> Expr {
    let args = FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() };
    Expr::Function(Function {
        name,
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(args),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn replaced(of: Lists, lateral: bool) -> Result<TableFactor> {
    let Lists { function, lists, alias, is_numbered } = of;
    let own_name = TableAlias { explicit: true, name: Ident::with_quote('"', function), columns: Vec::new(), at: None };
    let alias = alias.unwrap_or(own_name);
    // A single column without a name takes that of its table, or else the function's.
    let column = if lists.len() == 1 { alias.name.value.as_str() } else { function };
    let subquery = query(column, lists, is_numbered)?;
    Ok(TableFactor::Derived { lateral, subquery, alias: Some(alias), sample: None })
}

fn query(column: &str, lists: Vec<Expr>, is_numbered: bool) -> Result<Box<Query>> {
    let column = Ident::with_quote('"', column);
    let each = |what: &dyn Fn(usize) -> String| (0..lists.len()).map(what).collect::<Vec<_>>().join(", ");
    let items = each(&|at| format!("unnest(l{at}) AS {column}"));
    let lengths = each(&|at| format!("cardinality(l{at})"));
    let longest = if lists.len() == 1 { lengths } else { format!("greatest({lengths})") };
    let names = each(&|at| format!("NULL AS l{at}"));
    let number =
        if is_numbered { format!(", unnest(generate_series(1, {longest})) AS ordinality") } else { String::new() };
    let mut query = template(&format!("SELECT {items}{number} FROM (SELECT {names}) AS \"lists\""))?;
    let _ = query.visit(&mut Named(lists));
    Ok(query)
}

/// Puts each list in place of its NULL.
struct Named(Vec<Expr>);

impl VisitorMut for Named {
    type Break = ();

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Derived { subquery, .. } = table else { return ControlFlow::Continue(()) };
        let SetExpr::Select(select) = subquery.body.as_mut() else { return ControlFlow::Continue(()) };
        for (item, list) in select.projection.iter_mut().zip(self.0.drain(..)) {
            if let SelectItem::ExprWithAlias { expr, .. } = item {
                *expr = list;
            }
        }
        ControlFlow::Break(())
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn items_have_their_numbers() {
        for (text, expected) in [
            ("SELECT * FROM unnest(['a', 'b']) WITH ORDINALITY", &["a 1", "b 2"][..]),
            ("SELECT u, ordinality FROM unnest([7, NULL]) WITH ORDINALITY AS u", &["7 1", "NULL 2"]),
            ("SELECT n, x FROM unnest([7, 8]) WITH ORDINALITY AS u (x, n) WHERE n > 1", &["2 8"]),
            ("SELECT x, y, n FROM unnest([7], ['a', 'b']) WITH ORDINALITY AS u (x, y, n)", &["7 a 1", "NULL b 2"]),
            ("SELECT * FROM generate_series(5, 9, 2) WITH ORDINALITY AS s (x, n)", &["5 1", "7 2", "9 3"]),
            ("SELECT count(*) FROM unnest(CAST(NULL AS INT[])) WITH ORDINALITY", &["0"]),
            (
                "SELECT a, x, n FROM (VALUES (1), (2)) AS t (a), unnest([a, 10 * a]) WITH ORDINALITY AS u (x, n) ORDER BY a, n",
                &["1 1 1", "1 10 2", "2 2 1", "2 20 2"],
            ),
            (
                "SELECT a, (SELECT max(n) FROM unnest([a, a, 3]) WITH ORDINALITY AS u (x, n) WHERE x = a) \
                 FROM (VALUES (1), (3)) AS t (a) ORDER BY a",
                &["1 2", "3 3"],
            ),
            (
                "SELECT a, (SELECT max(x) FROM unnest([a, 2]) AS u (x)) FROM (VALUES (1), (3)) AS t (a) ORDER BY a",
                &["1 2", "3 3"],
            ),
            (
                "SELECT a, (SELECT sum(u) FROM unnest([a, a]) AS u WHERE u < 3) FROM (VALUES (1), (3)) AS t (a) ORDER BY a",
                &["1 2", "3 NULL"],
            ),
            (
                "SELECT a FROM (VALUES (1), (3)) AS t (a) WHERE EXISTS (SELECT 1 FROM unnest([1, 2]) AS u (a) WHERE u.a = t.a)",
                &["1"],
            ),
            (
                "SELECT a, (SELECT sum(n) FROM generate_series(1, a) AS s (n)) FROM (VALUES (1), (3)) AS t (a) ORDER BY a",
                &["1 1", "3 6"],
            ),
        ] {
            let mut found = rows(text).await;
            found.sort();
            assert_eq!(found, expected, "{text}");
        }
    }
}
