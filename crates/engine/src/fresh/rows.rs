//! New rows for a table that stores them as they are, in no segment.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::Result;
use crate::catalog::row::{self, Decoder, EncodedRows};

/// Rows that are too few for a segment, in the form of the store.
#[derive(Clone, Debug)]
pub(crate) struct FewRows {
    encoded: Arc<EncodedRows>,
    /// The original batch, if there was one, in the schema of the table.
    batch: Option<RecordBatch>,
}

/// Rows with consecutive ascending ids.
#[derive(Clone, Debug)]
pub(crate) struct NewRows {
    pub first_id: u64,
    pub rows: FewRows,
}

impl FewRows {
    /// Encodes the rows of a batch in the schema of the table.
    ///
    /// # Errors
    /// [`ErrorKind::Data`](crate::ErrorKind::Data) for a NULL in a column that admits none.
    pub fn of_batch(batch: RecordBatch) -> Result<Self> {
        let encoded = Arc::new(row::encode(&batch, batch.schema_ref())?);
        Ok(Self { encoded, batch: Some(batch) })
    }

    /// Wraps rows that were never a batch.
    pub fn of_encoded(encoded: EncodedRows) -> Self {
        Self { encoded: Arc::new(encoded), batch: None }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.encoded.len()
    }

    /// Returns the rows in the form of the store.
    pub fn encoded(&self) -> &Arc<EncodedRows> {
        &self.encoded
    }

    /// Returns the rows as a batch in the schema of the table.
    ///
    /// # Errors
    /// The rows belong to another table.
    pub fn batch(&self, schema: &SchemaRef) -> Result<RecordBatch> {
        match &self.batch {
            Some(batch) => Ok(batch.clone()),
            None => decoded(&self.encoded, schema),
        }
    }
}

impl NewRows {
    /// Returns their ids.
    pub fn ids(&self) -> Range<u64> {
        self.first_id..self.first_id + self.rows.len() as u64
    }
}

/// Decodes rows to a batch in the schema of their table.
///
/// # Errors
/// The rows belong to another table.
pub(super) fn decoded(rows: &EncodedRows, schema: &SchemaRef) -> Result<RecordBatch> {
    let mut decoder = Decoder::new(schema)?;
    for row in rows.iter() {
        decoder.push(row).map_err(|reason| {
            let message = format!("a row that was written a moment ago cannot be read: {reason}");
            crate::Error::new(crate::ErrorKind::Internal, message)
        })?;
    }
    decoder.finish()
}
