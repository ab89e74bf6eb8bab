//! What a timestamp with a time zone is where a session is: `SET TIME ZONE 'Europe/Berlin'` makes `TIMESTAMPTZ '2026-03-30 12:00'` noon in
//! Berlin, and `CAST(t AS DATE)` the day that it is there.
//!
//! Such timestamps are moments in UTC ([`timestamps`](super::timestamps)), and Arrow takes what has no zone for UTC. In a session with
//! another zone, casts go through types of that zone, and so do functions that look at days and hours; what comes of it is in UTC
//! again, so that nothing else has to know. `now()` is a moment wherever one is.
//!
//! `t AT TIME ZONE z` is the function `timezone(z, t)`, as in PostgreSQL: of a moment the time that it is there, of a time without
//! a zone the moment at which it is that there.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::compute::kernels::cast_utils::string_to_datetime;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit, TimestampMicrosecondType};
use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::functions::datetime::now;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, cast as cast_to, try_cast,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::cast_texts::{moment as in_arrow, without_zone};
use super::expressions;
use crate::postgres::parameters;
use crate::{Error, ErrorKind, Rule};

/// PostgreSQL's name for AT TIME ZONE.
pub(super) const TIMEZONE: &str = "timezone";

/// Functions whose result depends on where one is.
const LOCAL: [&str; 4] = ["date_bin", "date_part", "date_trunc", "to_char"];

pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    vec![Arc::new(ScalarUDF::from(Timezone::new(false)))]
}

/// After DataFusion has settled types: what is compared is cast as well.
#[derive(Debug)]
pub(super) struct ZonedMoments;

impl AnalyzerRule for ZonedMoments {
    fn analyze(&self, plan: LogicalPlan, options: &ConfigOptions) -> Result<LogicalPlan> {
        let Some(zone) = &options.execution.time_zone else { return Ok(plan) };
        let now = now(options).call(Vec::new());
        expressions::rewritten_if_any(
            plan,
            |_| true,
            |expr, schema| match &expr {
                // The day that it is there.
                Expr::ScalarFunction(call) if call.name() == "current_date" => {
                    rewrite(cast_to(now.clone(), DataType::Date32), schema, zone)
                }
                Expr::ScalarFunction(call) if call.name() == "current_time" => {
                    rewrite(cast_to(now.clone(), DataType::Time64(TimeUnit::Nanosecond)), schema, zone)
                }
                _ => rewrite(expr, schema, zone),
            },
        )
    }

    fn name(&self) -> &str {
        "zoned_moments"
    }
}

fn rewrite(expr: Expr, schema: &DFSchema, zone: &str) -> Result<Transformed<Expr>> {
    if let Some((value, to, is_try)) = expressions::as_cast(&expr, schema) {
        return Ok(casted(value, &to, schema, zone, is_try).map_or(Transformed::no(expr), Transformed::yes));
    }
    let is_zoned = |expr: &Expr| unit_of_other_zone(expr, schema, zone).is_some();
    let moved = match &expr {
        Expr::ScalarFunction(call) if LOCAL.contains(&call.name()) && call.args.iter().any(is_zoned) => {
            let mut call = call.clone();
            call.args = call.args.into_iter().map(|arg| there(arg, schema, zone)).collect();
            Expr::ScalarFunction(call)
        }
        // A day later is not always 24 hours later.
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right })
            if (is_zoned(left) && is_interval(right, schema)) || (is_interval(left, schema) && is_zoned(right)) =>
        {
            let side = |side: &Expr| Box::new(there(side.clone(), schema, zone));
            Expr::BinaryExpr(BinaryExpr::new(side(left), *op, side(right)))
        }
        _ => return Ok(Transformed::no(expr)),
    };
    Ok(Transformed::yes(as_type(moved, &expr.get_type(schema)?, schema)?))
}

fn as_type(expr: Expr, back: &DataType, schema: &DFSchema) -> Result<Expr> {
    Ok(if expr.get_type(schema)? == *back { expr } else { cast_to(expr, back.clone()) })
}

fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Interval(_) | DataType::Duration(_)))
}

fn in_zone(unit: TimeUnit, zone: &str) -> DataType {
    DataType::Timestamp(unit, Some(zone.into()))
}

/// The unit of a moment that is of another zone than this.
fn unit_of_other_zone(expr: &Expr, schema: &DFSchema, zone: &str) -> Option<TimeUnit> {
    match expr.get_type(schema) {
        Ok(DataType::Timestamp(unit, Some(known))) if *known != *zone => Some(unit),
        _ => None,
    }
}

/// A moment in this zone; anything else as it is.
fn there(expr: Expr, schema: &DFSchema, zone: &str) -> Expr {
    match unit_of_other_zone(&expr, schema, zone) {
        Some(unit) => cast_to(expr, in_zone(unit, zone)),
        None => expr,
    }
}

/// A cast between what has a zone and what has none, by way of this zone.
fn casted(value: &Expr, to: &DataType, schema: &DFSchema, zone: &str, is_try: bool) -> Option<Expr> {
    let from = value.get_type(schema).ok()?;
    let by = if is_try { try_cast } else { cast_to };
    let timezone = |value: Expr| {
        let zone = Expr::Literal(ScalarValue::Utf8(Some(zone.into())), None);
        ScalarUDF::from(Timezone::new(true)).call(vec![zone, value])
    };
    match (&from, to) {
        (DataType::Timestamp(_, Some(known)), to) if **known != *zone => match to {
            DataType::Timestamp(_, None)
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_) => Some(by(timezone(value.clone()), to.clone())),
            to if to.is_string() => Some(by(there(value.clone(), schema, zone), to.clone())),
            _ => None,
        },
        (from, DataType::Timestamp(unit, Some(known))) if **known != *zone => match from {
            DataType::Timestamp(_, None) | DataType::Date32 | DataType::Date64 => {
                Some(by(timezone(value.clone()), to.clone()))
            }
            from if from.is_string() && is_try => Some(by(by(value.clone(), in_zone(*unit, zone)), to.clone())),
            from if from.is_string() => {
                Some(cast_to(ScalarUDF::from(MomentOfText::new(zone)).call(vec![value.clone()]), to.clone()))
            }
            _ => None,
        },
        _ => None,
    }
}

/// `timezone(zone, t)`
#[derive(Debug, PartialEq, Eq, Hash)]
struct Timezone {
    /// Whether zones are called as Arrow calls them, in which an offset's sign is not POSIX's.
    is_of_arrow: bool,
    signature: Signature,
}

impl Timezone {
    fn new(is_of_arrow: bool) -> Self {
        Self { is_of_arrow, signature: Signature::any(2, Volatility::Immutable) }
    }

    fn zone(&self, name: &str) -> Result<Tz> {
        if self.is_of_arrow {
            return zone(name);
        }
        match parameters::zone_in_arrow(name) {
            Some(None) => zone("+00:00"),
            Some(Some(name)) => zone(&name),
            None => Err(unknown(name).into()),
        }
    }
}

const MOMENT: TimeUnit = TimeUnit::Microsecond;

impl ScalarUDFImpl for Timezone {
    fn name(&self) -> &str {
        TIMEZONE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [_, DataType::Timestamp(_, Some(_))] => Ok(DataType::Timestamp(MOMENT, None)),
            [_, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 | DataType::Null] => {
                Ok(in_zone(MOMENT, "UTC"))
            }
            // A text is read as a moment.
            [_, text] if text.is_string() => Ok(DataType::Timestamp(MOMENT, None)),
            _ => {
                let error = Error::new(ErrorKind::Invalid, "AT TIME ZONE is about a timestamp, or a date");
                Err(error.with_hint("cast the value to TIMESTAMP or TIMESTAMPTZ").into())
            }
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [zones, values] = call.args.as_slice() else { return internal_err!("timezone takes two arguments") };
        let values = values.to_array(call.number_rows)?;
        let is_moment = values.data_type().is_string() || matches!(values.data_type(), DataType::Timestamp(_, Some(_)));
        let wanted = if is_moment { in_zone(MOMENT, "UTC") } else { DataType::Timestamp(MOMENT, None) };
        let micros = cast(&values, &wanted)?;
        let micros = micros.as_primitive::<TimestampMicrosecondType>();
        let moved: TimestampMicrosecondArray = match zones {
            ColumnarValue::Scalar(ScalarValue::Utf8(Some(name)) | ScalarValue::Utf8View(Some(name))) => {
                let zone = self.zone(name)?;
                micros
                    .iter()
                    .map(|micros| micros.map(|micros| moved(zone, micros, is_moment)).transpose())
                    .collect::<Result<_>>()?
            }
            zones => {
                let zones = cast(&zones.to_array(call.number_rows)?, &DataType::Utf8)?;
                let each = zones.as_string::<i32>().iter().zip(micros).map(|pair| match pair {
                    (Some(name), Some(micros)) => moved(self.zone(name)?, micros, is_moment).map(Some),
                    _ => Ok(None),
                });
                each.collect::<Result<_>>()?
            }
        };
        let moved = moved.with_timezone_opt((!is_moment).then_some("UTC"));
        Ok(ColumnarValue::Array(Arc::new(moved) as ArrayRef))
    }
}

/// The moment that a text is, which may say how far from UTC, and is a time in the zone if it does not.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MomentOfText {
    zone: String,
    signature: Signature,
}

impl MomentOfText {
    fn new(zone: &str) -> Self {
        Self { zone: zone.into(), signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for MomentOfText {
    fn name(&self) -> &str {
        "moment_of_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(in_zone(MOMENT, "UTC"))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let there = zone(&self.zone)?;
        expressions::map_only(self.name(), call, |texts| {
            let texts = cast(texts, &DataType::Utf8)?;
            let moment = |text: &str| -> Result<i64> {
                let text = in_arrow(text, true);
                let micros = string_to_datetime(&Utc, &text)?.timestamp_micros();
                if without_zone(&text).len() < text.len() { Ok(micros) } else { moved(there, micros, false) }
            };
            let moments = texts.as_string::<i32>().iter().map(|text| text.map(moment).transpose());
            let moments: TimestampMicrosecondArray = moments.collect::<Result<_>>()?;
            Ok(Arc::new(moments.with_timezone("UTC")) as ArrayRef)
        })
    }
}

/// By Arrow's name.
fn zone(name: &str) -> Result<Tz> {
    Tz::from_str(name).map_err(|_| unknown(name).into())
}

fn unknown(name: &str) -> Error {
    let error = Error::new(ErrorKind::Data, format!("there is no time zone {}", expressions::shown(name)));
    error.breaking(Rule::Setting).with_hint("Europe/Berlin is one, and UTC-02:00, two hours east of it")
}

/// Of a moment the time there, or of a time there the moment: both in microseconds.
fn moved(zone: Tz, micros: i64, is_moment: bool) -> Result<i64> {
    let offset = DateTime::from_timestamp_micros(micros).map(|at| match is_moment {
        true => zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc(),
        false => -offset_at(zone, &at.naive_utc()),
    });
    let moved = offset.and_then(|seconds| micros.checked_add(i64::from(seconds) * 1_000_000));
    moved.ok_or_else(|| Error::new(ErrorKind::Data, "a timestamp is out of range").breaking(Rule::Range).into())
}

/// How far to the east of UTC it is there at that time, as PostgreSQL has it: of two, when clocks are put back, the later; of none, when
/// they are put forward, what it was before.
fn offset_at(zone: Tz, local: &NaiveDateTime) -> i32 {
    match zone.offset_from_local_datetime(local) {
        LocalResult::Single(offset) | LocalResult::Ambiguous(_, offset) => offset.fix().local_minus_utc(),
        LocalResult::None => {
            let before = *local - TimeDelta::hours(3);
            zone.offset_from_utc_datetime(&before).fix().local_minus_utc()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use futures::StreamExt;

    use crate::{Database, DatabaseOptions, Output, Session};

    async fn texts(session: &Session, text: &str) -> String {
        let Output::Rows(mut rows) = session.sql(text).await.unwrap_or_else(|e| panic!("{text}: {e}")) else {
            return String::new();
        };
        let mut batches = Vec::new();
        while let Some(batch) = rows.next().await {
            batches.push(batch.unwrap_or_else(|e| panic!("{text}: {e}")));
        }
        let table = pretty_format_batches(&batches).unwrap().to_string();
        let lines = table.lines().skip(3).filter(|line| line.starts_with('|'));
        lines.map(|line| line.trim_matches(['|', ' ']).to_string()).collect::<Vec<_>>().join(";")
    }

    #[tokio::test]
    async fn moments_are_seen_from_where_a_session_is() {
        let session = Database::memory(&DatabaseOptions::default()).unwrap().session().unwrap();
        texts(&session, "CREATE TABLE t (m TIMESTAMPTZ, n TIMESTAMP)").await;
        texts(&session, "INSERT INTO t VALUES ('2026-03-29 23:30+00', '2026-03-30 12:00:00')").await;
        texts(&session, "SET TIME ZONE 'Europe/Berlin'").await;
        texts(&session, "INSERT INTO t VALUES ('2026-03-30 12:00', '2026-03-29 02:30:00')").await;
        // As PostgreSQL 15.18 answers.
        for (query, expected) in [
            ("SELECT CAST(TIMESTAMPTZ '2026-03-30 12:00' AS VARCHAR)", "2026-03-30 12:00:00+02"),
            ("SELECT CAST(TIMESTAMPTZ '2026-01-30 12:00' AS VARCHAR)", "2026-01-30 12:00:00+01"),
            ("SELECT CAST(TIMESTAMPTZ '2026-03-30 12:00+00' AS VARCHAR)", "2026-03-30 14:00:00+02"),
            ("SELECT CAST(m AS VARCHAR) FROM t ORDER BY m", "2026-03-30 01:30:00+02;2026-03-30 12:00:00+02"),
            ("SELECT count(*) FROM t WHERE m >= '2026-03-30'", "2"),
            ("SELECT count(*) FROM t WHERE m < TIMESTAMP '2026-03-30 01:31:00'", "1"),
            ("SELECT count(*) FROM t WHERE m > DATE '2026-03-30'", "2"),
            (
                "SELECT CAST(m AS DATE) FROM t WHERE CAST(m AS TIMESTAMP) = TIMESTAMP '2026-03-30 01:30:00'",
                "2026-03-30",
            ),
            (
                "SELECT CAST(CAST(n AS TIMESTAMPTZ) AS VARCHAR) FROM t ORDER BY n",
                "2026-03-29 03:30:00+02;2026-03-30 12:00:00+02",
            ),
            ("SELECT CAST(CAST(DATE '2026-03-30' AS TIMESTAMPTZ) AS VARCHAR)", "2026-03-30 00:00:00+02"),
            ("SELECT date_part('hour', m) FROM t ORDER BY m", "1;12"),
            ("SELECT extract(day FROM m) FROM t ORDER BY m", "30;30"),
            (
                "SELECT CAST(date_trunc('day', m) AS VARCHAR) FROM t WHERE m < '2026-03-30 12:00'",
                "2026-03-30 00:00:00+02",
            ),
            ("SELECT to_char(m, 'YYYY-MM-DD HH24') FROM t ORDER BY m", "2026-03-30 01;2026-03-30 12"),
            ("SELECT CAST(TIMESTAMPTZ '2026-03-28 12:00' + INTERVAL '1 day' AS VARCHAR)", "2026-03-29 12:00:00+02"),
            ("SELECT CAST(TIMESTAMPTZ '2026-03-28 12:00' + INTERVAL '24 hours' AS VARCHAR)", "2026-03-29 13:00:00+02"),
            (
                "SELECT CAST(m AT TIME ZONE 'UTC' AS VARCHAR) FROM t ORDER BY m",
                "2026-03-29 23:30:00;2026-03-30 10:00:00",
            ),
            (
                "SELECT CAST(TIMESTAMP '2026-03-30 12:00:00' AT TIME ZONE 'America/New_York' AS VARCHAR)",
                "2026-03-30 18:00:00+02",
            ),
            (
                "SELECT CAST(timezone('Asia/Tokyo', m) AS VARCHAR) FROM t ORDER BY m",
                "2026-03-30 08:30:00;2026-03-30 19:00:00",
            ),
            ("SELECT CAST(TIMESTAMP '2026-10-25 02:30:00' AS TIMESTAMPTZ) = TIMESTAMPTZ '2026-10-25 01:30+00'", "true"),
            ("SELECT CAST(TIMESTAMPTZ '2026-10-25 02:30' AS VARCHAR)", "2026-10-25 02:30:00+01"),
            ("SELECT CAST(TIMESTAMPTZ '2026-03-29 02:30' AS VARCHAR)", "2026-03-29 03:30:00+02"),
            ("SELECT CAST(now() AS DATE) = current_date", "true"),
        ] {
            assert_eq!(texts(&session, query).await, expected, "{query}");
        }
        texts(&session, "SET TIME ZONE 'UTC'").await;
        for (query, expected) in [
            ("SELECT count(*) FROM t WHERE m >= '2026-03-30'", "1"),
            ("SELECT CAST(m AS VARCHAR) FROM t ORDER BY m", "2026-03-29 23:30:00+00;2026-03-30 10:00:00+00"),
            (
                "SELECT CAST(TIMESTAMPTZ '2026-03-30 12:00' AT TIME ZONE 'Europe/Berlin' AS VARCHAR)",
                "2026-03-30 14:00:00",
            ),
        ] {
            assert_eq!(texts(&session, query).await, expected, "{query}");
        }
    }
}
