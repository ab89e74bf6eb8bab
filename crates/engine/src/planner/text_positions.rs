//! `strpos(text, part)`, also called `instr` and `position`, in time linear in the text.
//!
//! DataFusion 55.2 compares a part that is not constant, and any part of a constant, at each
//! position of the text. The time is the product of the lengths, and continues for minutes after
//! the statement is cancelled. This function searches with memchr (two-way: Crochemore and Perrin,
//! 1991). A column and a constant stay DataFusion's, which searches in the same way.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err};
use datafusion::functions::unicode;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};
use memchr::memmem;

use super::declared_as::declared_as;
use super::temporal::texts;
use crate::limits::go_on;

/// The bytes of strings between two checks of cancellation.
const LOOK_BYTES: usize = 1 << 20;

pub(super) fn strpos() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Strpos { of: unicode::strpos() }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Strpos {
    of: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Strpos {
    declared_as!(of);

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let [ColumnarValue::Array(_), ColumnarValue::Scalar(_)] = call.args.as_slice() {
            return self.of.invoke_with_args(call);
        }
        let arrays = ColumnarValue::values_to_arrays(&call.args)?;
        let [texts_in, parts] = arrays.as_slice() else {
            return Err(exec_datafusion_err!("strpos() takes two texts"));
        };
        let (texts_in, parts) = (texts(texts_in)?, texts(parts)?);
        let (mut found, mut bytes) = (Vec::with_capacity(texts_in.len()), 0);
        for (text, part) in texts_in.as_string::<i32>().iter().zip(parts.as_string::<i32>()) {
            bytes += text.map_or(0, str::len);
            if bytes > LOOK_BYTES {
                bytes = 0;
                go_on()?;
            }
            found.push(text.zip(part).map(|(text, part)| position(text, part)));
        }
        let array: ArrayRef = match call.return_field.data_type() {
            DataType::Int64 => Arc::new(Int64Array::from_iter(found)),
            _ => Arc::new(Int32Array::from_iter(found.into_iter().map(|at| at.map(|at| at as i32)))),
        };
        let are_constants = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        match are_constants && array.len() == 1 {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            false => Ok(ColumnarValue::Array(array)),
        }
    }
}

/// Returns the 1-based character position of the first `part`, or 0 if there is none. A string has
/// at most 2 GiB.
fn position(text: &str, part: &str) -> i64 {
    let before = memmem::find(text.as_bytes(), part.as_bytes()).and_then(|at| text.get(..at));
    before.map_or(0, |before| before.chars().count() as i64 + 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn positions_are_those_of_letters() {
        let sql = "SELECT strpos('high', 'ig'), strpos('\u{e4}b\u{e4}', 'b'), strpos('abc', ''), strpos('', ''), \
                   position('c' IN 'abc'), instr(NULL, 'a'), strpos(x, y) \
                   FROM (VALUES ('one', 'ne'), ('one', 'x'), (NULL, 'x'), ('\u{e9}e', 'e')) AS t(x, y)";
        let expected = ["2 2 1 1 3 NULL 2", "2 2 1 1 3 NULL 0", "2 2 1 1 3 NULL NULL", "2 2 1 1 3 NULL 2"];
        assert_eq!(rows(sql).await, expected);
        let long = "SELECT strpos(repeat('a', 5000000), repeat('a', 1000000) || 'b')";
        assert_eq!(rows(long).await, ["0"]);
    }

    proptest! {
        #[test]
        fn positions_are_those_of_a_search_at_each_letter(text in "[ab\u{e4}]{0,12}", part in "[ab\u{e4}]{0,3}") {
            let letters: Vec<char> = text.chars().collect();
            let at = (0..=letters.len()).find(|at| letters[*at..].iter().collect::<String>().starts_with(&part));
            prop_assert_eq!(position(&text, &part), at.map_or(0, |at| at as i64 + 1));
        }
    }
}
