//! Rows as columns of doubles, some ten thousand at a time: what passes go over.

/// Rows of a full chunk: a few hundred kilobytes of a column, so that a thread that takes chunk after chunk is not
/// busy with taking, and one that looks whether it is still wanted before each does so often.
pub const CHUNK_ROWS: usize = 1 << 16;

/// Rows: each feature's values side by side, then those of the target.
///
/// ```text
/// values: │ feature 0: rows │ feature 1: rows │ ... │ target: rows │
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    rows: usize,
    features: usize,
    values: Vec<f64>,
}

impl Chunk {
    /// Columns of equal length, the target's the last of them. At least that one.
    pub fn of_columns(columns: &[&[f64]]) -> Self {
        let rows = columns.iter().map(|column| column.len()).min().unwrap_or(0);
        let mut values = Vec::with_capacity(rows * columns.len());
        for column in columns {
            values.extend_from_slice(&column[..rows]);
        }
        Self { rows, features: columns.len().saturating_sub(1), values }
    }

    /// Values as [`values`](Self::values) has them, of so many features. Of what is no whole number of rows, those that are
    /// whole.
    pub fn of_values(features: usize, values: Vec<f64>) -> Self {
        Self { rows: values.len() / (features + 1), features, values }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Features.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The values of a feature.
    pub fn feature(&self, feature: usize) -> &[f64] {
        &self.values[feature * self.rows..(feature + 1) * self.rows]
    }

    /// The values of the target.
    pub fn target(&self) -> &[f64] {
        self.feature(self.features)
    }

    /// All values, column by column.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Memory of a chunk of so many rows and features.
    pub fn bytes(rows: usize, features: usize) -> usize {
        rows * (features + 1) * size_of::<f64>()
    }
}
