//! Unnamed columns of a query are named by the text of their expressions: `sum(x)`, `1 + 2`.
//!
//! DataFusion names them by its own form of the expression, which omits parentheses and casts. So
//! `SELECT 1 + 2 * 3, (1 + 2) * 3` and `SELECT x, CAST(x AS DOUBLE)` have a repeated name, which it
//! refuses. Users read `Int64(1)` and `sum(lineorder.revenue)` above their columns. Repeated
//! columns get a number: `SELECT k, k` is `k`, `k_1`, as in DuckDB; `SELECT *, k` is all columns
//! and `k_1`.
//!
//! A field of a struct is named by the field: `s.x` is `x`, and not `t.s[x]`, as in DuckDB.
//!
//! In LATERAL, DataFusion names a column of the outer row `outer_ref(t.k)`, so that a query cannot
//! find it by its name.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, Function, Ident, ObjectName, ObjectNamePart, OrderByKind, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableFactor, Value, WildcardAdditionalOptions, visit_expressions,
    visit_expressions_mut,
};

use crate::identifiers::normal;

/// Names the columns of a SELECT. `in_star` holds the names that `*` is known to contain.
pub(super) fn rewrite(select: &mut Select, in_star: &HashSet<String>) {
    let has_one_table = matches!(select.from.as_slice(), [table] if table.joins.is_empty());
    let is_all = |star: Vec<String>| if has_one_table { Vec::new() } else { star };
    let stars: Vec<Vec<String>> = select.projection.iter().filter_map(star).map(is_all).collect();
    let tables = tables(select);
    let (mut columns, mut names) = (HashSet::new(), HashSet::new());
    if !stars.is_empty() {
        names.extend(in_star.iter().cloned());
    }
    let mut given = HashSet::new();
    for item in &mut select.projection {
        let expr = match item {
            SelectItem::UnnamedExpr(expr) => expr,
            SelectItem::ExprWithAlias { expr, alias } => {
                let name = normal(alias);
                let same = path(unnested(expr)).filter(|path| path.last() == Some(&name));
                let is_of = |path: &[String]| stars.iter().any(|star| star.is_empty() || path == &star[..]);
                if same.is_some_and(|path| is_of(&path[..path.len() - 1])) {
                    names.insert(name.clone());
                }
                given.insert(name.clone());
                if !names.insert(name.clone()) {
                    *alias = Ident::with_quote('"', free(name, &mut names));
                }
                continue;
            }
            _ => continue,
        };
        let name = match path(unnested(expr)) {
            Some(path) => {
                let is_in_star = stars.iter().any(|star| star.is_empty() || path[..path.len() - 1] == star[..]);
                let name = path.last().cloned().unwrap_or_default();
                let is_field = is_field(&path, &tables);
                // With one table, `t.k` is `k`.
                let column = if has_one_table && !is_field { vec![name.clone()] } else { path };
                let is_free = columns.insert(column) && !is_in_star && !given.contains(&name);
                if is_free && !is_field {
                    names.insert(name);
                    continue;
                }
                if !is_free {
                    names.insert(name.clone());
                }
                name
            }
            None => match of_what_is_written(expr) {
                Some(name) => name,
                None => continue,
            },
        };
        let alias = Ident::with_quote('"', free(name, &mut names));
        *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
    }
}

/// Returns the name of an expression that is not a column and does not produce several.
pub(super) fn of_what_is_written(expr: &Expr) -> Option<String> {
    let is_named = path(unnested(expr)).is_some() || makes_columns(expr);
    (!is_named).then(|| label(unnested(expr)))
}

/// Returns the names that qualify a query's columns. Empty if they are not all known.
fn tables(select: &Select) -> HashSet<String> {
    let relations = select
        .from
        .iter()
        .flat_map(|from| std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)));
    let name = |table: &TableFactor| match table {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(normal(&alias.name))
        }
        TableFactor::Table { name, args: None, .. } => name.0.last().and_then(ObjectNamePart::as_ident).map(normal),
        _ => None,
    };
    relations.map(name).collect::<Option<HashSet<String>>>().unwrap_or_default()
}

/// Returns whether a path leads to a field of a column, with or without the column's table before
/// it.
fn is_field(path: &[String], tables: &HashSet<String>) -> bool {
    match path {
        [first, _, ..] if !tables.is_empty() && !tables.contains(first) => path.len() == 2,
        [_, _, _] => tables.contains(&path[0]),
        _ => false,
    }
}

/// Names the columns that a LATERAL subquery selects by their own names, whichever query they
/// belong to.
pub(super) fn rewrite_lateral(table: &mut TableFactor) {
    let TableFactor::Derived { lateral: true, subquery, .. } = table else { return };
    let is_ordered = subquery.order_by.is_some();
    let mut body = subquery.body.as_mut();
    let select = loop {
        body = match body {
            SetExpr::SetOperation { left, .. } => left,
            SetExpr::Query(query) => query.body.as_mut(),
            SetExpr::Select(select) => break select,
            _ => return,
        }
    };
    // ORDER BY of a SELECT DISTINCT finds such a column only by its qualified name.
    if is_ordered && select.distinct.is_some() {
        return;
    }
    let names: Vec<String> = select.projection.iter().filter_map(column_name).collect();
    for item in &mut select.projection {
        let Some(name) = column_name(item) else { continue };
        let is_twice = names.iter().filter(|other| **other == name).count() > 1;
        if let (SelectItem::UnnamedExpr(expr), false) = (&*item, is_twice) {
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
        }
    }
}

/// Returns the name of a column, or an alias.
fn column_name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(expr) => path(unnested(expr)).and_then(|mut path| path.pop()),
        SelectItem::ExprWithAlias { alias, .. } => Some(normal(alias)),
        _ => None,
    }
}

/// `SELECT DISTINCT a + b .. ORDER BY a + b` sorts by its first column. DataFusion does not
/// recognize it in `a + b` once that column has a name, so its position replaces the key.
pub(super) fn rewrite_order(query: &mut Query) {
    let (SetExpr::Select(select), Some(order)) = (query.body.as_ref(), &mut query.order_by) else { return };
    let (Some(Distinct::Distinct), OrderByKind::Expressions(keys)) = (&select.distinct, &mut order.kind) else {
        return;
    };
    for key in keys {
        if path(&key.expr).is_some() || matches!(key.expr, Expr::Value(_)) {
            continue;
        }
        let wanted = bare(&key.expr);
        let is_wanted = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => bare(expr) == wanted,
            _ => false,
        };
        let has_star = select.projection.iter().any(|item| star(item).is_some());
        let mut found = select.projection.iter().enumerate().filter(|(_, item)| is_wanted(item));
        if let (Some((index, _)), None, false) = (found.next(), found.next(), has_star) {
            key.expr = Expr::Value(Value::Number((index + 1).to_string(), false).into());
        }
    }
}

/// Removes the items whose text equals that of an earlier one.
pub(super) fn keep_first_of_equal<T>(items: &mut Vec<T>, text: impl Fn(&T) -> String) {
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(text(item)));
}

/// Returns the text of an expression, independent of the case of its names.
pub(super) fn normalized(expr: &Expr) -> String {
    let mut expr = expr.clone();
    let _ = visit_expressions_mut(&mut expr, |expr| {
        match expr {
            Expr::Identifier(name) => *name = Ident::with_quote('"', normal(name)),
            Expr::CompoundIdentifier(names) => {
                names.iter_mut().for_each(|name| *name = Ident::with_quote('"', normal(name)));
            }
            _ => {}
        }
        ControlFlow::<()>::Continue(())
    });
    label(&expr)
}

/// Returns the text of an expression without the names of tables and independent of case.
fn bare(expr: &Expr) -> String {
    let mut expr = expr.clone();
    let _ = visit_expressions_mut(&mut expr, |expr| {
        if let Some(name) = path(expr).and_then(|mut path| path.pop()) {
            *expr = Expr::Identifier(Ident::with_quote('"', name));
        }
        ControlFlow::<()>::Continue(())
    });
    label(&expr)
}

/// Returns the qualifier of a star: empty for `*`, the parts before the star for `t.*`. Returns
/// `None` for a star that excludes or renames columns.
fn star(item: &SelectItem) -> Option<Vec<String>> {
    let (table, options) = match item {
        SelectItem::Wildcard(options) => (None, options),
        SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), options) => {
            (Some(table), options)
        }
        _ => return None,
    };
    let words = |table: &ObjectName| table.0.iter().filter_map(ObjectNamePart::as_ident).map(normal).collect();
    (*options == WildcardAdditionalOptions::default()).then(|| table.map(words).unwrap_or_default())
}

fn unnested(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

/// Returns the parts of a column's name: `t.k` is t, k.
pub(super) fn path(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Identifier(name) => Some(vec![normal(name)]),
        Expr::CompoundIdentifier(names) => Some(names.iter().map(normal).collect()),
        _ => None,
    }
}

/// Returns whether an expression unnests. Unnesting a struct makes a column of each of its fields,
/// and these have names.
fn makes_columns(expr: &Expr) -> bool {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Function(Function { name, .. }) if name.to_string().eq_ignore_ascii_case("unnest") => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Returns the text of an expression, except for spaces and the case of functions and keywords.
fn label(expr: &Expr) -> String {
    let mut expr = expr.clone();
    let _ = visit_expressions_mut(&mut expr, |expr| {
        if let Expr::Function(function) = expr {
            for part in &mut function.name.0 {
                if let ObjectNamePart::Identifier(name) = part {
                    name.value = normal(name);
                }
            }
        }
        ControlFlow::<()>::Continue(())
    });
    expr.to_string()
}

/// Returns the name, or the name with the first number that makes it unique.
fn free(name: String, names: &mut HashSet<String>) -> String {
    let numbered = (1..).map(|n| format!("{name}_{n}"));
    match std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name)) {
        Some(free) => {
            names.insert(free.clone());
            free
        }
        None => name,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::{rewritten, run};

    #[test]
    fn names_are_what_was_written() {
        for (text, meant) in [
            ("SELECT a, t.b FROM t", "SELECT a, t.b FROM t"),
            ("SELECT a.k, b.k FROM a, b", "SELECT a.k, b.k FROM a, b"),
            ("SELECT SUM(x)+1 FROM t", "SELECT SUM(x) + 1 AS \"sum(x) + 1\" FROM t"),
            (
                "SELECT x, (x), CAST(x AS INT) FROM t",
                "SELECT x, (x) AS \"x_1\", CAST(x AS INT) AS \"CAST(x AS INT)\" FROM t",
            ),
            ("SELECT k, K, \"K\" FROM t", "SELECT k, K AS \"k_1\", \"K\" FROM t"),
            ("SELECT *, k FROM t", "SELECT *, k AS \"k_1\" FROM t"),
            ("SELECT * EXCLUDE (k), k FROM t", "SELECT * EXCLUDE (k), k FROM t"),
            ("SELECT t.*, k FROM t", "SELECT t.*, k AS \"k_1\" FROM t"),
            ("SELECT a AS x, b AS X FROM t", "SELECT a AS x, b AS \"x_1\" FROM t"),
            ("SELECT 27 AS k, k FROM t", "SELECT 27 AS k, k AS \"k_1\" FROM t"),
            ("SELECT 27 AS k, t.k FROM t", "SELECT 27 AS k, t.k AS \"k_1\" FROM t"),
            ("SELECT k, k, x AS k FROM t", "SELECT k, k AS \"k_1\", x AS \"k_2\" FROM t"),
            ("SELECT a.*, A.k, b.k FROM a, b", "SELECT a.*, A.k AS \"k_1\", b.k FROM a, b"),
            ("SELECT 1 AS one, unnest(x) FROM t", "SELECT 1 AS one, unnest(x) FROM t"),
        ] {
            assert_eq!(rewritten(text), meant);
        }
    }

    #[tokio::test]
    async fn names_that_datafusion_would_repeat_are_told_apart() {
        for (text, names) in [
            ("SELECT 1 + 2 * 3, (1 + 2) * 3", vec!["1 + 2 * 3", "(1 + 2) * 3"]),
            ("SELECT x, CAST(x AS DOUBLE), x FROM (VALUES (1)) AS t(x)", vec!["x", "CAST(x AS DOUBLE)", "x_1"]),
            ("SELECT *, x FROM (VALUES (1)) AS t(x)", vec!["x", "x_1"]),
            ("SELECT count(*), COUNT(*)", vec!["count(*)", "count(*)_1"]),
            ("SELECT DISTINCT x + 1 FROM (VALUES (1)) AS t(x) ORDER BY x + 1", vec!["x + 1"]),
            ("SELECT DISTINCT t.x + 1 AS y FROM (VALUES (1)) AS t(x) ORDER BY X + 1", vec!["y"]),
            ("SELECT x + 1 FROM (VALUES (1)) AS t(x) GROUP BY x + 1 ORDER BY sum(x)", vec!["x + 1"]),
            ("SELECT unnest([1, 2]) AS u", vec!["u"]),
        ] {
            let batches = run(text).await;
            let schema = batches.first().unwrap().schema();
            assert_eq!(schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), names, "{text}");
        }
    }
}
