//! The cost of a transaction in flushes: every choice that the paper leaves open, by name.
//!
//! A flush is one cache line, or one 64-byte write-combining buffer, that the processor is made to
//! write to persistent memory. All of these are counted for the same run, so that they differ in
//! nothing else:
//!
//! - [`UndoLog`]: before a line is changed its old content goes into a log. The data's own lines
//!   are added.
//! - [`RedoLog`]: new content goes into a log; the data's lines are written when the log is
//!   truncated, each once.
//! - [`Commit`]: the method by which optimized shadow paging changes the bitmaps of several pages
//!   atomically.
//! - [`Metadata`]: the counted flushes for its tables, as opposed to the workload's lines.

use serde::{Deserialize, Serialize};

use super::machine::Counts;

/// The size of a flush, in bytes.
pub const LINE_BYTES: u64 = 64;

/// The writes of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of distinct lines.
    pub lines: u64,
    /// The number of distinct 4 KiB pages, and so of bitmaps.
    pub pages: u64,
    /// The number of distinct 8-byte words.
    pub words: u64,
}

/// The format of an undo log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UndoLog {
    /// Lines with their addresses (72 bytes), packed; a flush to commit and one to truncate.
    A,
    /// A flush for each line; one to commit and one to truncate.
    B,
    /// Lines with their addresses (72 bytes), packed; one flush to commit.
    C,
    /// Words with their addresses (16 bytes), packed; one flush to commit.
    D16,
    /// A flush for each word; one to commit.
    E,
    /// A flush for each line, and none to commit.
    F,
}

impl UndoLog {
    /// All, by name.
    pub const ALL: [(&'static str, UndoLog); 6] = [
        ("A", UndoLog::A),
        ("B", UndoLog::B),
        ("C", UndoLog::C),
        ("D16", UndoLog::D16),
        ("E", UndoLog::E),
        ("F", UndoLog::F),
    ];

    /// Returns a description.
    pub fn meaning(self) -> &'static str {
        match self {
            UndoLog::A => "72 B a line, packed, + commit + truncate",
            UndoLog::B => "a flush a line + commit + truncate",
            UndoLog::C => "72 B a line, packed, + commit",
            UndoLog::D16 => "16 B a word, packed, + commit",
            UndoLog::E => "a flush a word + commit",
            UndoLog::F => "a flush a line",
        }
    }

    /// Returns the flushes of the log for a transaction that wrote something.
    pub fn flushes(self, written: Written) -> u64 {
        match self {
            UndoLog::A => (72 * written.lines).div_ceil(LINE_BYTES) + 2,
            UndoLog::B => written.lines + 2,
            UndoLog::C => (72 * written.lines).div_ceil(LINE_BYTES) + 1,
            UndoLog::D16 => (16 * written.words).div_ceil(LINE_BYTES) + 1,
            UndoLog::E => written.words + 1,
            UndoLog::F => written.lines,
        }
    }
}

/// The format of a redo log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedoLog {
    /// A flush for each line and one to commit.
    Lines,
    /// Words with their addresses (16 bytes) and 16 bytes to commit, packed.
    Words,
}

impl RedoLog {
    /// All, by name.
    pub const ALL: [(&'static str, RedoLog); 2] = [("redo-lines", RedoLog::Lines), ("redo-words", RedoLog::Words)];

    /// Returns a description.
    pub fn meaning(self) -> &'static str {
        match self {
            RedoLog::Lines => "a flush a line + commit; data once a log",
            RedoLog::Words => "16 B a word + 16 B, packed; data once a log",
        }
    }

    /// Returns the flushes of the log for a transaction that wrote something.
    pub fn flushes(self, written: Written) -> u64 {
        match self {
            RedoLog::Lines => written.lines + 1,
            RedoLog::Words => (16 * written.words + 16).div_ceil(LINE_BYTES),
        }
    }
}

/// The commit method of bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Commit {
    /// A journal record of 8 bytes and 16 for each page, packed; a single page is stored in place,
    /// which is one flush too.
    Packed,
    /// A journal record, and a flush, for each page.
    PerPage,
    /// Journal records of up to three pages and one line each, as the store of this project writes
    /// them.
    Lines,
    /// No journal: the table of bitmaps is itself in shadow pages (super pages), 64 bytes to an
    /// entry.
    SuperPage,
}

impl Commit {
    /// All, by name.
    pub const ALL: [(&'static str, Commit); 4] = [
        ("packed", Commit::Packed),
        ("per-page", Commit::PerPage),
        ("lines", Commit::Lines),
        ("super-page", Commit::SuperPage),
    ];

    /// Returns a description.
    pub fn meaning(self) -> &'static str {
        match self {
            Commit::Packed => "journal, 8 + 16 B a page, packed",
            Commit::PerPage => "journal, a flush a page",
            Commit::Lines => "journal, 3 pages to a 64 B record",
            Commit::SuperPage => "a table line a page + the super page's bitmap",
        }
    }

    /// Returns the flushes for a transaction that wrote something. `super_pages` is the number of
    /// super pages whose entries it changes.
    pub fn flushes(self, written: Written, super_pages: u64) -> u64 {
        match self {
            Commit::Packed => (16 * written.pages + 8).div_ceil(LINE_BYTES),
            Commit::PerPage => written.pages,
            Commit::Lines => written.pages.div_ceil(3),
            // The bitmaps of several super pages have to change atomically as well: a table of
            // them, and its own bitmap.
            Commit::SuperPage => written.pages + super_pages + u64::from(super_pages > 1),
        }
    }
}

/// The counted flushes for tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metadata {
    /// None.
    None,
    /// One for each page that is consolidated.
    One,
    /// As in the store of this project: a journal record for each page that is consolidated, and a
    /// page-table entry if it has moved. Entries of the consistent-state table are written at
    /// checkpoints, each once.
    Lazy,
    /// Entries of the consistent-state table are created when a page is first written, and removed
    /// when it is consolidated. Their bitmaps are updated after the journal of a transaction of
    /// several pages. A page-table entry is written if the page has moved.
    Eager,
    /// As in the paper's text: the same, with an entry for every page in the TLB, written or not.
    Literal,
}

impl Metadata {
    /// All, by name.
    pub const ALL: [(&'static str, Metadata); 5] = [
        ("none", Metadata::None),
        ("one", Metadata::One),
        ("lazy", Metadata::Lazy),
        ("eager", Metadata::Eager),
        ("literal", Metadata::Literal),
    ];

    /// Returns a description.
    pub fn meaning(self) -> &'static str {
        match self {
            Metadata::None => "not counted",
            Metadata::One => "one a consolidated page",
            Metadata::Lazy => "record a consolidated page, tables at checkpoints",
            Metadata::Eager => "table entries of written pages, at once",
            Metadata::Literal => "table entries of all pages in the TLB, at once",
        }
    }

    /// Returns the flushes of a run.
    pub fn flushes(self, counts: &Counts, commit: Commit) -> u64 {
        // A super page's entries hold the bitmaps: there is no second copy to update.
        let bitmaps = if commit == Commit::SuperPage { 0 } else { counts.bitmaps_in_place };
        match self {
            Metadata::None => 0,
            Metadata::One => counts.consolidated_pages,
            Metadata::Lazy => counts.consolidated_pages + counts.moved_pages + counts.checkpointed,
            Metadata::Eager => counts.paired_pages + counts.consolidated_pages + counts.moved_pages + bitmaps,
            Metadata::Literal => counts.fills + counts.evictions + counts.moved_pages + bitmaps,
        }
    }
}

/// The choices under which the figures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// The undo log of the baseline.
    pub undo: UndoLog,
    /// The commits of optimized shadow paging.
    pub commit: Commit,
    /// The metadata of optimized shadow paging.
    pub metadata: Metadata,
}

/// The choices under which the paper's claims hold for the two workloads that it gives figures for.
pub const STATED: Accounting = Accounting { undo: UndoLog::B, commit: Commit::Packed, metadata: Metadata::None };

/// Flushes by their purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flushes {
    /// The lines that the workload wrote.
    pub data: f64,
    /// The flushes that change a transaction's bitmaps atomically.
    pub journal: f64,
    /// The lines copied because a page went out of use.
    pub consolidation: f64,
    /// The flushes of tables.
    pub metadata: f64,
}

impl Flushes {
    /// Returns the sum.
    pub fn total(&self) -> f64 {
        self.data + self.journal + self.consolidation + self.metadata
    }

    /// Returns the flushes by purpose, in the order of [`Flushes::CLASSES`].
    pub fn classes(&self) -> [f64; 4] {
        [self.data, self.journal, self.consolidation, self.metadata]
    }

    /// The names of the purposes.
    pub const CLASSES: [&'static str; 4] = ["data", "journal", "consolidation", "metadata"];
}

/// Returns the name of one of `all`.
pub fn name<T: PartialEq + Copy>(all: &[(&'static str, T)], one: T) -> &'static str {
    all.iter().find(|(_, known)| *known == one).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand from the definitions.
    #[test]
    fn flushes_of_a_transaction_are_those_of_the_definitions() {
        // A swap: two words in two lines of two pages.
        let swap = Written { lines: 2, pages: 2, words: 2 };
        let undo = |written| UndoLog::ALL.map(|(_, log)| log.flushes(written));
        assert_eq!(undo(swap), [5, 4, 4, 2, 3, 2]);
        assert_eq!(RedoLog::ALL.map(|(_, log)| log.flushes(swap)), [3, 1]);
        assert_eq!(Commit::ALL.map(|(_, commit)| commit.flushes(swap, 1)), [1, 2, 1, 3]);
        // Half a node of 4 KiB: 33 lines of one page, 256 words.
        let shift = Written { lines: 33, pages: 1, words: 256 };
        assert_eq!(undo(shift), [40, 35, 39, 65, 257, 33]);
        assert_eq!(Commit::ALL.map(|(_, commit)| commit.flushes(shift, 1)), [1, 1, 1, 2]);
        // Seven pages: 120 bytes, three records, entries in two super pages.
        let wide = Written { lines: 7, pages: 7, words: 7 };
        assert_eq!(Commit::ALL.map(|(_, commit)| commit.flushes(wide, 2)), [2, 7, 3, 10]);
    }

    #[test]
    fn metadata_counts_what_it_says() {
        let counts = Counts {
            consolidated_pages: 1,
            moved_pages: 10,
            paired_pages: 100,
            fills: 1_000,
            evictions: 10_000,
            bitmaps_in_place: 100_000,
            checkpointed: 1_000_000,
            ..Counts::default()
        };
        let all = |commit| Metadata::ALL.map(|(_, metadata)| metadata.flushes(&counts, commit));
        assert_eq!(all(Commit::Packed), [0, 1, 1_000_011, 100_111, 111_010]);
        assert_eq!(all(Commit::SuperPage), [0, 1, 1_000_011, 111, 11_010]);
    }
}
