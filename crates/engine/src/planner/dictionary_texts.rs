//! Casts dictionary-encoded string columns to strings wherever an expression reads them.
//!
//! Arrow casts a dictionary to any type by its own rules. They accept other strings than this
//! crate's casts, and truncate where those round. DataFusion's string functions refuse
//! dictionaries. This rule casts the column to the type of its values first, so that no later rule
//! meets a dictionary.
//!
//! The column stays encoded where a query passes it through: `SELECT c`, `WHERE`, `ORDER BY`,
//! joins. Groups and DISTINCT use strings. All other encodings are decoded where rows enter: see
//! [`encoded`](crate::encoded).

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Cast, Distinct, ExprSchemable, JoinConstraint, LogicalPlan, LogicalPlanBuilder, Subquery, cast,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::{expressions, unnesting};

/// Runs before all rules that need types.
#[derive(Debug)]
pub(super) struct DictionaryTexts;

impl AnalyzerRule for DictionaryTexts {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has_node(&plan, |node| node.inputs().is_empty() && has_dictionary(node.schema()))? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let node = match node {
                LogicalPlan::Aggregate(mut aggregate) => {
                    aggregate.input = as_texts(&aggregate.input)?;
                    LogicalPlan::Aggregate(aggregate)
                }
                LogicalPlan::Distinct(Distinct::All(input)) => LogicalPlan::Distinct(Distinct::All(as_texts(&input)?)),
                other => other,
            };
            // Recomputed even if unchanged: the types of an input may have changed.
            Ok(Transformed::yes(of_node(node)?.recompute_schema()?))
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "dictionary_texts"
    }
}

fn has_dictionary(schema: &DFSchema) -> bool {
    schema.fields().iter().any(|field| value_type(field.data_type()).is_some())
}

/// Returns the type of a dictionary's values.
fn value_type(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::Dictionary(_, values) => Some(values),
        _ => None,
    }
}

/// Returns the plan with strings in place of dictionaries.
fn as_texts(input: &Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
    if !has_dictionary(input.schema()) {
        return Ok(Arc::clone(input));
    }
    let columns = input.schema().iter().map(|(table, field)| {
        let column = Expr::from((table, field));
        match value_type(field.data_type()) {
            Some(values) => cast(column, values.clone()).alias_qualified(table.cloned(), field.name()),
            None => column,
        }
    });
    let columns: Vec<Expr> = columns.collect();
    Ok(Arc::new(LogicalPlanBuilder::new_from_arc(Arc::clone(input)).project(columns)?.build()?))
}

fn of_node(node: LogicalPlan) -> Result<LogicalPlan> {
    let readable = expressions::readable(&node)?;
    let hands_on = matches!(node, LogicalPlan::Projection(_));
    let names = NamePreserver::new(&node);
    let rewritten = node.map_expressions(|expr| {
        if hands_on && matches!(expr.clone().unalias(), Expr::Column(_)) {
            return Ok(Transformed::no(expr));
        }
        let name = names.save(&expr);
        Ok(of_expression(expr, &readable)?.update_data(|expr| name.restore(expr)))
    })?;
    Ok(match rewritten.data {
        // A computed key has no column that both sides share.
        LogicalPlan::Join(mut join) if rewritten.transformed => {
            join.join_constraint = JoinConstraint::On;
            LogicalPlan::Join(join)
        }
        other => other,
    })
}

fn of_expression(expr: Expr, readable: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_down(|expr| {
        let is_settled = |column: &Expr, to: &DataType| {
            is_column(column) && column.get_type(readable).is_ok_and(|from| value_type(&from) == Some(to))
        };
        match expr {
            Expr::Cast(Cast { expr: column, field }) if is_settled(&column, field.data_type()) => {
                Ok(Transformed::new(Expr::Cast(Cast { expr: column, field }), false, TreeNodeRecursion::Jump))
            }
            column if is_column(&column) => match column.get_type(readable) {
                Ok(DataType::Dictionary(_, values)) => {
                    Ok(Transformed::new(cast(column, *values), true, TreeNodeRecursion::Jump))
                }
                _ => Ok(Transformed::no(column)),
            },
            other => match unnesting::subquery_in(&other) {
                Some(subquery) if has_dictionary(subquery.subquery.schema()) => {
                    let settled = unnesting::with_subquery(other, |subquery| {
                        Ok(Subquery { subquery: as_texts(&subquery.subquery)?, ..subquery })
                    });
                    settled.map(Transformed::yes)
                }
                _ => Ok(Transformed::no(other)),
            },
        }
    })
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Column(_) | Expr::OuterReferenceColumn(..))
}
