//! What the sources of a fused subtree read, for running it and for EXPLAIN.

use std::sync::Arc;

use arrow::datatypes::DataType;
use onehop_io::Ledger;

use crate::scan_plan::ScanPlan;
use crate::snapshot::Table;

/// What one source reads.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// A table of the database.
    Table(Scan),
    /// The rows of a plan, which takes the place of a source that expects them once it has run.
    Derived(Arc<DerivedInput>),
}

impl Input {
    /// The same for another query, which `ledger` is of.
    pub fn of_query(&self, ledger: &Arc<Ledger>) -> Self {
        match self {
            Self::Table(scan) => Self::Table(Scan { ledger: Arc::new(Ledger::below(ledger)), ..scan.clone() }),
            Self::Derived(input) => Self::Derived(Arc::clone(input)),
        }
    }

    /// Where what it moves is counted, if it is a table.
    pub fn ledger(&self) -> Option<&Arc<Ledger>> {
        match self {
            Self::Table(scan) => Some(&scan.ledger),
            Self::Derived(_) => None,
        }
    }
}

/// A plan that a source gets its rows from.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub table: Arc<Table>,
    /// What the statement calls it.
    pub name: String,
    /// By their place in the table.
    pub columns: Vec<usize>,
    pub plan: Arc<ScanPlan>,
    /// What it moves, which is counted into the query's ledger as well.
    pub ledger: Arc<Ledger>,
}

impl Scan {
    /// The columns' names.
    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| self.table.schema.field(*column).name().as_str()).collect()
    }
}
