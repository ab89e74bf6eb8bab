//! What belongs to the process that made it.
//!
//! Threads do not survive `fork()`, and locks that they held stay held: whatever a child does with its parent's runtime may
//! wait for ever, and what it flushes or unlocks is its parent's. So a child neither uses nor drops it.

use pyo3::prelude::*;

use crate::error;

/// A value that is used and dropped by one process, and leaked by its children.
pub struct OfProcess<T> {
    process: u32,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Some(value) }
    }

    /// The value.
    ///
    /// # Errors
    /// `InterfaceError` in a child of the process that made it.
    pub fn get(&self, py: Python<'_>) -> PyResult<&T> {
        match &self.value {
            Some(value) if self.process == std::process::id() => Ok(value),
            _ => Err(error::interface(
                py,
                format!(
                    "this connection was opened by process {}, and this is process {}",
                    self.process,
                    std::process::id()
                ),
                "threads do not survive fork(): connect again in the child",
            )),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
