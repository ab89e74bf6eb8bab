//! Dates, times and timestamps keep their values when they are cast to a common type.
//!
//! A common type is required for the branches of a CASE, the arguments of `coalesce` and the like,
//! the items of a list and the rows of a UNION:
//!
//! - A string literal beside a date or time has its type, as in PostgreSQL and DuckDB.
//! - A date beside a TIMESTAMP is a TIMESTAMP of microseconds, in the time zone of the other if it
//!   has one. DataFusion 55.2 makes both timestamps of nanoseconds, in which `9999-12-31` does not
//!   exist. Beside a TIMESTAMP(9) a date is a TIMESTAMP(9).
//!
//! [`exact_comparisons`](super::exact_comparisons) settles comparisons.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{LogicalPlan, Union, cast, when};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions::{self, type_of};

/// The functions whose arguments have one type, which is that of the result.
const OF_ONE_TYPE: [&str; 6] = ["coalesce", "greatest", "ifnull", "least", "make_array", "nvl"];

/// The functions of lists and of items of the same type. Their other arguments are numbers.
const OF_ITEMS: [&str; 17] = [
    "array_append",
    "array_concat",
    "array_except",
    "array_has",
    "array_has_all",
    "array_has_any",
    "array_intersect",
    "array_position",
    "array_positions",
    "array_prepend",
    "array_remove",
    "array_remove_all",
    "array_remove_n",
    "array_replace",
    "array_replace_all",
    "array_replace_n",
    "array_union",
];

/// Runs before DataFusion settles types.
#[derive(Debug)]
pub(super) struct MomentsOfOneType;

impl AnalyzerRule for MomentsOfOneType {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let unites = |node: &LogicalPlan| matches!(node, LogicalPlan::Union(_));
        if !expressions::has(&plan, is_one)? && !expressions::has_node(&plan, unites)? {
            return Ok(plan);
        }
        let rewritten = plan.transform_up_with_subqueries(|node| {
            let schema = expressions::readable(&node)?;
            let rewritten = expressions::rewritten(node, |expr| Ok(rewrite(expr, &schema)))?;
            // The schema is recomputed even if this node did not change: an input may have changed
            // its types.
            rewritten.map_data(LogicalPlan::recompute_schema)?.transform_data(|node| match node {
                LogicalPlan::Union(union) => united(union),
                other => Ok(Transformed::no(other)),
            })
        });
        Ok(rewritten?.data)
    }

    fn name(&self) -> &str {
        "moments_of_one_type"
    }
}

fn is_one(expr: &Expr) -> bool {
    match expr {
        Expr::Case(_) => true,
        Expr::ScalarFunction(call) => {
            let name = call.name();
            OF_ONE_TYPE.contains(&name) || OF_ITEMS.contains(&name) || ["nullif", "nvl2"].contains(&name)
        }
        _ => false,
    }
}

fn rewrite(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    if let Some(case) = nullif_of_both(&expr, schema) {
        return Transformed::yes(case);
    }
    let changed = match &mut expr {
        Expr::Case(case) => {
            let thens = case.when_then_expr.iter_mut().map(|(_, then)| then.as_mut());
            settle(thens.chain(case.else_expr.as_deref_mut()).collect(), schema, Beside::Both)
        }
        Expr::ScalarFunction(call) => {
            let name = call.func.name();
            let beside = if name == "nullif" { Beside::Literals } else { Beside::Both };
            let is_tested = usize::from(name == "nvl2");
            let is_one =
                beside == Beside::Literals || is_tested > 0 || OF_ONE_TYPE.contains(&name) || OF_ITEMS.contains(&name);
            is_one && settle(call.args.iter_mut().skip(is_tested).collect(), schema, beside)
        }
        _ => false,
    };
    if changed { Transformed::yes(expr) } else { Transformed::no(expr) }
}

/// Rewrites `nullif` of a date and a timestamp to a CASE, whose comparison is
/// [exact](super::exact_comparisons). DataFusion casts both to nanoseconds.
fn nullif_of_both(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    let Expr::ScalarFunction(call) = expr else { return None };
    let [value, other] = call.args.as_slice() else { return None };
    if call.name() != "nullif" || expr.is_volatile() {
        return None;
    }
    match (type_of(value, schema), type_of(other, schema)) {
        (DataType::Date32, DataType::Timestamp(..)) | (DataType::Timestamp(..), DataType::Date32) => {
            when(value.clone().eq(other.clone()), Expr::Literal(ScalarValue::Null, None)).otherwise(value.clone()).ok()
        }
        _ => None,
    }
}

/// The values that are cast beside dates and times.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// String literals alone. The other values keep their types.
    Literals,
    /// String literals, and dates beside timestamps.
    Both,
}

/// Casts expressions, or the items of lists, to their common type. Returns whether any had another
/// type.
fn settle(exprs: Vec<&mut Expr>, schema: &DFSchema, beside: Beside) -> bool {
    let types: Vec<DataType> = exprs.iter().map(|expr| type_of(expr, schema)).collect();
    let Some(wanted) = common(&types) else { return false };
    let mut changed = false;
    for (expr, data_type) in exprs.into_iter().zip(&types) {
        let is_literal = matches!(expr, Expr::Literal(..)) && data_type.is_string();
        let settled = match beside {
            _ if is_literal => Some(wanted.clone()),
            Beside::Literals => None,
            Beside::Both => with_dates_as(data_type, &wanted),
        };
        if let Some(settled) = settled {
            *expr = cast(std::mem::take(expr), settled);
            changed = true;
        }
    }
    changed
}

/// Returns the common type of dates and times, or of lists of them. Returns `None` if there are
/// none.
fn common(types: &[DataType]) -> Option<DataType> {
    let moments = || types.iter().map(item).filter(|data_type| data_type.is_temporal());
    let first = moments().next()?;
    let is_timestamp = |data_type: &&DataType| matches!(data_type, DataType::Timestamp(..));
    let is_nano = |data_type: &DataType| matches!(data_type, DataType::Timestamp(TimeUnit::Nanosecond, _));
    if !moments().any(|data_type| *data_type == DataType::Date32) || moments().any(is_nano) {
        return Some(first.clone());
    }
    let zone = moments().find_map(|data_type| match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    });
    Some(match moments().find(is_timestamp) {
        Some(_) => DataType::Timestamp(TimeUnit::Microsecond, zone),
        None => first.clone(),
    })
}

/// Returns the type of a list's innermost items. Returns any other type unchanged.
fn item(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            item(field.data_type())
        }
        other => other,
    }
}

/// Returns a type with timestamps in place of its dates. Returns `None` if it has no dates, or if
/// the wanted type is not a timestamp.
fn with_dates_as(data_type: &DataType, wanted: &DataType) -> Option<DataType> {
    let of = |field: &Field| Some(Arc::new(field.clone().with_data_type(with_dates_as(field.data_type(), wanted)?)));
    match (data_type, wanted) {
        (DataType::Date32, DataType::Timestamp(unit, _)) if *unit != TimeUnit::Nanosecond => Some(wanted.clone()),
        (DataType::List(field), _) => Some(DataType::List(of(field)?)),
        (DataType::LargeList(field), _) => Some(DataType::LargeList(of(field)?)),
        (DataType::FixedSizeList(field, size), _) => Some(DataType::FixedSizeList(of(field)?, *size)),
        _ => None,
    }
}

/// Casts dates in the parts of a union to timestamps if other parts have timestamps there.
fn united(mut union: Union) -> Result<Transformed<LogicalPlan>> {
    let type_in = |part: &Arc<LogicalPlan>, place: usize| {
        part.schema().fields().get(place).map(|field| field.data_type().clone())
    };
    let places = 0..union.schema.fields().len();
    let wanted: Vec<Option<DataType>> = places
        .map(|place| common(&union.inputs.iter().filter_map(|part| type_in(part, place)).collect::<Vec<_>>()))
        .collect();
    let mut changed = false;
    for part in &mut union.inputs {
        let timestamps =
            expressions::cast_columns(part, |place, data_type| with_dates_as(data_type, wanted.get(place)?.as_ref()?))?;
        if let Some(timestamps) = timestamps {
            *part = Arc::new(timestamps);
            changed = true;
        }
    }
    if !changed {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let fields = union.schema.iter().zip(&wanted).map(|((table, field), wanted)| {
        let settled = wanted.as_ref().and_then(|wanted| with_dates_as(field.data_type(), wanted));
        let data_type = settled.unwrap_or_else(|| field.data_type().clone());
        (table.cloned(), Arc::new(field.as_ref().clone().with_data_type(data_type)))
    });
    let schema = DFSchema::new_with_metadata(fields.collect(), union.schema.metadata().clone())?;
    union.schema = Arc::new(schema);
    Ok(Transformed::yes(LogicalPlan::Union(union)))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn dates_stay_what_they_are() {
        let table = "(VALUES (DATE '9999-12-31', TIMESTAMP '2024-01-02 12:00:00', TIMESTAMPTZ '2024-01-02 12:00:00+00')) AS v(d, t, z)";
        for (expr, expected) in [
            ("coalesce(t, '2030-01-01')", "2024-01-02T12:00:00"),
            ("coalesce(d, t)", "9999-12-31T00:00:00"),
            ("ifnull(nullif(d, d), t)", "2024-01-02T12:00:00"),
            ("arrow_typeof(nullif(d, t))", "Date32"),
            ("coalesce(nullif(d, t), t)", "9999-12-31T00:00:00"),
            ("arrow_typeof(nvl2(t, d, t))", "Timestamp(µs)"),
            ("CASE WHEN t IS NULL THEN t ELSE d END", "9999-12-31T00:00:00"),
            ("arrow_typeof(CASE WHEN t IS NULL THEN d WHEN d IS NULL THEN '2020-01-01' END)", "Date32"),
            ("greatest(t, d, NULL)", "9999-12-31T00:00:00"),
            ("greatest(z, d)", "9999-12-31T00:00:00Z"),
            ("[t, d][2]", "9999-12-31T00:00:00"),
            ("array_append([t], d)[2]", "9999-12-31T00:00:00"),
            ("array_has([d], t)", "false"),
            ("array_position([t, t], d)", "NULL"),
            ("array_concat([t], [d])[2]", "9999-12-31T00:00:00"),
            ("array_remove_n([d, d], d, 1)[1]", "9999-12-31"),
        ] {
            assert_eq!(rows(&format!("SELECT {expr} FROM {table}")).await, [expected], "{expr}");
        }
    }

    #[tokio::test]
    async fn unions_have_the_types_of_all_parts() {
        let table = "WITH v(d, t, i) AS (VALUES (DATE '9999-12-31', TIMESTAMP '2024-01-02 12:00:00', 1))";
        for (query, expected) in [
            (
                "SELECT a, arrow_typeof(a) FROM (SELECT d AS a FROM v UNION ALL SELECT t FROM v) ORDER BY a",
                vec!["2024-01-02T12:00:00 Timestamp(µs)", "9999-12-31T00:00:00 Timestamp(µs)"],
            ),
            (
                "SELECT t FROM v UNION SELECT d FROM v UNION SELECT d FROM v ORDER BY 1 LIMIT 1",
                vec!["2024-01-02T12:00:00"],
            ),
            ("SELECT i FROM v WHERE d IN (SELECT t FROM v UNION ALL SELECT d FROM v)", vec!["1"]),
            (
                "SELECT (SELECT max(a) FROM (SELECT t AS a FROM v UNION ALL SELECT d FROM v))",
                vec!["9999-12-31T00:00:00"],
            ),
            ("SELECT d, i FROM v UNION ALL SELECT d, i FROM v", vec!["9999-12-31 1", "9999-12-31 1"]),
        ] {
            assert_eq!(rows(&format!("{table} {query}")).await, expected, "{query}");
        }
    }
}
