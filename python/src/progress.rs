//! How far a statement is, for whoever shows it: an object of Python's that is told now and then while a call waits.
//!
//! It has `update(fraction, text)`, the fraction being `None` where nobody knows, and `close()`, which follows the last update of
//! a call, however that ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop::progress::{APPEARS_AFTER, TICK, line};
use onehop_engine::Query;
use pyo3::prelude::*;

/// What shows it, if anything does.
pub type Shower = Option<Arc<Py<PyAny>>>;

/// What is shown while a call waits.
pub struct Showing<'a> {
    to: &'a Shower,
    since: Instant,
    updated: Option<Instant>,
}

impl<'a> Showing<'a> {
    /// Of a call that begins, for a statement that has taken some time already.
    pub fn new(to: &'a Shower, taken: Duration) -> Self {
        let now = Instant::now();
        Self { to, since: now.checked_sub(taken).unwrap_or(now), updated: None }
    }

    /// Shows how far a statement is, if it is time to.
    ///
    /// # Errors
    /// What showing it raises.
    pub fn look(&mut self, py: Python<'_>, query: &Query) -> PyResult<()> {
        let Some(to) = self.to else { return Ok(()) };
        let is_time = self.updated.is_none_or(|updated| updated.elapsed() >= TICK);
        if self.since.elapsed() < APPEARS_AFTER || !is_time {
            return Ok(());
        }
        let progress = query.progress();
        let fraction = (progress.total > 0).then(|| (progress.done as f64 / progress.total as f64).min(1.0));
        self.updated = Some(Instant::now());
        to.call_method1(py, "update", (fraction, line(query)))?;
        Ok(())
    }
}

impl Drop for Showing<'_> {
    fn drop(&mut self) {
        if let (Some(to), Some(_)) = (self.to, self.updated) {
            Python::attach(|py| {
                if let Err(e) = to.call_method0(py, "close") {
                    // Nobody waits for this one.
                    e.write_unraisable(py, None);
                }
            });
        }
    }
}
