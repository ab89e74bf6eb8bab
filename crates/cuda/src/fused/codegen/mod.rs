//! From a plan to CUDA C++: one kernel for a pipeline.
//!
//! ```text
//! struct Args { ... };                   all that differs between queries of one shape: literals, addresses, lengths
//! INLINE i32 get_0(...)                  a column's value of one row, for each of the widths that there are
//! INLINE u32 screen_0(...)               which rows of a whole vector go on, by one column
//! KERNEL(codes, Args) { ... }            if columns are stored as codes: which of the codes go on, a bit for each
//! KERNEL(run, Args) {
//!     unit of vectors, vector            a warp each
//!         live = screen_0(...) ...       whole columns, while many rows are left
//!         while (live) { ... }           then row by row: filters, probes, sink; of few rows, 32 at a time (queue.rs)
//! }
//! ```
//! The text has no literal, no address and no length in it: what is in [`Args`] is filled in for each run, so that forty
//! queries of one shape are one text. Types of registers, widths of columns, what can be NULL, what can fail, and the
//! kinds of tables are in it.

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

/// What stands before every kernel.
pub(super) const DEVICE: &str = include_str!("../device.cuh");

/// A kernel's text, and what it takes to launch it.
#[derive(Debug)]
pub(super) struct Generated {
    /// Without [`DEVICE`].
    pub text: String,
    /// Threads of a block.
    pub threads: u32,
    /// How its warps come to their units.
    pub units: Units,
    /// What the members of its argument are, in their order; 8 bytes each.
    pub args: Vec<Word>,
    /// What failed checks mean, by number.
    pub checks: Vec<Failure>,
    /// Arrays that it reads.
    pub constants: Vec<Vec<u8>>,
    /// Shared memory that it takes, in words of 8 bytes: bitmaps first, then groups.
    pub shared: SharedWords,
    pub sink: SinkShape,
    /// Columns whose codes are asked about before the kernel runs, by a kernel of their own: `codes`.
    pub codes: Vec<usize>,
    /// The acts whose rows are counted, in the order of the counters.
    pub counted: Vec<usize>,
    /// Of what a table was built of, the ends of which values are found after the counters: two words each.
    pub ends: Vec<End>,
}

/// How units come to warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// By their numbers: a warp has every so many-th.
    Dealt,
    /// Each warp takes the next that nobody has taken. A kernel whose blocks each copy a bitmap is launched with no more of
    /// them than run at once, and nobody is to wait for the warp whose rows take longest.
    Taken,
}

/// Something whose least and greatest value are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The key of a table, if it has one part.
    Key,
    /// A column of its payload.
    Payload(usize),
}

/// Shared memory that a kernel takes. Sizes of bitmaps are those of the tables.
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
    /// The address of an array of [`Generated::constants`].
    Constant(usize),
    /// Of a column's parts, by its number in the source.
    Parts(usize),
    /// What its codes stand for: values by 32, how many times 32 there are, of each morsel its first, and where the bits
    /// are that say which of them go on, by the number in [`Generated::codes`].
    CodeWords(usize),
    CodeCount(usize),
    CodeFirst(usize),
    CodeBits(usize),
    /// Where those of them that go on begin and end, by the column's place among those that are asked about.
    CodeRuns(usize),
    Morsels,
    Units,
    /// Vectors of a unit: a power of two.
    UnitVectors,
    Status,
    Table(usize, TableWord),
    /// Of the table that is built.
    Built(TableWord),
    /// Words of a bitmap in shared memory.
    BitmapWords(usize),
    /// Of groups: states, keys, the mask of their places, how many there are, copies in shared memory.
    Groups,
    GroupKeys,
    GroupMask,
    GroupCount,
    Copies,
    /// Of groups that are split: the partition that is there.
    GroupPartition(PartitionWord),
    /// Columns of the answer, which rows have a value, and room for rows.
    Output(usize),
    OutputValid(usize),
    Capacity,
    /// The rank of the last row in an order that may be among the first.
    Threshold,
    /// Where sums for a fit are: a double of the launch, and where blocks put theirs.
    FoldNumber(usize),
    FoldSums,
}

/// What a kernel knows a table by.
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
    /// Of a table that is split: the partition that is there, and the least and the greatest value of its only part.
    Partition(PartitionWord),
    Low,
    High,
}

/// What a kernel knows a partition of keys by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartitionWord {
    /// Of a range: its first key, and how many there are.
    First,
    Span,
    /// Of those that hashes make: its number, and how many there are.
    Number,
    Count,
    /// 1 if it is the last one, to which rows without a key belong.
    IsLast,
}

impl PartitionWord {
    /// What texts call it, after what it is of.
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

/// What a failed check means.
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

/// The argument as it grows.
#[derive(Debug, Default)]
pub(super) struct Args {
    declared: String,
    words: Vec<Word>,
}

impl Args {
    /// A member, by its name; one that is there already stays as it is.
    fn named(&mut self, ty: &str, name: &str, word: Word) -> String {
        if !self.words.contains(&word) || matches!(word, Word::Value(_)) {
            let _ = writeln!(self.declared, "    {ty} {name};");
            self.words.push(word);
        }
        format!("A.{name}")
    }

    /// A number, which gets a name of its own.
    fn value(&mut self, ty: &str, value: u64) -> String {
        let name = format!("k{}", self.words.len());
        self.named(ty, &name, Word::Value(value))
    }

    /// An integer as a value of a kind that holds it.
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

/// The C++ type of a kind.
pub(super) fn type_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::I32 => "i32",
        Kind::I64 => "i64",
        Kind::I128 => "i128",
        Kind::F64 => "double",
    }
}
