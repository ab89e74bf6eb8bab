//! Computes the expressions in ROLLUP, CUBE and GROUPING SETS keys in a projection below.
//!
//! An aggregation names its columns after its keys, and the nodes above refer to these names. A
//! rule that changes a key preserves its name with an alias. Grouping sets have no place for an
//! alias in DataFusion 55.2 (its own type coercion loses the name as well).
//! `GROUP BY ROLLUP (d + 3)` of a date fails with "there is no column t.d + Int64(3)". This rule
//! gives the keys new names, and a projection above restores the original ones.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::utils::grouping_set_to_exprlist;
use datafusion::logical_expr::{Aggregate, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::expressions;

/// The prefix of the new names.
const KEY: &str = "key of grouping sets";

/// Runs before all rules that change expressions.
#[derive(Debug)]
pub(super) struct GroupingSetKeys;

impl AnalyzerRule for GroupingSetKeys {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has(&plan, |expr| matches!(expr, Expr::GroupingSet(_)))? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Aggregate(aggregate) => computed_below(aggregate),
            other => Ok(Transformed::no(other)),
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "grouping_set_keys"
    }
}

fn computed_below(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    if !matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let keys = grouping_set_to_exprlist(&aggregate.group_expr)?;
    let computed: Vec<Expr> = keys.into_iter().filter(|key| !matches!(key, Expr::Column(_))).cloned().collect();
    // The rules that remove subqueries handle keys of an outer query.
    if computed.is_empty() || computed.iter().any(Expr::contains_outer) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let name = |place: usize| format!("{KEY} {place}");
    let in_its_place = |expr: Expr| match computed.iter().position(|key| *key == expr) {
        Some(place) => Transformed::yes(Expr::Column(Column::from_name(name(place)))),
        None => Transformed::no(expr),
    };
    let columns = aggregate.input.schema().columns().into_iter().map(Expr::Column);
    let keys = computed.iter().enumerate().map(|(place, key)| key.clone().alias(name(place)));
    let input = LogicalPlanBuilder::new_from_arc(Arc::clone(&aggregate.input))
        .project(columns.chain(keys).collect::<Vec<_>>())?
        .build()?;
    let group =
        aggregate.group_expr.iter().cloned().map(|sets| Ok(sets.transform_down(|expr| Ok(in_its_place(expr)))?.data));
    let group: Vec<Expr> = group.collect::<Result<_>>()?;
    // GROUPING refers to keys.
    let values = aggregate.aggr_expr.iter().cloned().map(|value| {
        let value = value.transform_down(|expr| match expr {
            Expr::AggregateFunction(mut call) if call.func.name() == "grouping" => {
                call.params.args = call.params.args.into_iter().map(|key| in_its_place(key).data).collect();
                Ok(Transformed::yes(Expr::AggregateFunction(call)))
            }
            other => Ok(Transformed::no(other)),
        });
        Ok(value?.data)
    });
    let values: Vec<Expr> = values.collect::<Result<_>>()?;
    let below = Aggregate::try_new(Arc::new(input), group, values)?;
    let columns = below.schema.columns().into_iter().zip(aggregate.schema.columns());
    let columns = columns.filter(|(_, own)| own.name != Aggregate::INTERNAL_GROUPING_ID);
    let columns = columns.map(|(column, own)| match column == own {
        true => Expr::Column(column),
        false => Expr::Column(column).alias_qualified(own.relation, own.name),
    });
    let columns: Vec<Expr> = columns.collect();
    Ok(Transformed::yes(LogicalPlanBuilder::new(LogicalPlan::Aggregate(below)).project(columns)?.build()?))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn keys_may_be_of_any_expression() {
        let table = "(VALUES (DATE '2024-01-01', 1, CAST(1.25 AS DECIMAL(5, 2)), 0.5), (DATE '2024-01-02', 2, 1.31, NULL)) AS t(d, a, n, x)";
        for (key, expected) in [
            ("d + 3", "2024-01-04 1,2024-01-05 1,NULL 2"),
            ("round(n, 1)", "1.3 2,NULL 2"),
            ("a / 2.0", "0.5 1,1.0 1,NULL 2"),
            ("CAST(n AS INT)", "1 2,NULL 2"),
            ("n IN (1, 1.31)", "false 1,true 1,NULL 2"),
            ("d >= '2024-01-02'", "false 1,true 1,NULL 2"),
            ("d BETWEEN DATE '2024-01-02' AND DATE '2024-01-03'", "false 1,true 1,NULL 2"),
            ("CASE WHEN d > DATE '2024-01-01' THEN 'late' ELSE 'early' END", "early 1,late 1,NULL 2"),
        ] {
            let query =
                format!("SELECT {key}, count(*) AS c FROM {table} GROUP BY ROLLUP ({key}) ORDER BY 1 NULLS LAST");
            assert_eq!(rows(&query).await.join(","), expected, "{key}");
        }
        let query = format!(
            "SELECT d, d + 1 AS e, grouping(d + 1) AS g, count(*) AS c FROM {table} GROUP BY CUBE (d, d + 1) \
             HAVING grouping(d) = 0 ORDER BY d, g"
        );
        let expected =
            ["2024-01-01 2024-01-02 0 1", "2024-01-01 NULL 1 1", "2024-01-02 2024-01-03 0 1", "2024-01-02 NULL 1 1"];
        assert_eq!(rows(&query).await, expected);
        let query = format!(
            "SELECT a % 2 AS m, round(n, 1) AS r, sum(a) FROM {table} GROUP BY a % 2, ROLLUP (round(n, 1)) ORDER BY 1, 2 NULLS LAST"
        );
        assert_eq!(rows(&query).await, ["0 1.3 2", "0 NULL 2", "1 1.3 1", "1 NULL 1"]);
    }
}
