//! Rows on their way to a table that will keep them as they are, in no segment.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::Result;
use crate::catalog::row::{self, Decoder, EncodedRows};

/// Rows that are too few for a segment, as the store keeps them.
#[derive(Clone, Debug)]
pub(crate) struct FewRows {
    encoded: Arc<EncodedRows>,
    /// The same, if they came so. In the schema of the table.
    batch: Option<RecordBatch>,
}

/// Rows with ids: ascending, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct NewRows {
    pub first_id: u64,
    pub rows: FewRows,
}

impl FewRows {
    /// The rows of a batch in the schema of the table.
    ///
    /// # Errors
    /// [`ErrorKind::Data`](crate::ErrorKind::Data) for a NULL where none may be.
    pub fn of_batch(batch: RecordBatch) -> Result<Self> {
        let encoded = Arc::new(row::encode(&batch, batch.schema_ref())?);
        Ok(Self { encoded, batch: Some(batch) })
    }

    /// Rows that were never a batch.
    pub fn of_encoded(encoded: EncodedRows) -> Self {
        Self { encoded: Arc::new(encoded), batch: None }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.encoded.len()
    }

    /// As the store keeps them.
    pub fn encoded(&self) -> &Arc<EncodedRows> {
        &self.encoded
    }

    /// As a batch in the schema of the table.
    ///
    /// # Errors
    /// They are of another table.
    pub fn batch(&self, schema: &SchemaRef) -> Result<RecordBatch> {
        match &self.batch {
            Some(batch) => Ok(batch.clone()),
            None => decoded(&self.encoded, schema),
        }
    }
}

impl NewRows {
    /// Their ids.
    pub fn ids(&self) -> Range<u64> {
        self.first_id..self.first_id + self.rows.len() as u64
    }
}

/// Rows as a batch in the schema of their table.
///
/// # Errors
/// They are of another table.
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
