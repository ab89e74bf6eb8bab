//! An aggregate in a subquery belongs to the query around it if its arguments are all of that query.
//!
//! ```sql
//! SELECT (SELECT sum(o.k)) FROM q o   -- one row: the sum; DataFusion 55.2.0 sums each row by itself
//! ```
//!
//! A subquery that has nothing but an expression, with an aggregate of columns, is that expression. Behind a FROM of its own such
//! an aggregate is refused: DataFusion computes it there, of the subquery's rows.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, GroupByExpr, ObjectNamePart, Query, Select, SelectItem, SetExpr, TableFactor, visit_expressions,
};

use super::output_names::path;
use super::same_names;
use crate::statement::normal;

/// `(SELECT sum(x))` as `(sum(x))`.
pub(super) fn rewrite(expr: &mut Expr) {
    let Expr::Subquery(query) = &*expr else { return };
    let Some(value) = only_value(query) else { return };
    if has_outer_aggregate(value) {
        *expr = Expr::Nested(Box::new(value.clone()));
    }
}

/// What a query selects that does nothing else.
fn only_value(query: &Query) -> Option<&Expr> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let is_plain = query.with.is_none()
        && query.order_by.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && select.from.is_empty()
        && select.distinct.is_none()
        && select.selection.is_none()
        && select.having.is_none()
        && select.qualify.is_none()
        && matches!(&select.group_by, GroupByExpr::Expressions(keys, sets) if keys.is_empty() && sets.is_empty());
    match select.projection.as_slice() {
        [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] if is_plain => Some(value),
        _ => None,
    }
}

/// Whether there is an aggregate of columns.
fn has_outer_aggregate(expr: &Expr) -> bool {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Function(function) if is_aggregate(function) && !columns_of(function).is_empty() => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

fn is_aggregate(function: &Function) -> bool {
    match function.name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] => function.over.is_none() && same_names::is_aggregate(&normal(name)),
        _ => false,
    }
}

/// The words of the columns that a call names.
fn columns_of(function: &Function) -> Vec<Vec<String>> {
    let mut columns = Vec::new();
    let _ = visit_expressions(function, |expr| {
        columns.extend(path(expr));
        ControlFlow::<()>::Continue(())
    });
    columns
}

/// The tables of the SELECTs around an expression, nearer ones last.
#[derive(Default)]
pub(super) struct Tables {
    of: Vec<HashSet<String>>,
}

impl Tables {
    pub(super) fn enter(&mut self, select: &Select) {
        let tables = select
            .from
            .iter()
            .flat_map(|table| std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation)));
        self.of.push(tables.filter_map(name_of).collect());
    }

    pub(super) fn leave(&mut self) {
        self.of.pop();
    }

    /// Whether an aggregate names tables of queries around alone.
    pub(super) fn are_outer(&self, function: &Function) -> bool {
        let Some((own, around)) = self.of.split_last() else { return false };
        if own.is_empty() || !is_aggregate(function) {
            return false;
        }
        let columns = columns_of(function);
        let is_outer = |path: &Vec<String>| match path.as_slice() {
            [table, _] => !own.contains(table) && around.iter().any(|tables| tables.contains(table)),
            _ => false,
        };
        !columns.is_empty() && columns.iter().all(is_outer)
    }
}

fn name_of(table: &TableFactor) -> Option<String> {
    let (name, alias) = match table {
        TableFactor::Table { name, alias, .. } => (Some(name), alias),
        TableFactor::Derived { alias, .. }
        | TableFactor::UNNEST { alias, .. }
        | TableFactor::Function { alias, .. } => (None, alias),
        // Of whatever name.
        _ => return Some(String::new()),
    };
    match alias {
        Some(alias) => Some(normal(&alias.name)),
        None => name.and_then(|name| name.0.last()).and_then(ObjectNamePart::as_ident).map(normal),
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn an_aggregate_of_the_query_around_is_its_own() {
        let table = "WITH q(k, v) AS (VALUES (1, 5), (2, 3), (3, 9))";
        for (query, expected) in [
            ("SELECT (SELECT sum(o.k)) FROM q o", "6"),
            ("SELECT (SELECT max(v) + 1), count(*) FROM q", "10 3"),
            ("SELECT (SELECT count(*)) FROM q WHERE k = 1", "1"),
        ] {
            assert_eq!(rows(&format!("{table} {query}")).await, [expected], "{query}");
        }
        let error = fails(&format!("{table} SELECT k, (SELECT sum(o.k) FROM q i) FROM q o GROUP BY k")).await;
        assert!(error.message().contains("belongs to the query around"), "{error}");
    }
}
