//! Generation of CUDA C++ from a plan: one kernel for each pipeline.
//!
//! ```text
//! struct Args { ... };                values that differ between queries of one shape:
//!                                     literals, addresses, lengths
//! INLINE i32 get_0(...)               a column's value of one row, for each of its widths
//! INLINE u32 screen_0(...)            tests one column of a vector for all of its rows
//! KERNEL(codes, Args) { ... }         if columns are stored as codes: tests each code and
//!                                     sets one bit for each
//! KERNEL(run, Args) {
//!     unit of vectors, vector         one per warp
//!         live = screen_0(...) ...    whole columns, while many rows are left
//!         while (live) { ... }        then row by row: filters, probes, sink;
//!                                     if few rows are left, 32 at a time (queue.rs)
//! }
//! ```
//! The kernel source contains no literal, address or length. [`Args`] is filled in for each run, so
//! that forty queries of one shape share one kernel source. The source depends on types of
//! registers, widths of columns, nullability, fallibility, and kinds of tables.

mod dense;
mod expr;
mod fold;
mod groups;
mod passes;
mod pipeline;
mod probes;
mod queue;
mod screens;
mod sink;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fmt::Write as _;
use std::sync::Arc;

use onehop_pipeline::bind::Check;
use onehop_pipeline::cpu::Kind;

pub(super) use fold::Fold;
pub(super) use groups::{Groups, Slot, SlotKind};
pub(super) use pipeline::{Input, SHARED_BYTES, columns_read, generate};
pub(super) use sink::{Output, SinkShape};

/// Source that precedes every kernel.
pub(super) const DEVICE: &str = include_str!("../device.cuh");

/// A generated kernel source, and the data needed to launch its kernel.
#[derive(Debug)]
pub(super) struct Generated {
    /// Kernel source without [`DEVICE`].
    pub text: String,
    /// Threads of a block.
    pub threads: u32,
    /// Assignment of units to its warps.
    pub units: Units,
    /// Contents of the members of its argument, in order; 8 bytes each.
    pub args: Vec<Word>,
    /// Meanings of failed checks, by number.
    pub checks: Vec<Failure>,
    /// Constant arrays that it reads.
    pub constants: Vec<Vec<u8>>,
    /// Shared memory that it takes, in words of 8 bytes: bitmaps first, then groups.
    pub shared: SharedWords,
    pub sink: SinkShape,
    /// Columns whose codes are tested by the separate kernel `codes`, before this one runs.
    pub codes: Vec<usize>,
    /// The acts whose rows are counted, in the order of the counters.
    pub counted: Vec<usize>,
    /// Values of a built table whose minimum and maximum follow the counters in the status: two
    /// words each.
    pub ends: Vec<End>,
}

/// Assignment of units to warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// Static, by number: a warp takes every n-th unit, with n the number of warps.
    Dealt,
    /// Dynamic: each warp takes the next free unit. A kernel whose blocks each copy a bitmap is
    /// launched with no more blocks than run at once. Dynamic assignment then avoids waiting for
    /// the warp whose rows take longest.
    Taken,
}

/// Values whose minimum and maximum are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The key of a table, if it has one part.
    Key,
    /// A column of its payload.
    Payload(usize),
}

/// Shared memory that a kernel takes. The sizes of bitmaps are those of the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedWords {
    /// Tables whose bitmap is copied there.
    pub bitmaps: Vec<usize>,
    /// Words of one copy of the groups.
    pub groups: u64,
}

/// A member of a kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Value(u64),
    /// Address of an array of [`Generated::constants`].
    Constant(usize),
    /// Address of a column's parts, by its number in the source.
    Parts(usize),
    /// Values that its codes stand for: addresses of the code words (up to 32 values each), their
    /// number, each part's first word, and the address of the bits that hold the test results, by
    /// index into [`Generated::codes`].
    CodeWords(usize),
    CodeCount(usize),
    CodeFirst(usize),
    CodeBits(usize),
    /// Address of the intervals of the codes that pass, by index into [`Generated::codes`].
    CodeRuns(usize),
    Morsels,
    Units,
    /// Vectors of a unit: a power of two.
    UnitVectors,
    Status,
    Table(usize, TableWord),
    /// A word of the table that is built.
    Built(TableWord),
    /// Words of a bitmap in shared memory.
    BitmapWords(usize),
    /// Groups: address of the states, address of the keys, mask of their places, number of places,
    /// and number of copies in shared memory.
    Groups,
    GroupKeys,
    GroupMask,
    GroupCount,
    Copies,
    /// Resident partition of split groups.
    GroupPartition(PartitionWord),
    /// Columns of the result, their validity, and room for rows.
    Output(usize),
    OutputValid(usize),
    Capacity,
    /// Rank of the last row that may be among the first rows of the order.
    Threshold,
    /// Sums for a fit: a parameter of the fit, and the address of the blocks' sums.
    FoldNumber(usize),
    FoldSums,
}

/// A property of a table that a kernel reads from its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableWord {
    Bits,
    Keys,
    Mask,
    Head,
    Next,
    Payload(usize),
    PayloadValid(usize),
    /// Room for rows, of a table that is built.
    Capacity,
    /// 1 if it has no row, not even one without a key.
    IsEmpty,
    /// 1 if a row had no key.
    HasKeyless,
    /// For a split table: the resident partition, and the least and the greatest value of its only
    /// key part.
    Partition(PartitionWord),
    Low,
    High,
}

/// A property of a partition of keys that a kernel reads from its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartitionWord {
    /// For a range: its first key, and the number of keys.
    First,
    Span,
    /// For hashed keys: the partition's number, and the number of partitions.
    Number,
    Count,
    /// 1 if it is the last one, to which rows without a key belong.
    IsLast,
}

impl PartitionWord {
    /// Returns its name in kernel sources, which follows a prefix.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Span => "span",
            Self::Number => "partition",
            Self::Count => "partitions",
            Self::IsLast => "is_last",
        }
    }
}

/// Meaning of a failed check.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    OutOfRange(Arc<Check>),
    DivisionByZero(Arc<Check>),
}

impl Failure {
    pub fn error(&self) -> onehop_pipeline::Error {
        match self {
            Self::OutOfRange(check) => check.out_of_range(),
            Self::DivisionByZero(check) => check.division_by_zero(),
        }
    }
}

/// The argument while it is collected.
#[derive(Debug, Default)]
pub(super) struct Args {
    declared: String,
    words: Vec<Word>,
}

impl Args {
    /// Adds a member with a name, unless it exists already. Returns its expression.
    fn named(&mut self, ty: &str, name: &str, word: Word) -> String {
        if !self.words.contains(&word) || matches!(word, Word::Value(_)) {
            let _ = writeln!(self.declared, "    {ty} {name};");
            self.words.push(word);
        }
        format!("A.{name}")
    }

    /// Adds a number under a new name.
    fn value(&mut self, ty: &str, value: u64) -> String {
        let name = format!("k{}", self.words.len());
        self.named(ty, &name, Word::Value(value))
    }

    /// Adds an integer as a value of a kind that can represent it.
    fn integer(&mut self, kind: Kind, value: i128) -> String {
        match kind {
            Kind::I128 => {
                let (low, high) = (self.value("u64", value as u64), self.value("u64", (value >> 64) as u64));
                format!("made({low}, {high})")
            }
            Kind::I64 => self.value("i64", value as u64),
            _ => format!("({}){}", type_of(kind), self.value("i64", value as i64 as u64)),
        }
    }
}

/// Returns the C++ type of a kind.
pub(super) fn type_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::I32 => "i32",
        Kind::I64 => "i64",
        Kind::I128 => "i128",
        Kind::F64 => "double",
    }
}
