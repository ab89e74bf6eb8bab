//! `VALUES ((SELECT 1), 2), (3, 4)` is `SELECT (SELECT 1), 2 UNION ALL SELECT 3, 4`.
//!
//! DataFusion plans subqueries within VALUES, and then reads their values before they have run.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, SetOperator, SetQuantifier, Values, visit_expressions,
};

/// Rewrites the query if it is VALUES with subqueries.
pub(super) fn rewrite(query: &mut Query) {
    let SetExpr::Values(values) = query.body.as_ref() else { return };
    if !has_subquery(values) {
        return;
    }
    let mut selects = values.rows.iter().map(|row| select(&row.content));
    let Some(Some(first)) = selects.next() else { return };
    let all = selects.try_fold(first, |before, next| {
        Some(SetExpr::SetOperation {
            op: SetOperator::Union,
            set_quantifier: SetQuantifier::All,
            left: Box::new(before),
            right: Box::new(next?),
        })
    });
    if let Some(all) = all {
        *query.body = all;
    }
}

fn has_subquery(values: &Values) -> bool {
    let looked = visit_expressions(values, |expr| match expr {
        Expr::Subquery(_) | Expr::Exists { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    looked.is_break()
}

/// Builds a row with the column names of VALUES.
fn select(row: &[Expr]) -> Option<SetExpr> {
    let mut template = super::template("SELECT 0").ok()?;
    let SetExpr::Select(select) = template.body.as_mut() else { return None };
    let item = |(place, expr): (usize, &Expr)| SelectItem::ExprWithAlias {
        expr: expr.clone(),
        alias: Ident::new(format!("column{}", place + 1)),
    };
    let projection = row.iter().enumerate().map(item).collect();
    Some(SetExpr::Select(Box::new(Select { projection, ..select.as_ref().clone() })))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn values_may_be_of_subqueries() {
        for (query, expected) in [
            ("VALUES ((SELECT 1), 'q')", "1 q"),
            ("VALUES (1, 2), ((SELECT max(x) FROM (VALUES (3), (5)) AS t(x)), 4) ORDER BY column1", "1 2,5 4"),
            ("SELECT b + 1 FROM (VALUES (EXISTS (SELECT 1), (SELECT 6))) AS t(a, b) WHERE a", "7"),
        ] {
            assert_eq!(rows(query).await.join(","), expected, "{query}");
        }
    }
}
