//! TIMESTAMP counts microseconds, as in PostgreSQL and DuckDB.
//!
//! DataFusion's counts nanoseconds, in which the years before 1678 and after 2261 do not exist: `TIMESTAMP '0001-01-01
//! 00:00:00'` fails, and a file's timestamps, mostly of microseconds, are converted to be compared. TIMESTAMP(9) still
//! counts nanoseconds.

use datafusion::sql::sqlparser::ast::{DataType, Expr};

const MICROSECONDS: u64 = 6;

pub(super) fn rewrite(expr: &mut Expr) {
    let data_type = match expr {
        Expr::Cast { data_type, .. } => data_type,
        Expr::TypedString(typed) => &mut typed.data_type,
        _ => return,
    };
    if let DataType::Timestamp(precision @ None, _) = data_type {
        *precision = Some(MICROSECONDS);
    }
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
            ("SELECT now() > TIMESTAMP '2024-01-01 00:00:00'", "true"),
            (
                "SELECT count(*) FROM generate_series(TIMESTAMP '2024-01-01 00:00:00', TIMESTAMP '2024-01-02 00:00:00', INTERVAL '6 hours')",
                "5",
            ),
        ] {
            assert_eq!(rows(text).await, [expected], "{text}");
        }
    }
}
