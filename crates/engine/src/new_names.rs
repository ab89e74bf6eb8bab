//! Names that a new table, view or model may have.

use crate::files::is_path;
use crate::identifiers::{SYSTEM_TABLES, TARGET};
use crate::postgres::catalogs;
use crate::{Error, ErrorKind, Result};

/// Checks a name that is to be given to a table, a view or a model.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an empty name, the path of a file, or [`TARGET`];
/// [`ErrorKind::AlreadyExists`] for the name of a system table.
pub(crate) fn check_new_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "a name has at least one letter"));
    }
    if is_path(name) {
        let error =
            Error::new(ErrorKind::Invalid, format!("\"{name}\" reads as the path of a file, so it cannot be a name"));
        return Err(error.with_hint("names with a slash, a star or the extension of a file format are paths"));
    }
    if name == TARGET {
        return Err(Error::new(ErrorKind::Invalid, format!("\"{name}\" is a name of ours, so it cannot be a table's")));
    }
    if SYSTEM_TABLES.contains(&name) || catalogs::schema(name).is_some() {
        return Err(Error::new(ErrorKind::AlreadyExists, format!("\"{name}\" is a system table")));
    }
    Ok(())
}
