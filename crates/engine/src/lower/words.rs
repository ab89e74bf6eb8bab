//! Pipelines in SQL's words, for EXPLAIN: where the program has registers, these have the names of the statement.

use datafusion::common::Column;
use datafusion::logical_expr::Expr;

use super::graph::{Graph, relation_of};
use super::relation::{named, original};
use crate::identifiers::quoted;
use crate::planner::Printer;

/// What a pipeline does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    /// Of each step: its condition, or the equalities of its join.
    pub steps: Vec<String>,
    /// A join table's key, what makes a group, or what rows are in the order of.
    pub keys: Vec<String>,
    /// A join table's payload, what is computed of each group, or columns of rows.
    pub values: Vec<String>,
}

impl Graph {
    /// An expression over columns of relations.
    pub fn sql(&self, expr: &Expr) -> String {
        Printer::new(&|column| self.column_name(column)).print(expr)
    }

    /// Several of them.
    pub fn all_sql(&self, exprs: &[Expr]) -> Vec<String> {
        exprs.iter().map(|expr| self.sql(expr)).collect()
    }

    /// The columns of several relations by one name have their relation's before it.
    fn column_name(&self, column: &Column) -> String {
        let column = original(&self.relations, column);
        let is_alone = named(&self.relations, &column.name) < 2;
        match relation_of(column).and_then(|relation| self.relations.get(relation)) {
            Some(relation) if !is_alone => format!("{}.{}", quoted(&relation.name), quoted(&column.name)),
            _ => quoted(&column.name),
        }
    }

    /// The equalities of a join. One with the only row of a relation has none.
    pub fn equalities(&self, keys: &[(Expr, Expr)]) -> String {
        if keys.iter().all(|(theirs, _)| matches!(theirs, Expr::Literal(..))) {
            return "TRUE".into();
        }
        let equal = |(theirs, mine): &(Expr, Expr)| format!("{} = {}", self.sql(mine), self.sql(theirs));
        keys.iter().map(equal).collect::<Vec<_>>().join(" AND ")
    }
}
