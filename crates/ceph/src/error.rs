//! What a file system says, in the words that users of object stores sort by.

use object_store::path::Path;
use onehop_io::rados::{Error, Problem};

/// The name of the store in errors that are of no other kind.
pub(crate) const STORE: &str = "rados";

/// An error about an object. `is_read`: a directory is no object that could be read.
pub(crate) fn convert(location: &Path, error: Error, is_read: bool) -> object_store::Error {
    let path = location.to_string();
    match error.problem() {
        Some(Problem::NotFound) => object_store::Error::NotFound { path, source: error.into() },
        Some(Problem::IsADirectory | Problem::NotADirectory) if is_read => {
            object_store::Error::NotFound { path, source: error.into() }
        }
        Some(Problem::Exists) => object_store::Error::AlreadyExists { path, source: error.into() },
        Some(Problem::Changed) => object_store::Error::Precondition { path, source: error.into() },
        _ => generic(error),
    }
}

/// An error of no particular kind.
pub(crate) fn generic(error: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>) -> object_store::Error {
    object_store::Error::Generic { store: STORE, source: error.into() }
}
