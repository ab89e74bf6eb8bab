//! `levenshtein(a, b)` that stops when its statement is cancelled.
//!
//! The distance of two strings takes as many steps as the product of their lengths. DataFusion 55.2
//! computes on for minutes after a statement was cancelled. This version computes the same table of
//! Wagner and Fischer (1974), a row at a time, and checks for cancellation every [`STEPS`] steps.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::functions::string;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::declared_as::declared_as;
use super::temporal::texts;
use crate::limits::go_on;

/// The number of steps between two cancellation checks.
const STEPS: usize = 100_000;

pub(super) fn levenshtein() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Levenshtein { of: string::levenshtein() }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Levenshtein {
    of: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Levenshtein {
    declared_as!(of);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.of.coerce_types(types)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&call.args)?;
        let [a, b] = arrays.as_slice() else {
            return Err(exec_datafusion_err!("levenshtein() takes two texts"));
        };
        let (a, b) = (texts(a)?, texts(b)?);
        let mut distances = Distances::default();
        let pairs = a.as_string::<i32>().iter().zip(b.as_string::<i32>());
        let all = pairs.map(|pair| match pair {
            (Some(a), Some(b)) => distances.between(a, b).map(Some),
            _ => Ok(None),
        });
        let all = all.collect::<Result<Vec<Option<u32>>>>()?;
        let array: ArrayRef = match call.return_field.data_type() {
            DataType::Int64 => Arc::new(Int64Array::from_iter(all.into_iter().map(|n| n.map(i64::from)))),
            _ => Arc::new(Int32Array::from_iter(all.into_iter().map(|n| n.map(u32::cast_signed)))),
        };
        let are_constants = call.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        match are_constants && array.len() == 1 {
            true => Ok(ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&array, 0)?)),
            false => Ok(ColumnarValue::Array(array)),
        }
    }
}

/// Buffers that are reused from one distance to the next.
#[derive(Default)]
struct Distances {
    a: Vec<char>,
    b: Vec<char>,
    /// The last complete row of the table: distances from the letters of `a` so far to each prefix
    /// of `b`.
    row: Vec<u32>,
    steps: usize,
}

impl Distances {
    fn between(&mut self, a: &str, b: &str) -> Result<u32> {
        let Self { a: left, b: right, row, steps } = self;
        left.clear();
        left.extend(a.chars());
        right.clear();
        right.extend(b.chars());
        row.clear();
        row.extend(0..=right.len() as u32);
        for (at, letter) in left.iter().enumerate() {
            // The cells diagonally above and to the left of the current one.
            let mut corner = at as u32;
            let mut before = corner + 1;
            if let Some(first) = row.first_mut() {
                *first = before;
            }
            for (place, other) in row.iter_mut().skip(1).zip(right.iter()) {
                let replaced = corner + u32::from(letter != other);
                corner = *place;
                before = replaced.min(corner + 1).min(before + 1);
                *place = before;
            }
            *steps += right.len() + 1;
            if *steps >= STEPS {
                *steps = 0;
                go_on()?;
            }
        }
        Ok(row.last().copied().unwrap_or(0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::planner::tests::rows;

    #[tokio::test]
    async fn distances_are_those_of_letters() {
        let sql = "SELECT levenshtein('kitten', 'sitting'), levenshtein('', 'abc'), levenshtein('\u{e4}b', '\u{e4}'), \
                   levenshtein(x, 'flaw') FROM (VALUES ('lawn'), (NULL), ('flaw')) AS t(x)";
        assert_eq!(rows(sql).await, ["3 3 1 2", "3 3 1 NULL", "3 3 1 0"]);
    }

    proptest! {
        #[test]
        fn distances_are_those_of_strsim(a in "[ab\u{e4}]{0,12}", b in "[ab\u{e4}]{0,12}") {
            let mut distances = Distances::default();
            prop_assert_eq!(distances.between(&a, &b).unwrap() as usize, strsim::levenshtein(&a, &b));
        }
    }
}
