//! `FROM generate_series(1, 3) AS g`: names the column of items after the alias, as in PostgreSQL.
//!
//! DataFusion (55.2) names it `value`, or after the call, so `SELECT g` is an error. If an outer
//! query has a column `g`, DataFusion takes that column: `SELECT (SELECT max(g) FROM
//! generate_series(1, 3) AS g) FROM t`.
//!
//! Views of older builds use `g.value`. The planner tries that name if the statement fails without
//! it.

use std::ops::ControlFlow;

use datafusion::common::{DataFusionError, SchemaError};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{TableAlias, TableAliasColumnDef, TableFactor, VisitorMut};

use super::visit_statement;

/// Names the columns before the functions become queries. Returns whether it changed any.
pub(super) fn rewrite(statement: &mut Statement) -> bool {
    let mut items = Items { undoes: false, changed: false };
    let _ = visit_statement(statement, &mut items);
    items.changed
}

/// Removes the names again.
pub(super) fn undo(statement: &mut Statement) {
    let _ = visit_statement(statement, &mut Items { undoes: true, changed: false });
}

/// Returns whether planning failed because the column `value` does not exist.
pub(super) fn is_asked_for_value(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::SchemaError(error, _) => {
            matches!(error.as_ref(), SchemaError::FieldNotFound { field, .. } if field.name == "value")
        }
        _ => false,
    }
}

struct Items {
    undoes: bool,
    changed: bool,
}

impl VisitorMut for Items {
    type Break = ();

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        let Some(alias) = alias_of_items(table) else { return ControlFlow::Continue(()) };
        match alias.columns.as_slice() {
            [] if !self.undoes => {
                alias.columns.push(TableAliasColumnDef { name: alias.name.clone(), data_type: None });
                self.changed = true;
            }
            [only] if self.undoes && only.name == alias.name => alias.columns.clear(),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns the alias of a function whose rows are the items of one list.
fn alias_of_items(table: &mut TableFactor) -> Option<&mut TableAlias> {
    match table {
        TableFactor::UNNEST { alias, array_exprs, with_offset: false, with_ordinality: false, .. } => {
            alias.as_mut().filter(|_| array_exprs.len() == 1)
        }
        TableFactor::Table { name, args: Some(_), alias, with_ordinality: false, .. }
        | TableFactor::Function { name, alias, with_ordinality: false, .. } => {
            let name = name.to_string().to_lowercase();
            alias.as_mut().filter(|_| ["generate_series", "range", "unnest"].contains(&name.as_str()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn items_have_the_name_of_their_alias() {
        for (query, expected) in [
            ("SELECT g FROM generate_series(1, 3) AS g", "1,2,3"),
            ("SELECT g.g + 1 FROM generate_series(1, 3) g", "2,3,4"),
            ("SELECT u FROM unnest(ARRAY[3, 1]) AS u", "3,1"),
            ("SELECT u FROM unnest(ARRAY[3, 1]) WITH ORDINALITY AS x (u, n) ORDER BY n DESC", "1,3"),
            ("SELECT x FROM generate_series(1, 2) AS g (x)", "1,2"),
            ("SELECT g.value FROM generate_series(1, 2) AS g WHERE value > 1", "2"),
            ("SELECT (SELECT max(g) FROM generate_series(1, 3) g) FROM (VALUES (100), (101)) AS o(g)", "3,3"),
            ("SELECT (SELECT sum(u) FROM unnest(ARRAY[1, 2]) u) FROM (VALUES (100), (101)) AS o(u)", "3,3"),
            ("SELECT u FROM (VALUES (1), (2)) AS o(u) WHERE 3 IN (SELECT u FROM generate_series(1, 3) u)", "1,2"),
        ] {
            assert_eq!(rows(query).await.join(","), expected, "{query}");
        }
    }
}
