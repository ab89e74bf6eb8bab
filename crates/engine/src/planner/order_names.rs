//! Names in ORDER BY: a name that stands alone is the name of an output column.
//!
//! Within an expression, SQL, PostgreSQL and DuckDB refer to the columns of FROM. DataFusion 55.2.0
//! prefers output columns:
//!
//! ```sql
//! SELECT id, sum(v) AS v FROM u GROUP BY id ORDER BY sum(v)   -- an error: the sum of the sum
//! SELECT -id AS id, v FROM u ORDER BY id + 0 LIMIT 2          -- the other two rows
//! SELECT v::TEXT AS v FROM u ORDER BY u.v                     -- an error: ambiguous
//! ```
//!
//! Names in the SELECT list refer to columns of FROM. So a key with a name that both have becomes a
//! selected column, and an outer query orders by it:
//!
//! ```sql
//! SELECT * EXCLUDE (__key0) FROM (SELECT -id AS id, v, id + 0 AS __key0 FROM u) AS __sorted
//! ORDER BY __key0 LIMIT 2
//! ```
//!
//! If an expression contains the name of an output column that FROM lacks, it refers to the output
//! column, as in DuckDB. That is known when the statement is planned: see
//! [`retries`](super::retries).

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, Ident, OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, TableFactor, Value, Visit,
    Visitor, visit_expressions, visit_expressions_mut,
};

use super::output_names::path;
use crate::identifiers::normal;

/// The prefix of a key's name; a number follows.
const KEY: &str = "__key";

/// Selects the keys that name both an output column and possibly a column of FROM. `outputs` are
/// names that FROM is known to lack. Returns the names that were taken for columns of FROM.
pub(super) fn rewrite(query: &mut Query, outputs: &HashSet<String>) -> HashSet<String> {
    let nothing = HashSet::new();
    let Query { body, order_by: Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }), .. } = query else {
        return nothing;
    };
    let SetExpr::Select(select) = body.as_mut() else { return nothing };
    let is_plain = select.distinct.is_none()
        && select.into.is_none()
        && !matches!(select.group_by, GroupByExpr::All(_))
        && query.pipe_operators.is_empty();
    if !is_plain {
        return nothing;
    }
    let aliases = Aliases::of(select);
    let names: HashSet<String> = keys.iter().flat_map(|key| aliases.both(&key.expr, outputs)).collect();
    // DataFusion does not add the columns of a subquery in a key to the selected columns.
    if names.is_empty() && !keys.iter().any(|key| has_query(&key.expr)) {
        return nothing;
    }
    let mut selected = Vec::new();
    for key in keys.iter_mut() {
        let is_output = match unnested(&key.expr) {
            Expr::Identifier(name) => aliases.all.contains(&normal(name)),
            Expr::Value(value) => matches!(value.value, Value::Number(..)),
            expr => has_any(expr, outputs),
        };
        if !is_output {
            let alias = Ident::new(format!("{KEY}{}", selected.len()));
            let expr = std::mem::replace(&mut key.expr, Expr::Identifier(alias.clone()));
            selected.push(SelectItem::ExprWithAlias { expr, alias });
        }
    }
    if selected.is_empty() {
        return nothing;
    }
    match around(body, selected) {
        Some(()) => names,
        None => nothing,
    }
}

/// Columns in the ORDER BY of a set operation are those of its result, regardless of their
/// qualifier.
pub(super) fn rewrite_of_set_operation(query: &mut Query) {
    let Query { body, order_by: Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }), .. } = query else {
        return;
    };
    if !is_set_operation(body) {
        return;
    }
    for key in keys {
        let _ = visit_expressions_mut(&mut key.expr, |expr| {
            if let Expr::CompoundIdentifier(names) = expr
                && let Some(name) = names.pop()
            {
                *expr = Expr::Identifier(name);
            }
            ControlFlow::<()>::Continue(())
        });
    }
}

fn is_set_operation(body: &SetExpr) -> bool {
    match body {
        SetExpr::SetOperation { .. } => true,
        // The query is in parentheses.
        SetExpr::Query(query) => is_set_operation(&query.body),
        _ => false,
    }
}

/// Adds columns to the body, and wraps it in a query that drops them.
fn around(body: &mut Box<SetExpr>, selected: Vec<SelectItem>) -> Option<()> {
    let left_out = (0..selected.len()).map(|at| format!("{KEY}{at}")).collect::<Vec<_>>().join(", ");
    let mut outer = super::template(&format!("SELECT * EXCLUDE ({left_out}) FROM (SELECT 1) AS __sorted")).ok()?;
    let SetExpr::Select(select) = outer.body.as_mut() else { return None };
    let TableFactor::Derived { subquery, .. } = &mut select.from.first_mut()?.relation else { return None };
    if let SetExpr::Select(inner) = body.as_mut() {
        inner.projection.extend(selected);
    }
    std::mem::swap(&mut subquery.body, body);
    *body = outer.body;
    Some(())
}

/// The aliases of a SELECT.
struct Aliases {
    all: HashSet<String>,
    /// The aliases of expressions other than the column of that name.
    others: HashSet<String>,
}

impl Aliases {
    fn of(select: &Select) -> Self {
        let mut aliases = Self { all: HashSet::new(), others: HashSet::new() };
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { expr, alias } = item {
                let name = normal(alias);
                if path(unnested(expr)).and_then(|mut path| path.pop()).as_ref() != Some(&name) {
                    aliases.others.insert(name.clone());
                }
                aliases.all.insert(name);
            }
        }
        aliases
    }

    /// Returns the names in an expression that may be columns of FROM as well.
    fn both(&self, key: &Expr, outputs: &HashSet<String>) -> Vec<String> {
        if self.others.is_empty() || matches!(unnested(key), Expr::Identifier(_)) {
            return Vec::new();
        }
        names_in(key).into_iter().filter(|name| self.others.contains(name) && !outputs.contains(name)).collect()
    }
}

fn has_query(expr: &Expr) -> bool {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

fn has_any(expr: &Expr, names: &HashSet<String>) -> bool {
    !names.is_empty() && names_in(expr).iter().any(|name| names.contains(name))
}

/// Returns the name of a column without an alias.
pub(super) fn label(expr: &Expr) -> String {
    match path(unnested(expr)).and_then(|mut path| path.pop()) {
        Some(name) => name,
        None => unnested(expr).to_string(),
    }
}

/// Returns the names of an expression's columns, without those of subqueries.
pub(super) fn names_in(expr: &Expr) -> Vec<String> {
    let mut names = NamesIn { names: Vec::new(), depth: 0 };
    let _ = expr.visit(&mut names);
    names.names
}

struct NamesIn {
    names: Vec<String>,
    depth: usize,
}

impl Visitor for NamesIn {
    type Break = std::convert::Infallible;

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<Self::Break> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<Self::Break> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Self::Break> {
        if self.depth == 0
            && let Some(name) = path(expr).and_then(|mut path| path.pop())
        {
            self.names.push(name);
        }
        ControlFlow::Continue(())
    }
}

fn unnested(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}
