//! Timestamps with a time zone in the session's zone. `SET TIME ZONE 'Europe/Berlin'` makes
//! `TIMESTAMPTZ '2026-03-30 12:00'` noon in Berlin, and `CAST(t AS DATE)` the day there.
//!
//! Such timestamps are moments in UTC ([`timestamps`](super::timestamps)). Arrow takes values
//! without a zone for UTC, and uses the zone of a column's type, which a file or a frame has set.
//! `CAST(t AS TIMESTAMP)` would return UTC's time, and `extract(hour FROM t)` that of the column.
//! Here only the session's zone counts, UTC by default. Casts between types with and without a zone
//! go through [functions of ours](super::temporal). So do functions of days and hours.
//!
//! `t AT TIME ZONE z` is the function `timezone(z, t)`, as in PostgreSQL. It returns the local time
//! of a moment in that zone, or the moment of a local time there.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{BinaryExpr, ExprSchemable, LogicalPlan, Operator, cast as cast_to, try_cast};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::expressions;
use super::temporal::{LocalTime, MomentOfLocal, Shift};
use crate::pg_types::zone::Zone;

/// PostgreSQL's name for AT TIME ZONE.
pub(super) const TIMEZONE: &str = "timezone";

/// Runs after DataFusion has settled types: compared values are cast as well.
#[derive(Debug)]
pub(super) struct ZonedMoments;

impl AnalyzerRule for ZonedMoments {
    fn analyze(&self, plan: LogicalPlan, options: &ConfigOptions) -> Result<LogicalPlan> {
        let here = Here { zone: Zone::of_session(options), name: options.execution.time_zone.clone() };
        if here.zone == Zone::Utc && !has_other_zones(&plan)? {
            return Ok(plan);
        }
        expressions::rewritten_if_any(plan, |_| true, |expr, schema| here.rewrite(expr, schema))
    }

    fn name(&self) -> &str {
        "zoned_moments"
    }
}

/// Returns whether a column of the plan has another zone than UTC.
fn has_other_zones(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = found || node.schema().fields().iter().any(|field| is_of_other_zone(field.data_type()));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

fn is_of_other_zone(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(_, Some(zone)) if Zone::of_arrow(zone) != Some(Zone::Utc))
}

/// The zone of the session.
struct Here {
    zone: Zone,
    /// Arrow's name for it, if it is not UTC.
    name: Option<String>,
}

impl Here {
    fn rewrite(&self, expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        if let Some((value, to, is_try)) = expressions::as_cast(&expr, schema) {
            return Ok(self.casted(value, &to, schema, is_try).map_or(Transformed::no(expr), Transformed::yes));
        }
        let is_elsewhere = |expr: &Expr| self.is_elsewhere(expr, schema);
        match &expr {
            Expr::ScalarFunction(call) if call.name() == "date_part" && call.args.iter().any(is_elsewhere) => {
                // Seconds since 1970 are the same in all zones.
                if matches!(call.args.first(), Some(Expr::Literal(part, _)) if is_epoch(part)) {
                    return Ok(Transformed::no(expr));
                }
                let mut call = call.clone();
                let local = |arg: Expr| if is_elsewhere(&arg) { LocalTime::function().call(vec![arg]) } else { arg };
                call.args = call.args.into_iter().map(local).collect();
                Ok(Transformed::yes(Expr::ScalarFunction(call)))
            }
            Expr::ScalarFunction(call) if call.name() == "to_char" && call.args.iter().any(is_elsewhere) => {
                let mut call = call.clone();
                call.args = call.args.into_iter().map(|arg| self.there(arg, schema)).collect();
                Ok(Transformed::yes(Expr::ScalarFunction(call)))
            }
            // A day later is not always 24 hours later.
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right }) => {
                let (moment, interval) = match () {
                    () if is_elsewhere(left) && is_interval(right, schema) => (left, right),
                    () if *op == Operator::Plus && is_interval(left, schema) && is_elsewhere(right) => (right, left),
                    () => return Ok(Transformed::no(expr)),
                };
                let args = vec![moment.as_ref().clone(), interval.as_ref().clone()];
                let shifted = Shift::function(*op == Operator::Minus).call(args);
                let back = expr.get_type(schema)?;
                Ok(Transformed::yes(if shifted.get_type(schema)? == back { shifted } else { cast_to(shifted, back) }))
            }
            _ => Ok(Transformed::no(expr)),
        }
    }

    /// Returns whether an expression is a moment that Arrow displays in another zone than the
    /// session's.
    fn is_elsewhere(&self, expr: &Expr, schema: &DFSchema) -> bool {
        expr.get_type(schema).is_ok_and(|data_type| self.is_of_elsewhere(&data_type))
    }

    fn is_of_elsewhere(&self, data_type: &DataType) -> bool {
        match data_type {
            DataType::Timestamp(_, Some(known)) => Zone::of_arrow(known) != Some(self.zone) || self.zone != Zone::Utc,
            _ => false,
        }
    }

    /// Casts a moment to the session's zone. Returns any other value unchanged.
    fn there(&self, expr: Expr, schema: &DFSchema) -> Expr {
        match expr.get_type(schema) {
            Ok(data_type @ DataType::Timestamp(unit, Some(_))) if self.is_of_elsewhere(&data_type) => {
                let name = self.name.as_deref().unwrap_or("UTC");
                cast_to(expr, DataType::Timestamp(unit, Some(name.into())))
            }
            _ => expr,
        }
    }

    /// Returns a cast between types with and without a zone, in the session's zone.
    fn casted(&self, value: &Expr, to: &DataType, schema: &DFSchema, is_try: bool) -> Option<Expr> {
        use DataType::{Date32, Date64, Time32, Time64, Timestamp};
        let from = value.get_type(schema).ok()?;
        let by = if is_try { try_cast } else { cast_to };
        match (&from, to) {
            (Timestamp(_, Some(_)), Timestamp(_, None) | Date32 | Date64 | Time32(_) | Time64(_))
                if self.is_of_elsewhere(&from) =>
            {
                Some(by(LocalTime::function().call(vec![value.clone()]), to.clone()))
            }
            (Timestamp(_, None) | Date32 | Date64, Timestamp(_, Some(_))) if self.is_of_elsewhere(to) => {
                Some(by(MomentOfLocal::function().call(vec![value.clone()]), to.clone()))
            }
            _ => None,
        }
    }
}

fn is_epoch(part: &ScalarValue) -> bool {
    part.try_as_str().flatten().is_some_and(|part| part.trim_matches('\'').eq_ignore_ascii_case("epoch"))
}

fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Interval(_) | DataType::Duration(_)))
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
        // Expected values are PostgreSQL 15.18's.
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
