//! TIMESTAMP counts microseconds, as in PostgreSQL and DuckDB.
//!
//! DataFusion's counts nanoseconds, in which the years before 1678 and after 2261 do not exist.
//! `TIMESTAMP '0001-01-01 00:00:00'` fails, and a file's timestamps, mostly of microseconds, are
//! converted for a comparison. TIMESTAMP(9) still counts nanoseconds.
//!
//! TIMESTAMPTZ is a TIMESTAMP in UTC. A string's offset counts, and a string without one is in UTC,
//! or [in the session's zone](super::zoned_moments). DataFusion makes it a TIMESTAMP without a zone
//! unless the session has one, which would also be the zone of now() and all other functions.
//!
//! [`sql_type`] applies this to every type in a statement, also within lists and structs.

use arrow::datatypes::{DataType as ArrowType, TimeUnit};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, FunctionArg, FunctionArgExpr, Ident, ObjectNamePart, SelectItem, SetExpr,
    TableAlias, TableFactor, TableFunctionArgs, TimezoneInfo, Value,
};

use super::expressions::call;
use super::template;
use super::zoned_moments::TIMEZONE;
use crate::identifiers::normal;

/// Returns the Arrow type, or `None` for an unsupported precision.
pub(super) fn sql_type(precision: Option<u64>, zone: TimezoneInfo) -> Option<ArrowType> {
    let unit = match precision {
        None | Some(6) => TimeUnit::Microsecond,
        Some(0) => TimeUnit::Second,
        Some(3) => TimeUnit::Millisecond,
        Some(9) => TimeUnit::Nanosecond,
        _ => return None,
    };
    let is_zoned = matches!(zone, TimezoneInfo::Tz | TimezoneInfo::WithTimeZone);
    Some(ArrowType::Timestamp(unit, is_zoned.then(|| "UTC".into())))
}

/// Rewrites `t AT TIME ZONE z` to a call.
pub(super) fn rewrite(expr: &mut Expr) {
    if let Expr::AtTimeZone { timestamp, time_zone } = expr {
        *expr = call(TIMEZONE, vec![time_zone.as_ref().clone(), timestamp.as_ref().clone()]);
    }
}

/// Rewrites `FROM generate_series(t, u, i)` of timestamps to a query of the items of the function's
/// array. DataFusion's table function accepts only literals, and nanoseconds.
pub(super) fn rewrite_table(table: &mut TableFactor) {
    let TableFactor::Table { name, alias, args: Some(TableFunctionArgs { args, .. }), .. } = table else { return };
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return };
    let function = normal(ident);
    if !["generate_series", "range"].contains(&function.as_str()) || args.len() != 3 {
        return;
    }
    let mut exprs = Vec::with_capacity(args.len());
    for arg in args.iter() {
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = arg else { return };
        exprs.push(expr.clone());
    }
    let types: Vec<Option<DataType>> = exprs.iter().map(type_of).collect();
    let is_text =
        |expr: &Expr| matches!(expr, Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)));
    let is_about_timestamps = types[..2].iter().flatten().any(|data_type| matches!(data_type, DataType::Timestamp(..)));
    let is_by_intervals = is_text(&exprs[2]) || matches!(&exprs[2], Expr::Interval(_)) || types[2].is_some();
    let is_of_dates = types[..2].iter().all(|data_type| matches!(data_type, Some(DataType::Date)));
    if !is_about_timestamps && (!is_by_intervals || is_of_dates) {
        return;
    }
    // A string beside a timestamp is a timestamp, and a string as a step is an interval.
    let moment = types[..2].iter().flatten().next().cloned();
    let moment = moment.unwrap_or(DataType::Timestamp(None, TimezoneInfo::None));
    for (expr, data_type) in exprs.iter_mut().zip([moment.clone(), moment, interval_type()]) {
        if is_text(expr) {
            let value = Box::new(expr.clone());
            *expr = Expr::Cast { kind: CastKind::Cast, expr: value, data_type, array: false, format: None };
        }
    }
    let Ok(mut query) = template("SELECT unnest(x) AS value") else { return };
    if let SetExpr::Select(select) = query.body.as_mut()
        && let Some(SelectItem::ExprWithAlias { expr, .. }) = select.projection.first_mut()
    {
        *expr = call("unnest", vec![call(&function, exprs)]);
    }
    let own_name =
        || TableAlias { explicit: true, name: Ident::with_quote('"', &function), columns: Vec::new(), at: None };
    let alias = Some(alias.clone().unwrap_or_else(own_name));
    *table = TableFactor::Derived { lateral: false, subquery: query, alias, sample: None };
}

/// Returns the date, timestamp or interval type of an expression, as far as its syntax determines
/// it.
fn type_of(expr: &Expr) -> Option<DataType> {
    match expr {
        Expr::Nested(inner) => type_of(inner),
        Expr::Cast { data_type, .. } => Some(data_type.clone()),
        Expr::TypedString(typed) => Some(typed.data_type.clone()),
        Expr::Function(function) => {
            let is_clock = function.name.to_string().eq_ignore_ascii_case("now");
            is_clock.then_some(DataType::Timestamp(None, TimezoneInfo::Tz))
        }
        Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } => {
            type_of(left).or_else(|| type_of(right))
        }
        _ => None,
    }
    .filter(|data_type| matches!(data_type, DataType::Timestamp(..) | DataType::Date | DataType::Interval { .. }))
}

fn interval_type() -> DataType {
    DataType::Interval { fields: None, precision: None }
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn all_years_are_there() {
        for (text, expected) in [
            ("SELECT TIMESTAMP '0001-01-01 00:00:00' < CAST('9999-12-31' AS TIMESTAMP)", "true"),
            (
                "SELECT arrow_typeof('2024-01-01'::TIMESTAMP), arrow_typeof(CAST(NULL AS TIMESTAMP(9)))",
                "Timestamp(µs) Timestamp(ns)",
            ),
            ("SELECT TIMESTAMP '2024-01-01 00:00:00' + INTERVAL '90 minutes'", "2024-01-01T01:30:00"),
            ("SELECT date_trunc('hour', TIMESTAMP '2024-01-01 05:06:07')", "2024-01-01T05:00:00"),
            (
                "SELECT date_bin(INTERVAL '15 minutes', TIMESTAMP '2024-01-01 05:36:07', TIMESTAMP '2001-01-01 00:00:00')",
                "2024-01-01T05:30:00",
            ),
            (
                "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+02', '2024-01-01 00:00:00'::TIMESTAMP WITH TIME ZONE",
                "2023-12-31T22:00:00Z 2024-01-01T00:00:00Z",
            ),
            (
                "SELECT arrow_typeof(CAST(NULL AS TIMESTAMPTZ(0))), TRY_CAST('x' AS TIMESTAMPTZ)",
                "Timestamp(s, \"UTC\") NULL",
            ),
            ("SELECT TIMESTAMPTZ '2024-01-01 00:00:00+02' < TIMESTAMP '2024-01-01 00:00:00'", "true"),
            ("SELECT now() > TIMESTAMP '2024-01-01 00:00:00'", "true"),
            ("SELECT arrow_typeof(CAST(NULL AS TIMESTAMPTZ[]))", "List(Timestamp(µs, \"UTC\"))"),
            ("SELECT CAST(['1500-01-01'] AS TIMESTAMP[]) = [TIMESTAMP '1500-01-01 00:00:00']", "true"),
            (
                "SELECT TIMESTAMPTZ '2024-02-29 10:11:12+05:30' = ANY(CAST('{2024-02-29 10:11:12+05:30}' AS TIMESTAMPTZ[]))",
                "true",
            ),
            (
                "SELECT count(*) FROM generate_series(TIMESTAMP '2024-01-01 00:00:00', TIMESTAMP '2024-01-02 00:00:00', INTERVAL '6 hours')",
                "5",
            ),
        ] {
            assert_eq!(rows(text).await, [expected], "{text}");
        }
    }
}
