//! Rewrites correlated subqueries that DataFusion would join incorrectly.
//!
//! DataFusion pulls the conditions on both queries out of a subquery and joins on them. This
//! changes the result if an operator between the condition and the end of the subquery depends on
//! the set of rows:
//!
//! - An aggregate without groups returns a row for empty input: `EXISTS (SELECT max(y) ..)` is
//!   always true, and `0 IN (SELECT count(*) ..)` is true for rows without a match. Such a subquery
//!   is a value and becomes one.
//! - DataFusion miscounts the columns of a `UNION`. This rule splits it into its inputs.
//! - ROLLUP, CUBE and GROUPING SETS return a total for empty input, and rows in which the columns
//!   of the condition are NULL (apache/datafusion #25519).
//! - `LIMIT` and `OFFSET` count the rows of one outer row. A window function, or the null-supplying
//!   side of an outer join or EXCEPT, sees only those rows. If no equivalent form exists, the
//!   subquery is [unnested](unnesting).
//! - DataFusion does not know that a scalar subquery without an aggregate returns one row. It
//!   resolves columns of a query further out in the wrong query. These subqueries are unnested,
//!   too.
//!
//! The rule refuses subqueries that it cannot unnest. It rewrites LATERAL joins first, so that all
//! remaining subqueries are in expressions.
//!
//! The rule removes the alias (`__rows`) of subqueries that this crate generates. DataFusion adds
//! the columns of correlated conditions to a subquery's rows, but not to an alias.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::utils::{conjunction, disjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, FetchType, Filter, Join, JoinType, Limit, LogicalPlan, LogicalPlanBuilder,
    Operator, Projection, SkipType, Subquery, check_subquery_expr, lit, when,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::decorrelate::PullUpCorrelatedExpr;
use datafusion::prelude::Expr;

use super::unnesting::{self, Domain, Names, refused, subquery_of};
use super::{expressions, only_values};

/// The alias of generated subqueries.
pub(super) const ROWS: &str = "__rows";

#[derive(Debug)]
pub(super) struct CorrelatedSubqueries;

impl AnalyzerRule for CorrelatedSubqueries {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !unnesting::has_lateral(&plan)? && !expressions::has(&plan, is_subquery)? {
            return Ok(plan);
        }
        let names = Names::default();
        let plan = plan.transform_up_with_subqueries(without_alias)?.data;
        let plan = unnesting::without_laterals(plan, &names)?;
        let plan = plan.transform_up_with_subqueries(with_condition_outside)?.data;
        settled(plan, false, &names)
    }

    fn name(&self) -> &str {
        "correlated_subqueries"
    }
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::ScalarSubquery(_))
}

fn without_alias(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if let LogicalPlan::SubqueryAlias(alias) = &node
        && alias.alias.table() == ROWS
    {
        return Ok(Transformed::yes(alias.input.as_ref().clone()));
    }
    let bare = |expr: Expr| match expr {
        Expr::Column(Column { relation: Some(table), name, .. }) if table.table() == ROWS => {
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name))))
        }
        other => Ok(Transformed::no(other)),
    };
    let rewritten = expressions::rewritten(node, bare)?;
    if rewritten.transformed { rewritten.map_data(LogicalPlan::recompute_schema) } else { Ok(rewritten) }
}

/// Moves correlated conditions from ON to WHERE, where DataFusion expects them.
fn with_condition_outside(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut join = match node {
        LogicalPlan::Join(join) => join,
        LogicalPlan::Filter(filter) => return one_filter(filter),
        node => return Ok(Transformed::no(node)),
    };
    let is_about_outside = join.filter.as_ref().is_some_and(Expr::contains_outer);
    if join.join_type != JoinType::Inner || !is_about_outside {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let conditions = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
    let (outside, inside): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(Expr::contains_outer);
    join.filter = conjunction(inside);
    let join = LogicalPlan::Join(join);
    Ok(Transformed::yes(match conjunction(outside) {
        Some(outside) => LogicalPlan::Filter(Filter::try_new(outside, Arc::new(join))?),
        None => join,
    }))
}

/// Merges two filters if one of them is correlated.
fn one_filter(filter: Filter) -> Result<Transformed<LogicalPlan>> {
    match filter.input.as_ref() {
        LogicalPlan::Filter(inner) if filter.predicate.contains_outer() || inner.predicate.contains_outer() => {
            let both = inner.predicate.clone().and(filter.predicate);
            Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(both, Arc::clone(&inner.input))?)))
        }
        _ => Ok(Transformed::no(LogicalPlan::Filter(filter))),
    }
}

/// Rewrites all subqueries in a plan. `is_inner` is true if the plan itself is a subquery.
fn settled(plan: LogicalPlan, is_inner: bool, names: &Names) -> Result<LogicalPlan> {
    let settled = plan.transform_up(|node| {
        let around = around(&node)?;
        expressions::rewritten(node, |expr| answered(expr, around.as_ref(), is_inner, names))
    });
    Ok(settled?.data)
}

/// Returns the rows for which a node evaluates its subqueries, if these may be unnested.
fn around(node: &LogicalPlan) -> Result<Option<Arc<LogicalPlan>>> {
    Ok(match node {
        // The subquery's value matters only for rows that satisfy the rest of the condition.
        LogicalPlan::Filter(filter) if filter.predicate.exists(|expr| Ok(is_subquery(expr)))? => {
            let mut rest = split_conjunction_owned(filter.predicate.clone());
            rest.retain(unnesting::is_plain_condition);
            Some(match conjunction(rest) {
                Some(rest) => Arc::new(LogicalPlan::Filter(Filter::try_new(rest, Arc::clone(&filter.input))?)),
                None => Arc::clone(&filter.input),
            })
        }
        LogicalPlan::Projection(projection) => Some(Arc::clone(&projection.input)),
        // These subqueries are moved to WHERE.
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let is_asked = join.filter.as_ref().map_or(Ok(false), expressions::has_subquery)?;
            is_asked.then(|| Arc::new(LogicalPlan::Join(Join { filter: None, ..join.clone() })))
        }
        _ => None,
    })
}

/// Returns a subquery in a form that DataFusion joins correctly, or unnested.
fn answered(expr: Expr, around: Option<&Arc<LogicalPlan>>, is_inner: bool, names: &Names) -> Result<Transformed<Expr>> {
    let Some(subquery) = unnesting::subquery_in(&expr) else { return Ok(Transformed::no(expr)) };
    let as_is = || {
        let rewritten = rewrite(within(expr.clone(), names)?, is_inner)?;
        check_joined(&rewritten.data)?;
        Ok::<_, DataFusionError>(rewritten)
    };
    let Some(around) = around else { return as_is() };
    // DataFusion would resolve nested names in the wrong query.
    if unnesting::names_across(&subquery.subquery, around.schema())? {
        return unnested(expr.clone(), around, names).or_else(|_| as_is());
    }
    as_is()
        .or_else(|refusal| unnested(expr.clone(), around, names).map_err(|e| if is_refusal(&e) { e } else { refusal }))
}

fn is_refusal(error: &DataFusionError) -> bool {
    matches!(error, DataFusionError::External(_))
}

/// Unnests a subquery: computes its rows for all outer rows, and joins each outer row to its own.
fn unnested(expr: Expr, around: &Arc<LogicalPlan>, names: &Names) -> Result<Transformed<Expr>> {
    let Some(subquery) = unnesting::subquery_in(&expr) else { return Ok(Transformed::no(expr)) };
    let columns = unnesting::outer_columns_of(&subquery.subquery)?;
    let is_near = columns.iter().all(|column| unnesting::has(around.schema(), column));
    if columns.is_empty() || !is_near || !unnesting::outer_columns_of(around)?.is_empty() {
        return Err(unnesting::refused("columns of a query that is further out"));
    }
    let domain = Domain::new(around, columns, names)?;
    let mut answers = domain.answered(&subquery.subquery)?;
    let is_value = matches!(expr, Expr::ScalarSubquery(_));
    if is_value {
        let has_one = subquery.subquery.max_rows().is_some_and(|rows| rows <= 1);
        answers = only_values::listed(if has_one { answers } else { domain.first_two(answers)? })?;
    }
    let columns: Vec<Expr> = answers.columns().into_iter().map(Expr::Column).collect();
    let plan = domain.of_each(answers, around.schema())?;
    let plan = match expr {
        Expr::Exists(_) => plan,
        _ => LogicalPlanBuilder::from(plan).project(columns)?.build()?,
    };
    let plan = Arc::new(settled(plan, true, names)?);
    let expr = unnesting::with_subquery(expr, |_| Ok(unnesting::subquery_of(&plan)))?;
    Ok(Transformed::yes(if is_value { only_values::only(expr) } else { expr }))
}

/// Fails if DataFusion cannot decorrelate a subquery of the expression.
fn check_joined(expr: &Expr) -> Result<()> {
    let mut is_joined = true;
    expr.apply(|expr| {
        if let Some(subquery) = unnesting::subquery_in(expr)
            && is_correlated(subquery)
        {
            is_joined = is_joined && joins(expr, &subquery.subquery).unwrap_or_default();
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if is_joined { Ok(()) } else { Err(unnesting::refused("conditions on both that are no equalities")) }
}

/// Returns whether DataFusion can pull up the subquery's conditions and finds it valid.
fn joins(expr: &Expr, plan: &LogicalPlan) -> Result<bool> {
    let asks = LogicalPlanBuilder::empty(true).project([lit(true)])?.build()?;
    check_subquery_expr(&asks, plan, expr)?;
    let mut pull_up = match expr {
        // Without the value for an empty input: functions are not typed yet, and some panic.
        Expr::ScalarSubquery(_) => PullUpCorrelatedExpr::new(),
        Expr::InSubquery(is_in) => {
            let found = plan.head_output_expr()?.map(|found| is_in.expr.as_ref().clone().eq(found));
            PullUpCorrelatedExpr::new().with_in_predicate_opt(found)
        }
        _ => PullUpCorrelatedExpr::new().with_exists_sub_query(true),
    };
    plan.clone().rewrite(&mut pull_up)?;
    Ok(pull_up.can_pull_up)
}

/// Rewrites the subqueries nested in the expression's subquery.
fn within(expr: Expr, names: &Names) -> Result<Expr> {
    unnesting::with_subquery(expr, |subquery| {
        let plan = Arc::new(settled(subquery.subquery.as_ref().clone(), true, names)?);
        Ok(Subquery { subquery: plan, ..subquery })
    })
}

fn rewrite(expr: Expr, is_inner: bool) -> Result<Transformed<Expr>> {
    // A union in a subquery is always split, even if its conditions refer to a query further out.
    let is_asked = |subquery: &Subquery| is_correlated(subquery) || (is_inner && is_union(&subquery.subquery));
    Ok(match expr {
        // A single row has a single value, correlated or not.
        Expr::InSubquery(is_in) if matches!(one_row(&is_in.subquery.subquery), OneRow::Always) => {
            let InSubquery { expr, subquery, negated } = is_in;
            let op = if negated { Operator::NotEq } else { Operator::Eq };
            check(&subquery.subquery, false)?;
            Transformed::yes(binary(expr, op, value_of(&subquery.subquery)))
        }
        Expr::Exists(exists) if is_asked(&exists.subquery) => {
            let Exists { subquery, negated } = exists;
            let has_rows = has_rows(&subquery.subquery)?;
            Transformed::yes(if negated { not(has_rows) } else { has_rows })
        }
        Expr::InSubquery(is_in) if is_asked(&is_in.subquery) => {
            let InSubquery { expr, subquery, negated } = is_in;
            let found = compared(&expr, Operator::Eq, SetQuantifier::Any, &subquery.subquery, true)?;
            Transformed::yes(if negated { not(found) } else { found })
        }
        Expr::SetComparison(compares) if is_asked(&compares.subquery) => {
            let SetComparison { expr, subquery, op, quantifier } = compares;
            Transformed::yes(compared(&expr, op, quantifier, &subquery.subquery, false)?)
        }
        Expr::ScalarSubquery(subquery) if is_correlated(&subquery) && counts_one(&subquery.subquery) => {
            Transformed::yes(lit(1_i64))
        }
        Expr::ScalarSubquery(subquery)
            if is_correlated(&subquery) && matches!(one_row(&subquery.subquery), OneRow::If(..)) =>
        {
            let Some(value) = value_if(&subquery.subquery)? else { return Err(refused("HAVING without GROUP BY")) };
            check(&value, false)?;
            Transformed::yes(Expr::ScalarSubquery(subquery_of(&Arc::new(value))))
        }
        Expr::ScalarSubquery(subquery) if is_correlated(&subquery) => {
            check(&subquery.subquery, false)?;
            Transformed::no(Expr::ScalarSubquery(subquery))
        }
        other => Transformed::no(other),
    })
}

fn is_correlated(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
}

fn is_union(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => is_union(input),
        LogicalPlan::Sort(sort) => is_union(&sort.input),
        LogicalPlan::Union(_) => true,
        _ => false,
    }
}

fn not(expr: Expr) -> Expr {
    match expr {
        Expr::Exists(exists) => Expr::Exists(Exists { negated: !exists.negated, ..exists }),
        Expr::InSubquery(is_in) => Expr::InSubquery(InSubquery { negated: !is_in.negated, ..is_in }),
        other => Expr::Not(Box::new(other)),
    }
}

fn binary(left: Box<Expr>, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr { left, op, right: Box::new(right) })
}

/// Returns the value of a query's only row.
fn value_of(plan: &Arc<LogicalPlan>) -> Expr {
    match plan.as_ref() {
        // These preserve the value.
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => value_of(&sort.input),
        LogicalPlan::Distinct(Distinct::All(input)) => value_of(input),
        LogicalPlan::Limit(limit) => value_of(&limit.input),
        _ => Expr::ScalarSubquery(subquery_of(plan)),
    }
}

/// Turns a query that returns one row on a condition into one that always returns a row, with NULL
/// if the condition is not true. DataFusion loses the condition. Returns `None` if other operators
/// are between the condition and the value.
fn value_if(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let (value, below) = match plan {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => return value_if(&sort.input),
        LogicalPlan::Distinct(Distinct::All(input)) => return value_if(input),
        LogicalPlan::Limit(limit) => return value_if(&limit.input),
        LogicalPlan::Projection(projection) => match projection.expr.as_slice() {
            [value] => (value.clone().unalias_nested().data, projection.input.as_ref()),
            _ => return Ok(None),
        },
        LogicalPlan::Filter(filter) => match filter.input.schema().columns().as_slice() {
            [column] => (Expr::Column(column.clone()), plan),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let (LogicalPlan::Filter(_), OneRow::If(condition, input)) = (below, one_row(below)) else { return Ok(None) };
    let value = when(condition, value).end()?.alias(plan.schema().field(0).name());
    Ok(Some(LogicalPlanBuilder::new_from_arc(input).project([value])?.build()?))
}

/// Returns EXISTS of a correlated subquery.
fn has_rows(plan: &Arc<LogicalPlan>) -> Result<Expr> {
    match plan.as_ref() {
        // The order does not matter.
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => return has_rows(&sort.input),
        LogicalPlan::Projection(projection) => {
            if let Some(unordered) = unordered(projection)? {
                return has_rows(&unordered);
            }
        }
        LogicalPlan::Distinct(Distinct::All(input)) => return has_rows(input),
        LogicalPlan::Limit(limit) => match (limit.get_skip_type()?, limit.get_fetch_type()?) {
            (_, FetchType::Literal(Some(0))) => return Ok(lit(false)),
            (SkipType::Literal(0), FetchType::Literal(_)) => return has_rows(&limit.input),
            _ => return Err(refused("OFFSET")),
        },
        LogicalPlan::Union(union) => {
            let any = union.inputs.iter().map(has_rows).collect::<Result<Vec<_>>>()?;
            return Ok(disjunction(any).unwrap_or_else(|| lit(false)));
        }
        _ => {}
    }
    if plan.all_out_ref_exprs().is_empty() {
        return Ok(Expr::Exists(Exists { subquery: subquery_of(plan), negated: false }));
    }
    match one_row(plan) {
        OneRow::Always => Ok(lit(true)),
        OneRow::If(condition, input) => {
            let value = LogicalPlanBuilder::new_from_arc(input).project([condition])?.build()?;
            check(&value, false)?;
            Ok(Expr::IsTrue(Box::new(Expr::ScalarSubquery(subquery_of(&Arc::new(value))))))
        }
        OneRow::No => {
            check(plan, true)?;
            Ok(Expr::Exists(Exists { subquery: subquery_of(plan), negated: false }))
        }
    }
}

/// Returns `value op ANY (plan)`, or ALL, of a correlated subquery. Prefers IN if `is_in`.
fn compared(
    value: &Expr,
    op: Operator,
    quantifier: SetQuantifier,
    plan: &Arc<LogicalPlan>,
    is_in: bool,
) -> Result<Expr> {
    match plan.as_ref() {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => return compared(value, op, quantifier, &sort.input, is_in),
        LogicalPlan::Projection(projection) => {
            if let Some(unordered) = unordered(projection)? {
                return compared(value, op, quantifier, &unordered, is_in);
            }
        }
        LogicalPlan::Distinct(Distinct::All(input)) => return compared(value, op, quantifier, input, is_in),
        LogicalPlan::Limit(limit) if is_no_limit(limit)? || matches!(one_row(plan), OneRow::Always) => {
            return compared(value, op, quantifier, &limit.input, is_in);
        }
        LogicalPlan::Limit(_) => return Err(refused("LIMIT or OFFSET")),
        LogicalPlan::Union(union) => {
            let parts = union.inputs.iter().map(|part| compared(value, op, quantifier, part, is_in));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let all = match quantifier {
                SetQuantifier::Any => disjunction(parts),
                SetQuantifier::All => conjunction(parts),
            };
            return Ok(all.unwrap_or_else(|| lit(quantifier == SetQuantifier::All)));
        }
        _ => {}
    }
    let expr = Box::new(value.clone());
    let subquery = subquery_of(plan);
    if is_correlated(&subquery) {
        match one_row(plan) {
            OneRow::Always => {
                check(plan, false)?;
                return Ok(binary(expr, op, value_of(plan)));
            }
            OneRow::If(..) => return Err(refused("HAVING without GROUP BY")),
            OneRow::No => check(plan, true)?,
        }
    }
    Ok(match is_in {
        true => Expr::InSubquery(InSubquery { expr, subquery, negated: false }),
        false => Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }),
    })
}

/// Returns the projection without its sort.
fn unordered(projection: &Projection) -> Result<Option<Arc<LogicalPlan>>> {
    match projection.input.as_ref() {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
            let columns = Projection::try_new(projection.expr.clone(), Arc::clone(&sort.input))?;
            Ok(Some(Arc::new(LogicalPlan::Projection(columns))))
        }
        _ => Ok(None),
    }
}

fn is_no_limit(limit: &Limit) -> Result<bool> {
    Ok(matches!((limit.get_skip_type()?, limit.get_fetch_type()?), (SkipType::Literal(0), FetchType::Literal(None))))
}

/// The number of rows that a query's form guarantees.
enum OneRow {
    Always,
    /// One row if the expression is true for the plan's row.
    If(Expr, Arc<LogicalPlan>),
    No,
}

fn one_row(plan: &LogicalPlan) -> OneRow {
    match plan {
        LogicalPlan::Projection(projection) => one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => one_row(&alias.input),
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => one_row(&sort.input),
        LogicalPlan::Distinct(Distinct::All(input)) => one_row(input),
        LogicalPlan::Limit(limit) => match (limit.get_skip_type(), limit.get_fetch_type()) {
            (Ok(SkipType::Literal(0)), Ok(FetchType::Literal(fetch))) if fetch != Some(0) => one_row(&limit.input),
            _ => OneRow::No,
        },
        LogicalPlan::Filter(filter) => match one_row(&filter.input) {
            OneRow::Always => OneRow::If(filter.predicate.clone(), Arc::clone(&filter.input)),
            // Both conditions apply.
            OneRow::If(condition, input) if Arc::ptr_eq(&input, &filter.input) => {
                OneRow::If(condition.and(filter.predicate.clone()), input)
            }
            _ => OneRow::No,
        },
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => OneRow::Always,
        _ => OneRow::No,
    }
}

/// Returns whether the query counts the rows of a query that always returns one row.
fn counts_one(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => {
            let is_column = |expr: &Expr| matches!(expr.clone().unalias_nested().data, Expr::Column(_));
            projection.expr.iter().all(is_column) && counts_one(&projection.input)
        }
        LogicalPlan::Aggregate(aggregate) => {
            let counts_rows = |expr: &Expr| match expr.clone().unalias_nested().data {
                Expr::AggregateFunction(call) if call.func.name() == "count" && call.params.filter.is_none() => {
                    call.params.args.iter().all(is_no_value)
                }
                _ => false,
            };
            aggregate.group_expr.is_empty()
                && matches!(aggregate.aggr_expr.as_slice(), [only] if counts_rows(only))
                && matches!(one_row(&aggregate.input), OneRow::Always)
        }
        _ => false,
    }
}

/// Returns whether `count` of the argument counts every row: `*`, or a non-NULL literal.
fn is_no_value(argument: &Expr) -> bool {
    match argument {
        Expr::Literal(value, _) => !value.is_null(),
        #[expect(deprecated)]
        Expr::Wildcard { qualifier: None, .. } => true,
        _ => false,
    }
}

/// Fails if pulling up the correlated conditions would change the result. `is_about_rows` is true
/// if the outer query tests the existence of rows, so that an aggregate's row counts.
fn check(plan: &LogicalPlan, is_about_rows: bool) -> Result<()> {
    let mut found = None;
    // The aggregate that computes the value.
    let mut has_aggregate = is_about_rows;
    plan.apply(|node| {
        found = match node {
            LogicalPlan::Window(window) if is_about_outside(&window.input) => Some("a window function"),
            LogicalPlan::Join(join) => {
                let is_outer = join.join_type != JoinType::Inner;
                (is_outer && is_about_outside(node)).then_some("an outer join, INTERSECT or EXCEPT")
            }
            LogicalPlan::Aggregate(aggregate)
                if aggregate.group_expr.is_empty() && is_about_outside(&aggregate.input) =>
            {
                std::mem::replace(&mut has_aggregate, true).then_some("an aggregate without GROUP BY in FROM")
            }
            LogicalPlan::Aggregate(Aggregate { group_expr, input, .. })
                if matches!(group_expr.as_slice(), [Expr::GroupingSet(_)]) && is_about_outside(input) =>
            {
                Some("GROUPING SETS, ROLLUP or CUBE")
            }
            LogicalPlan::Limit(limit) if is_about_rows && is_about_outside(&limit.input) => Some("LIMIT or OFFSET"),
            _ => None,
        };
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    found.map_or(Ok(()), |what| Err(refused(what)))
}

/// Returns whether the plan contains a correlated condition.
fn is_about_outside(plan: &LogicalPlan) -> bool {
    plan.exists(|node| Ok(node.contains_outer_reference())).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    const TABLES: &str = "WITH t(id, a, b) AS (VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30)), \
                          u(id, a, b) AS (VALUES (1, 1, 1), (2, 1, 2))";

    #[tokio::test]
    async fn the_row_of_an_aggregate_is_there_for_nobody_as_well() {
        // Expected values are from PostgreSQL 15.18.
        for (condition, expected) in [
            ("EXISTS (SELECT max(b) FROM u WHERE u.a = t.a)", "1 2 3"),
            ("NOT EXISTS (SELECT count(*) FROM u WHERE u.a = t.a)", ""),
            ("0 IN (SELECT count(*) FROM u WHERE u.a = t.a)", "2 3"),
            ("0 NOT IN (SELECT count(*) FROM u WHERE u.a = t.a)", "1"),
            ("0 = ANY (SELECT count(*) FROM u WHERE u.a = t.a)", "2 3"),
            ("1 <= ALL (SELECT count(*) FROM u WHERE u.a = t.a)", "1"),
            ("EXISTS (SELECT 1 FROM u WHERE u.a = t.a HAVING count(*) = 0)", "2 3"),
            ("EXISTS (SELECT DISTINCT count(*) FROM u WHERE u.a = t.a LIMIT 1)", "1 2 3"),
            ("EXISTS (SELECT max(b) FROM u WHERE u.a = t.a UNION ALL SELECT 1 FROM u WHERE u.b = t.b)", "1 2 3"),
            ("-1 IN (SELECT coalesce(max(b), -1) FROM u WHERE u.a = t.a)", "2 3"),
            ("EXISTS (SELECT max(b) FROM u WHERE u.a = t.a GROUP BY u.id)", "1"),
        ] {
            let found = rows(&format!("{TABLES} SELECT id FROM t WHERE {condition} ORDER BY id")).await;
            assert_eq!(found.join(" "), expected, "{condition}");
        }
    }

    #[tokio::test]
    async fn unions_and_limits_are_asked_in_parts() {
        for (condition, expected) in [
            ("EXISTS (SELECT 1 FROM u WHERE u.a = t.a UNION SELECT 2 FROM u WHERE u.b = t.id)", "1 2"),
            ("t.id IN (SELECT u.b FROM u WHERE u.a = t.a UNION ALL SELECT u.id FROM u WHERE u.b = t.id)", "1 2"),
            ("EXISTS (SELECT 1 FROM u WHERE u.a = t.a ORDER BY u.b LIMIT 1)", "1"),
            ("EXISTS (SELECT 1 FROM u WHERE u.a = t.a LIMIT 0)", ""),
            ("(a, id) IN (SELECT u.a, u.id FROM u WHERE u.b = t.id)", "1"),
            ("EXISTS (SELECT 1 FROM u JOIN u AS k ON k.id = u.id AND k.b = t.id)", "1 2"),
            ("id NOT IN (SELECT k.id FROM u JOIN u AS k ON k.id > u.id AND k.b = t.id)", "1 3"),
            ("id IN (SELECT sum(u.a) FROM u) OR id = 1", "1 2"),
        ] {
            let found = rows(&format!("{TABLES} SELECT id FROM t WHERE {condition} ORDER BY id")).await;
            assert_eq!(found.join(" "), expected, "{condition}");
        }
    }
}
