//! The report files of benchmarks.

use std::path::PathBuf;

/// Reports for programs.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Write the figures as JSON to a file, or to standard output in place of the table (-)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the figures as CSV to a file, or to standard output in place of the table (-)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

impl ReportArgs {
    /// Returns true if a machine-readable report replaces the table.
    pub fn is_quiet(&self) -> bool {
        [&self.json, &self.csv].into_iter().flatten().any(|path| path.as_os_str() == "-")
    }
}
