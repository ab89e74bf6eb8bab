//! All rows of a result, where Arrow has them: for whoever takes Arrow, as often as they like, and as NumPy's arrays.

use std::sync::Arc;

use onehop_engine::arrays::ArrayMaker;
use onehop_engine::arrow::array::RecordBatch;
use onehop_engine::arrow::datatypes::SchemaRef;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use pyo3_arrow::PyTable;

use crate::array::{self, NumpyView};
use crate::dense::{self, Named};
use crate::error;
use crate::process::OfProcess;
use crate::value;

/// Rows in memory, which nothing changes.
#[pyclass(frozen, module = "onehop._onehop")]
pub struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    maker: Arc<OfProcess<ArrayMaker>>,
}

impl Table {
    /// Of batches.
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>, maker: Arc<OfProcess<ArrayMaker>>) -> Self {
        Self { schema, batches, maker }
    }
}

#[pymethods]
impl Table {
    /// A column as NumPy can have it, and which of its values are NULL, if any are; `None` for what NumPy has no type for.
    fn numpy(&self, column: usize) -> PyResult<Option<(NumpyView, Option<NumpyView>)>> {
        array::views(self.schema.field(column), &self.chunks(column))
    }

    /// A column as a list of Python's values, and which of its values are NULL, if any are.
    fn values<'py>(&self, py: Python<'py>, column: usize) -> PyResult<(Bound<'py, PyList>, Option<NumpyView>)> {
        let chunks = self.chunks(column);
        let list = PyList::empty(py);
        for chunk in &chunks {
            for value in value::column(py, chunk, self.schema.field(column).name())? {
                list.append(value)?;
            }
        }
        Ok((list, array::nulls(&chunks)))
    }

    /// Columns as dense arrays, or as one, on a device or in host memory.
    fn arrays(
        &self,
        py: Python<'_>,
        columns: Vec<String>,
        device: Option<&str>,
        nulls: &str,
        matrix: bool,
    ) -> PyResult<Named> {
        let wanted = dense::wanted(columns, device, nulls, matrix)?;
        let maker = self.maker.get(py)?;
        let made = py.detach(|| maker.of_rows(&self.schema, &self.batches, &wanted));
        made.map(dense::named).map_err(|e| error::engine(py, &e))
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let table = PyTable::try_new(self.batches.clone(), Arc::clone(&self.schema))?;
        Bound::new(py, table)?.into_any().call_method1("__arrow_c_stream__", (requested_schema,))
    }
}

impl Table {
    fn chunks(&self, column: usize) -> Vec<onehop_engine::arrow::array::ArrayRef> {
        self.batches.iter().map(|batch| Arc::clone(batch.column(column))).collect()
    }
}
