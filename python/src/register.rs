//! Python's tables as relations: whatever speaks Arrow's C interfaces, by reference.
//!
//! An object that knows how many rows it has is a table: its batches are taken at once, where they are, and can be read any
//! number of times. Any other is a reader, which is read once, by the statement, as far as that wants. A source of the
//! package's own (`onehop.tables.Source`) is opened anew by each statement.
//!
//! What is handed over is looked at before the engine trusts it: texts that are none, and offsets that lead elsewhere, would
//! not fail but break it. What cannot be looked at is whether the memory is as large as the type says, for the C interfaces
//! do not tell.

use std::sync::Arc;

use onehop_engine::Relation;
use onehop_engine::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, RecordBatchReader};
use onehop_engine::arrow::datatypes::{DataType, Schema, SchemaRef};
use onehop_engine::arrow::error::ArrowError;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PySchema;
use pyo3_arrow::ffi::ArrayReader;
use pyo3_arrow::input::AnyArray;

use crate::exit::InPython;

/// The tables of a mapping from names.
pub fn relations(tables: &Bound<'_, PyDict>) -> PyResult<Vec<(String, Relation)>> {
    let relations = tables.iter().map(|(name, rows)| {
        let Ok(name) = name.extract::<String>() else {
            return Err(PyTypeError::new_err(format!("tables is a mapping from names, and {} is none", name.repr()?)));
        };
        let relation = relation(&name, &rows)?;
        Ok((name, relation))
    });
    relations.collect()
}

/// An object as a relation, under that name in errors.
pub fn relation(name: &str, rows: &Bound<'_, PyAny>) -> PyResult<Relation> {
    if rows.hasattr("_onehop_open")? {
        return source(name, rows);
    }
    if !rows.hasattr("__arrow_c_stream__")? && !rows.hasattr("__arrow_c_array__")? {
        let kind = rows.get_type().fully_qualified_name()?;
        return Err(PyTypeError::new_err(format!(
            "\"{name}\" cannot be a table: {kind} has no __arrow_c_stream__ (pyarrow, Polars and pandas have, lists and \
             dicts have not: pyarrow.table(...) makes a table of them)"
        )));
    }
    let batches = batches(rows).map_err(|e| about(rows.py(), name, e))?;
    let schema = Arc::clone(&batches.schema);
    if !knows_its_length(rows)? {
        return Ok(Relation::of_reader(Box::new(batches)));
    }
    match rows.py().detach(|| batches.collect::<Result<Vec<_>, ArrowError>>()) {
        Ok(batches) => Ok(Relation::of_batches(schema, batches)),
        Err(e) => Err(PyValueError::new_err(format!("\"{name}\" cannot be a table: {e}"))),
    }
}

/// The stream of an object.
fn batches(rows: &Bound<'_, PyAny>) -> PyResult<Batches> {
    let arrays = rows.extract::<AnyArray>().and_then(AnyArray::into_reader)?;
    let field = arrays.field();
    let DataType::Struct(fields) = field.data_type() else {
        return Err(PyTypeError::new_err(format!("it is one column of type {}", field.data_type())));
    };
    // Metadata of the schema says what the rows were in Python, not what a query makes of them.
    let schema = Arc::new(Schema::new(fields.clone()));
    Ok(Batches { schema, arrays, in_python: None })
}

/// Rows of what can be opened any number of times, by its methods `_onehop_schema` and `_onehop_open`.
fn source(name: &str, rows: &Bound<'_, PyAny>) -> PyResult<Relation> {
    let schema = rows.call_method0("_onehop_schema").and_then(|schema| schema.extract::<PySchema>());
    let schema = schema.map_err(|e| about(rows.py(), name, e))?.into_inner();
    let rows = rows.clone().unbind();
    let open = move || {
        let in_python = InPython::enter();
        let opened = Python::attach(|py| {
            let opened = rows.bind(py).call_method0("_onehop_open").and_then(|opened| batches(&opened));
            opened.map_err(|e| ArrowError::ExternalError(e.to_string().into()))
        });
        drop(in_python);
        opened.map(|batches| Box::new(batches) as Box<dyn RecordBatchReader + Send>)
    };
    Ok(Relation::of_source(&schema, open))
}

fn knows_its_length(rows: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(rows.hasattr("num_rows")? || rows.hasattr("__len__")? || rows.hasattr("__arrow_c_array__")?)
}

/// The exception that an object raised, with the name that it was to have.
fn about(py: Python<'_>, name: &str, e: PyErr) -> PyErr {
    let error = PyTypeError::new_err(format!("\"{name}\" cannot be a table: {}", e.value(py)));
    error.set_cause(py, Some(e));
    error
}

/// Batches of arrays that are what they say.
struct Batches {
    schema: SchemaRef,
    // Before `in_python`: dropping it may need the interpreter.
    arrays: Box<dyn ArrayReader + Send>,
    /// From the first batch on, when it is some thread's.
    in_python: Option<InPython>,
}

impl Batches {
    fn batch(&self, rows: &ArrayRef) -> Result<RecordBatch, ArrowError> {
        let rows = rows.as_struct();
        if rows.null_count() > 0 {
            return Err(ArrowError::InvalidArgumentError("a row is NULL as a whole".into()));
        }
        for (column, field) in rows.columns().iter().zip(self.schema.fields()) {
            let checked = column.to_data().validate_full();
            checked.map_err(|e| {
                ArrowError::InvalidArgumentError(format!("column \"{}\" is damaged: {e}", field.name()))
            })?;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), rows.columns().to_vec(), &options)
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.in_python.get_or_insert_with(InPython::enter);
        let rows = self.arrays.next()?;
        Some(rows.and_then(|rows| self.batch(&rows)))
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
