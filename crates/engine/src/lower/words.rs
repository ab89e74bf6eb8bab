//! Prints pipelines in SQL's words, for EXPLAIN: registers have the names of the statement.

use datafusion::common::Column;
use datafusion::logical_expr::Expr;

use super::graph::{Graph, relation_of};
use super::relation::{named, original};
use crate::identifiers::quoted;
use crate::planner::Printer;

/// The steps and the sink of a pipeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    /// For each step: its condition, or the equalities of its join.
    pub steps: Vec<String>,
    /// A join table's key, the group keys, or the sort keys.
    pub keys: Vec<String>,
    /// A join table's payload, the aggregates, or the columns of rows.
    pub values: Vec<String>,
}

impl Graph {
    /// Prints an expression over columns of relations.
    pub fn sql(&self, expr: &Expr) -> String {
        Printer::new(&|column| self.column_name(column)).print(expr)
    }

    /// Prints several expressions.
    pub fn all_sql(&self, exprs: &[Expr]) -> Vec<String> {
        exprs.iter().map(|expr| self.sql(expr)).collect()
    }

    /// Returns a column's name, qualified by its relation if several columns have that name.
    fn column_name(&self, column: &Column) -> String {
        let column = original(&self.relations, column);
        let is_alone = named(&self.relations, &column.name) < 2;
        match relation_of(column).and_then(|relation| self.relations.get(relation)) {
            Some(relation) if !is_alone => format!("{}.{}", quoted(&relation.name), quoted(&column.name)),
            _ => quoted(&column.name),
        }
    }

    /// Prints the equalities of a join, or `TRUE` for a join with the only row of a relation.
    pub fn equalities(&self, keys: &[(Expr, Expr)]) -> String {
        if keys.iter().all(|(theirs, _)| matches!(theirs, Expr::Literal(..))) {
            return "TRUE".into();
        }
        let equal = |(theirs, mine): &(Expr, Expr)| format!("{} = {}", self.sql(mine), self.sql(theirs));
        keys.iter().map(equal).collect::<Vec<_>>().join(" AND ")
    }
}
