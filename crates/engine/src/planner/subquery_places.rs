//! Subqueries in places where DataFusion does not join them are computed below.
//!
//! DataFusion 55.2.0 makes joins of the subqueries of a filter and of a projection. Elsewhere it
//! fails, or answers wrong:
//!
//! - In the ON of a LEFT, RIGHT or FULL JOIN: "not supported". A subquery becomes a scalar, EXISTS
//!   a count, and IN a test of a [list](super::subquery_lists). If it depends on rows of one side,
//!   it becomes a column of that side.
//! - In arguments and keys of aggregates and windows: not joined, if it is correlated. It becomes a
//!   column below.
//! - In the value of `IN (SELECT ..)`: an unknown value is taken for false, as in `WHERE (x IN
//!   (SELECT ..)) IN (SELECT b FROM t) OR z` (apache/datafusion #25339). The value becomes a column
//!   below the filter. So does a random value, which would be evaluated more than once.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::config::ConfigOptions;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, Filter, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Subquery, lit, not,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;

use super::{expressions, quantified, subquery_lists, unnesting};

/// The prefix of the names of columns that are computed below; a number follows.
const NAME: &str = "__below";

#[derive(Debug)]
pub(super) struct SubqueryPlaces;

impl AnalyzerRule for SubqueryPlaces {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !expressions::has(&plan, |expr| unnesting::subquery_in(expr).is_some())? {
            return Ok(plan);
        }
        let names = Names::default();
        let placed = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Join(join) if join.join_type != JoinType::Inner => of_join(join, &names),
            LogicalPlan::Filter(filter) => of_filter(filter, &names),
            LogicalPlan::Aggregate(_) | LogicalPlan::Window(_) => of_values(node, &names),
            other => Ok(Transformed::no(other)),
        });
        Ok(placed?.data)
    }

    fn name(&self) -> &str {
        "subquery_places"
    }
}

#[derive(Default)]
struct Names {
    given: Cell<usize>,
}

impl Names {
    fn next(&self) -> String {
        self.given.set(self.given.get() + 1);
        format!("{NAME}{}", self.given.get())
    }
}

/// The values that are computed below a node.
#[derive(Default)]
pub(super) struct Below {
    exprs: Vec<Expr>,
}

impl Below {
    pub(super) fn len(&self) -> usize {
        self.exprs.len()
    }

    /// Adds a value, and returns its column.
    pub(super) fn column(&mut self, value: Expr, name: String) -> Expr {
        self.exprs.push(value.alias(&name));
        Expr::Column(Column::from_name(name))
    }

    /// Returns the input with these columns after its own.
    pub(super) fn of(self, input: Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
        if self.exprs.is_empty() {
            return Ok(input);
        }
        let columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).chain(self.exprs).collect();
        Ok(Arc::new(LogicalPlanBuilder::new_from_arc(input).project(columns)?.build()?))
    }
}

fn of_filter(filter: Filter, names: &Names) -> Result<Transformed<LogicalPlan>> {
    let mut below = Below::default();
    let predicate = filter.predicate.transform_up(|expr| {
        let Expr::InSubquery(InSubquery { expr: value, subquery, negated }) = expr else {
            return Ok(Transformed::no(expr));
        };
        let is_computed_below = value.is_volatile() || value.exists(|expr| Ok(is_of_several(expr)))?;
        let value = if is_computed_below { Box::new(below.column(*value, names.next())) } else { value };
        Ok(Transformed::new_transformed(
            Expr::InSubquery(InSubquery { expr: value, subquery, negated }),
            is_computed_below,
        ))
    })?;
    if !predicate.transformed {
        return Ok(Transformed::no(LogicalPlan::Filter(Filter::try_new(predicate.data, filter.input)?)));
    }
    let columns: Vec<Expr> = filter.input.schema().columns().into_iter().map(Expr::Column).collect();
    let filter = LogicalPlan::Filter(Filter::try_new(predicate.data, below.of(filter.input)?)?);
    Ok(Transformed::yes(LogicalPlanBuilder::from(filter).project(columns)?.build()?))
}

/// Returns whether a filter cannot combine the expression with another subquery.
fn is_of_several(expr: &Expr) -> bool {
    match expr {
        Expr::InSubquery(_) | Expr::Exists(_) => true,
        Expr::ScalarSubquery(subquery) => !subquery.outer_ref_columns.is_empty(),
        _ => false,
    }
}

/// Rewrites aggregates and windows.
fn of_values(node: LogicalPlan, names: &Names) -> Result<Transformed<LogicalPlan>> {
    let exprs = node.expressions();
    let has_one = |expr: &Expr| expr.exists(|expr| Ok(unnesting::subquery_in(expr).is_some()));
    if !exprs.iter().map(has_one).collect::<Result<Vec<_>>>()?.contains(&true) {
        return Ok(Transformed::no(node));
    }
    // A window's rows are sorted by its keys, and DataFusion does not recognize the value of a
    // subquery.
    let below_too = match &node {
        LogicalPlan::Window(_) => Uncorrelated::Below,
        _ => Uncorrelated::InPlace,
    };
    let mut below = Below::default();
    let mut is_changed = false;
    let preserver = NamePreserver::new(&node);
    let placed = exprs.into_iter().map(|expr| {
        if matches!(expr, Expr::GroupingSet(_)) {
            return Ok(expr);
        }
        let name = preserver.save(&expr);
        let placed = computed_below(expr, &mut below, below_too, names)?;
        is_changed = is_changed || placed.transformed;
        Ok(name.restore(placed.data))
    });
    let placed = placed.collect::<Result<Vec<_>>>()?;
    let Some(input) = node.inputs().first().map(|input| Arc::new((*input).clone())) else {
        return Ok(Transformed::no(node));
    };
    if !is_changed {
        return Ok(Transformed::no(node));
    }
    // GROUPING becomes a projection of the number of the set, directly above the aggregation.
    let columns = node.schema().columns().into_iter().filter(|column| column.name != Aggregate::INTERNAL_GROUPING_ID);
    let columns: Vec<Expr> = columns.map(Expr::Column).collect();
    let input = Arc::unwrap_or_clone(below.of(input)?);
    let node = node.with_new_exprs(placed, vec![input])?;
    Ok(Transformed::yes(LogicalPlanBuilder::from(node).project(columns)?.build()?))
}

/// The place where an uncorrelated subquery is computed.
#[derive(Clone, Copy, PartialEq)]
enum Uncorrelated {
    InPlace,
    Below,
}

/// Replaces the correlated subqueries of an expression by columns.
fn computed_below(
    expr: Expr,
    below: &mut Below,
    uncorrelated: Uncorrelated,
    names: &Names,
) -> Result<Transformed<Expr>> {
    expr.transform_down(|expr| {
        let Some(subquery) = unnesting::subquery_in(&expr) else { return Ok(Transformed::no(expr)) };
        let is_below = !subquery.outer_ref_columns.is_empty() || uncorrelated == Uncorrelated::Below;
        match expr {
            Expr::ScalarSubquery(_) if !is_below => Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump)),
            expr => {
                let column = |value| if is_below { below.column(value, names.next()) } else { value };
                Ok(Transformed::new(as_columns(expr, column)?, true, TreeNodeRecursion::Jump))
            }
        }
    })
}

fn of_join(join: Join, names: &Names) -> Result<Transformed<LogicalPlan>> {
    let Some(filter) = &join.filter else { return Ok(Transformed::no(LogicalPlan::Join(join))) };
    if !expressions::has_subquery(filter)? {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let (mut left, mut right) = (Below::default(), Below::default());
    let condition = filter.clone().transform_down(|expr| {
        let Some(subquery) = unnesting::subquery_in(&expr) else { return Ok(Transformed::no(expr)) };
        if subquery.outer_ref_columns.is_empty() {
            // An uncorrelated subquery has the same value for all rows.
            return Ok(Transformed::new(as_columns(expr, |value| value)?, true, TreeNodeRecursion::Jump));
        }
        let outer = unnesting::outer_columns_of(&subquery.subquery)?;
        let is_of = |side: &LogicalPlan| outer.iter().all(|column| !unnesting::has(side.schema(), column));
        let side = match (is_of(&join.left), is_of(&join.right)) {
            (_, true) => &mut left,
            (true, false) => &mut right,
            // It depends on both sides.
            (false, false) => return Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump)),
        };
        let placed = as_columns(expr, |value| side.column(value, names.next()))?;
        Ok(Transformed::new(placed, true, TreeNodeRecursion::Jump))
    })?;
    if !condition.transformed {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let columns: Vec<Expr> = join.schema.columns().into_iter().map(Expr::Column).collect();
    let placed = Join::try_new(
        left.of(join.left)?,
        right.of(join.right)?,
        join.on,
        Some(condition.data),
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    let placed = LogicalPlanBuilder::from(LogicalPlan::Join(placed)).project(columns)?.build()?;
    Ok(Transformed::yes(placed))
}

/// Replaces a subquery by an expression over columns with its values.
fn as_columns(expr: Expr, mut column: impl FnMut(Expr) -> Expr) -> Result<Expr> {
    Ok(match expr {
        Expr::Exists(Exists { subquery, negated }) => {
            let has_rows = column(counted(&subquery)?.gt(lit(0_i64)));
            if negated { not(has_rows) } else { has_rows }
        }
        Expr::InSubquery(InSubquery { expr: value, subquery, negated }) => {
            let is_there = quantified::equals_any(*value, column(subquery_lists::array(&subquery)?));
            if negated { not(is_there) } else { is_there }
        }
        scalar => column(scalar),
    })
}

/// Counts the rows of a subquery.
fn counted(subquery: &Subquery) -> Result<Expr> {
    let plan = LogicalPlanBuilder::new_from_arc(Arc::clone(&subquery.subquery));
    let rows = plan.aggregate(Vec::<Expr>::new(), [count(lit(1_i64))])?.build()?;
    Ok(Expr::ScalarSubquery(unnesting::subquery_of(&Arc::new(rows))))
}
