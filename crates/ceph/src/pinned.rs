//! Files as they were when they were first asked for.
//!
//! A reader of one file asks for it many times: for its length, its footer, its parts. If somebody replaces it meanwhile, parts
//! of two files would be taken for one. A file of a cluster stays readable for a while after it was replaced, so whoever keeps
//! it open has one file, whole; and does not look its name up again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use onehop_io::rados::fs::File;
use onehop_io::rados::{FileSystem, Result};

/// A file system in which a path stays what it stood for. Cheap to clone: clones have the same files.
#[derive(Clone, Debug)]
pub struct Pinned {
    fs: FileSystem,
    files: Arc<Mutex<HashMap<String, File>>>,
}

impl Pinned {
    /// With no file yet.
    pub fn new(fs: FileSystem) -> Self {
        Self { fs, files: Arc::default() }
    }

    /// What it is of.
    pub fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// The file that a path stood for when it was first asked for.
    pub fn open(&self, path: &str) -> Result<File> {
        let name = path.trim_matches('/');
        if let Some(file) = self.files.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(file.clone());
        }
        // Not locked while the cluster is asked. Of two who ask at the same time both get what the first one has found.
        let file = self.fs.open_file(path)?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(files.entry(name.to_string()).or_insert(file).clone())
    }
}
