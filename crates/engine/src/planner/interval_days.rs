//! Normalizes an interval to days and a part of a day. A month has 30 days and a day 24 hours, as
//! in interval comparisons of PostgreSQL and DuckDB.
//!
//! Equal intervals have the same normal form. Arrow compares days before the rest, so it orders the
//! normal forms by length.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, IntervalMonthDayNanoArray};
use arrow::datatypes::{IntervalMonthDayNano, IntervalMonthDayNanoType};
use datafusion::common::Result;

use crate::{Error, ErrorKind, Rule};

pub(super) const DAY_NANOS: i64 = 86_400_000_000_000;
const MONTH_DAYS: i64 = 30;

/// Returns the normal form of each interval.
pub(super) fn in_days(values: &ArrayRef) -> Result<ArrayRef> {
    let values = values.as_primitive::<IntervalMonthDayNanoType>();
    let days: IntervalMonthDayNanoArray = values.try_unary(days_of)?;
    Ok(Arc::new(days))
}

fn days_of(interval: IntervalMonthDayNano) -> Result<IntervalMonthDayNano, Error> {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let whole_days = i128::from(i64::from(months) * MONTH_DAYS + i64::from(days));
    // Days and the rest have the same sign, as displays expect and Arrow's comparison requires.
    let length = whole_days * i128::from(DAY_NANOS) + i128::from(nanoseconds);
    let (whole, left) = (length / i128::from(DAY_NANOS), length % i128::from(DAY_NANOS));
    let days = i32::try_from(whole).map_err(|_| {
        let message = "an interval of more than two thousand million days cannot be compared";
        Error::new(ErrorKind::Data, message).breaking(Rule::Range)
    })?;
    Ok(IntervalMonthDayNano::new(0, days, left as i64))
}

#[cfg(test)]
mod tests {
    use crate::planner::tests::rows;

    const TABLE: &str = "WITH t(id, i) AS (VALUES (1, INTERVAL '1 day'), (2, INTERVAL '24 hours'), (3, INTERVAL '25 hours'), \
                         (4, INTERVAL '-1 month'), (5, INTERVAL '-30 days'), (6, NULL))";

    #[tokio::test]
    async fn intervals_are_as_long_as_they_are() {
        // Expected values are from PostgreSQL 15.18.
        for (condition, expected) in [
            ("i = INTERVAL '1 day'", "1 2"),
            ("i > INTERVAL '1 day'", "3"),
            ("i <> INTERVAL '24 hours'", "3 4 5"),
            ("i BETWEEN INTERVAL '-720 hours' AND INTERVAL '0'", "4 5"),
            ("i IN (INTERVAL '1 day', INTERVAL '-1 mons')", "1 2 4 5"),
            ("i IN (SELECT INTERVAL '1 day')", "1 2"),
            ("i NOT IN (SELECT INTERVAL '1 day')", "3 4 5"),
            ("i = ANY (SELECT INTERVAL '24 hours')", "1 2"),
            ("i IN (SELECT u.i FROM t AS u WHERE u.id < t.id)", "2 5"),
            ("(i IN (SELECT INTERVAL '1 day')) IS TRUE OR id = 3", "1 2 3"),
            ("i IS NOT DISTINCT FROM INTERVAL '24 hours'", "1 2"),
            ("CASE i WHEN INTERVAL '1 day' THEN TRUE ELSE FALSE END", "1 2"),
            ("TIMESTAMP '2020-01-03' - TIMESTAMP '2020-01-01' > i", "1 2 3 4 5"),
            ("TIMESTAMP '2020-01-03' - TIMESTAMP '2020-01-02' = i", "1 2"),
            ("i = ANY (ARRAY[INTERVAL '1 day'])", "1 2"),
            ("greatest(i, INTERVAL '25 hours') = i", "3"),
            ("nullif(i, INTERVAL '1 day') IS NULL", "1 2 6"),
        ] {
            let found = rows(&format!("{TABLE} SELECT id FROM t WHERE {condition} ORDER BY id")).await;
            assert_eq!(found.join(" "), expected, "{condition}");
        }
    }

    #[tokio::test]
    async fn they_are_grouped_ordered_and_joined_by_their_length() {
        for (query, expected) in [
            ("SELECT count(*) FROM t WHERE id < 6 GROUP BY i ORDER BY i", "2,2,1"),
            ("SELECT count(DISTINCT i) FROM t", "3"),
            ("SELECT count(*) FROM (SELECT DISTINCT i FROM t) AS u", "4"),
            ("SELECT id FROM t ORDER BY i, id", "4,5,1,2,3,6"),
            ("SELECT max(i) = INTERVAL '25 hours', min(i) = INTERVAL '-1 mons' FROM t", "true true"),
            ("SELECT a.id, b.id FROM t AS a JOIN t AS b ON a.i = b.i AND a.id < b.id ORDER BY 1", "1 2,4 5"),
            ("SELECT id, count(*) OVER (PARTITION BY i) AS n FROM t ORDER BY id", "1 2,2 2,3 1,4 2,5 2,6 1"),
        ] {
            assert_eq!(rows(&format!("{TABLE} {query}")).await.join(","), expected, "{query}");
        }
    }
}
