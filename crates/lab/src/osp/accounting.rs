//! What a transaction costs in flushes: every choice that the paper leaves open, by name.
//!
//! A flush is one cache line, or one 64-byte write-combining buffer, that the processor is made to write to persistent
//! memory. Of one run, all of these are counted side by side, so that they differ in nothing else:
//!
//! - [`UndoLog`]: before a line is changed its old content goes into a log. The data's own lines come on top.
//! - [`RedoLog`]: new content goes into a log; the data's lines are written when the log is truncated, each once.
//! - [`Commit`]: how optimized shadow paging makes the bitmaps of several pages change at once.
//! - [`Metadata`]: which of its flushes for tables, and not for the workload's lines, are counted.

use serde::{Deserialize, Serialize};

use super::machine::Counts;

/// Bytes of a flush.
pub const LINE_BYTES: u64 = 64;

/// What a transaction has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Distinct lines.
    pub lines: u64,
    /// Distinct 4 KiB pages, which is bitmaps.
    pub pages: u64,
    /// Distinct 8-byte words.
    pub words: u64,
}

/// How an undo log is written.
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
    /// A flush for each line, and nothing to commit.
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

    /// What is written.
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

    /// Flushes of the log for a transaction that wrote something.
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

/// How a redo log is written.
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

    /// What is written.
    pub fn meaning(self) -> &'static str {
        match self {
            RedoLog::Lines => "a flush a line + commit; data once a log",
            RedoLog::Words => "16 B a word + 16 B, packed; data once a log",
        }
    }

    /// Flushes of the log for a transaction that wrote something.
    pub fn flushes(self, written: Written) -> u64 {
        match self {
            RedoLog::Lines => written.lines + 1,
            RedoLog::Words => (16 * written.words + 16).div_ceil(LINE_BYTES),
        }
    }
}

/// How bitmaps are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Commit {
    /// A journal record of 8 bytes and 16 for each page, packed; a single page is stored in place, which is one flush too.
    Packed,
    /// A journal record, and a flush, for each page.
    PerPage,
    /// Journal records of up to three pages and one line each, as the store of this project writes them.
    Lines,
    /// No journal: the table of bitmaps is itself in shadow pages (super pages), 64 bytes to an entry.
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

    /// What is written.
    pub fn meaning(self) -> &'static str {
        match self {
            Commit::Packed => "journal, 8 + 16 B a page, packed",
            Commit::PerPage => "journal, a flush a page",
            Commit::Lines => "journal, 3 pages to a 64 B record",
            Commit::SuperPage => "a table line a page + the super page's bitmap",
        }
    }

    /// Flushes for a transaction that wrote something. `super_pages` are those whose entries it changes.
    pub fn flushes(self, written: Written, super_pages: u64) -> u64 {
        match self {
            Commit::Packed => (16 * written.pages + 8).div_ceil(LINE_BYTES),
            Commit::PerPage => written.pages,
            Commit::Lines => written.pages.div_ceil(3),
            // Of several super pages the bitmaps have to change at once as well: a table of them, and its own bitmap.
            Commit::SuperPage => written.pages + super_pages + u64::from(super_pages > 1),
        }
    }
}

/// Which flushes for tables are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metadata {
    /// None.
    None,
    /// One for each page that is consolidated.
    One,
    /// As the store of this project does it: a journal record for each page that is consolidated, a page-table entry if
    /// it has moved; entries of the consistent-state table are written at checkpoints, each once.
    Lazy,
    /// Entries of the consistent-state table are made when a page is first written, removed when it is consolidated,
    /// and their bitmaps updated after the journal of a transaction of several pages; a page-table entry if it has moved.
    Eager,
    /// As the paper's text has it: the same, with an entry for every page in the TLB, written or not.
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

    /// What is counted.
    pub fn meaning(self) -> &'static str {
        match self {
            Metadata::None => "not counted",
            Metadata::One => "one a consolidated page",
            Metadata::Lazy => "record a consolidated page, tables at checkpoints",
            Metadata::Eager => "table entries of written pages, at once",
            Metadata::Literal => "table entries of all pages in the TLB, at once",
        }
    }

    /// Flushes of a run.
    pub fn flushes(self, counts: &Counts, commit: Commit) -> u64 {
        // A super page's entries hold the bitmaps: there is no second copy to bring up to date.
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

/// Which choices the figures are drawn of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// Of the baseline.
    pub undo: UndoLog,
    /// Of optimized shadow paging.
    pub commit: Commit,
    /// Of optimized shadow paging.
    pub metadata: Metadata,
}

/// The choices under which the paper's claims hold for the two workloads that it gives figures for.
pub const STATED: Accounting = Accounting { undo: UndoLog::B, commit: Commit::Packed, metadata: Metadata::None };

/// Flushes by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flushes {
    /// Lines that the workload wrote.
    pub data: f64,
    /// What makes a transaction's bitmaps change at once.
    pub journal: f64,
    /// Lines copied because a page went out of use.
    pub consolidation: f64,
    /// Tables.
    pub metadata: f64,
}

impl Flushes {
    /// All.
    pub fn total(&self) -> f64 {
        self.data + self.journal + self.consolidation + self.metadata
    }

    /// By what they are for, in the order of [`Flushes::CLASSES`].
    pub fn classes(&self) -> [f64; 4] {
        [self.data, self.journal, self.consolidation, self.metadata]
    }

    /// Their names.
    pub const CLASSES: [&'static str; 4] = ["data", "journal", "consolidation", "metadata"];
}

/// The name of one of `all`.
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
