//! `onehop check`: reads a whole database and verifies every checksum.

use std::path::Path;

use onehop_io::Ledger;

use crate::database::{Database, DatabaseOptions};
use crate::repair::{self, Finding};
use crate::rights::Access;
use crate::{Error, ErrorKind, Result};

/// What was looked at, and what is wrong with it.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Tables in the catalog.
    pub tables: u64,
    /// Segment files.
    pub files: u64,
    /// Rows in them, deleted ones included.
    pub rows: u64,
    /// Rows that no segment holds yet.
    pub fresh_rows: u64,
    /// Blocks of columns that were read.
    pub blocks: u64,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// What is wrong, each naming its file.
    pub problems: Vec<Problem>,
    /// Files that are not where they belong. They do no harm, unless they are missing: that is a problem as well.
    pub findings: Vec<Finding>,
}

/// What problems of the store itself are listed under.
const STORE: &str = "store";

/// One thing that is wrong.
#[derive(Debug)]
pub struct Problem {
    /// The table it belongs to, or "store".
    pub table: String,
    /// What it is, with file, column and block.
    pub error: Error,
}

/// Checks the database at `path`, which must not be open for writing. `progress` hears (segments done, segments).
///
/// # Errors
/// If the database cannot be opened at all, a damaged catalog included; what else is damaged is in the report.
pub fn check(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    check_with(path, &DatabaseOptions::default(), progress)
}

/// The same with settings, as those of the cluster that its segments lie on.
///
/// # Errors
/// As [`check`].
pub fn check_with(path: &Path, options: &DatabaseOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let options = DatabaseOptions { access: Access::ReadOnly, ..options.clone() };
    check_open(&Database::open(path, &options)?, progress)
}

/// Checks an open database, as of its last commit: for tests.
///
/// # Errors
/// As [`check`].
#[doc(hidden)]
pub fn check_open(database: &Database, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let snapshot = database.snapshot();
    let mut report = CheckReport::default();
    database.check_store(&mut |finding| {
        let error = Error::new(ErrorKind::Corrupt, finding);
        report.problems.push(Problem { table: STORE.to_string(), error });
    })?;
    let all = snapshot.tables().map(|table| table.segments.len() as u64).sum();
    for table in snapshot.tables() {
        report.tables += 1;
        report.fresh_rows += table.fresh.rows();
        for file in &table.segments {
            report.files += 1;
            let problem = |error| Problem { table: table.name.clone(), error };
            match file.segment() {
                Ok(segment) => {
                    let checked = onehop_segment::check(segment, &Ledger::default());
                    report.rows += checked.rows;
                    report.blocks += checked.blocks;
                    report.verified_bytes += checked.bytes;
                    report.problems.extend(checked.problems.into_iter().map(|p| problem(Error::from(p))));
                    report.problems.extend(file.check_deleted().err().map(problem));
                }
                Err(error) => report.problems.push(problem(error)),
            }
            progress(report.files, all);
        }
    }
    report.findings = repair::look(database)?;
    Ok(report)
}
