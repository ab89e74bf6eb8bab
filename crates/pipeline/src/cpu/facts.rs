//! What EXPLAIN says of a program: what of it is settled before a row is read, and what came of it.

/// How a join table finds the rows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// A place for every possible key.
    Direct,
    /// A hash table.
    Hashed,
}

impl TableKind {
    /// Its name.
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
    /// How it finds rows.
    pub kind: TableKind,
    /// Whether every key has one row; the data says so, when the table is complete.
    pub is_unique: Option<bool>,
    /// Rows in it, at most if it is planned.
    pub rows: usize,
    /// Bytes it takes; if it is planned, those it would if every key had one row.
    pub bytes: usize,
}

/// How a pipeline makes its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// A place for every possible key.
    Dense,
    /// Places as keys appear.
    Hashed,
}

impl Grouping {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Hashed => "hashed",
        }
    }
}

/// What a pipeline ends in, as planned.
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

/// What came of a sink of the first rows in an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopFacts {
    /// Rows that reached it.
    pub rows_in: u64,
    /// Rows that came too late in the order to be among the first, which was seen before anything else of them was read.
    pub rows_left_out: u64,
    /// Morsels that had only such rows, and were never read.
    pub morsels_skipped: usize,
    /// Rows of these.
    pub rows_skipped: u64,
}

/// Rows that a step of a pipeline has seen and passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRows {
    /// Rows in.
    pub rows_in: u64,
    /// Rows out: more than went in where a join multiplies them.
    pub rows_out: u64,
}
