//! The components of the golden tests: the fixtures, the canonical rendering of answers, and the
//! adapter to sqllogictest.
//!
//! This crate is not shipped. `tests/README.md` documents how to run and extend the tests.

pub mod adapter;
pub mod canonical;
pub mod fixtures;
pub mod fuzz;
pub mod generated;
pub mod simulator;

use std::io;
use std::path::{Path, PathBuf};

/// Returns the sqllogictest files of a folder, sorted. If an environment variable is set, returns
/// only those whose name contains its value.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn slt_files(folder: &Path, variable: &str) -> io::Result<Vec<PathBuf>> {
    let wanted = std::env::var(variable).unwrap_or_default();
    let paths = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| {
        path.extension().is_some_and(|extension| extension == "slt")
            && path.file_stem().is_some_and(|stem| stem.to_string_lossy().contains(&wanted))
    });
    files.sort();
    Ok(files)
}
