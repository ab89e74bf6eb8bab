//! Evaluates guards first, and fallible expressions only for the rows that pass.
//!
//! `CASE WHEN b = 0 THEN false ELSE a / b > 1 END` divides by zero in DataFusion.
//! `coalesce(v = 'x', v::INT = 3)` and `WHERE b <> 0 AND a / b > 1` fail in the same way.
//! DataFusion rewrites a Boolean CASE to ANDs and ORs and sorts conjuncts by cost. It evaluates
//! both sides of an AND for all rows, unless the left one leaves few ([#8927]). Seen in 55.2.0.
//!
//! Before the optimizer, this module rewrites a fallible Boolean CASE to `CASE TRUE WHEN ..`, which
//! the optimizer does not change, and `coalesce()` of Booleans to such a CASE. For DataFusion's
//! operators, an AND or OR with a fallible part finally becomes a CASE: first the infallible parts,
//! then the others as written. The arguments of an aggregate with FILTER do, too. Pipelines have
//! [that order](onehop_pipeline::Expr) by themselves.
//!
//! [#8927]: https://github.com/apache/datafusion/issues/8927

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{split_binary_owned, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, Filter, LogicalPlan, Operator, cast, lit};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::lossy_casts::{as_any_cast, is_exact};
use super::without::keeps;
use super::{ONE_NAN, POSITIVE_ZERO, expressions};

/// Runs after types are settled.
#[derive(Debug)]
pub(super) struct GuardedCases;

impl AnalyzerRule for GuardedCases {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        expressions::rewritten_if_any(plan, has_branches, guard_case)
    }

    fn name(&self) -> &str {
        "guarded_cases"
    }
}

/// Functions that return their first non-NULL argument and evaluate no argument after it.
const FIRST_OF: [&str; 3] = ["coalesce", "ifnull", "nvl"];

fn has_branches(expr: &Expr) -> bool {
    match expr {
        Expr::Case(case) => case.expr.is_none(),
        Expr::ScalarFunction(call) => FIRST_OF.contains(&call.name()) || call.name() == "nvl2",
        _ => false,
    }
}

fn guard_case(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_guard = has_branches(&expr) && matches!(expr.get_type(schema), Ok(DataType::Boolean));
    if !is_guard || !can_fail(&expr, schema)? {
        return Ok(Transformed::no(expr));
    }
    let case = match expr {
        Expr::Case(case) => case,
        Expr::ScalarFunction(mut call) if call.name() == "nvl2" && call.args.len() == 3 => {
            let (otherwise, value) = (call.args.pop(), call.args.pop());
            let tested = call.args.remove(0).is_not_null();
            let branches = value.into_iter().map(|value| (Box::new(tested.clone()), Box::new(value))).collect();
            Case::new(None, branches, otherwise.map(Box::new))
        }
        Expr::ScalarFunction(mut call) if FIRST_OF.contains(&call.name()) => {
            let last = call.args.pop().map(boolean);
            let first = call.args.into_iter().map(boolean);
            let branches = first.map(|arg| (Box::new(arg.clone().is_not_null()), Box::new(arg))).collect::<Vec<_>>();
            match (branches.is_empty(), last) {
                (true, Some(last)) => return Ok(Transformed::yes(last)),
                (_, last) => Case::new(None, branches, last.map(Box::new)),
            }
        }
        other => return Ok(Transformed::no(other)),
    };
    Ok(Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case })))
}

/// Casts an untyped NULL to Boolean.
fn boolean(expr: Expr) -> Expr {
    match &expr {
        Expr::Literal(value, _) if *value == ScalarValue::Null => cast(expr, DataType::Boolean),
        _ => expr,
    }
}

/// Returns the plan for DataFusion's operators, with guards evaluated before the expressions that
/// they guard.
pub(crate) fn guarded(plan: LogicalPlan) -> Result<LogicalPlan> {
    if !keeps("guarded_cases")
        || !expressions::has(&plan, |expr| logic_of(expr).is_some() || filter_of(expr).is_some())?
    {
        return Ok(plan);
    }
    let guarded = plan.transform_up_with_subqueries(|node| {
        let schema = expressions::readable(&node)?;
        match node {
            LogicalPlan::Filter(filter) if can_fail(&filter.predicate, &schema)? => {
                let predicate = condition(filter.predicate, &schema)?;
                Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input)?)))
            }
            LogicalPlan::Join(mut join) => match join.filter.take() {
                Some(filter) if can_fail(&filter, &schema)? => {
                    join.filter = Some(condition(filter, &schema)?);
                    Ok(Transformed::yes(LogicalPlan::Join(join)))
                }
                filter => {
                    join.filter = filter;
                    guarded_node(LogicalPlan::Join(join), &schema)
                }
            },
            // A scan applies its filters to zones and row groups only.
            LogicalPlan::Filter(_) | LogicalPlan::TableScan(_) => Ok(Transformed::no(node)),
            node => guarded_node(node, &schema),
        }
    });
    Ok(guarded?.data)
}

fn guarded_node(node: LogicalPlan, schema: &DFSchema) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(guard_within(expr, schema)?.update_data(|expr| name.restore(expr)))
    })
}

/// Returns the expression for DataFusion's evaluation, with guards evaluated before the expressions
/// that they guard.
pub(crate) fn guarded_expression(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    match expr.exists(|expr| Ok(logic_of(expr).is_some()))? {
        true => Ok(guard_within(expr, schema)?.data),
        false => Ok(expr),
    }
}

/// Returns the operator of an AND or OR.
fn logic_of(expr: &Expr) -> Option<Operator> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => Some(*op),
        _ => None,
    }
}

/// Guards a condition for which NULL is as good as false.
fn condition(condition: Expr, schema: &DFSchema) -> Result<Expr> {
    let (mut safe, mut fallible) = (Vec::new(), Vec::new());
    for conjunct in split_conjunction_owned(condition) {
        match can_fail(&conjunct, schema)? {
            true => fallible.push(guard_within(conjunct, schema)?.data),
            false => safe.push(conjunct),
        }
    }
    let mut guards = joined(safe, Operator::And).into_iter().chain(few(fallible, Operator::And)).rev();
    let Some(last) = guards.next() else { return Ok(lit(true)) };
    Ok(guards.fold(last, |guarded, guard| {
        Expr::Case(Case::new(None, vec![(Box::new(guard), Box::new(guarded))], Some(Box::new(lit(false)))))
    }))
}

/// Guards all ANDs and ORs in an expression.
fn guard_within(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_down(|expr| match filter_of(&expr).cloned() {
        Some(filter) => guard_arguments(expr, &filter, schema),
        None => guard_logic(expr, schema),
    })
}

/// Returns the FILTER of an aggregate or window function.
fn filter_of(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::AggregateFunction(call) => call.params.filter.as_deref(),
        Expr::WindowFunction(call) => call.params.filter.as_deref(),
        _ => None,
    }
}

/// Computes the fallible arguments of an aggregate only for the rows of its FILTER.
fn guard_arguments(mut expr: Expr, filter: &Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let arguments: Vec<&mut Expr> = match &mut expr {
        Expr::AggregateFunction(call) => {
            let order = call.params.order_by.iter_mut().map(|key| &mut key.expr);
            call.params.args.iter_mut().chain(order).collect()
        }
        Expr::WindowFunction(call) => call.params.args.iter_mut().collect(),
        _ => return Ok(Transformed::no(expr)),
    };
    let mut is_changed = false;
    for argument in arguments {
        if !filter.is_volatile() && !argument.is_volatile() && can_fail(argument, schema)? {
            let value = std::mem::take(argument);
            *argument = Expr::Case(Case::new(None, vec![(Box::new(filter.clone()), Box::new(value))], None));
            is_changed = true;
        }
    }
    Ok(Transformed::new_transformed(expr, is_changed))
}

/// Rewrites an AND or OR with a fallible part to a CASE. Handles all parts at once, since each but
/// the first appears twice.
fn guard_logic(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Some(op) = logic_of(&expr) else { return Ok(Transformed::no(expr)) };
    if expr.is_volatile() || !can_fail(&expr, schema)? {
        return Ok(Transformed::no(expr));
    }
    let (mut safe, mut fallible) = (Vec::new(), Vec::new());
    for part in split_binary_owned(expr, op) {
        match can_fail(&part, schema)? {
            true => fallible.push(guard_within(part, schema)?.data),
            false => safe.push(part),
        }
    }
    let guards = joined(safe, op).into_iter();
    let guarded = guards.chain(few(fallible, op)).reduce(|guard, part| {
        // The value of a part that decides the result.
        let decided = op == Operator::Or;
        let unknown = both(part.clone(), op, Expr::Literal(ScalarValue::Boolean(None), None));
        let branches =
            vec![(Box::new(lit(decided)), Box::new(lit(decided))), (Box::new(lit(!decided)), Box::new(part))];
        Expr::Case(Case::new(Some(Box::new(guard)), branches, Some(Box::new(unknown))))
    });
    Ok(Transformed::new(guarded.unwrap_or_else(|| lit(true)), true, TreeNodeRecursion::Jump))
}

/// The maximum number of parts that guard one another. An expression of more would be too deep to
/// evaluate.
const MOST_GUARDS: usize = 16;

/// Returns the parts, or all of them as one if there are too many.
fn few(parts: Vec<Expr>, op: Operator) -> Vec<Expr> {
    match parts.len() {
        0..=MOST_GUARDS => parts,
        _ => joined(parts, op).into_iter().collect(),
    }
}

/// Joins the parts of an AND or OR to a balanced tree.
fn joined(mut parts: Vec<Expr>, op: Operator) -> Option<Expr> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let right = parts.split_off(parts.len() / 2);
    Some(both(joined(parts, op)?, op, joined(right, op)?))
}

fn both(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}

/// Functions that return a result for all arguments.
const NEVER_FAIL: [&str; 47] = [
    "TRY_CAST",
    "array_has",
    "array_length",
    "ascii",
    "bit_length",
    "btrim",
    "cardinality",
    "ceil",
    "character_length",
    "coalesce",
    "concat",
    "concat_ws",
    "contains",
    "current_date",
    "date_part",
    "date_trunc",
    "ends_with",
    "floor",
    "get_field",
    "greatest",
    "ifnull",
    "initcap",
    "isnan",
    "iszero",
    "least",
    "left",
    "levenshtein",
    "lower",
    "ltrim",
    "make_array",
    "md5",
    "named_struct",
    "now",
    "nullif",
    "nvl",
    "nvl2",
    "octet_length",
    "replace",
    "reverse",
    "right",
    "rtrim",
    "signum",
    "starts_with",
    "strpos",
    "struct",
    "translate",
    "upper",
];

/// Returns whether evaluation of the expression can fail. Functions that are not known to be
/// infallible count as fallible.
pub(super) fn can_fail(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    expr.exists(|expr| {
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { op, left, right }) => match op {
                Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo => {
                    !matches!(left.get_type(schema), Ok(DataType::Float32 | DataType::Float64))
                }
                Operator::RegexMatch | Operator::RegexIMatch | Operator::RegexNotMatch | Operator::RegexNotIMatch => {
                    !matches!(right.as_ref(), Expr::Literal(..))
                }
                _ => false,
            },
            Expr::Cast(_) => cast_can_fail(expr, schema),
            Expr::ScalarFunction(call) => match as_any_cast(expr) {
                Some((_, to)) => !to.is_floating(),
                None => ![POSITIVE_ZERO, ONE_NAN].contains(&call.name()) && !NEVER_FAIL.contains(&call.name()),
            },
            Expr::HigherOrderFunction(_) => true,
            _ => false,
        })
    })
}

fn cast_can_fail(expr: &Expr, schema: &DFSchema) -> bool {
    let Some((value, to)) = as_any_cast(expr) else { return true };
    let Ok(from) = value.get_type(schema) else { return true };
    let is_total = from == *to
        || from.is_null()
        || to.is_string()
        || from.is_numeric() && to.is_floating()
        || from == DataType::Date32 && matches!(to, DataType::Int32 | DataType::Int64)
        || is_exact(&from, to);
    !is_total
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn guards_come_first() {
        let numbers = "(VALUES (1, 0), (4, 2), (NULL, 0), (3, NULL)) AS t(a, b)";
        let texts = "(VALUES (1, '1'), (2, 'x'), (3, NULL), (4, '3')) AS t(a, v)";
        for (table, expression, expected) in [
            (numbers, "CASE WHEN b = 0 THEN false ELSE a / b > 1 END", "false NULL true false"),
            (numbers, "CASE WHEN b <> 0 THEN a / b > 1 END", "NULL NULL true NULL"),
            (numbers, "b <> 0 AND a / b > 1", "false NULL true false"),
            (numbers, "a / b > 1 AND b <> 0", "false NULL true false"),
            (numbers, "b = 0 OR a / b > 1", "true NULL true true"),
            (numbers, "NOT (b = 0 OR a / b > 1)", "false NULL false false"),
            (texts, "CASE WHEN v = 'x' THEN false ELSE v::INT = 1 END", "true false NULL false"),
            (texts, "coalesce(v = 'x', v::INT = 3)", "false true NULL false"),
            (texts, "CASE WHEN v ~ '^[0-9]+$' THEN v::INT > 2 END", "false NULL NULL true"),
            (texts, "v ~ '^[0-9]+$' AND v::INT > 2", "false false NULL true"),
            (texts, "v <> 'x' AND v::INT IN (1, 2)", "true false NULL false"),
        ] {
            let query = format!("SELECT {expression} FROM {table} ORDER BY a");
            assert_eq!(rows(&query).await.join(" "), expected, "{expression}");
            rows(&format!("SELECT a FROM {table} WHERE {expression}")).await;
        }
        for query in [
            "SELECT a FROM (SELECT * FROM t WHERE v <> 'x') AS s WHERE v::INT > 2",
            "SELECT t.a FROM t JOIN (VALUES (1), (2)) AS o(k) ON v ~ '^[0-9]$' AND v::INT > 2 * k",
            "SELECT a FROM t WHERE v ~ '^[0-9]+$' AND v::INT > 2 AND a > 1",
        ] {
            assert_eq!(rows(&query.replace("FROM t", &format!("FROM {texts}"))).await, ["4"], "{query}");
        }
    }
}
