//! Statistics of a program for EXPLAIN: facts known before a row is read, and results of the run.

/// Lookup structure of a join table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// An array with a slot for every possible key.
    Direct,
    /// A hash table.
    Hashed,
}

impl TableKind {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Hashed => "hashed",
        }
    }
}

/// A join table, planned or built.
#[derive(Clone, Copy, Debug)]
pub struct TableFacts {
    /// Lookup structure.
    pub kind: TableKind,
    /// True if every key has one row. This is known from the data once the table is complete.
    pub is_unique: Option<bool>,
    /// Number of rows; an upper bound if it is planned.
    pub rows: usize,
    /// Bytes of the table. If it is planned: its bytes if every key has one row.
    pub bytes: usize,
}

/// Grouping structure of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// An array with a place for every possible key.
    Dense,
    /// Places in order of the keys' appearance.
    Hashed,
}

impl Grouping {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Hashed => "hashed",
        }
    }
}

/// Planned sink of a pipeline.
#[derive(Clone, Copy, Debug)]
pub enum SinkFacts {
    /// A join table.
    Table(TableFacts),
    /// Groups.
    Groups(Grouping),
    /// The rows themselves.
    Rows,
    /// The first rows in an order.
    Top,
}

/// Statistics of a sink of the first rows in an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopFacts {
    /// Rows that reached it.
    pub rows_in: u64,
    /// Rows beyond the first ones in the order, which were discarded before any other column of
    /// them was read.
    pub rows_left_out: u64,
    /// Morsels that had only such rows and were never read.
    pub morsels_skipped: usize,
    /// Rows of these morsels.
    pub rows_skipped: u64,
}

/// Rows that a step of a pipeline has read and emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRows {
    /// Rows in.
    pub rows_in: u64,
    /// Rows out. More than rows in if a join multiplies rows.
    pub rows_out: u64,
}
