//! `now()`, `current_timestamp`, `transaction_timestamp()`: the start of the transaction.
//! `statement_timestamp()`: the start of the statement. `clock_timestamp()`: the time of the call.
//! All are TIMESTAMP WITH TIME ZONE, of microseconds.
//!
//! DataFusion's `now()` is a TIMESTAMP of nanoseconds without a zone in UTC: `now() > tz` compares
//! the session's clock with UTC's (datafusion 55.2).

use std::sync::Arc;

use arrow::array::{ArrayRef, TimestampMicrosecondArray};
use arrow::datatypes::DataType;
use chrono::{DateTime, Utc};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::prelude::Expr;
use datafusion::scalar::ScalarValue;

use super::timestamptz;
use crate::postgres::functions::transaction_since;

/// The time that a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Since {
    Transaction,
    Statement,
    Now,
}

/// A function that returns a time.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Now {
    name: &'static str,
    aliases: Vec<String>,
    since: Since,
    signature: Signature,
}

impl Now {
    fn function(name: &'static str, aliases: &[&str], since: Since) -> ScalarUDF {
        let volatility = if since == Since::Now { Volatility::Volatile } else { Volatility::Stable };
        let aliases = aliases.iter().map(ToString::to_string).collect();
        ScalarUDF::from(Self { name, aliases, since, signature: Signature::nullary(volatility) })
    }

    pub(in super::super) fn transaction(name: &'static str, aliases: &[&str]) -> ScalarUDF {
        Self::function(name, aliases, Since::Transaction)
    }

    pub(in super::super) fn statement() -> ScalarUDF {
        Self::function("statement_timestamp", &[], Since::Statement)
    }

    pub(in super::super) fn clock() -> ScalarUDF {
        Self::function("clock_timestamp", &[], Since::Now)
    }
}

fn literal(at: DateTime<Utc>) -> ScalarValue {
    ScalarValue::TimestampMicrosecond(Some(at.timestamp_micros()), Some("UTC".into()))
}

impl ScalarUDFImpl for Now {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(timestamptz())
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.since {
            Since::Now => {
                let micros = vec![Utc::now().timestamp_micros(); call.number_rows];
                let column = TimestampMicrosecondArray::from(micros).with_timezone("UTC");
                Ok(ColumnarValue::Array(Arc::new(column) as ArrayRef))
            }
            Since::Transaction | Since::Statement => internal_err!("{} has no time of its own", self.name),
        }
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let at = match self.since {
            Since::Transaction => {
                transaction_since(context.config_options()).or_else(|| context.query_execution_start_time())
            }
            Since::Statement => context.query_execution_start_time(),
            Since::Now => None,
        };
        Ok(match at {
            Some(at) => ExprSimplifyResult::Simplified(Expr::Literal(literal(at), None)),
            None => ExprSimplifyResult::Original(args),
        })
    }
}
