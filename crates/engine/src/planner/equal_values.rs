//! Makes equal values of different representation compare equal: `-0.0` and `0.0`, as in IEEE 754,
//! PostgreSQL and DuckDB, and `1 day` and `24 hours`, as in the latter two.
//!
//! Arrow compares floats in their total order, in which -0.0 precedes 0.0. `x = 0.0` would not find
//! it, and GROUP BY would count it apart. Arrow compares intervals by months, then days, then the
//! rest: `48 hours` would be less than `1 day`, and so would `a - b` of two timestamps. This rule
//! wraps the operands of comparisons and the keys of joins, groups, orders and windows in a
//! function that normalizes equal values: -0.0 to 0.0, and an interval to [days](interval_days).
//! The function also normalizes such values in lists, structs and maps.
//!
//! The rule expresses a comparison with a literal zero in terms of both zeros. This costs nothing
//! and keeps zone maps effective: `x = 0.0` is `x BETWEEN -0.0 AND 0.0`, `x < 0.0` is `x < -0.0`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, make_array};
use arrow::datatypes::{DataType, Float32Type, Float64Type, IntervalUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::expr::Between;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Distinct, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, ScalarUDF, Subquery,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::floats_beside_decimals::COMPARISONS;
use super::mapped::Mapped;
use super::{expressions, interval_days};

#[derive(Debug)]
pub(super) struct EqualValues;

impl AnalyzerRule for EqualValues {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(rewrite_node)?.data)
    }

    fn name(&self) -> &str {
        "equal_values"
    }
}

fn rewrite_node(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = expressions::readable(&plan)?;
    let names = NamePreserver::new(&plan);
    let mut rewritten = expressions::rewritten(plan, |expr| rewrite(expr, &schema))?;
    rewritten.data = match rewritten.data {
        LogicalPlan::Join(mut join) => {
            for key in join.on.iter_mut().flat_map(|(left, right)| [left, right]) {
                rewritten.transformed |= make_one(key, &schema);
            }
            LogicalPlan::Join(join)
        }
        LogicalPlan::Aggregate(mut aggregate) => {
            for key in &mut aggregate.group_expr {
                let name = names.save(key);
                rewritten.transformed |= make_one(key, &schema);
                *key = name.restore(std::mem::take(key));
            }
            LogicalPlan::Aggregate(aggregate)
        }
        LogicalPlan::Sort(mut sort) => {
            for key in &mut sort.expr {
                rewritten.transformed |= make_one(&mut key.expr, &schema);
            }
            LogicalPlan::Sort(sort)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => LogicalPlan::Distinct(Distinct::All(columns_as_one(input)?)),
        other => other,
    };
    Ok(rewritten)
}

/// Returns the plan with all columns normalized.
fn columns_as_one(input: Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
    if !input.schema().fields().iter().any(|field| function_for(field.data_type()).is_some()) {
        return Ok(input);
    }
    let schema = Arc::clone(input.schema());
    let columns = schema.iter().map(|(table, field)| {
        let mut column = Expr::Column(Column::new(table.cloned(), field.name()));
        match make_one(&mut column, &schema) {
            true => column.alias_qualified(table.cloned(), field.name()),
            false => column,
        }
    });
    LogicalPlanBuilder::new_from_arc(input).project(columns.collect::<Vec<Expr>>())?.build().map(Arc::new)
}

fn rewrite(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right }) if COMPARISONS.contains(&op) => {
            let zeros = (zero(&left), zero(&right));
            match (zeros, op.swap()) {
                ((None, Some(zero)), _) if is_cheap(op, &left) => return Ok(compared(*left, op, &zero)),
                ((Some(zero), None), Some(swapped)) if is_cheap(op, &right) => {
                    return Ok(compared(*right, swapped, &zero));
                }
                _ => {}
            }
            // A nonzero literal differs from both zeros.
            let is_other =
                |expr: &Expr| literal(expr).is_some_and(|value| is_float(&value.data_type())) && zero(expr).is_none();
            let changed =
                !is_other(&left) && !is_other(&right) && make_one(&mut left, schema) | make_one(&mut right, schema);
            let expr = Expr::BinaryExpr(BinaryExpr { left, op, right });
            if changed { Transformed::yes(expr) } else { Transformed::no(expr) }
        }
        Expr::Between(Between { expr, negated, mut low, mut high })
            if zero(&low).is_some() || zero(&high).is_some() =>
        {
            if let Some(zero) = zero(&low) {
                *low = zero.negative;
            }
            if let Some(zero) = zero(&high) {
                *high = zero.positive;
            }
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::Between(mut between) if has_equal_looks(&between.expr, schema) => {
            let Between { expr, low, high, .. } = &mut between;
            make_all_one([expr, low, high].into_iter().map(Box::as_mut), schema);
            Transformed::yes(Expr::Between(between))
        }
        Expr::InList(mut list) if has_equal_looks(&list.expr, schema) => {
            make_all_one(list.list.iter_mut().chain([list.expr.as_mut()]), schema);
            Transformed::yes(Expr::InList(list))
        }
        Expr::InSubquery(mut is_in) => {
            let changed = make_rows_one(&mut is_in.expr, &mut is_in.subquery, schema)?;
            let is_in = Expr::InSubquery(is_in);
            if changed { Transformed::yes(is_in) } else { Transformed::no(is_in) }
        }
        Expr::SetComparison(mut compares) => {
            let changed = make_rows_one(&mut compares.expr, &mut compares.subquery, schema)?;
            let compares = Expr::SetComparison(compares);
            if changed { Transformed::yes(compares) } else { Transformed::no(compares) }
        }
        Expr::ScalarFunction(mut call) if COMPARING.contains(&call.name()) => {
            let are_compared = call.args.iter().any(|arg| has_equal_looks(arg, schema));
            let changed = are_compared && make_all_one(call.args.iter_mut(), schema);
            let call = Expr::ScalarFunction(call);
            if changed { Transformed::yes(call) } else { Transformed::no(call) }
        }
        Expr::InList(mut list) => match list.list.iter().find_map(zero) {
            Some(zero) => {
                list.list.retain(|value| self::zero(value).is_none());
                list.list.extend([zero.negative, zero.positive]);
                Transformed::yes(Expr::InList(list))
            }
            None => Transformed::no(Expr::InList(list)),
        },
        Expr::Case(mut case) => match case.expr.as_deref_mut() {
            Some(operand) => {
                let values = case.when_then_expr.iter_mut().map(|(value, _)| value.as_mut());
                let changed = make_all_one(values.chain([operand]), schema);
                if changed { Transformed::yes(Expr::Case(case)) } else { Transformed::no(Expr::Case(case)) }
            }
            None => Transformed::no(Expr::Case(case)),
        },
        Expr::WindowFunction(mut call) => {
            let params = &mut call.params;
            let order = params.order_by.iter_mut().map(|key| &mut key.expr);
            let changed = make_all_one(params.partition_by.iter_mut().chain(order), schema);
            let call = Expr::WindowFunction(call);
            if changed { Transformed::yes(call) } else { Transformed::no(call) }
        }
        Expr::AggregateFunction(mut call) => {
            let params = &mut call.params;
            let is_distinct = params.distinct;
            let arguments = params.args.iter_mut().filter(|_| is_distinct);
            // Beside DISTINCT, the keys are arguments as well and must be equal to them.
            let keys = params.order_by.iter_mut().map(|key| &mut key.expr);
            let keys = keys.filter(|key| is_distinct || is_interval(key, schema));
            let changed = make_all_one(arguments.chain(keys), schema);
            let call = Expr::AggregateFunction(call);
            if changed { Transformed::yes(call) } else { Transformed::no(call) }
        }
        other => Transformed::no(other),
    })
}

/// Functions that compare their arguments. The list functions compare items with a value and return
/// positions. [`nested_order`](super::nested_order) covers functions that return the least or
/// greatest value.
const COMPARING: [&str; 3] = ["array_position", "array_positions", "nullif"];

/// Returns whether the comparison with both zeros is one or two comparisons of the same value.
fn is_cheap(op: Operator, value: &Expr) -> bool {
    match op {
        Operator::Eq | Operator::NotEq => !value.is_volatile(),
        Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => false,
        _ => true,
    }
}

fn compared(value: Expr, op: Operator, zero: &Zero) -> Transformed<Expr> {
    let (negative, positive) = (zero.negative.clone(), zero.positive.clone());
    let both = |a: Expr, op, b: Expr| Expr::BinaryExpr(BinaryExpr::new(Box::new(a), op, Box::new(b)));
    Transformed::yes(match op {
        Operator::Eq => both(value.clone().gt_eq(negative), Operator::And, value.lt_eq(positive)),
        Operator::NotEq => both(value.clone().lt(negative), Operator::Or, value.gt(positive)),
        Operator::Lt | Operator::GtEq => both(value, op, negative),
        _ => both(value, op, positive),
    })
}

struct Zero {
    negative: Expr,
    positive: Expr,
}

fn zero(expr: &Expr) -> Option<Zero> {
    let (negative, positive) = match literal(expr)? {
        ScalarValue::Float64(Some(0.0)) => (ScalarValue::from(-0.0f64), ScalarValue::from(0.0f64)),
        ScalarValue::Float32(Some(0.0)) => (ScalarValue::from(-0.0f32), ScalarValue::from(0.0f32)),
        _ => return None,
    };
    Some(Zero { negative: Expr::Literal(negative, None), positive: Expr::Literal(positive, None) })
}

/// Returns the value of a literal, also if type coercion wrapped it in a cast.
fn literal(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value.clone()),
        Expr::Cast(Cast { expr, field }) => literal(expr)?.cast_to(field.data_type()).ok(),
        _ => None,
    }
}

pub(super) fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// Returns the normalizing function of a type.
fn function_for(data_type: &DataType) -> Option<ScalarUDF> {
    let name = match data_type {
        DataType::Float32 | DataType::Float64 => POSITIVE_ZERO,
        DataType::Interval(IntervalUnit::MonthDayNano) => INTERVAL_DAYS,
        nested if nested.is_nested() && holds_equal_looks(nested) => EQUAL_ITEMS,
        _ => return None,
    };
    Some(Mapped::function(name, as_one))
}

/// Returns whether the type has, or contains, equal values of different representation.
fn holds_equal_looks(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => holds_equal_looks(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| holds_equal_looks(field.data_type())),
        other => is_float(other) || matches!(other, DataType::Interval(IntervalUnit::MonthDayNano)),
    }
}

/// Normalizes an expression if its type requires it. Returns whether it did.
fn make_one(expr: &mut Expr, schema: &DFSchema) -> bool {
    let is_call = |expr: &Expr| {
        Mapped::name_of(expr).is_some_and(|name| [POSITIVE_ZERO, INTERVAL_DAYS, EQUAL_ITEMS].contains(&name))
    };
    let is_one = match &*expr {
        Expr::Alias(alias) => is_call(&alias.expr),
        // A set of keys is not a value.
        Expr::GroupingSet(_) => true,
        other => is_call(other),
    };
    if is_one {
        return false;
    }
    let Some(function) = expr.get_type(schema).ok().as_ref().and_then(function_for) else { return false };
    let inner = std::mem::take(expr);
    *expr = match zero(&inner) {
        Some(zero) => zero.positive,
        None => function.call(vec![inner]),
    };
    true
}

fn make_all_one<'e>(exprs: impl Iterator<Item = &'e mut Expr>, schema: &DFSchema) -> bool {
    exprs.map(|expr| make_one(expr, schema)).fold(false, |any, changed| any | changed)
}

/// Normalizes a value and the rows that it is compared with. Returns whether their type required
/// it.
fn make_rows_one(value: &mut Expr, rows: &mut Subquery, schema: &DFSchema) -> Result<bool> {
    let changed = make_one(value, schema);
    if changed {
        rows.subquery = columns_as_one(Arc::clone(&rows.subquery))?;
    }
    Ok(changed)
}

fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Interval(_)))
}

/// Returns whether the expression is an interval, or a nested value with such values.
fn has_equal_looks(expr: &Expr, schema: &DFSchema) -> bool {
    let is_nested = |data_type: DataType| data_type.is_nested() && holds_equal_looks(&data_type);
    is_interval(expr, schema) || expr.get_type(schema).is_ok_and(is_nested)
}

/// The name of the function that normalizes both zeros.
pub(crate) const POSITIVE_ZERO: &str = "positive_zero";
const INTERVAL_DAYS: &str = "interval_days";
const EQUAL_ITEMS: &str = "equal_items";

/// Returns the values, each normalized to the representative of its equal values.
pub(super) fn as_one(values: &ArrayRef) -> Result<ArrayRef> {
    match values.data_type() {
        nested if nested.is_nested() && holds_equal_looks(nested) => {
            let data = values.to_data();
            let items = data.child_data().iter().map(|items| Ok(as_one(&make_array(items.clone()))?.to_data()));
            let data = data.clone().into_builder().child_data(items.collect::<Result<Vec<_>>>()?).build()?;
            Ok(make_array(data))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => interval_days::in_days(values),
        data_type if is_float(data_type) => positive(values),
        _ => Ok(Arc::clone(values)),
    }
}

/// -0.0 + 0.0 is 0.0.
fn positive(values: &ArrayRef) -> Result<ArrayRef> {
    Ok(match values.data_type() {
        DataType::Float32 => Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(|x| x + 0.0)),
        DataType::Float64 => Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(|x| x + 0.0)),
        other => return internal_err!("positive_zero of {other}"),
    })
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn both_zeros_are_zero() {
        let table = "(VALUES (1, -0e0, 0e0), (2, 0e0, -0e0), (3, 1e0, -1e0), (4, NULL, 0e0)) AS t(i, x, y)";
        for (condition, expected) in [
            ("x = 0.0", "1 2"),
            ("x = -0e0", "1 2"),
            ("0 = x", "1 2"),
            ("x <> 0", "3"),
            ("x < 0.0", ""),
            ("x > -0e0", "3"),
            ("x <= 0", "1 2"),
            ("x >= 0.0", "1 2 3"),
            ("0.0 < x", "3"),
            ("x BETWEEN 0 AND 0", "1 2"),
            ("x NOT BETWEEN 0 AND 0", "3"),
            ("x IN (0, 5)", "1 2"),
            ("x IN (SELECT 0e0)", "1 2"),
            ("x IN (SELECT -0e0)", "1 2"),
            ("x NOT IN (SELECT -0e0)", "3"),
            ("x = ANY (SELECT -0e0)", "1 2"),
            ("x < ANY (SELECT 0e0)", ""),
            ("x >= ALL (SELECT 0e0)", "1 2 3"),
            ("x NOT IN (0, 5)", "3"),
            ("x = y", "1 2"),
            ("x < y OR y < x", "3"),
            ("x IS DISTINCT FROM 0.0", "3 4"),
            ("CASE x WHEN 0.0 THEN TRUE ELSE FALSE END", "1 2"),
            ("CAST(x AS REAL) = 0", "1 2"),
            ("x = 1", "3"),
        ] {
            let query = format!("SELECT i FROM {table} WHERE {condition} ORDER BY i");
            assert_eq!(rows(&query).await.join(" "), expected, "{condition}");
        }
        for (query, expected) in [
            ("SELECT x, count(*) FROM t GROUP BY x ORDER BY x", "0.0 2,1.0 1,NULL 1"),
            ("SELECT DISTINCT x FROM t ORDER BY x", "0.0,1.0,NULL"),
            ("SELECT count(DISTINCT x) FROM t", "2"),
            ("SELECT a.i, b.i FROM t AS a JOIN t AS b ON a.x = b.y ORDER BY 1, 2", "1 1,1 2,1 4,2 1,2 2,2 4"),
            ("SELECT a.i, b.i FROM t AS a JOIN t AS b USING (x) ORDER BY 1, 2", "1 1,1 2,2 1,2 2,3 3"),
            ("SELECT x FROM t WHERE x IS NOT NULL INTERSECT SELECT y FROM t", "0.0"),
            ("SELECT x + 1 AS x, count(*) FROM t GROUP BY x + 1 ORDER BY 1", "1.0 2,2.0 1,NULL 1"),
            ("SELECT i FROM t ORDER BY x, i DESC", "2,1,3,4"),
            ("SELECT i FROM t ORDER BY x, i DESC LIMIT 2", "2,1"),
            ("SELECT i, row_number() OVER (ORDER BY x, i DESC) FROM t ORDER BY i", "1 2,2 1,3 3,4 4"),
            ("SELECT i, count(*) OVER (PARTITION BY x) AS n FROM t ORDER BY i", "1 2,2 2,3 1,4 1"),
            ("SELECT i, rank() OVER (PARTITION BY i < 4 ORDER BY x) FROM t ORDER BY i", "1 1,2 1,3 3,4 1"),
        ] {
            let table = table.replace(" AS t(i, x, y)", "");
            let query = format!("WITH t(i, x, y) AS {table} {query}");
            assert_eq!(rows(&query).await.join(","), expected, "{query}");
        }
    }
}
