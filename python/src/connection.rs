//! A connection: a session on a database, and what was begun in it.
//!
//! Statements of one connection run one after the other, whichever threads they come from. What is closed lets go of all that
//! it has: results that are half read end there.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use onehop_engine::arrays::export::import;
use onehop_engine::{Access, DatabaseOptions, Error, ErrorKind, ExplainMode, Query, Script, Session};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dense::{self, Named};
use crate::error;
use crate::home::Home;
use crate::params;
use crate::process::OfProcess;
use crate::progress::{Shower, Showing};
use crate::register;
use crate::rows::{self, Rows, Stream};
use crate::shared::{self, Sharing};
use crate::statement::{Carried, Statement, Turns, apart};
use crate::wait::wait;

/// A connection. `onehop.Connection` is made of it.
#[pyclass(frozen, module = "onehop._onehop")]
pub struct Connection {
    /// `None` once it is closed.
    open: Mutex<Option<Arc<OfProcess<Open>>>>,
}

struct Open {
    // Before its threads.
    turns: Arc<Turns>,
    /// Results that may still have rows to come.
    results: Mutex<Vec<Weak<OfProcess<Stream>>>>,
    last: Mutex<Option<Arc<Query>>>,
    shower: Shower,
    home: Arc<Home>,
}

#[pymethods]
impl Connection {
    /// Opens the database at `path`, or one in memory.
    #[new]
    #[pyo3(signature = (path, read_only, config, segments=None, progress=None))]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        read_only: bool,
        config: Vec<(String, String)>,
        segments: Option<String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let options = DatabaseOptions { access, settings: config, segments, ..DatabaseOptions::default() };
        let (home, sharing) = shared::home(py, path.as_deref(), &options)?;
        let session = match sharing {
            Sharing::Alone => home.session(),
            Sharing::Shared => shared::set(&home, &options),
        };
        let session = session.map_err(|e| error::engine(py, &e))?;
        Ok(Self::on(session, home, progress.map(Arc::new)))
    }

    /// A connection to the same database, with a session of its own.
    fn cursor(&self, py: Python<'_>) -> PyResult<Self> {
        let open = self.open(py)?;
        let open = open.get(py)?;
        let session = open.home.session().map_err(|e| error::engine(py, &e))?;
        Ok(Self::on(session, Arc::clone(&open.home), open.shower.clone()))
    }

    /// Runs a script; what came of its last statement.
    fn sql(
        &self,
        py: Python<'_>,
        text: String,
        params: Option<&Bound<'_, PyAny>>,
        tables: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Rows> {
        let open = self.open(py)?;
        let open = open.get(py)?;
        let statements = match params {
            Some(params) => {
                let prepared = open.turns.session().prepare(single(py, &text)?).map_err(|e| error::engine(py, &e))?;
                let values = params::values(&prepared, params)?;
                vec![Statement::Prepared(Box::new(prepared), values)]
            }
            None => Script::new(&text).map(|statement| Statement::Text(statement.to_string())).collect(),
        };
        let tables = tables.map(register::relations).transpose()?.unwrap_or_default();
        let carried = open.watched(py, Arc::clone(&open.turns).script(open.home.executors(), statements, tables))?;
        self.open(py)?;
        open.result(py, carried)
    }

    /// Runs a statement with the values of each of these rows, all or none.
    fn execute_many(&self, py: Python<'_>, text: String, rows: &Bound<'_, PyAny>) -> PyResult<Rows> {
        let open = self.open(py)?;
        let open = open.get(py)?;
        let prepared = open.turns.session().prepare(single(py, &text)?).map_err(|e| error::engine(py, &e))?;
        let rows = rows.try_iter()?.map(|row| params::values(&prepared, &row?)).collect::<PyResult<Vec<_>>>()?;
        let carried = open.watched(py, Arc::clone(&open.turns).each(open.home.executors(), prepared, rows))?;
        self.open(py)?;
        open.result(py, carried)
    }

    /// What a query will do, or did.
    fn explain(&self, py: Python<'_>, text: String, analyze: bool) -> PyResult<String> {
        let open = self.open(py)?;
        let open = open.get(py)?;
        let statement = single(py, &text)?.to_string();
        let mode = if analyze { ExplainMode::Analyze } else { ExplainMode::Plan };
        let turns = Arc::clone(&open.turns);
        let work = async move { Ok(turns.session().explain(&statement, mode).await?.text()) };
        let explained = open.watched(py, apart(open.home.executors(), work))?;
        open.remember(open.turns.session().query());
        explained.map_err(|e| error::engine(py, &e))
    }

    /// Makes rows from outside a table, under this name.
    fn register(&self, py: Python<'_>, name: &str, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let relation = register::relation(name, rows)?;
        self.open(py)?.get(py)?.turns.session().register(name, relation).map_err(|e| error::engine(py, &e))
    }

    /// Takes away what was registered under this name.
    fn unregister(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        if self.open(py)?.get(py)?.turns.session().unregister(name) {
            return Ok(());
        }
        let message = format!("nothing is registered as \"{name}\"");
        Err(error::engine(py, &Error::new(ErrorKind::NotFound, message)))
    }

    /// Columns of a table as dense arrays, or as one, on a device or in host memory.
    fn table_arrays(
        &self,
        py: Python<'_>,
        table: String,
        columns: Vec<String>,
        device: Option<&str>,
        nulls: &str,
        matrix: bool,
    ) -> PyResult<Named> {
        let wanted = dense::wanted(columns, device, nulls, matrix)?;
        let open = self.open(py)?;
        let open = open.get(py)?;
        let made = open.watched(py, Arc::clone(&open.turns).table_arrays(open.home.executors(), table, wanted))?;
        open.remember(open.turns.session().query());
        made.map(dense::named).map_err(|e| error::engine(py, &e))
    }

    /// Columns that another process has exported.
    fn import_arrays(&self, py: Python<'_>, handle: &str, columns: Vec<String>) -> PyResult<Named> {
        let open = self.open(py)?;
        let devices = open.get(py)?.home.devices();
        let imported = py.detach(|| import(handle, &columns, Some(devices)));
        imported.map(dense::named).map_err(|e| error::engine(py, &e))
    }

    /// What the last statement has moved so far.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let open = self.open(py)?;
        let open = open.get(py)?;
        let last = open.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        rows::ledger(py, &last.unwrap_or_else(|| open.turns.session().query()))
    }

    /// Whether it is in a transaction.
    fn in_transaction(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.open(py)?.get(py)?.turns.session().in_transaction())
    }

    /// Closes it; the database as well, if nobody else has it open. Nothing happens the second time.
    fn close(&self, py: Python<'_>) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        // In a child of its process there is nothing to close.
        if let Some(open) = open
            && let Ok(mine) = open.get(py)
        {
            let results = std::mem::take(&mut *mine.results.lock().unwrap_or_else(PoisonError::into_inner));
            for result in results.iter().filter_map(Weak::upgrade) {
                if let Ok(result) = result.get(py) {
                    result.close("its connection was closed");
                }
            }
            let home = Arc::clone(&mine.home);
            py.detach(|| {
                drop(open);
                if let Some(home) = Arc::into_inner(home) {
                    home.close();
                }
            });
        }
    }

    /// Whether it was closed.
    fn is_closed(&self) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Connection {
    fn on(session: Session, home: Arc<Home>, shower: Shower) -> Self {
        let turns = Arc::new(Turns::new(session));
        let open = Open { turns, results: Mutex::default(), last: Mutex::default(), shower, home };
        Self { open: Mutex::new(Some(Arc::new(OfProcess::new(open)))) }
    }

    fn open(&self, py: Python<'_>) -> PyResult<Arc<OfProcess<Open>>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| error::interface(py, "the connection is closed", "onehop.connect() opens another"))
    }
}

impl Open {
    fn result(&self, py: Python<'_>, carried: onehop_engine::Result<Carried>) -> PyResult<Rows> {
        let (output, query) = match carried {
            Ok(carried) => carried,
            Err(e) => {
                self.remember(self.turns.session().query());
                return Err(error::engine(py, &e));
            }
        };
        self.remember(Arc::clone(&query));
        let maker = self.turns.session().array_maker(Arc::clone(&query));
        let rows = Rows::new(py, output, query, Arc::clone(&self.home), maker, self.shower.clone());
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.retain(|result| result.strong_count() > 0);
        results.push(Arc::downgrade(rows.stream()));
        Ok(rows)
    }

    /// Waits, and shows how far the session's statement is.
    fn watched<F>(&self, py: Python<'_>, future: F) -> PyResult<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let mut showing = Showing::new(&self.shower, Duration::ZERO);
        wait(py, future, |py| showing.look(py, &self.turns.session().query()))
    }

    fn remember(&self, query: Arc<Query>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(query);
    }
}

/// The one statement of a text.
fn single<'a>(py: Python<'_>, text: &'a str) -> PyResult<&'a str> {
    let mut script = Script::new(text);
    let refused = |kind, message: &str, hint: &str| error::engine(py, &Error::new(kind, message).with_hint(hint));
    let hint = "run several statements without parameters, or one by one";
    match (script.next(), script.next()) {
        (Some(statement), None) => Ok(statement),
        (None, _) => Err(refused(ErrorKind::Syntax, "there is no statement here", "write one")),
        (Some(_), Some(_)) => Err(refused(ErrorKind::Invalid, "this takes one statement, and there are several", hint)),
    }
}
