//! Tables that functions have as arguments: exported for the processes that run them, for as long as the statement.
//!
//! Invariant: what a statement has exported is released when it ends. The process may have it open for a moment longer, in
//! which its memory stays.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::scalar::runtime_of_threads;
use crate::arrays::Exporting;
use crate::arrays::export::Handle;
use crate::{Error, ErrorKind, Result};

/// Those of a statement.
pub(crate) struct Tables {
    exporting: Exporting,
    /// By the table's name and the columns that are wanted of it.
    handles: Mutex<HashMap<(String, Vec<String>), String>>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Tables {
    pub fn new(exporting: Exporting) -> Self {
        Self { exporting, handles: Mutex::default() }
    }

    /// A handle to columns of a table, which is named by it, or by its handle already. Blocks.
    ///
    /// # Errors
    /// Those of an export; where nothing can be waited for.
    pub fn handle(&self, table: &str, columns: Vec<String>) -> Result<String> {
        if Handle::is_meant(table) {
            return Ok(table.into());
        }
        // One thread exports it, and the others wait.
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (table.to_string(), columns);
        if let Some(handle) = handles.get(&key) {
            return Ok(handle.clone());
        }
        let Some(runtime) = runtime_of_threads() else {
            let error = Error::new(ErrorKind::Invalid, format!("table {table} cannot be exported here"));
            return Err(error.with_hint("give the function a handle, which onehop_export('table') returns"));
        };
        let handle = runtime.block_on(self.exporting.for_function(table, &key.1))?;
        handles.insert(key, handle.clone());
        Ok(handle)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let handles = self.handles.get_mut().unwrap_or_else(PoisonError::into_inner);
        for handle in handles.values() {
            self.exporting.done_with(handle);
        }
    }
}
