//! `SELECT * REPLACE (x + 1 AS x)`: the replaced column must exist.
//!
//! DataFusion keeps all columns if none has that name: `* REPLACE (x + 1 AS nosuch)` replaces
//! nothing instead of failing (seen in 55.2.0). So the value refers to the column that it replaces,
//! in a condition that is always true and that the simplifier removes.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    CaseWhen, Expr, Ident, ObjectName, ObjectNamePart, Select, SelectItem, SelectItemQualifiedWildcardKind,
};

/// Rewrites a SELECT. A second call does not change its meaning.
pub(super) fn rewrite(select: &mut Select) {
    for item in &mut select.projection {
        let (table, options) = match item {
            SelectItem::Wildcard(options) => (None, options),
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), options) => {
                (Some(&*table), options)
            }
            _ => continue,
        };
        for replaced in options.opt_replace.iter_mut().flat_map(|replace| &mut replace.items) {
            let column = column(table, &replaced.column_name);
            let is_there = Expr::IsNotNull(Box::new(Expr::Nested(Box::new(Expr::IsNull(Box::new(column))))));
            replaced.expr = Expr::Case {
                case_token: AttachedToken::empty(),
                end_token: AttachedToken::empty(),
                operand: None,
                conditions: vec![CaseWhen { condition: is_there, result: replaced.expr.clone() }],
                else_result: None,
            };
        }
    }
}

fn column(table: Option<&ObjectName>, name: &Ident) -> Expr {
    let words = table.into_iter().flat_map(|table| table.0.iter().filter_map(ObjectNamePart::as_ident).cloned());
    let mut words: Vec<Ident> = words.collect();
    words.push(name.clone());
    match words.len() {
        1 => Expr::Identifier(name.clone()),
        _ => Expr::CompoundIdentifier(words),
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn what_is_replaced_is_there() {
        let table = "(VALUES (1, 'a')) AS t(x, s)";
        assert_eq!(rows(&format!("SELECT * REPLACE (x + 1 AS x) FROM {table}")).await, ["2 a"]);
        assert_eq!(rows(&format!("SELECT t.* REPLACE (upper(s) AS s) FROM {table}")).await, ["1 A"]);
        for text in ["SELECT * REPLACE (x + 1 AS nosuch)", "SELECT t.* REPLACE (1 AS nosuch)"] {
            let error = fails(&format!("{text} FROM {table}")).await;
            assert!(error.message().contains("nosuch"), "{text}: {error}");
        }
    }
}
