//! INTERSECT ALL and EXCEPT ALL count. If a row occurs three times on the left and twice on the
//! right, the first returns it twice, the second once.
//!
//! DataFusion plans a semi or an anti join, which keeps a row as often as the left side has it, or
//! not at all. Here the rows of each side are numbered among equal rows, and joined with their
//! numbers: the second 7 matches the second 7. These joins, and those without ALL, are the only
//! null-safe ones in a freshly planned statement. Without ALL the left side is distinct, and
//! counting changes nothing.
//!
//! The columns of INTERSECT and EXCEPT have the common type of both sides, like those of a UNION.
//! DataFusion 55.2 keeps the type of the left side: `SELECT 3 EXCEPT SELECT 1.5` is an integer.
//!
//! The columns of a UNION correspond to those of its parts by position. If only one part can have
//! rows, DataFusion replaces the union by it. It finds the columns by the names of the union, which
//! are the first part's without their tables. So all parts get these names.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, NullEquality, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::logical_plan::Join;
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::{
    Distinct, ExprFunctionExt, ExprSchemable, JoinType, LogicalPlan, LogicalPlanBuilder, Union, lit, when,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::{exact_comparisons, expressions, floats_beside_decimals};

/// The names of a row's number among equal rows. They mark a join that is rewritten, because the
/// rule runs more than once.
const NUMBERS: [&str; 2] = ["number of a left row", "number of a right row"];

#[derive(Debug)]
pub(super) struct SetOperations;

impl AnalyzerRule for SetOperations {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let counted = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Join(join) if is_all(&join) => Ok(Transformed::yes(count(of_one_type(join)?.data)?)),
            LogicalPlan::Join(join) if is_set_operation(&join) => {
                of_one_type(join)?.map_data(|join| Ok(LogicalPlan::Join(join)))
            }
            LogicalPlan::Union(union) => alike(union),
            other => Ok(Transformed::no(other)),
        });
        Ok(counted?.data)
    }

    fn name(&self) -> &str {
        "set_operations"
    }
}

/// Gives the columns of all parts of a union the same names.
fn alike(mut union: Union) -> Result<Transformed<LogicalPlan>> {
    let names = Arc::clone(&union.schema);
    let mut has_other = false;
    for part in &mut union.inputs {
        let columns = part.schema().columns();
        let is_alike = |column: &Column, name: &str| column.relation.is_none() && column.name == name;
        if columns.iter().zip(names.fields()).all(|(column, field)| is_alike(column, field.name())) {
            continue;
        }
        let columns = columns.into_iter().zip(names.fields());
        let columns: Vec<Expr> = columns.map(|(column, field)| Expr::Column(column).alias(field.name())).collect();
        *part = Arc::new(LogicalPlanBuilder::new_from_arc(Arc::clone(part)).project(columns)?.build()?);
        has_other = true;
    }
    let union = LogicalPlan::Union(union);
    Ok(if has_other { Transformed::yes(union) } else { Transformed::no(union) })
}

/// Casts the columns of both sides of such a join to their common types.
fn of_one_type(mut join: Join) -> Result<Transformed<Join>> {
    let types =
        |side: &LogicalPlan| side.schema().fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>();
    let common = types(&join.left).into_iter().zip(types(&join.right)).map(|(left, right)| {
        // A string beside another type is settled where the two are compared.
        let is_plain = |data_type: &DataType| data_type.is_numeric() || data_type.is_temporal();
        match left != right && is_plain(&left) && is_plain(&right) {
            true => exact_comparisons::common(&left, &right)
                .or_else(|| floats_beside_decimals::common_float([&left, &right].into_iter()))
                .or_else(|| type_union_resolution(&[left, right])),
            false => None,
        }
    });
    let common: Vec<Option<DataType>> = common.collect();
    let wanted = |place: usize, data_type: &DataType| common.get(place)?.clone().filter(|common| common != data_type);
    let cast = |side: &Arc<LogicalPlan>| match side.as_ref() {
        // Rows that become equal by their types count once.
        LogicalPlan::Distinct(Distinct::All(input)) => Ok(expressions::cast_columns(input, wanted)?
            .map(|input| LogicalPlan::Distinct(Distinct::All(Arc::new(input))))),
        _ => expressions::cast_columns(side, wanted),
    };
    let (left, right) = (cast(&join.left)?, cast(&join.right)?);
    if left.is_none() && right.is_none() {
        return Ok(Transformed::no(join));
    }
    join.left = left.map_or(join.left, Arc::new);
    join.right = right.map_or(join.right, Arc::new);
    match LogicalPlan::Join(join).recompute_schema()? {
        LogicalPlan::Join(join) => Ok(Transformed::yes(join)),
        _ => internal_err!("a join is none with other columns"),
    }
}

/// Returns whether a join is an INTERSECT or EXCEPT.
fn is_set_operation(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.on.len() == join.left.schema().fields().len()
        && join.on.len() == join.right.schema().fields().len()
}

fn is_all(join: &Join) -> bool {
    is_set_operation(join)
        && !matches!(join.left.as_ref(), LogicalPlan::Distinct(_))
        && join.left.schema().fields().iter().all(|field| field.name() != NUMBERS[0])
}

fn count(join: Join) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = join.left.schema().columns().into_iter().map(Expr::Column).collect();
    let (mut left, mut right): (Vec<Expr>, Vec<Expr>) = join.on.into_iter().unzip();
    let left_plan = numbered(join.left, NUMBERS[0])?;
    let right_plan = numbered(join.right, NUMBERS[1])?;
    left.push(Expr::Column(Column::from_name(NUMBERS[0])));
    right.push(Expr::Column(Column::from_name(NUMBERS[1])));
    LogicalPlanBuilder::from(left_plan)
        .join_with_expr_keys(right_plan, join.join_type, (left, right), join.filter)?
        .build()
        .and_then(|plan| match plan {
            LogicalPlan::Join(counted) => {
                let counted = Join { null_equality: NullEquality::NullEqualsNull, ..counted };
                LogicalPlanBuilder::from(LogicalPlan::Join(counted)).project(columns)?.build()
            }
            other => Ok(other),
        })
}

fn numbered(plan: Arc<LogicalPlan>, name: &str) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let same = plan.schema().iter().map(|(table, field)| {
        let column = Expr::Column(Column::new(table.cloned(), field.name()));
        match field.data_type() {
            // PARTITION BY distinguishes -0.0 from 0.0, and the join does not.
            DataType::Float32 | DataType::Float64 => {
                let zero = lit(0.0_f64).cast_to(field.data_type(), plan.schema())?;
                when(column.clone().eq(zero.clone()), zero).otherwise(column)
            }
            _ => Ok(column),
        }
    });
    let number = row_number().partition_by(same.collect::<Result<_>>()?).build()?.alias(name);
    let number_column = Expr::Column(Column::from_name(name));
    LogicalPlanBuilder::new_from_arc(plan)
        .window([number])?
        .project(columns.into_iter().chain([number_column]))?
        .build()
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn both_sides_have_one_type() {
        for (query, expected) in [
            ("SELECT DATE '9999-12-31' INTERSECT SELECT TIMESTAMP '9999-12-31'", "9999-12-31T00:00:00"),
            ("SELECT 1 INTERSECT SELECT 1.0", "1.0"),
            ("SELECT 3 EXCEPT SELECT 1.5", "3.0"),
            ("SELECT 3 EXCEPT ALL SELECT 1.5", "3.0"),
            ("SELECT x FROM (VALUES (1), (1)) AS t(x) INTERSECT ALL SELECT CAST(1 AS DOUBLE)", "1.0"),
            (
                "SELECT a.x FROM (VALUES (1, DATE '2020-01-01')) AS a(y, x) INTERSECT SELECT TIMESTAMP '2020-01-01'",
                "2020-01-01T00:00:00",
            ),
            ("SELECT 'a' INTERSECT SELECT 'a'", "a"),
        ] {
            assert_eq!(rows(query).await.join(","), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn rows_are_counted() {
        let tables = "WITH t(a, b) AS (VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, NULL), (2, NULL), (3, 'z')), \
                      u(c, d) AS (VALUES (1, 'x'), (1, 'x'), (2, NULL), (4, 'z'))";
        for (query, expected) in [
            // From DuckDB.
            ("SELECT * FROM t INTERSECT ALL SELECT * FROM u ORDER BY 1", "1 x,1 x,2 NULL"),
            ("SELECT * FROM t EXCEPT ALL SELECT * FROM u ORDER BY 1", "1 x,2 NULL,3 z"),
            ("SELECT * FROM u EXCEPT ALL SELECT * FROM t ORDER BY 1", "4 z"),
            ("SELECT a FROM t EXCEPT ALL SELECT a FROM t WHERE a = 1 ORDER BY 1", "2,2,3"),
            ("SELECT * FROM t INTERSECT SELECT * FROM u ORDER BY 1", "1 x,2 NULL"),
            ("SELECT * FROM t EXCEPT SELECT * FROM u ORDER BY 1", "3 z"),
            ("SELECT DISTINCT a FROM t EXCEPT ALL SELECT c FROM u", "3"),
            ("SELECT DISTINCT a FROM t INTERSECT ALL SELECT c FROM u ORDER BY 1", "1,2"),
            ("(SELECT a FROM t INTERSECT ALL SELECT c FROM u) EXCEPT ALL SELECT 1 ORDER BY a", "1,2"),
            ("SELECT a FROM t INTERSECT ALL SELECT CAST(c AS DOUBLE) FROM u ORDER BY 1", "1,1,2"),
            (
                "SELECT count(*) FROM (SELECT x FROM (VALUES (0e0), (-0e0), (0e0)) AS f(x) EXCEPT ALL SELECT -0e0) AS s",
                "2",
            ),
            ("SELECT count(*) FROM (SELECT a FROM t EXCEPT ALL SELECT c FROM u) AS s", "3"),
            ("SELECT a FROM t WHERE a IN (SELECT a FROM t EXCEPT ALL SELECT c FROM u) ORDER BY 1", "1,1,1,2,2,3"),
        ] {
            let found = rows(&format!("{tables} {query}")).await.join(",");
            assert_eq!(found.replace(".0", ""), expected, "{query}");
        }
    }
}
