//! Table arguments of functions, exported for the processes that run them until the statement ends.
//!
//! Invariant: the exports of a statement are released when it ends. A process may have them open
//! for a moment longer, during which their memory stays.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::scalar::runtime_of_threads;
use crate::arrays::Exporting;
use crate::arrays::export::Handle;
use crate::{Error, ErrorKind, Result};

/// The table arguments of a statement.
pub(crate) struct Tables {
    exporting: Exporting,
    /// The handles by table name and columns.
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

    /// Returns a handle to columns of a table. `table` is its name, or already a handle. Blocks.
    ///
    /// # Errors
    /// Errors of an export; [`ErrorKind::Invalid`] if the runtime cannot block.
    pub fn handle(&self, table: &str, columns: Vec<String>) -> Result<String> {
        if Handle::is_meant(table) {
            return Ok(table.into());
        }
        // One thread exports the table, and the others wait.
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
