//! Refuses statements that DataFusion plans with a wrong answer and that have no correction here.
//! The error suggests a replacement.
//!
//! DataFusion ignores TABLESAMPLE, and returns only the groups of `GROUP BY a WITH ROLLUP`:
//! [`clauses`] lists all such syntax, and [`tree`] finds it. `2 ^ 10` is an exclusive or, 8, but
//! 1024 in PostgreSQL and DuckDB; and the parser gives it a lower precedence than `*`. An integer
//! of more digits than a decimal holds, and 1e400, would become doubles. The first would differ
//! from its literal, and the second would be infinite.
//!
//! This module also refuses statements for which DataFusion's error names only its internals.

mod clauses;
mod tree;

use std::ops::ControlFlow;
use std::{iter, slice};

use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Cte, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
    GroupByExpr, JoinOperator, LimitClause, ObjectName, ObjectNamePart, OrderBy, OrderByKind, Query, Select,
    SelectFlavor, SelectItem, Set, SetExpr, SetOperator, Statement as Sql, TableFactor, TableWithJoins, Value, Visit,
    Visitor, visit_relations,
};

use super::literals::DECIMAL_DIGITS;
use super::{functions, order_names, same_names};
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result};

/// Fails if a statement must not be planned.
pub(super) fn check(statement: &Statement) -> Result<()> {
    let found =
        match statement {
            Statement::Statement(sql) => match sql.as_ref() {
                Sql::Set(Set::SetTimeZone { .. }) => refuse(
                    "the time zone cannot be set",
                    "it is UTC; TIMESTAMPTZ '2024-01-01 00:00:00+02' reads one of another zone",
                ),
                sql => sql.visit(&mut Refused),
            },
            Statement::Explain(explain) => {
                return match explain.statement.as_ref() {
                    // Only the outer one would be checked before it runs.
                    Statement::Explain(_) => Err(Error::new(ErrorKind::Invalid, "EXPLAIN of EXPLAIN is not supported")
                        .with_hint("leave one out")),
                    Statement::Statement(sql) if matches!(sql.as_ref(), Sql::CreateTable(_) | Sql::Insert(_)) => {
                        Err(Error::new(ErrorKind::Invalid, "only queries can be explained, not CREATE TABLE or INSERT")
                            .with_hint("explain the query in it: EXPLAIN SELECT ..."))
                    }
                    inner => check(inner),
                };
            }
            Statement::CopyTo(copy) => match &copy.source {
                CopyToSource::Query(query) => query.visit(&mut Refused),
                CopyToSource::Relation(_) => ControlFlow::Continue(()),
            },
            Statement::CreateExternalTable(_) | Statement::Reset(_) => ControlFlow::Continue(()),
        };
    match found {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Fails if a table or a substitute for one has a clause that is ignored.
pub(crate) fn check_table(table: &TableFactor) -> Result<()> {
    match tree::table(table) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Refused;

impl Visitor for Refused {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        tree::query(query)?;
        if let Some(with) = &query.with
            && with.recursive
        {
            with.cte_tables.iter().try_for_each(recursion)?;
        }
        order_of_set_operation(query)
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Error> {
        tree::table(table)?;
        match table {
            TableFactor::Table { name, args: Some(_), .. } => match name.to_string().to_lowercase() {
                name if READERS.contains(&name.as_str()) => {
                    refuse(format!("there is no function {name}()"), "files are named in quotes: FROM 'x.csv'")
                }
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        tree::select(select)?;
        count_of_rows(select)?;
        aggregate_in_join(select)?;
        window_before_rows(select)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Error> {
        tree::expr(expr)?;
        match expr {
            Expr::BinaryOp { op: BinaryOperator::BitwiseXor, .. } => {
                refuse("the operator ^ is not supported", "power(2, 10) is 1024; (a | b) - (a & b) is an exclusive or")
            }
            Expr::Substring { substring_from: None, substring_for: None, .. } => {
                refuse("substr() is not told where to begin", "substr('abc', 2) is 'bc'")
            }
            // DataFusion reads the type of its first column, and panics.
            Expr::Subquery(query) | Expr::InSubquery { subquery: query, .. } if has_no_columns(&query.body) => {
                refuse("a subquery that is a value has no column", "SELECT the column that is the value, or use EXISTS")
            }
            Expr::Value(value) => match &value.value {
                Value::Number(number, _) => number_fits(number),
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Returns whether a query is `SELECT FROM ..`, without columns.
fn has_no_columns(body: &SetExpr) -> bool {
    match body {
        SetExpr::Select(select) => select.projection.is_empty() && select.flavor == SelectFlavor::Standard,
        SetExpr::Query(query) => has_no_columns(&query.body),
        SetExpr::SetOperation { left, .. } => has_no_columns(left),
        _ => false,
    }
}

/// Refuses `count(u.*)`, which counts the rows that contain a row of u. In a join DataFusion counts
/// all rows.
fn count_of_rows(select: &Select) -> ControlFlow<Error> {
    let is_one_table = matches!(select.from.as_slice(), [only] if only.joins.is_empty());
    let counted = functions::calls(select, &|name, function| {
        let FunctionArguments::List(list) = &function.args else { return false };
        let is_row = |arg: &FunctionArg| matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(..)));
        let is_distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
        name == "count" && list.args.iter().any(is_row) && (is_distinct || !is_one_table)
    });
    if counted {
        return refuse(
            "count() of all columns of a table is not supported in a join, nor with DISTINCT",
            "count(u.id) of a column that is never NULL counts the rows of u",
        );
    }
    ControlFlow::Continue(())
}

/// Refuses an aggregate in ON. Rows are joined before they are grouped. DataFusion's optimizer
/// fails on such a condition if it refers to one side alone.
fn aggregate_in_join(select: &Select) -> ControlFlow<Error> {
    let is_meant = |name: &str, function: &Function| function.over.is_none() && same_names::is_aggregate(name);
    match conditions(&select.from).into_iter().find_map(|on| functions::first_call(on, &is_meant)) {
        Some(function) => refuse(
            format!("the aggregate function {function}() cannot be in ON, which comes before it"),
            "compute it in a subquery, and join that: JOIN (SELECT .. GROUP BY ..) AS q ON ..",
        ),
        None => ControlFlow::Continue(()),
    }
}

/// Refuses a window function before WHERE and HAVING are applied.
fn window_before_rows(select: &Select) -> ControlFlow<Error> {
    let keys = match &select.group_by {
        GroupByExpr::Expressions(keys, _) => keys.as_slice(),
        GroupByExpr::All(_) => &[],
    };
    let clauses = select.selection.iter().map(|expr| ("WHERE", expr));
    let clauses = clauses.chain(keys.iter().map(|expr| ("GROUP BY", expr)));
    let clauses = clauses.chain(select.having.iter().map(|expr| ("HAVING", expr)));
    let is_window = |_: &str, function: &Function| function.over.is_some();
    let mut found = clauses.filter_map(|(clause, expr)| Some((clause, functions::first_call(expr, &is_window)?)));
    let conditions = conditions(&select.from);
    let on = || conditions.into_iter().find_map(|on| Some(("ON", functions::first_call(on, &is_window)?)));
    match found.next().or_else(on) {
        Some((clause, function)) => refuse(
            format!("the window function {function}() cannot be in {clause}, which comes before it"),
            "QUALIFY is a condition on window functions; or compute it in a subquery: FROM (SELECT .. OVER .. AS w) AS q",
        ),
        None => ControlFlow::Continue(()),
    }
}

/// Returns the conditions of joins, including those in parentheses.
fn conditions(tables: &[TableWithJoins]) -> Vec<&JoinOperator> {
    let mut found = Vec::new();
    for table in tables {
        found.extend(table.joins.iter().map(|join| &join.join_operator));
        for factor in iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation)) {
            if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
                found.extend(conditions(slice::from_ref(table_with_joins)));
            }
        }
    }
    found
}

/// Refuses clauses of a recursive query that DataFusion ignores, or on which it fails at execution.
fn recursion(cte: &Cte) -> ControlFlow<Error> {
    let SetExpr::SetOperation { op: SetOperator::Union, right, .. } = cte.query.body.as_ref() else {
        return ControlFlow::Continue(());
    };
    let name = normal(&cte.alias.name);
    if !reads(right.as_ref(), &name) {
        return ControlFlow::Continue(());
    }
    let clause = match cte.query.as_ref() {
        Query { limit_clause: Some(LimitClause::LimitOffset { limit: None, .. }), .. } => Some("OFFSET"),
        Query { limit_clause: Some(_), .. } | Query { fetch: Some(_), .. } => Some("LIMIT"),
        Query { order_by: Some(_), .. } => Some("ORDER BY"),
        _ => None,
    };
    if let Some(clause) = clause {
        return refuse(
            format!("{clause} in the recursive query \"{name}\" is not supported"),
            "it goes into the query that reads it; a condition in WHERE ends the recursion",
        );
    }
    let mut within = Within { name: &name, exprs: 0 };
    if right.visit(&mut within).is_break() {
        return refuse(
            format!("the recursive query \"{name}\" is read by a subquery in an expression of its own"),
            "join it instead: FROM t, (SELECT ...)",
        );
    }
    ControlFlow::Continue(())
}

/// Returns whether a tree reads a table of that name.
fn reads(tree: &impl Visit, name: &str) -> bool {
    let is_it = |table: &ObjectName| match table.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] if normal(ident) == name => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    visit_relations(tree, is_it).is_break()
}

/// A visitor that searches for a table in the subqueries of an expression.
struct Within<'n> {
    name: &'n str,
    exprs: usize,
}

impl Visitor for Within<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if self.exprs > 0 && reads(query, self.name) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.exprs += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.exprs -= 1;
        ControlFlow::Continue(())
    }
}

/// Refuses an ORDER BY of a UNION, INTERSECT or EXCEPT with columns that the result lacks.
/// DataFusion 55.2.0 adds them to both sides, which changes the comparison of rows, or panics.
fn order_of_set_operation(query: &Query) -> ControlFlow<Error> {
    let Query { body, order_by: Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }), .. } = query else {
        return ControlFlow::Continue(());
    };
    let Some(select) = first_of_set_operation(body) else { return ControlFlow::Continue(()) };
    let mut names = Vec::new();
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => names.push(order_names::label(expr)),
            SelectItem::ExprWithAlias { alias, .. } => names.push(normal(alias)),
            // A star selects columns that are not known here.
            _ => return ControlFlow::Continue(()),
        }
    }
    let is_selected = |name: &String| names.contains(name);
    match keys.iter().flat_map(|key| order_names::names_in(&key.expr)).find(|name| !is_selected(name)) {
        Some(name) => refuse(
            format!("ORDER BY of a set operation: \"{name}\" is no column of its result"),
            "its columns are those of its first SELECT",
        ),
        None => ControlFlow::Continue(()),
    }
}

fn first_of_set_operation(body: &SetExpr) -> Option<&Select> {
    fn first(body: &SetExpr) -> Option<&Select> {
        match body {
            SetExpr::SetOperation { left, .. } => first(left),
            SetExpr::Select(select) => Some(select),
            SetExpr::Query(query) => first(&query.body),
            _ => None,
        }
    }
    match body {
        SetExpr::SetOperation { .. } => first(body),
        // The query is in parentheses.
        SetExpr::Query(query) => first_of_set_operation(&query.body),
        _ => None,
    }
}

/// DuckDB's functions that read files and have no equivalent here: see
/// [`functions::format`](crate::files::functions::format).
const READERS: [&str; 2] = ["csv_scan", "read_ndjson_auto"];

fn number_fits(number: &str) -> ControlFlow<Error> {
    let digits = number.replace('_', "");
    if digits.parse::<f64>().is_ok_and(f64::is_infinite) {
        let message = format!("{number} is too large for a DOUBLE");
        return refuse(message, "the largest is about 1.8e308; CAST('inf' AS DOUBLE) is infinity");
    }
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_integer && digits.trim_start_matches('0').len() > DECIMAL_DIGITS {
        let message = format!("{number} has more digits than a DECIMAL holds: {DECIMAL_DIGITS}");
        return refuse(message, "with an exponent, as in 1e40, it is a DOUBLE");
    }
    ControlFlow::Continue(())
}

fn refuse(message: impl Into<String>, hint: &str) -> ControlFlow<Error> {
    ControlFlow::Break(Error::new(ErrorKind::Invalid, message).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn what_would_be_answered_wrong_is_refused() {
        let digits = "9".repeat(39);
        for (text, message) in [
            ("SELECT 1 FROM (SELECT * FROM t TABLESAMPLE BERNOULLI (10)) AS s", "TABLESAMPLE"),
            ("EXPLAIN SELECT * FROM t TABLESAMPLE (10)", "TABLESAMPLE"),
            ("WITH s AS (SELECT * FROM t TABLESAMPLE (10 ROWS)) SELECT * FROM s", "TABLESAMPLE"),
            ("SELECT 2 ^ 10", "operator ^"),
            ("SELECT 1 WHERE 1 IN (SELECT 3 ^ 2)", "operator ^"),
            ("SELECT 1e400", "1e400 is too large"),
            ("SELECT -1.5E+309", "1.5E+309 is too large"),
            (&format!("SELECT {digits}"), "more digits"),
            ("SELECT * FROM t SEMI JOIN u ON t.a = u.a", "SEMI JOIN"),
            ("SELECT * FROM t PIVOT (sum(b) FOR a IN (1, 2))", "PIVOT"),
            ("SET TIME ZONE 'UTC'", "time zone"),
            ("SELECT substr(1)", "where to begin"),
            ("SELECT count(u.*) FROM t LEFT JOIN u ON t.a = u.a", "count() of all columns"),
            ("SELECT count(DISTINCT t.*) FROM t", "count() of all columns"),
            ("SELECT a FROM t WHERE row_number() OVER () = 1", "row_number() cannot be in WHERE"),
            ("SELECT max(a) FROM t GROUP BY 1 + rank() OVER (ORDER BY a)", "cannot be in GROUP BY"),
            ("SELECT count(*) FROM t HAVING sum(count(*)) OVER () > 1", "cannot be in HAVING"),
            ("SELECT 1 FROM t JOIN u ON t.a = max(u.a) OVER (ORDER BY t.a)", "max() cannot be in ON"),
            ("SELECT 1 FROM t JOIN (t AS v JOIN u ON sum(u.a) OVER () > 1) ON true", "sum() cannot be in ON"),
            ("SELECT 1 FROM t JOIN (t AS v JOIN u ON sum(u.a) > 1) ON true", "sum() cannot be in ON"),
            ("SELECT * FROM range(1, 3) WITH ORDINALITY", "WITH ORDINALITY"),
            ("SELECT * FROM csv_scan('x.csv')", "csv_scan()"),
            (
                "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t LIMIT 2) SELECT * FROM t",
                "LIMIT in the",
            ),
            (
                "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t ORDER BY x) SELECT * FROM t",
                "ORDER BY in",
            ),
            (
                "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t OFFSET 2) SELECT * FROM t",
                "OFFSET in the",
            ),
            (
                "WITH RECURSIVE t AS (SELECT 1 AS x UNION SELECT (SELECT x + 1 FROM t) FROM t) SELECT * FROM t",
                "is read by",
            ),
            ("SELECT 1 AS x UNION ALL SELECT 2 ORDER BY y", "\"y\" is no column of its result"),
            ("EXPLAIN CREATE TABLE x AS SELECT 1", "only queries"),
            ("EXPLAIN INSERT INTO x VALUES (1)", "only queries"),
        ] {
            assert!(fails(text).await.message().contains(message), "{text}");
        }
    }

    #[tokio::test]
    async fn large_integers_are_decimals() {
        let digits = "9".repeat(38);
        let text = format!("SELECT arrow_typeof(99999999999999999999), 99999999999999999999, {digits}, 1e308");
        assert_eq!(rows(&text).await, [format!("Decimal128(20, 0) 99999999999999999999 {digits} 1e308")]);
    }
}
