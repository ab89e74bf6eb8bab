//! A file that was replaced while one statement read it.

use object_store::path::Path as StorePath;

use super::within;
use crate::{Error, ErrorKind};

/// The error of a file that differs from the one that its statement saw before.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot read '{name}': it was replaced, changed or removed while it was read")]
pub(crate) struct Changed {
    name: String,
}

impl Changed {
    /// Returns the object store error for the file at a location.
    pub fn at(location: &StorePath) -> object_store::Error {
        let name = format!("/{location}");
        object_store::Error::Generic { store: "local", source: Self { name }.into() }
    }

    /// Returns the error with the name of the file in the statement.
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.into() }
    }
}

/// Translates the errors that object stores return for a file that changed or vanished while a
/// statement read it.
pub(crate) fn gone(e: &object_store::Error) -> Option<Error> {
    match (within::<Changed>(e), e) {
        (Some(changed), _) => Some(changed.clone().into()),
        (None, object_store::Error::NotFound { path, .. }) => Some(Changed { name: format!("/{path}") }.into()),
        _ => None,
    }
}

impl From<Changed> for Error {
    fn from(changed: Changed) -> Self {
        Self::new(ErrorKind::Conflict, changed.to_string()).with_hint("run the statement again").with_source(changed)
    }
}
