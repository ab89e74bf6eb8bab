//! What the error of planning says of the names in a statement, and another try with that.
//!
//! A statement's tree does not say which columns a table has. Four things depend on it, and the error of a first try tells:
//!
//! - A name in an expression of ORDER BY that was taken for a column of FROM, see [`order_names`](super::order_names), and is none:
//!   it is the name of an output column.
//! - `SELECT *, 1 AS k`, where `*` has a `k`: the other one is `k_1`.
//! - `u.id`, where a nearer table has a column `u`: see [`table_names`](super::table_names).
//! - A name that is written in other letters than it has: see [`folded_names`](super::folded_names).
//!
//! Each try knows more than the one before, so that there are no more tries than names.

use std::collections::HashSet;

use datafusion::common::{Column, DataFusionError, SchemaError};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{SetExpr, Statement as Sql};

/// What is known of the names in a statement.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Names of output columns that FROM has no column of.
    pub outputs: HashSet<String>,
    /// Names that `*` has a column of.
    pub in_star: HashSet<String>,
    /// Names of tables that something nearer has a column of.
    pub tables: HashSet<String>,
}

impl Hints {
    /// Whether an error says something new. `taken`: the names that were taken for columns of FROM.
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

/// The table of a column that was not found, if something else is called so.
fn hidden_table(column: &Column, known: &[Column]) -> Option<String> {
    let table = column.relation.as_ref()?.table();
    let is_table = |known: &Column| known.relation.as_ref().is_some_and(|relation| relation.table() == table);
    let is_hidden = known.iter().any(|known| known.name == table) && !known.iter().any(is_table);
    is_hidden.then(|| table.to_string())
}

/// Whether a statement may be tried again: rows that are written out are many, and have no names.
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
