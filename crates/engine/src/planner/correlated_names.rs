//! Renames columns of equal name in conditions of correlated subqueries.
//!
//! If a subquery has a condition on the outer query, DataFusion joins the two on that condition. It
//! puts the subquery's columns under one new alias, without their table names. In
//!
//! ```sql
//! SELECT * FROM t
//! WHERE EXISTS (SELECT 1 FROM a JOIN b ON a.id = b.id WHERE a.x = t.x OR b.x = t.x)
//! ```
//!
//! the join reads `a.x` twice, and rows are missing. Marks, the columns that stand for subqueries
//! in the condition, all have the same name, too. If the value of IN or of a comparison with ALL
//! enters the condition, DataFusion confuses an outer column with the subquery's column of that
//! name:
//!
//! ```sql
//! SELECT * FROM c JOIN z ON c.k = z.k WHERE z.w NOT IN (SELECT z.id FROM z WHERE z.w = c.q)
//! ```
//!
//! This rule gives such columns unique names below the condition. It runs after DataFusion has
//! inserted marks and before it pulls the condition up.

use std::collections::{BTreeMap, HashMap, HashSet};

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Filter, LogicalPlan, LogicalPlanBuilder, Projection, lit};
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::prelude::Expr;

/// The prefix of a new name. A number follows.
const NAME: &str = "__both";

#[derive(Debug)]
pub(super) struct CorrelatedNames;

impl OptimizerRule for CorrelatedNames {
    fn name(&self) -> &str {
        "correlated_names"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // A LATERAL subquery is a plan node. All others are in expressions.
        if let LogicalPlan::Subquery(mut subquery) = plan {
            let inner = prepared(subquery.subquery.as_ref().clone(), config)?;
            subquery.subquery = inner.data.into();
            return Ok(Transformed::new(
                LogicalPlan::Subquery(subquery),
                inner.transformed,
                TreeNodeRecursion::Continue,
            ));
        }
        plan.map_subqueries(|subquery| match subquery {
            LogicalPlan::Subquery(_) => self.rewrite(subquery, config),
            other => Ok(Transformed::no(other)),
        })
    }
}

/// Returns a subquery's plan with marks for its nested subqueries and conditions that can be pulled
/// up.
fn prepared(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let is_correlated = !plan.all_out_ref_exprs().is_empty();
    let inner = plan.transform_down(|node| CorrelatedNames.rewrite(node, config))?;
    if !is_correlated {
        return Ok(inner);
    }
    let marks = DecorrelatePredicateSubquery::new();
    let marked = inner.transform_data(|plan| plan.transform_down(|node| marks.rewrite(node, config)))?;
    marked.transform_data(|plan| told_apart(plan, config))
}

/// Renames columns that a condition on both queries could confuse with each other or with the
/// subquery's result columns.
fn told_apart(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut columns_of: HashMap<String, HashSet<(usize, Column)>> = HashMap::new();
    let (mut inner, mut outer) = (HashSet::new(), HashSet::new());
    let mut filters = 0;
    plan.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            filters += 1;
            for conjunct in split_conjunction_owned(filter.predicate.clone()).into_iter().filter(Expr::contains_outer) {
                for column in conjunct.column_refs() {
                    columns_of.entry(column.name.clone()).or_default().insert((filters, column.clone()));
                    inner.insert(column.clone());
                }
                conjunct.apply(|expr| {
                    if let Expr::OuterReferenceColumn(_, column) = expr {
                        outer.insert(column.clone());
                    }
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
        }
        Ok(within(node))
    })?;
    for returned in plan.schema().columns() {
        if let Some(columns) = columns_of.get_mut(&returned.name)
            && columns.iter().all(|(_, column)| *column != returned)
        {
            columns.insert((0, returned));
        }
    }
    columns_of.retain(|_, columns| columns.len() > 1);
    inner.retain(|column| outer.contains(column));
    if columns_of.is_empty() && inner.is_empty() {
        return Ok(Transformed::no(plan));
    }
    let returned: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    let is_wanted = |column: &Column| columns_of.contains_key(&column.name) || inner.contains(column);
    let renamed = plan.transform_down_up(
        |node| {
            let recursion = within(&node);
            Ok(Transformed::new(node, false, recursion))
        },
        |node| match node {
            LogicalPlan::Filter(filter) => renamed(filter, is_wanted, config),
            LogicalPlan::Projection(projection) => with_new(projection),
            // These derive their schema from the changed inputs.
            LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_) => node.recompute_schema().map(Transformed::yes),
            other => Ok(Transformed::no(other)),
        },
    )?;
    renamed.map_data(|plan| LogicalPlanBuilder::new(plan).project(returned)?.build())
}

/// Skips nested subqueries, which have their own conditions.
fn within(node: &LogicalPlan) -> TreeNodeRecursion {
    if matches!(node, LogicalPlan::Subquery(_)) { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue }
}

/// Returns the filter with new names for the wanted columns in its correlated conditions. Its input
/// gets the columns under those names, too.
fn renamed(
    filter: Filter,
    is_wanted: impl Fn(&Column) -> bool,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let mut names: BTreeMap<Column, String> = BTreeMap::new();
    let rename = |conjunct: Expr| {
        if !conjunct.contains_outer() {
            return Ok(conjunct);
        }
        let renamed = conjunct.transform(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            if !is_wanted(column) {
                return Ok(Transformed::no(expr));
            }
            let name = names.entry(column.clone()).or_insert_with(|| config.alias_generator().next(NAME));
            Ok(Transformed::yes(Expr::Column(Column::from_name(name.as_str()))))
        });
        Ok(renamed?.data)
    };
    let conjuncts = split_conjunction_owned(filter.predicate).into_iter().map(rename);
    let predicate = conjunction(conjuncts.collect::<Result<Vec<_>>>()?).unwrap_or_else(|| lit(true));
    let mut input = filter.input;
    if !names.is_empty() {
        let columns = input.schema().columns().into_iter().map(Expr::Column);
        let columns: Vec<Expr> =
            columns.chain(names.into_iter().map(|(column, name)| Expr::Column(column).alias(name))).collect();
        input = LogicalPlanBuilder::new_from_arc(input).project(columns)?.build()?.into();
    }
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, input)?)))
}

/// Adds the renamed columns to a projection. DataFusion adds such columns, but not to the nodes
/// above it.
fn with_new(projection: Projection) -> Result<Transformed<LogicalPlan>> {
    let has_new_name = |column: &Column| column.name.starts_with(NAME);
    let mut exprs = projection.expr;
    for column in projection.input.schema().columns().into_iter().filter(has_new_name).map(Expr::Column) {
        if !exprs.contains(&column) {
            exprs.push(column);
        }
    }
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(exprs, projection.input)?)))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    const TABLES: &str = "WITH
        t(id, x, y) AS (VALUES (1, 1, 5), (2, 1, 6), (3, 4, 6), (4, 4, 5), (5, 3, NULL)),
        u(id, x, y) AS (VALUES (1, 5, 1), (2, 4, NULL), (3, NULL, NULL), (4, 1, 3)),
        v(id, x, y) AS (VALUES (1, 2, 4), (2, NULL, 4))";

    /// Expected values are from SQLite.
    #[tokio::test]
    async fn columns_of_one_name_stay_apart() {
        for (condition, expected) in [
            ("EXISTS (SELECT i.y FROM t AS i JOIN u AS j ON i.id = j.id WHERE i.x = a.id OR j.x = a.id)", "1 4 5"),
            ("a.y IN (SELECT i.y FROM t AS i JOIN u AS j ON i.id = j.id WHERE i.x + a.id > 5 AND j.x + a.id > 5)", ""),
            ("a.x IN (SELECT i.x FROM t AS i JOIN u AS j ON i.id = j.id WHERE j.x = a.id)", ""),
            ("a.x IN (SELECT i.x FROM t AS i JOIN u AS j ON i.id = j.id WHERE j.x >= a.id)", "1 2"),
            ("a.x IN (SELECT i.x + 0 AS x FROM t AS i WHERE i.x = a.id)", "1 4"),
            (
                "a.x > (SELECT count(*) FROM t AS i JOIN u AS j ON i.id = j.id WHERE i.x = a.id AND j.x = a.id)",
                "1 2 3 4 5",
            ),
            (
                "EXISTS (SELECT 1 FROM (SELECT x FROM t AS i WHERE i.x = a.id) AS d
                         JOIN (SELECT x FROM u AS i WHERE i.x + 1 > a.y) AS e ON d.x < e.x)",
                "1 4",
            ),
            (
                "(SELECT sum(i.x) FROM t AS i JOIN u AS j ON i.id = j.id WHERE j.x = a.x AND i.x = a.x) IS NULL",
                "1 2 3 4 5",
            ),
            // Marks.
            (
                "a.y IN (SELECT i.y FROM t AS i WHERE i.y = a.id OR i.id NOT IN (SELECT k.y FROM t AS k WHERE k.x > 2))",
                "",
            ),
            (
                "EXISTS (SELECT i.y FROM t AS i WHERE i.x = a.id OR EXISTS (SELECT 1 FROM v WHERE v.id = i.id)
                         AND NOT EXISTS (SELECT 1 FROM v WHERE v.x = i.id))",
                "1 2 3 4 5",
            ),
            // A subquery in an uncorrelated one in a correlated one.
            (
                "EXISTS (SELECT 1 FROM t AS i WHERE i.id = a.x AND i.y IN (SELECT j.y FROM t AS j
                         WHERE EXISTS (SELECT 1 FROM t AS k JOIN u AS l ON k.id = l.id WHERE k.x = j.id AND l.x = j.x)))",
                "",
            ),
        ] {
            let query = format!("{TABLES} SELECT a.id FROM t AS a WHERE {condition} ORDER BY a.id");
            assert_eq!(rows(&query).await.join(" "), expected, "{query}");
        }
    }
}
