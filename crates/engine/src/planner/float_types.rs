//! `FLOAT` is DOUBLE, as in PostgreSQL and standard SQL, and so is `FLOAT(25)` to `FLOAT(53)`; `FLOAT(1)` to `FLOAT(24)` are REAL.
//!
//! DataFusion takes all of them for REAL: pandas and SQLAlchemy write FLOAT(53) and FLOAT for their doubles, which lose
//! digits. FLOAT4 and FLOAT8 are what they say.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{DataType as SqlType, ExactNumberInfo};

use crate::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct FloatTypes;

impl TypePlanner for FloatTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        let data_type = match sql_type {
            SqlType::Float(ExactNumberInfo::Precision(1..=24)) => DataType::Float32,
            SqlType::Float(ExactNumberInfo::None | ExactNumberInfo::Precision(25..=53)) => DataType::Float64,
            SqlType::Float(_) => {
                let error = Error::new(ErrorKind::Invalid, format!("{sql_type} is no type"));
                return Err(error
                    .with_hint("FLOAT(n) has 1 to 53 binary digits: REAL up to 24, DOUBLE from 25 on")
                    .into());
            }
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", data_type, true))))
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

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
        assert_eq!(fails("SELECT CAST(1 AS FLOAT(54))").await.kind(), ErrorKind::Invalid);
    }
}
