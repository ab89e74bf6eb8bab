//! An aggregate in a subquery belongs to the outer query if all columns of its arguments do.
//!
//! ```sql
//! -- One row with the sum; DataFusion 55.2.0 sums each row by itself.
//! SELECT (SELECT sum(o.k)) FROM q o
//! ```
//!
//! A subquery that consists of one expression, with an aggregate of columns, becomes that
//! expression. In a subquery with FROM such an aggregate is refused: DataFusion would compute it
//! there, over the subquery's rows.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, GroupByExpr, Ident, ObjectNamePart, Query, SelectItem, SetExpr, visit_expressions,
};

use super::same_names;
use super::scopes::Scope;
use crate::identifiers::normal;
use crate::{Error, ErrorKind, Result};

/// Rewrites `(SELECT sum(x))` to `(sum(x))`.
pub(super) fn rewrite(expr: &mut Expr) {
    let Expr::Subquery(query) = &*expr else { return };
    let Some(value) = only_value(query) else { return };
    if has_outer_aggregate(value) {
        *expr = Expr::Nested(Box::new(value.clone()));
    }
}

/// Returns the selected expression of a query that does nothing else.
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

/// Returns whether an expression contains an aggregate of columns.
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

/// Returns the names of the columns in a call, split into their parts.
fn columns_of(function: &Function) -> Vec<Vec<Ident>> {
    let mut columns = Vec::new();
    let _ = visit_expressions(function, |expr| {
        match expr {
            Expr::Identifier(name) => columns.push(vec![name.clone()]),
            Expr::CompoundIdentifier(names) => columns.push(names.clone()),
            _ => {}
        }
        ControlFlow::<()>::Continue(())
    });
    columns
}

/// Refuses an aggregate that contains only columns of outer queries, in a subquery with FROM.
///
/// # Errors
/// Fails for such an aggregate.
pub(super) fn check(function: &Function, scope: &Scope<'_>) -> Result<()> {
    if scope.relations.is_empty() || !is_aggregate(function) {
        return Ok(());
    }
    let columns = columns_of(function);
    if columns.is_empty() || !columns.iter().all(|column| scope.is_around(column)) {
        return Ok(());
    }
    let message =
        format!("{function} belongs to the query around the subquery: an aggregate of it is not supported there");
    Err(Error::new(ErrorKind::Invalid, message).with_hint(
        "compute it in a query of its own: FROM (SELECT sum(x) AS s FROM t) AS q, and name it in the subquery",
    ))
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
        for query in [
            "SELECT k, (SELECT sum(o.k) FROM q i) FROM q o GROUP BY k",
            "SELECT (SELECT max(v) FROM (SELECT 1 AS x) AS i) FROM q",
            "SELECT k FROM q WHERE EXISTS (SELECT 1 FROM (SELECT 1 AS x) AS i HAVING min(k + v) > 3)",
        ] {
            let error = fails(&format!("{table} {query}")).await;
            assert!(error.message().contains("belongs to the query around"), "{query}: {error}");
        }
    }
}
