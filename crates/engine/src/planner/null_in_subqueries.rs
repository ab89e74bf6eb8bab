//! `x [NOT] IN (SELECT ...)` where NULLs affect the result, and where they do not.
//!
//! DataFusion handles NULLs in `WHERE x NOT IN (SELECT y ...)` if the condition stands alone and
//! contains a column. Elsewhere it only tests whether some y equals x. With a NULL among the y, or
//! for x, these are wrong:
//!
//! - `WHERE x NOT IN (SELECT y ...) OR z`, `WHERE (x IN (SELECT y ...)) IS NULL`: the result is
//!   true or false instead of NULL;
//! - `WHERE NOT (x IN (SELECT y ...) AND z)`: likewise;
//! - `WHERE 1 NOT IN (SELECT y ...)`: true.
//!
//! DataFusion refuses `WHERE x NOT IN (SELECT y ... WHERE t.z = z)`. So all these become several
//! conditions without NULLs: a y equals x; a y is NULL; there is a y, if x is NULL.
//!
//! A computed value can be NULL although no column in it can be. It can also turn out to be a
//! constant when the join is built. `nullif(s, '') NOT IN (SELECT y ...)` takes NULL for a value
//! that no y equals. Such a value becomes a column of a projection below.
//!
//! A condition with a subquery in the ON of an inner join first moves to WHERE, where all of this
//! holds.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, not_impl_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, ExprSchemable, Filter, JoinType, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, lit, not, when,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;
use super::subquery_places::Below;

#[derive(Debug)]
pub(super) struct NullInSubqueries;

impl AnalyzerRule for NullInSubqueries {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Filter(filter) if has_one(&filter.predicate)? => {
                Ok(Transformed::yes(filtered(filter.predicate, filter.input)?))
            }
            // DataFusion refuses subqueries in the condition of an outer join.
            LogicalPlan::Join(mut join)
                if join.join_type == JoinType::Inner
                    && join.filter.as_ref().map_or(Ok(false), expressions::has_subquery)? =>
            {
                let predicate = join.filter.take().unwrap_or_else(|| lit(true));
                Ok(Transformed::yes(filtered(predicate, LogicalPlan::Join(join).into())?))
            }
            other => Ok(Transformed::no(other)),
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "null_in_subqueries"
    }
}

/// The name of y. It may be a column of the same name as x, and DataFusion forgets which of them is
/// the outer one. The subquery gets no alias. DataFusion adds the columns of conditions on both
/// queries to the subquery's rows, but not to an alias.
const FOUND: &str = "__in";

/// The prefix of the names of values that are computed below; a number follows.
const VALUE: &str = "__in_value";

/// Returns the rows for which a condition holds.
fn filtered(predicate: Expr, input: Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let mut below = Below::default();
    let conjuncts = split_conjunction_owned(predicate).into_iter().map(|conjunct| with_column(conjunct, &mut below));
    let conjuncts = conjuncts.collect::<Result<Vec<_>>>()?;
    let columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    let is_same = below.len() == 0;
    let input = below.of(input)?;
    let conjuncts = conjuncts.into_iter().map(|conjunct| top(conjunct, input.schema())).collect::<Result<Vec<_>>>()?;
    let predicate = conjunction(conjuncts).unwrap_or_else(|| lit(true));
    let filter = LogicalPlan::Filter(Filter::try_new(predicate, input)?);
    if is_same { Ok(filter) } else { LogicalPlanBuilder::from(filter).project(columns)?.build() }
}

/// Rewrites a condition that stands alone: a computed value becomes a column.
fn with_column(conjunct: Expr, below: &mut Below) -> Result<Expr> {
    match conjunct {
        Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_)) => with_column(negated(*inner), below),
        Expr::InSubquery(is_in) if is_in.negated && is_computed(&is_in)? => {
            let name = format!("{VALUE}{}", below.len());
            let column = below.column(*is_in.expr, name);
            Ok(Expr::InSubquery(InSubquery { expr: Box::new(column), ..is_in }))
        }
        other => Ok(other),
    }
}

/// Returns whether a value contains columns of its query and is more than a cast of one.
fn is_computed(is_in: &InSubquery) -> Result<bool> {
    let value = is_in.expr.as_ref();
    let inner = if let Expr::Cast(cast) = value { cast.expr.as_ref() } else { value };
    let is_alone = is_in.subquery.outer_ref_columns.is_empty() && !is_of_several_queries(value)?;
    Ok(is_alone && !matches!(inner, Expr::Column(_)) && !value.column_refs().is_empty())
}

fn has_one(expr: &Expr) -> Result<bool> {
    expr.exists(|expr| Ok(matches!(expr, Expr::InSubquery(_))))
}

/// Rewrites a condition that stands alone.
fn top(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    match expr {
        Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_)) => top(negated(*inner), schema),
        Expr::InSubquery(ref is_in) if is_in.negated => {
            let is_alone = is_in.subquery.outer_ref_columns.is_empty() && !is_in.expr.column_refs().is_empty();
            if is_alone || is_of_several_queries(&is_in.expr)? { Ok(expr) } else { wanted_true(expr, schema) }
        }
        expr => wanted_true(expr, schema),
    }
}

fn negated(expr: Expr) -> Expr {
    match expr {
        Expr::InSubquery(is_in) => Expr::InSubquery(InSubquery { negated: !is_in.negated, ..is_in }),
        expr => not(expr),
    }
}

/// Returns whether a value depends on queries other than the one that contains it.
fn is_of_several_queries(value: &Expr) -> Result<bool> {
    value.exists(|expr| {
        Ok(match expr {
            Expr::OuterReferenceColumn(..) | Expr::InSubquery(_) | Expr::Exists(_) => true,
            Expr::ScalarSubquery(subquery) => !subquery.outer_ref_columns.is_empty(),
            _ => false,
        })
    })
}

/// Rewrites a condition for which NULL is equivalent to FALSE.
fn wanted_true(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let (left, right) = (wanted_true(*left, schema)?, wanted_true(*right, schema)?);
            Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right))))
        }
        Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_)) => wanted_true(negated(*inner), schema),
        Expr::InSubquery(InSubquery { negated: false, .. }) => Ok(expr),
        Expr::InSubquery(is_in) => match Questions::of(&is_in, schema)? {
            Some(questions) => {
                let Questions { is_there, is_null_there, is_null, is_any } = questions;
                let mut all = vec![not(is_there)];
                all.extend(is_null_there.map(not));
                all.extend(is_null.map(|is_null| not(is_null).or(not(is_any))));
                Ok(conjunction(all).unwrap_or_else(|| lit(true)))
            }
            None => Ok(Expr::InSubquery(is_in)),
        },
        other => told_apart(other, schema),
    }
}

/// Rewrites a condition for which NULL differs from TRUE and from FALSE.
fn told_apart(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let rewritten = expr.transform_up(|expr| {
        let Expr::InSubquery(is_in) = expr else { return Ok(Transformed::no(expr)) };
        let Some(questions) = Questions::of(&is_in, schema)? else {
            return Ok(Transformed::no(Expr::InSubquery(is_in)));
        };
        let Questions { is_there, is_null_there, is_null, is_any } = questions;
        let mut answer = when(is_there, lit(!is_in.negated));
        for unknown in [is_null_there, is_null.map(|is_null| is_null.and(is_any))].into_iter().flatten() {
            answer = answer.when(unknown, lit(ScalarValue::Boolean(None)));
        }
        Ok(Transformed::yes(answer.otherwise(lit(is_in.negated))?))
    });
    Ok(rewritten?.data)
}

/// `x IN (SELECT y ...)` as conditions that are true or false.
struct Questions {
    /// True if a y equals x.
    is_there: Expr,
    /// True if a y is NULL; `None` if no y can be NULL.
    is_null_there: Option<Expr>,
    /// True if x is NULL; `None` if x cannot be NULL.
    is_null: Option<Expr>,
    /// True if there is a y.
    is_any: Expr,
}

impl Questions {
    /// Splits a condition. Returns `None` if DataFusion answers it correctly as it is.
    fn of(is_in: &InSubquery, schema: &DFSchema) -> Result<Option<Self>> {
        let (value, subquery) = (is_in.expr.as_ref(), &is_in.subquery);
        if subquery.subquery.schema().fields().len() != 1 {
            return Ok(None);
        }
        if value.is_volatile() || is_of_several_queries(value)? {
            if !value.nullable(schema)? && !subquery.subquery.schema().field(0).is_nullable() {
                return Ok(None);
            }
            return not_impl_err!(
                "IN (SELECT ...) of a value that is random or about several queries, where NULL is not FALSE (as in NOT IN) \
                 beside other conditions, is not supported"
            );
        }
        if !subquery.outer_ref_columns.is_empty() {
            refuse_of_each_row(&subquery.subquery)?;
        }
        let (table, field) = subquery.subquery.schema().qualified_field(0);
        let found = Expr::Column(Column::new(table.cloned(), field.name()));
        let mut outer = Vec::new();
        let seen_from_inside = value.clone().transform_up(|expr| match expr {
            Expr::Column(column) => {
                let field = schema.field_from_column(&column)?;
                let reference = Expr::OuterReferenceColumn(field.clone(), column);
                outer.push(reference.clone());
                Ok(Transformed::yes(reference))
            }
            other => Ok(Transformed::no(other)),
        });
        let renamed =
            LogicalPlanBuilder::new_from_arc(subquery.subquery.clone()).project([found.clone().alias(FOUND)])?;
        let same = Expr::Column(Column::from_name(FOUND)).eq(seen_from_inside?.data);
        let is_there = exists(&Subquery { subquery: renamed.build()?.into(), ..subquery.clone() }, Some(same), outer)?;
        let is_null_there = match field.is_nullable() {
            true => Some(exists(subquery, Some(found.is_null()), Vec::new())?),
            false => None,
        };
        let is_null = value.nullable(schema)?.then(|| value.clone().is_null());
        Ok(Some(Self { is_there, is_null_there, is_null, is_any: exists(subquery, None, Vec::new())? }))
    }
}

/// Refuses a subquery that covers all rows that belong to a row of the outer query. DataFusion
/// joins the two, and either covers all rows of the subquery, or skips outer rows without a match.
fn refuse_of_each_row(subquery: &LogicalPlan) -> Result<()> {
    let is_of_each_row = subquery.exists(|node| {
        let is_of_all = match node {
            LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
            LogicalPlan::Limit(_) | LogicalPlan::Window(_) => true,
            _ => false,
        };
        // The condition is beneath this node, not above it.
        Ok(is_of_all && !node.all_out_ref_exprs().is_empty())
    })?;
    if is_of_each_row {
        return not_impl_err!(
            "an aggregate, a window function or LIMIT in IN (SELECT ...), with a condition on both queries, where NULL \
             is not FALSE (as in NOT IN) is not supported"
        );
    }
    Ok(())
}

/// Returns a condition that a subquery has a row for which `condition` holds.
fn exists(subquery: &Subquery, condition: Option<Expr>, outer: Vec<Expr>) -> Result<Expr> {
    let mut plan = LogicalPlanBuilder::new_from_arc(subquery.subquery.clone());
    if let Some(condition) = condition {
        plan = plan.filter(condition)?;
    }
    let mut outer_ref_columns = subquery.outer_ref_columns.clone();
    outer_ref_columns.extend(outer.into_iter().filter(|column| !subquery.outer_ref_columns.contains(column)));
    let subquery = Subquery { subquery: plan.build()?.into(), outer_ref_columns, spans: subquery.spans.clone() };
    Ok(Expr::Exists(Exists { subquery, negated: false }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn nulls_decide() {
        let table = "(SELECT * FROM (VALUES (1, 1), (2, 7), (3, NULL)) AS t(id, x)) AS t";
        let few = "SELECT y FROM (VALUES (1), (2)) AS u(y)";
        let some = "SELECT y FROM (VALUES (1), (NULL)) AS u(y)";
        let none = "SELECT y FROM (VALUES (1), (NULL)) AS u(y) WHERE y > 5";
        let same = "SELECT x FROM t";
        for (condition, expected) in [
            // Alone, as DataFusion answers it.
            ("x NOT IN (few)", "2"),
            ("x NOT IN (some)", ""),
            ("x NOT IN (none)", "1 2 3"),
            ("NOT (x IN (some))", ""),
            // Beside others.
            ("x NOT IN (some) OR id = 3", "3"),
            ("x NOT IN (few) OR id = 1", "1 2"),
            ("NOT (x IN (some)) OR id = 3", "3"),
            ("NOT (x NOT IN (some)) OR id = 3", "1 3"),
            ("x NOT IN (none) OR id = 1", "1 2 3"),
            ("x IN (some) OR id = 2", "1 2"),
            ("NOT (x IN (some) AND id > 0)", ""),
            ("NOT (x IN (few) AND id > 0)", "2"),
            ("(x IN (some)) IS NULL", "2 3"),
            ("(x NOT IN (few)) IS NULL", "3"),
            ("(x IN (none)) IS NULL", ""),
            ("(x IN (same)) IS NULL", "3"),
            ("(x IN (SELECT x FROM t WHERE x IS NOT NULL)) IS NULL", "3"),
            ("x NOT IN (same) OR id = 2", "2"),
            ("CASE WHEN x IN (few) THEN FALSE ELSE TRUE END", "2 3"),
            // Without a column.
            ("1 NOT IN (some)", ""),
            ("5 NOT IN (some)", ""),
            ("5 NOT IN (few)", "1 2 3"),
            ("5 NOT IN (none)", "1 2 3"),
            ("NULL NOT IN (few)", ""),
            ("NULL NOT IN (none)", "1 2 3"),
            ("(SELECT 5) NOT IN (some)", ""),
            ("CASE WHEN FALSE THEN x END NOT IN (few)", ""),
            ("CASE WHEN FALSE THEN x END NOT IN (none)", "1 2 3"),
            ("CASE WHEN TRUE THEN 5 ELSE x END NOT IN (some)", ""),
            ("coalesce(5, x) NOT IN (few)", "1 2 3"),
            ("NOT (x + NULL IN (few))", ""),
            ("nullif(id, 2) NOT IN (few)", "3"),
            ("nullif(id, 2) NOT IN (none)", "1 2 3"),
            ("CASE WHEN id > 1 THEN id END NOT IN (few) AND id > 0", "3"),
            ("TRY_CAST('x' || id AS INT) NOT IN (few)", ""),
            // With columns of both queries.
            ("x NOT IN (SELECT y FROM (VALUES (1, 1), (2, NULL)) AS u(i, y) WHERE i = id)", "3"),
            ("x NOT IN (SELECT y FROM (VALUES (1, 2), (2, 3), (3, 3)) AS u(i, y) WHERE i = id)", "1 2"),
            ("5 NOT IN (SELECT y FROM (VALUES (1, 5), (2, NULL)) AS u(i, y) WHERE i = id)", "3"),
            ("(x IN (SELECT y FROM (VALUES (1, 1), (2, NULL)) AS u(i, y) WHERE i = id)) IS NULL", "2"),
            ("x NOT IN (SELECT y FROM (SELECT id AS i, x AS y FROM t) AS u WHERE i < id) OR id = 2", "1 2"),
        ] {
            let condition = ["few", "some", "none", "same"]
                .into_iter()
                .zip([few, some, none, same])
                .fold(condition.to_string(), |condition, (name, query)| {
                    condition.replace(&format!("({name})"), &format!("({query})"))
                });
            let query =
                format!("SELECT id FROM t WHERE {condition} ORDER BY id").replace("FROM t", &format!("FROM {table}"));
            assert_eq!(rows(&query).await.join(" "), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn nulls_decide_what_is_joined() {
        for (condition, expected) in [
            ("x NOT IN (some) OR id = 3", "3"),
            ("(x IN (some)) IS NULL", "2 3"),
            ("NOT (x IN (some) AND j > 2)", "1 2"),
            ("x NOT IN (some)", ""),
            ("x NOT IN (SELECT 1)", "2"),
            ("x IN (some)", "1"),
            ("(EXISTS (SELECT 1 FROM (some) WHERE y = x)) IS FALSE", "2 3"),
            ("j >= (SELECT max(y) FROM (some) WHERE y = x)", "1"),
        ] {
            let condition = condition.replace("some", "SELECT y FROM (VALUES (1), (NULL)) AS u(y)");
            let query = format!(
                "SELECT id FROM (VALUES (1, 1), (2, 7), (3, NULL)) AS t(id, x) \
                 JOIN (VALUES (1), (2), (3)) AS v(j) ON id = j AND ({condition}) ORDER BY id"
            );
            assert_eq!(rows(&query).await.join(" "), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn what_is_about_all_rows_of_an_outer_row_is_about_its_own() {
        // Expected rows are PostgreSQL 15.18's.
        for subquery in [
            "SELECT y FROM (VALUES (1, 1)) AS u(i, y) WHERE i = id LIMIT 1",
            "SELECT lag(y) OVER (ORDER BY y) FROM (VALUES (1, 1)) AS u(i, y) WHERE i = id",
        ] {
            let query = format!("SELECT id FROM (VALUES (1, 1), (2, 7)) AS t(id, x) WHERE x NOT IN ({subquery})");
            assert_eq!(rows(&query).await, ["2"], "{query}");
        }
    }
}
