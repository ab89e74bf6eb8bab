//! Refuses `repeat('x', 2000000000)` before computing it if the memory does not suffice.
//!
//! DataFusion's memory pools do not track the results of functions, and these functions amplify
//! their arguments. A string has at most 1 GiB, as in PostgreSQL. The strings of one batch together
//! have at most `memory_limit`.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::functions::{string, unicode};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use datafusion::scalar::ScalarValue;

use super::call_sizes::{counts, lengths};
use super::declared_as::declared_as;
use crate::postgres::functions::memory_limit_bytes;
use crate::{Error, ErrorKind, Rule};

/// The maximum number of bytes of a string.
const MOST_BYTES: u64 = 1 << 30;

pub(super) fn functions() -> [Arc<ScalarUDF>; 3] {
    let bounded = |of: Arc<ScalarUDF>, makes| Arc::new(ScalarUDF::from(Bounded { of, makes }));
    [
        bounded(string::repeat(), Makes::Copies),
        bounded(unicode::lpad(), Makes::Letters),
        bounded(unicode::rpad(), Makes::Letters),
    ]
}

/// The meaning of the second argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Makes {
    /// The number of copies of the first argument.
    Copies,
    /// The number of letters of the result.
    Letters,
}

/// A function that checks the size of its result before computing it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    of: Arc<ScalarUDF>,
    makes: Makes,
}

impl ScalarUDFImpl for Bounded {
    declared_as!(of);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.of.coerce_types(types)
    }

    fn invoke_with_args(&self, mut call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // DataFusion 55.2 panics for a negative length in a column.
        if let Some(count) = call.args.get_mut(1) {
            *count = not_negative(count)?;
        }
        if let [text, count, ..] = call.args.as_slice() {
            let limit = memory_limit_bytes(&call.config_options).unwrap_or(MOST_BYTES);
            self.check(text, count, call.number_rows, limit)?;
        }
        self.of.invoke_with_args(call)
    }
}

/// Returns the numbers, with negative ones as zero.
fn not_negative(count: &ColumnarValue) -> Result<ColumnarValue> {
    let array = match count {
        ColumnarValue::Scalar(ScalarValue::Int64(Some(number))) if *number < 0 => {
            return Ok(ColumnarValue::Scalar(ScalarValue::Int64(Some(0))));
        }
        ColumnarValue::Scalar(_) => return Ok(count.clone()),
        ColumnarValue::Array(array) => array,
    };
    let Some(numbers) = array.as_primitive_opt::<Int64Type>() else { return Ok(count.clone()) };
    Ok(ColumnarValue::Array(Arc::new(numbers.unary::<_, Int64Type>(|number| number.max(0)))))
}

impl Bounded {
    fn check(&self, text: &ColumnarValue, count: &ColumnarValue, rows: usize, limit: u64) -> Result<()> {
        let (bytes, counts) = (lengths(text)?, counts(count)?);
        let rows = if bytes.is_one() && counts.is_one() { 1 } else { rows };
        let mut sum = 0_u64;
        for row in 0..rows {
            let count = counts.at(row);
            let made = match self.makes {
                Makes::Copies => bytes.at(row).saturating_mul(count),
                Makes::Letters => count,
            };
            if made > MOST_BYTES {
                let message = format!("{}() would make a text of {made} bytes", self.name());
                let error = Error::new(ErrorKind::Data, message).breaking(Rule::Length);
                return Err(error.with_hint("a text has a GiB at most").into());
            }
            sum = sum.saturating_add(made);
        }
        if sum > limit {
            let message = format!("{}() would make texts of {sum} bytes for {rows} rows", self.name());
            let error = Error::new(ErrorKind::Resources, message);
            return Err(error.with_hint("SET memory_limit to more, or make shorter ones").into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;
    use crate::planner::tests::{fails, rows};

    #[tokio::test]
    async fn texts_are_as_long_as_there_is_room() {
        assert_eq!(
            rows("SELECT repeat('ab', 3), lpad('7', 3, '0'), rpad(x, 3, '.') FROM (VALUES ('a')) AS t(x)").await,
            ["ababab 007 a.."]
        );
        assert_eq!(
            rows("SELECT length(repeat(x, n)) FROM (VALUES ('ab', 5), (NULL, 3), ('x', -1)) AS t(x, n)").await,
            ["10", "NULL", "0"]
        );
        for text in ["repeat('x', 2000000000)", "length(repeat(repeat('x', 10000000), 1000))", "lpad('x', 2000000000)"]
        {
            let error = fails(&format!("SELECT {text}")).await;
            assert_eq!(error.kind(), ErrorKind::Data, "{text}: {error}");
        }
        let many = fails("SELECT repeat('x', 500000000 + i) FROM (VALUES (1), (2), (3)) AS t(i)").await;
        assert_eq!(many.kind(), ErrorKind::Resources, "{many}");
    }
}
