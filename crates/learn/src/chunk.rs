//! Rows as columns of doubles, some ten thousand at a time: the input of passes.

/// The rows of a full chunk: a few hundred kilobytes of a column. A thread that takes chunk after
/// chunk spends little time on taking, and checks for cancellation before each often enough.
pub const CHUNK_ROWS: usize = 1 << 16;

/// Rows: each feature's values are contiguous, then those of the target.
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
    /// Creates a chunk from columns of equal length, at least one. The last is the target.
    pub fn of_columns(columns: &[&[f64]]) -> Self {
        let rows = columns.iter().map(|column| column.len()).min().unwrap_or(0);
        let mut values = Vec::with_capacity(rows * columns.len());
        for column in columns {
            values.extend_from_slice(&column[..rows]);
        }
        Self { rows, features: columns.len().saturating_sub(1), values }
    }

    /// Creates a chunk from values in the order of [`values`](Self::values), of `features`
    /// features. An incomplete last row is ignored.
    pub fn of_values(features: usize, values: Vec<f64>) -> Self {
        Self { rows: values.len() / (features + 1), features, values }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of features.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Returns the values of a feature.
    pub fn feature(&self, feature: usize) -> &[f64] {
        &self.values[feature * self.rows..(feature + 1) * self.rows]
    }

    /// Returns the values of the target.
    pub fn target(&self) -> &[f64] {
        self.feature(self.features)
    }

    /// Returns all values, column by column.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the memory of a chunk of so many rows and features, in bytes.
    pub fn bytes(rows: usize, features: usize) -> usize {
        rows * (features + 1) * size_of::<f64>()
    }
}
