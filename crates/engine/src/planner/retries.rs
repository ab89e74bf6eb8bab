//! Learns about the names in a statement from the error of planning, and plans it again.
//!
//! A statement's tree does not contain the columns of a table. Four cases depend on them, and the
//! error of a first attempt reveals them:
//!
//! - A name in an expression of ORDER BY that was taken for a column of FROM, but is that of an
//!   output column: see [`order_names`](super::order_names).
//! - `SELECT *, 1 AS k`, where `*` contains a `k`: the other one is `k_1`.
//! - `u.id`, where a nearer table has a column `u`: see [`table_names`](super::table_names).
//! - A name that is written in another case: see [`folded_names`](super::folded_names).
//!
//! Each attempt knows more names than the one before, so there are no more attempts than names.

use std::collections::HashSet;

use datafusion::common::{Column, DataFusionError, SchemaError};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{SetExpr, Statement as Sql};

/// The known facts about the names in a statement.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Names of output columns that FROM lacks.
    pub outputs: HashSet<String>,
    /// Names of columns that `*` contains.
    pub in_star: HashSet<String>,
    /// Names of tables that are also names of a nearer column.
    pub tables: HashSet<String>,
}

impl Hints {
    /// Learns from an error. Returns whether it tells something new. `taken` holds the names that
    /// were taken for columns of FROM.
    pub(super) fn learn(&mut self, error: &DataFusionError, taken: &HashSet<String>) -> bool {
        let known = self.len();
        match error.find_root() {
            DataFusionError::SchemaError(error, _) => match error.as_ref() {
                SchemaError::FieldNotFound { field, .. } if taken.contains(&field.name) => {
                    self.outputs.insert(field.name.clone());
                }
                SchemaError::AmbiguousReference { field } => {
                    self.in_star.insert(field.name.clone());
                }
                SchemaError::DuplicateUnqualifiedField { name } | SchemaError::DuplicateQualifiedField { name, .. } => {
                    self.in_star.insert(name.clone());
                }
                SchemaError::FieldNotFound { field, valid_fields } => {
                    self.outputs.extend(taken.iter().cloned());
                    self.tables.extend(hidden_table(field, valid_fields));
                }
            },
            _ => self.outputs.extend(taken.iter().cloned()),
        }
        known < self.len()
    }

    fn len(&self) -> usize {
        self.outputs.len() + self.in_star.len() + self.tables.len()
    }
}

/// Returns the table of a column that was not found, if a column has the table's name.
fn hidden_table(column: &Column, known: &[Column]) -> Option<String> {
    let table = column.relation.as_ref()?.table();
    let is_table = |known: &Column| known.relation.as_ref().is_some_and(|relation| relation.table() == table);
    let is_hidden = known.iter().any(|known| known.name == table) && !known.iter().any(is_table);
    is_hidden.then(|| table.to_string())
}

/// Returns whether a statement may be planned again. Literal rows are excluded: they are many, and
/// contain no names.
pub(super) fn may_be_repeated(statement: &Statement) -> bool {
    match statement {
        Statement::Statement(sql) => match sql.as_ref() {
            Sql::Insert(insert) => {
                insert.source.as_ref().is_some_and(|source| !matches!(source.body.as_ref(), SetExpr::Values(_)))
            }
            Sql::Query(query) => !matches!(query.body.as_ref(), SetExpr::Values(_)),
            _ => false,
        },
        Statement::Explain(explain) => may_be_repeated(&explain.statement),
        Statement::CopyTo(_) => true,
        Statement::CreateExternalTable(_) | Statement::Reset(_) => false,
    }
}
