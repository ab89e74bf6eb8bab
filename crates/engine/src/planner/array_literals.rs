//! `ARRAY[t.a, b]` and `[t.a, b]` in a correlated subquery.
//!
//! DataFusion 55.2.0 plans the items of an array without the outer queries and without WITH queries
//! (`sql_array_literal` begins with a new `PlannerContext`):
//!
//! ```sql
//! SELECT (SELECT (ARRAY[u.id, u.v])[1]) FROM u   -- an error: there is no column "id" in u
//! ```
//!
//! It plans the arguments of a function with them. This module rewrites such an array to
//! `make_array(..)`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, visit_expressions};

use super::expressions::call;

/// The function that makes an array.
pub(super) const MAKE_ARRAY: &str = "make_array";

pub(super) fn rewrite(expr: &mut Expr) {
    if let Expr::Array(array) = expr
        && array.elem.iter().any(has_name)
    {
        *expr = call(MAKE_ARRAY, std::mem::take(&mut array.elem));
    }
}

/// Returns whether the item names a column or contains a query.
fn has_name(item: &Expr) -> bool {
    let found = visit_expressions(item, |expr| match expr {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Subquery(_) | Expr::Exists { .. } => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn items_are_of_queries_around() {
        let table = "WITH u(id, v) AS (VALUES (1, 10), (2, 20))";
        for (query, expected) in [
            ("SELECT (SELECT (ARRAY[u.id, u.v])[2]) AS x FROM u ORDER BY 1", "10,20"),
            ("SELECT [(SELECT max(v) FROM u), 1] AS x", "[20, 1]"),
            ("SELECT t.n FROM u CROSS JOIN LATERAL (SELECT unnest(ARRAY[u.id, u.v]) AS n) t ORDER BY n", "1,2,10,20"),
            ("SELECT id FROM u WHERE v = ANY(ARRAY[id, 20])", "2"),
        ] {
            assert_eq!(rows(&format!("{table} {query}")).await.join(","), expected, "{query}");
        }
    }
}
