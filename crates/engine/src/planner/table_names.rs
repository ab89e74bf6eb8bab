//! `u.id` is a column of a table `u` of an outer query, even if a nearer table has a column `u`.
//!
//! DataFusion 55.2.0 takes it for the field `id` of the nearer column, whatever its type:
//!
//! ```sql
//! -- w has a column u: "type Int32 is not Struct"
//! SELECT * FROM u WHERE EXISTS (SELECT 1 FROM w WHERE w.id = u.id)
//! ```
//!
//! 1. If the column `u` has no fields, [`Fields`] plans the name as a column `u.id`, which is not
//!    found.
//! 2. The statement is [planned again](super::retries), with the table under another name.

use std::collections::HashSet;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, Result, TableReference};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult};
use datafusion::prelude::Expr as PlanExpr;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, ObjectNamePart, Select, SelectItem, SelectItemQualifiedWildcardKind, TableAlias,
    TableFactor, VisitorMut,
};

use super::visit_statement;
use crate::identifiers::normal;

/// The prefix of the new name of a table.
const PREFIX: &str = "__table_";

/// Plans a field of a column without fields as a column of a table.
#[derive(Debug)]
pub(super) struct Fields;

impl ExprPlanner for Fields {
    fn plan_compound_identifier(
        &self,
        field: &Field,
        _: Option<&TableReference>,
        nested_names: &[String],
    ) -> Result<PlannerResult<Vec<PlanExpr>>> {
        let has_fields = matches!(field.data_type(), DataType::Struct(_) | DataType::Map(..) | DataType::Null);
        match nested_names {
            [name] if !has_fields => {
                let column = Column::new(Some(field.name().as_str()), name);
                Ok(PlannerResult::Planned(PlanExpr::Column(column)))
            }
            _ => Ok(PlannerResult::Original(Vec::new())),
        }
    }
}

/// Renames these tables.
pub(super) fn rename(statement: &mut Statement, tables: &HashSet<String>) {
    if !tables.is_empty() {
        let _ = visit_statement(statement, &mut Renamer { tables });
    }
}

struct Renamer<'t> {
    tables: &'t HashSet<String>,
}

impl Renamer<'_> {
    fn renamed(&self, ident: &Ident) -> Option<Ident> {
        let name = normal(ident);
        self.tables.contains(&name).then(|| Ident::with_quote('"', format!("{PREFIX}{name}")))
    }
}

impl VisitorMut for Renamer<'_> {
    type Break = std::convert::Infallible;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        for item in &mut select.projection {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(ObjectName(parts)), _) =
                item
                && let [ObjectNamePart::Identifier(table)] = parts.as_mut_slice()
                && let Some(renamed) = self.renamed(table)
            {
                *table = renamed;
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<Self::Break> {
        match table {
            TableFactor::Table { name, alias: alias @ None, .. } => {
                if let Some(ObjectNamePart::Identifier(ident)) = name.0.last()
                    && let Some(name) = self.renamed(ident)
                {
                    *alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
                }
            }
            TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
                if let Some(name) = self.renamed(&alias.name) {
                    alias.name = name;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        if let Expr::CompoundIdentifier(parts) = expr
            && let [table, _] = parts.as_mut_slice()
            && let Some(renamed) = self.renamed(table)
        {
            *table = renamed;
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn a_table_around_is_found_behind_a_column() {
        let tables = "WITH u(id, v) AS (VALUES (1, 10), (2, 20)), w(id, u) AS (VALUES (1, 100))";
        for (query, expected) in [
            ("SELECT u.id FROM u WHERE EXISTS (SELECT 1 FROM w WHERE w.id = u.id)", "1"),
            ("SELECT u.id, (SELECT max(w.u) FROM w WHERE w.id = u.id) FROM u ORDER BY u.id", "1 100,2 NULL"),
            ("SELECT u.* FROM u WHERE EXISTS (SELECT 1 FROM w WHERE w.id = u.id)", "1 10"),
            ("SELECT s.u.id FROM (SELECT named_struct('id', 5) AS u) s", "5"),
        ] {
            assert_eq!(rows(&format!("{tables} {query}")).await.join(","), expected, "{query}");
        }
    }
}
