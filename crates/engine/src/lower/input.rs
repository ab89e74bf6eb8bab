//! What the sources of a fused subtree read, for running it and for EXPLAIN.

use std::sync::Arc;

use arrow::datatypes::DataType;
use onehop_io::Ledger;

use crate::database::Table;
use crate::scan::ScanPlan;

/// What one source reads.
#[derive(Debug)]
pub(crate) enum Input {
    /// A table of the database.
    Table(Scan),
    /// The rows of a plan, which takes the place of a source that expects them once it has run.
    Derived(DerivedInput),
}

/// A plan that a source gets its rows from.
#[derive(Debug)]
pub(crate) struct DerivedInput {
    /// What the statement calls it.
    pub name: String,
    /// Its place among such plans.
    pub number: usize,
    /// The columns that are read, by their place in its rows.
    pub columns: Vec<(usize, DataType)>,
    pub column_names: Vec<String>,
}

/// What is read of a table, and what was got around.
#[derive(Debug)]
pub(crate) struct Scan {
    pub table: Arc<Table>,
    /// What the statement calls it.
    pub name: String,
    /// By their place in the table.
    pub columns: Vec<usize>,
    pub plan: ScanPlan,
    /// What it moves, which is counted into the query's ledger as well.
    pub ledger: Arc<Ledger>,
}

impl Scan {
    /// The columns' names.
    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| self.table.schema.field(*column).name().as_str()).collect()
    }
}
