//! The inputs of a fused subtree, for execution and EXPLAIN.

use std::sync::Arc;

use arrow::datatypes::DataType;
use onehop_io::Ledger;

use crate::scan_plan::ScanPlan;
use crate::snapshot::Table;

/// The input of one source.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// A table of the database.
    Table(Scan),
    /// The rows of a plan. They replace a placeholder source once the plan has run.
    Derived(Arc<DerivedInput>),
}

impl Input {
    /// Returns the same input for another query, with a ledger below `ledger`.
    pub fn of_query(&self, ledger: &Arc<Ledger>) -> Self {
        match self {
            Self::Table(scan) => Self::Table(Scan { ledger: Arc::new(Ledger::below(ledger)), ..scan.clone() }),
            Self::Derived(input) => Self::Derived(Arc::clone(input)),
        }
    }

    /// Returns the ledger of a table's reads.
    pub fn ledger(&self) -> Option<&Arc<Ledger>> {
        match self {
            Self::Table(scan) => Some(&scan.ledger),
            Self::Derived(_) => None,
        }
    }
}

/// A plan whose rows a source reads.
#[derive(Clone, Debug)]
pub(crate) struct DerivedInput {
    /// Its name in the statement.
    pub name: String,
    /// Its position among the derived inputs.
    pub number: usize,
    /// The columns that are read, by their position in its rows.
    pub columns: Vec<(usize, DataType)>,
    pub column_names: Vec<String>,
}

/// The columns and blocks that are read of a table.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub table: Arc<Table>,
    /// Its name in the statement.
    pub name: String,
    /// The columns, by their position in the table.
    pub columns: Vec<usize>,
    pub plan: Arc<ScanPlan>,
    /// The ledger of its reads, which also counts into the query's ledger.
    pub ledger: Arc<Ledger>,
}

impl Scan {
    /// Returns the names of the columns.
    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| self.table.schema.field(*column).name().as_str()).collect()
    }
}
