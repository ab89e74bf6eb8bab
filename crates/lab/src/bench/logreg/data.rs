//! The rows: four features between -1 and 1, and a label of a known model.
//!
//! `u(i)` is the i-th number of SplitMix64 with the state 0, its upper 53 bits as a number between
//! 0 and 1. Row `r` has `x1 .. x4 = 2 u(5r) - 1 .. 2 u(5r + 3) - 1`, and with `eta = 1 + 2 x1 - 3
//! x2 + x3 + 0.5 x4`
//!
//! - *noisy* labels `u(5r + 4) < 1 / (1 + exp(-eta))`: a logistic model, which can be recovered;
//! - *separable* ones `eta > 0`: no best model.
//!
//! `bench/peers/logreg.py` makes the same rows with NumPy.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::generate::{GOLDEN, mix};

/// The number of features.
pub const FEATURES: usize = 4;
/// The coefficients of the model, the intercept first.
pub const MODEL: [f64; FEATURES + 1] = [1.0, 2.0, -3.0, 1.0, 0.5];

/// The number of rows of a batch.
const BATCH_ROWS: u64 = 1 << 16;

/// The kind of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Labels {
    /// Labels of a logistic model.
    Noisy,
    /// Labels by the side of a plane.
    Separable,
}

impl Labels {
    /// Returns the name, which is the table's name as well.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noisy => "noisy",
            Self::Separable => "separable",
        }
    }
}

/// The rows, batch by batch.
#[derive(Clone, Debug)]
pub struct Made {
    rows: u64,
    next: u64,
    labels: Labels,
    schema: SchemaRef,
}

impl Made {
    /// Creates `rows` rows.
    pub fn new(rows: u64, labels: Labels) -> Self {
        let mut fields: Vec<Field> =
            (1..=FEATURES).map(|n| Field::new(format!("x{n}"), DataType::Float64, false)).collect();
        fields.push(Field::new("y", DataType::Boolean, false));
        Self { rows, next: 0, labels, schema: Arc::new(Schema::new(fields)) }
    }
}

impl Iterator for Made {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.next..self.rows.min(self.next + BATCH_ROWS);
        if rows.is_empty() {
            return None;
        }
        self.next = rows.end;
        let mut columns: [Vec<f64>; FEATURES] = Default::default();
        let mut labels = Vec::with_capacity(BATCH_ROWS as usize);
        for row in rows {
            let first = row * (FEATURES as u64 + 1);
            let mut eta = MODEL[0];
            for ((column, slope), place) in columns.iter_mut().zip(&MODEL[1..]).zip(first..) {
                let x = 2.0 * uniform(place) - 1.0;
                eta += slope * x;
                column.push(x);
            }
            labels.push(match self.labels {
                Labels::Noisy => uniform(first + FEATURES as u64) < 1.0 / (1.0 + (-eta).exp()),
                Labels::Separable => eta > 0.0,
            });
        }
        let mut arrays: Vec<ArrayRef> = columns.into_iter().map(|x| Arc::new(Float64Array::from(x)) as _).collect();
        arrays.push(Arc::new(BooleanArray::from(labels)));
        Some(RecordBatch::try_new(Arc::clone(&self.schema), arrays))
    }
}

impl RecordBatchReader for Made {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Returns the n-th number in [0, 1).
fn uniform(n: u64) -> f64 {
    (mix(n.wrapping_add(1).wrapping_mul(GOLDEN)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Float64Type;

    use super::*;

    /// Expected values are from SplitMix64's reference implementation, seeded with 0.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let first = [0xE220_A839_7B1D_CDAFu64, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        for (n, bits) in first.iter().enumerate() {
            assert_eq!(uniform(n as u64), (bits >> 11) as f64 / (1u64 << 53) as f64);
        }
        let rows: Vec<RecordBatch> = Made::new(70_000, Labels::Noisy).map(|batch| batch.unwrap()).collect();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [65_536, 4_464]);
        let second_row = rows[0].column(0).as_primitive::<Float64Type>().value(1);
        assert_eq!(second_row, 2.0 * uniform(5) - 1.0);
    }
}
