//! What the golden tests are made of: the fixtures, the canonical rendering of answers, the adapter to sqllogictest.
//!
//! Ships with nothing. `tests/README.md` says how to run and extend them.

pub mod adapter;
pub mod canonical;
pub mod fixtures;
pub mod fuzz;
pub mod generated;
pub mod simulator;

use std::io;
use std::path::{Path, PathBuf};

/// The sqllogictest files of a folder, sorted; those whose name contains the value of an
/// environment variable, where that is set.
///
/// # Errors
/// The folder cannot be read.
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
