//! `FLOAT` is DOUBLE, and so is `FLOAT(25)` to `FLOAT(53)`, as in PostgreSQL; `FLOAT(24)` and less
//! is REAL. `CHARACTER VARYING` and `CHARACTER` are VARCHAR. Timestamps: see [`timestamps`].
//!
//! DataFusion maps all of them to REAL. `CREATE TABLE t (a FLOAT(53))`, as pandas and SQLAlchemy
//! write it, then lost digits: `SELECT CAST(1.23456789012345 AS FLOAT)` was 1.2345679. Seen in
//! 55.2.0. DuckDB's FLOAT is REAL, too. The standard grants as many bits as requested, and leaves
//! their number open if none are.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{DataType as SqlType, ExactNumberInfo};

use super::timestamps;
use crate::{Error, ErrorKind};

/// The bits of precision of a REAL.
const REAL_BITS: u64 = 24;
/// The bits of precision of a DOUBLE.
const DOUBLE_BITS: u64 = 53;

#[derive(Debug)]
pub(super) struct SqlTypes;

impl TypePlanner for SqlTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        let data_type = match sql_type {
            SqlType::Float(ExactNumberInfo::None) => DataType::Float64,
            SqlType::Float(ExactNumberInfo::Precision(bits)) => float(*bits)?,
            SqlType::CharacterVarying(_) | SqlType::CharVarying(_) | SqlType::Character(_) => DataType::Utf8View,
            SqlType::Timestamp(precision, zone) => match timestamps::sql_type(*precision, *zone) {
                Some(data_type) => data_type,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", data_type, true))))
    }
}

fn float(bits: u64) -> Result<DataType> {
    match bits {
        bits if (1..=REAL_BITS).contains(&bits) => Ok(DataType::Float32),
        bits if (1..=DOUBLE_BITS).contains(&bits) => Ok(DataType::Float64),
        _ => {
            let message = format!("FLOAT has 1 to {DOUBLE_BITS} bits of precision, and not {bits}");
            Err(Error::new(ErrorKind::Invalid, message).with_hint("FLOAT alone is DOUBLE").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn floats_have_the_bits_that_are_asked_for() {
        // Expected values are PostgreSQL 15.18's.
        for (sql_type, expected) in [
            ("FLOAT", "1.23456789012345"),
            ("FLOAT(53)", "1.23456789012345"),
            ("FLOAT(25)", "1.23456789012345"),
            ("FLOAT(24)", "1.2345679"),
            ("FLOAT(1)", "1.2345679"),
            ("FLOAT4", "1.2345679"),
            ("FLOAT8", "1.23456789012345"),
            ("REAL", "1.2345679"),
        ] {
            let query = format!("SELECT CAST(CAST('1.23456789012345' AS {sql_type}) AS VARCHAR)");
            assert_eq!(rows(&query).await, [expected], "{sql_type}");
        }
        assert_eq!(rows("SELECT CAST('a' AS CHARACTER VARYING(5)), CAST([1.5] AS FLOAT[])").await, ["a [1.5]"]);
        for wrong in ["FLOAT(0)", "FLOAT(54)"] {
            let error = fails(&format!("SELECT CAST(1 AS {wrong})")).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}: {error}");
        }
    }

    #[tokio::test]
    async fn float_is_double() {
        for (sql_type, expected) in [
            ("FLOAT", "Float64"),
            ("FLOAT(53)", "Float64"),
            ("FLOAT(25)", "Float64"),
            ("FLOAT(24)", "Float32"),
            ("FLOAT4", "Float32"),
            ("FLOAT8", "Float64"),
            ("REAL", "Float32"),
        ] {
            assert_eq!(rows(&format!("SELECT arrow_typeof(CAST(1 AS {sql_type}))")).await, [expected], "{sql_type}");
        }
    }
}
