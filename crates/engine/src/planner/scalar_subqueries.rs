//! A scalar subquery without rows is NULL, even if its column cannot be.
//!
//! DataFusion relies on the column's nullability. Over a NOT NULL column `(SELECT k FROM t WHERE
//! FALSE) IS NULL` is simplified to FALSE, and selecting the subquery fails on the NULL. So the
//! column of such a subquery goes through a function that returns its argument and declares it
//! nullable. So does the subquery itself: its column may be simplified to a literal, and a
//! correlated subquery becomes an outer join. An aggregate of all rows always has one row.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    ColumnarValue, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Subquery,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

#[derive(Debug)]
pub(super) struct ScalarSubqueries;

impl AnalyzerRule for ScalarSubqueries {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let rewritten = expressions::rewritten(node, rewrite)?;
            // The schema is recomputed even if this node did not change: an input may contain NULLs
            // now.
            Ok(Transformed::yes(rewritten.data.recompute_schema()?))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "scalar_subqueries"
    }
}

fn rewrite(expr: Expr) -> Result<Transformed<Expr>> {
    match expr {
        Expr::ScalarSubquery(subquery) if may_be_wrong(&subquery) => {
            let (table, field) = subquery.subquery.schema().qualified_field(0);
            let (column, name) = (Expr::Column(Column::new(table.cloned(), field.name())), field.name().clone());
            let value = ScalarUDF::from(MaybeNull::new()).call(vec![column]).alias(name);
            let is_correlated = !subquery.outer_ref_columns.is_empty();
            let plan = match is_correlated {
                true => subquery.subquery,
                false => LogicalPlanBuilder::new_from_arc(subquery.subquery).project([value])?.build()?.into(),
            };
            let subquery = Expr::ScalarSubquery(Subquery { subquery: plan, ..subquery });
            Ok(Transformed::yes(ScalarUDF::from(MaybeNull::new()).call(vec![subquery])))
        }
        other => Ok(Transformed::no(other)),
    }
}

fn may_be_wrong(subquery: &Subquery) -> bool {
    let plan = &subquery.subquery;
    let schema = plan.schema();
    schema.fields().len() == 1 && !schema.field(0).is_nullable() && !has_one_row(plan)
}

fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => has_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(relation) => relation.produce_one_row,
        _ => false,
    }
}

/// A function that returns its argument as a nullable column.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MaybeNull {
    signature: Signature,
}

impl MaybeNull {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for MaybeNull {
    fn name(&self) -> &str {
        "maybe_null"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        expressions::type_of_only(self.name(), types)
    }

    fn invoke_with_args(&self, mut call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match call.args.pop() {
            Some(value) => Ok(value),
            None => internal_err!("maybe_null takes one argument"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn no_rows_are_null() {
        // generate_series() cannot be NULL.
        for (text, expected) in [
            ("SELECT (SELECT value FROM generate_series(1, 3) WHERE value > 3)", "NULL"),
            ("SELECT (SELECT value FROM generate_series(1, 3) WHERE value > 3) IS NULL", "true"),
            ("SELECT (SELECT value FROM generate_series(1, 3) WHERE value > 2) + 1", "4"),
            ("SELECT 1 WHERE coalesce((SELECT value FROM generate_series(1, 3) WHERE value > 3), 7) = 7", "1"),
            ("SELECT (SELECT count(*) FROM generate_series(1, 3) WHERE value > 3)", "0"),
            ("SELECT (SELECT count(*) FROM generate_series(1, 3) HAVING count(*) > 3) IS NULL", "true"),
            ("SELECT (SELECT 1 FROM generate_series(1, 3) WHERE value > 3)", "NULL"),
            ("SELECT (SELECT 1 FROM generate_series(1, 3) WHERE value > 3) IS NULL", "true"),
            ("SELECT coalesce((SELECT 1 FROM generate_series(1, 3) WHERE value > 3), 5)", "5"),
            ("SELECT coalesce((SELECT 'none' WHERE NOT EXISTS (SELECT 1)), 'some')", "some"),
            ("SELECT (SELECT 1 WHERE t.id = 1) IS NULL FROM (VALUES (2)) AS t(id)", "true"),
            (
                "SELECT coalesce((SELECT count(*) FROM generate_series(1, 3) WHERE value = t.id GROUP BY value), 0) FROM (VALUES (7)) AS t(id)",
                "0",
            ),
            ("SELECT max((SELECT 1 FROM generate_series(1, 3) WHERE value > 3)) FROM (VALUES (7)) AS t(id)", "NULL"),
        ] {
            assert_eq!(rows(text).await, [expected], "{text}");
        }
    }
}
