//! A result: rows that come as they are read, each once.
//!
//! - What is read goes to one place: to whoever fetches rows, or, whole, to a table or a stream. Reading twice is an error
//!   that says so, and never an empty answer.
//! - Rows that were only looked at are kept, and read like any others.
//! - One thread reads at a time; another that tries is told.
//! - Dropping a result, or closing it, cancels what is left of its statement.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::future::{Either, select};
use onehop_engine::arrays::ArrayMaker;
use onehop_engine::arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchReader};
use onehop_engine::arrow::datatypes::{Schema, SchemaRef};
use onehop_engine::arrow::error::ArrowError;
use onehop_engine::arrow::util::display::{ArrayFormatter, FormatOptions};
use onehop_engine::{Done, Output, Query, sql_name, value_texts};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader, PySchema};
use tokio::sync::Notify;

use crate::error;
use crate::exit;
use crate::home::Home;
use crate::process::OfProcess;
use crate::progress::{Shower, Showing};
use crate::table::Table;
use crate::value;
use crate::wait::wait;

/// A result. `onehop.Result` is made of it.
#[pyclass(frozen, module = "onehop._onehop")]
pub struct Rows {
    stream: Arc<OfProcess<Stream>>,
    /// Of a statement that returns no rows.
    done: Option<Done>,
}

/// Rows that are left.
pub struct Stream {
    schema: SchemaRef,
    state: Mutex<State>,
    /// Tells who waits for more that it was closed.
    closed: Notify,
    query: Arc<Query>,
    /// What makes arrays of its rows.
    maker: Arc<OfProcess<ArrayMaker>>,
    shower: Shower,
}

struct State {
    source: Source,
    /// Batches, or what is left of one, that have come and are still to be read.
    seen: VecDeque<RecordBatch>,
    /// Whether any row was given to anybody.
    is_begun: bool,
}

enum Source {
    /// There may be more, which threads of this home make.
    Open(onehop_engine::Rows, Arc<Home>),
    /// A thread waits for more.
    Busy,
    /// These were all.
    Ended,
    /// There is no more, and why.
    Gone(&'static str),
}

/// What a thread that wants the next batch has of it.
enum Taken {
    Batch(RecordBatch),
    Rows(onehop_engine::Rows, Arc<Home>),
    End,
}

/// Why nothing can be read. It is raised when the state is locked no more: whatever Python does may let another thread go on,
/// which may want it too.
enum Refusal {
    Read,
    Busy,
    Gone(&'static str),
}

impl Refusal {
    fn raise(self, py: Python<'_>) -> PyErr {
        const ONCE: &str = "rows are read once: keep what the first call returned, or run the statement again";
        match self {
            Self::Read => error::interface(py, "rows of this result have been read already", ONCE),
            Self::Busy => error::interface(py, "another thread reads this result", "read it in one"),
            Self::Gone(why) => error::interface(py, format!("this result has no rows any more: {why}"), ONCE),
        }
    }
}

impl Stream {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels what is left.
    pub fn close(&self, why: &'static str) {
        let mut state = self.state();
        if matches!(state.source, Source::Gone(_)) {
            return;
        }
        let left = (std::mem::replace(&mut state.source, Source::Gone(why)), std::mem::take(&mut state.seen));
        drop(state);
        self.closed.notify_one();
        drop(left);
    }

    /// For who wants all rows: nobody has had any yet.
    fn begin_whole(&self, py: Python<'_>) -> PyResult<()> {
        let begun = {
            let mut state = self.state();
            let is_begun = std::mem::replace(&mut state.is_begun, true);
            match state.source {
                Source::Gone(why) => Err(Refusal::Gone(why)),
                _ if is_begun => Err(Refusal::Read),
                _ => Ok(()),
            }
        };
        begun.map_err(|refusal| refusal.raise(py))
    }

    /// The next batch; waits for it without the interpreter's lock.
    fn next(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let (mut rows, home) = match self.take().map_err(|refusal| refusal.raise(py))? {
            Taken::Batch(batch) => return Ok(Some(batch)),
            Taken::End => return Ok(None),
            Taken::Rows(rows, home) => (rows, home),
        };
        let closed = pin!(self.closed.notified());
        let mut showing = Showing::new(&self.shower, self.query.elapsed());
        let next = async {
            match select(rows.next(), closed).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => None,
            }
        };
        let next = wait(py, next, |py| showing.look(py, &self.query));
        drop(showing);
        let (source, outcome) = match next {
            Ok(Some(Ok(batch))) => (Source::Open(rows, home), Ok(Some(batch))),
            Ok(None) => (Source::Ended, Ok(None)),
            Ok(Some(Err(e))) => (Source::Gone("its statement failed"), Err(error::engine(py, &e))),
            Err(e) => (Source::Gone("it was interrupted"), Err(e)),
        };
        self.put_back(source).map_err(|refusal| refusal.raise(py))?;
        outcome
    }

    /// What comes next, for this thread alone.
    fn take(&self) -> Result<Taken, Refusal> {
        let mut state = self.state();
        state.is_begun = true;
        if let Some(batch) = state.seen.pop_front() {
            return Ok(Taken::Batch(batch));
        }
        match state.source {
            Source::Ended => return Ok(Taken::End),
            Source::Busy => return Err(Refusal::Busy),
            Source::Gone(why) => return Err(Refusal::Gone(why)),
            Source::Open(..) => {}
        }
        match std::mem::replace(&mut state.source, Source::Busy) {
            Source::Open(rows, home) => Ok(Taken::Rows(rows, home)),
            _ => Err(Refusal::Busy),
        }
    }

    /// What the others find from now on, unless it was closed meanwhile.
    fn put_back(&self, source: Source) -> Result<(), Refusal> {
        let mut state = self.state();
        if let Source::Gone(why) = state.source {
            drop(state);
            return Err(Refusal::Gone(why));
        }
        state.source = source;
        Ok(())
    }

    /// Batches with the first `most` rows, or all there are, which are still to be read.
    fn look(&self, py: Python<'_>, most: usize) -> PyResult<Vec<RecordBatch>> {
        let is_begun = self.state().is_begun;
        let mut batches = Vec::new();
        let mut rows = 0;
        let outcome = loop {
            if rows >= most {
                break Ok(());
            }
            match self.next(py) {
                Ok(Some(batch)) => {
                    rows += batch.num_rows();
                    batches.push(batch);
                }
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        let mut state = self.state();
        state.is_begun = is_begun;
        for batch in batches.iter().rev() {
            state.seen.push_front(batch.clone());
        }
        outcome.map(|()| batches)
    }
}

impl Rows {
    /// Of a statement.
    pub fn new(
        py: Python<'_>,
        output: Output,
        query: Arc<Query>,
        home: Arc<Home>,
        maker: ArrayMaker,
        shower: Shower,
    ) -> Self {
        let (schema, source, done) = match output {
            Output::Rows(rows) => (Arc::clone(rows.schema()), Source::Open(rows, home), None),
            Output::Done(done) => (Arc::new(Schema::empty()), Source::Ended, Some(done)),
        };
        let state = Mutex::new(State { source, seen: VecDeque::new(), is_begun: false });
        let maker = Arc::new(OfProcess::new(maker));
        let stream = Stream { schema, state, closed: Notify::new(), query, maker, shower };
        let stream = Arc::new(OfProcess::new(stream));
        if done.is_none() {
            exit::ends(py, &stream);
        }
        Self { stream, done }
    }

    /// What it reads from.
    pub fn stream(&self) -> &Arc<OfProcess<Stream>> {
        &self.stream
    }

    /// The stream of a statement that returns rows.
    fn rows(&self, py: Python<'_>) -> PyResult<&Stream> {
        match &self.done {
            None => self.stream.get(py),
            Some(done) => {
                Err(error::interface(py, format!("{} returns no rows", done.tag), "rowcount says what it did"))
            }
        }
    }
}

#[pymethods]
impl Rows {
    /// Names of the columns.
    #[getter]
    fn columns(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.stream.get(py)?.schema.fields().iter().map(|field| field.name().clone()).collect())
    }

    /// Types of the columns, as SQL has them.
    #[getter]
    fn types(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.stream.get(py)?.schema.fields().iter().map(|field| sql_name(field.data_type())).collect())
    }

    /// What was done, of a statement that returns no rows: `INSERT`.
    #[getter]
    fn tag(&self) -> Option<&'static str> {
        self.done.as_ref().map(|done| done.tag)
    }

    /// Rows that were written or removed, by a statement that returns none.
    #[getter]
    fn rowcount(&self) -> Option<u64> {
        self.done.as_ref().and_then(|done| done.rows)
    }

    /// The next rows as tuples, so many or all; none of a statement that returns no rows.
    fn fetch<'py>(&self, py: Python<'py>, most: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        let fetched = PyList::empty(py);
        if self.done.is_some() {
            return Ok(fetched);
        }
        let stream = self.rows(py)?;
        while most.is_none_or(|most| fetched.len() < most) {
            let Some(batch) = stream.next(py)? else { break };
            let take = most.map_or(batch.num_rows(), |most| batch.num_rows().min(most - fetched.len()));
            if take < batch.num_rows() {
                stream.state().seen.push_front(batch.slice(take, batch.num_rows() - take));
            }
            append_rows(&fetched, &batch.slice(0, take))?;
        }
        Ok(fetched)
    }

    /// The next batch; none of a statement that returns no rows.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<PyRecordBatch>> {
        if self.done.is_some() {
            return Ok(None);
        }
        Ok(self.rows(py)?.next(py)?.map(PyRecordBatch::new))
    }

    /// All rows, where they are.
    fn collect(&self, py: Python<'_>) -> PyResult<Table> {
        let stream = self.rows(py)?;
        stream.begin_whole(py)?;
        let mut batches = Vec::new();
        while let Some(batch) = stream.next(py)? {
            batches.push(batch);
        }
        Ok(Table::new(Arc::clone(&stream.schema), batches, Arc::clone(&stream.maker)))
    }

    /// The first `most` rows as text, `None` for NULL, which are still to be read; and whether these are all.
    fn preview(&self, py: Python<'_>, most: usize) -> PyResult<(Vec<Vec<Option<String>>>, bool)> {
        let stream = self.rows(py)?;
        let batches = stream.look(py, most.saturating_add(1))?;
        let mut lines = Vec::new();
        for batch in &batches {
            let shown = batch.slice(0, batch.num_rows().min(most - lines.len()));
            lines.extend(texts(&shown).map_err(|e| error::engine(py, &e))?);
        }
        let is_all = batches.iter().map(RecordBatch::num_rows).sum::<usize>() <= most;
        Ok((lines, is_all))
    }

    /// What the statement has moved so far.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ledger(py, &self.stream.get(py)?.query)
    }

    /// What its user should know.
    fn notices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.stream.get(py)?.query.notices())
    }

    /// Cancels what is left.
    fn close(&self, py: Python<'_>) {
        if let Ok(stream) = self.stream.get(py) {
            stream.close("it was closed");
        }
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let schema = PySchema::new(Arc::clone(&self.rows(py)?.schema));
        Bound::new(py, schema)?.into_any().call_method0("__arrow_c_schema__")
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.rows(py)?.begin_whole(py)?;
        let reader =
            PyRecordBatchReader::new(Box::new(Reader(Arc::clone(&self.stream), self.rows(py)?.schema.clone())));
        Bound::new(py, reader)?.into_any().call_method1("__arrow_c_stream__", (requested_schema,))
    }
}

/// The rows of a result to whoever has its C stream, on whatever thread, with the interpreter's lock or without.
struct Reader(Arc<OfProcess<Stream>>, SchemaRef);

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Waiting gives the lock away again, also where the caller had it already.
        let next = Python::attach(|py| {
            let next = self.0.get(py).and_then(|stream| stream.next(py));
            next.map_err(|e| {
                let text = e.to_string();
                if e.is_instance_of::<PyKeyboardInterrupt>(py) {
                    // The C interface has no way to hand it on: it is raised once the caller is back in Python.
                    interrupt_again();
                }
                ArrowError::ExternalError(text.into())
            })
        });
        next.transpose()
    }
}

/// As if Ctrl-C had been pressed once more.
fn interrupt_again() {
    // SAFETY: it only sets a flag, and may be called anywhere, even from a signal's handler.
    unsafe { pyo3::ffi::PyErr_SetInterrupt() }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.1)
    }
}

/// Rows of a batch as tuples.
fn append_rows(rows: &Bound<'_, PyList>, batch: &RecordBatch) -> PyResult<()> {
    let py = rows.py();
    let columns = batch.columns().iter().zip(batch.schema_ref().fields());
    let columns = columns.map(|(array, field)| value::column(py, array, field.name())).collect::<PyResult<Vec<_>>>()?;
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    for _ in 0..batch.num_rows() {
        rows.append(PyTuple::new(py, columns.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>())?)?;
    }
    Ok(())
}

/// Rows of a batch as text, NULL as `None`. A value without a text is an error.
fn texts(batch: &RecordBatch) -> onehop_engine::Result<Vec<Vec<Option<String>>>> {
    let columns = batch.columns().iter().map(column_texts).collect::<onehop_engine::Result<Vec<_>>>()?;
    Ok((0..batch.num_rows()).map(|row| columns.iter().map(|texts| texts[row].clone()).collect()).collect())
}

fn column_texts(column: &ArrayRef) -> onehop_engine::Result<Vec<Option<String>>> {
    if column.data_type().is_nested() {
        // As a cast to VARCHAR writes them: NULL within is no empty text.
        return Ok(value_texts(column)?.iter().map(|text| text.map(String::from)).collect());
    }
    let options = FormatOptions::default().with_display_error(false);
    let formatter = ArrayFormatter::try_new(column, &options)?;
    let nulls = column.logical_nulls();
    let is_null = |row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    let text = |row| (!is_null(row)).then(|| formatter.value(row).try_to_string()).transpose();
    Ok((0..column.len()).map(text).collect::<Result<_, _>>()?)
}

/// A statement's ledger by the names of its counters.
pub fn ledger<'py>(py: Python<'py>, query: &Query) -> PyResult<Bound<'py, PyDict>> {
    let ledger = query.ledger();
    let counters = PyDict::new(py);
    for (name, count) in ledger.counters() {
        counters.set_item(name, count)?;
    }
    counters.set_item("copy_amplification_ratio", ledger.copy_amplification())?;
    Ok(counters)
}
