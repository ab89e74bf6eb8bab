//! The machine: a TLB whose entries have two bitmaps, and logs that are charged for the same
//! stores.
//!
//! **Optimized shadow paging.** A page of 4 KiB has 64 lines and two bitmaps of 64 bits. A larger
//! TLB page has a pair of bitmaps for each 4 KiB, and goes into and out of use as a whole.
//!
//! 1. The first store to a page while it is in use pairs it. From then on it has two physical
//!    pages. Its bitmap `committed`, which names the one with the last committed version of each
//!    line, is all zeroes.
//! 2. Stores set bits in `updated`. At the end of the transaction `committed ^= updated`.
//! 3. When a paired page leaves the last TLB, it is consolidated. The lines of the physical page
//!    that has fewer are copied to the other, one flush each, and the pair is dissolved. If the
//!    second page is kept, the page has moved.
//! 4. A page that leaves with lines of the open transaction cannot be consolidated before the
//!    transaction ends. It is consolidated then, if it is still out of use.
//!
//! **Logs.** A transaction is charged for every [`UndoLog`] and [`Commit`] by the lines, pages and
//! words it has written. Logs that defer part of the work ([`RedoLog`], checkpoints of the
//! consistent-state table) fill a log of a given size. When it is full, every distinct line or
//! entry that was written since is charged once, and one flush to truncate.
//!
//! **Volatile references** (stack, locals) are a fixed number for each operation. They go to one
//! page, which takes an entry of the TLB, and none of them is flushed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use super::accounting::{Commit, Flushes, LINE_BYTES, Metadata, RedoLog, UndoLog, Written};
use super::memory::{Memory, WORD_BYTES};
use super::tlb::{Shape, Tlb};
use crate::generate::random::mix;

/// The number of bytes per bitmap: 64 lines.
pub const BITMAP_BYTES: u64 = 64 * LINE_BYTES;
/// The page of volatile references, at which there is no persistent page.
const VOLATILE_PAGE: u64 = u64::MAX;
/// The number of entries of a super page: 64 bytes each.
const SUPER_PAGE_ENTRIES: u32 = 64;

/// The machine's sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The levels of the TLB, from the nearest.
    pub levels: Vec<Shape>,
    /// The size of a TLB page in bytes: a power of two, and a multiple of [`BITMAP_BYTES`].
    pub page_bytes: u64,
    /// The number of volatile references of an operation.
    pub volatile_references: u64,
    /// The size of a redo log, and of a journal between two checkpoints, in bytes.
    pub log_bytes: u64,
}

/// The counters since [`Machine::reset`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of operations.
    pub operations: u64,
    /// The number of transactions that wrote something.
    pub transactions: u64,
    /// The number of loads and stores of persistent words.
    pub persistent_references: u64,
    /// The number of references to volatile words.
    pub volatile_references: u64,
    /// The number of references that missed each level, from the nearest.
    pub misses: Vec<u64>,
    /// The number of persistent pages that came into the last level.
    pub fills: u64,
    /// The number of persistent pages that left it.
    pub evictions: u64,
    /// The number of lines written, of all transactions.
    pub lines: u64,
    /// The number of pages of 4 KiB written, of all transactions.
    pub pages: u64,
    /// The number of words written, of all transactions.
    pub words: u64,
    /// The flushes of each [`UndoLog`], without data.
    pub undo: [u64; UndoLog::ALL.len()],
    /// The flushes of each [`RedoLog`], data included, as it is written when the log is truncated.
    pub redo: [u64; RedoLog::ALL.len()],
    /// The flushes of each [`Commit`].
    pub commit: [u64; Commit::ALL.len()],
    /// The number of TLB pages that got a second physical page.
    pub paired_pages: u64,
    /// The number of TLB pages that lost it.
    pub consolidated_pages: u64,
    /// The number of lines copied for that.
    pub consolidated_lines: u64,
    /// The number of consolidated pages whose second physical page was kept.
    pub moved_pages: u64,
    /// The number of pages that left the TLB during the transaction that wrote them.
    pub postponed_pages: u64,
    /// The number of bitmaps stored in place after the journal of a transaction of several pages.
    pub bitmaps_in_place: u64,
    /// The number of table entries and superblocks written at checkpoints.
    pub checkpointed: u64,
}

impl Counts {
    /// Returns the flushes of undo logging, data included.
    pub fn undo_total(&self, log: UndoLog) -> u64 {
        self.lines + UndoLog::ALL.iter().zip(self.undo).find(|((_, one), _)| *one == log).map_or(0, |(_, count)| count)
    }

    /// Returns the flushes of optimized shadow paging, by purpose.
    pub fn osp(&self, commit: Commit, metadata: Metadata) -> Flushes {
        let journal = Commit::ALL.iter().zip(self.commit).find(|((_, one), _)| *one == commit);
        Flushes {
            data: self.lines as f64,
            journal: journal.map_or(0, |(_, count)| count) as f64,
            consolidation: self.consolidated_lines as f64,
            metadata: metadata.flushes(self, commit) as f64,
        }
    }

    /// Returns the share of all references that missed a level.
    pub fn miss_ratio(&self, level: usize) -> f64 {
        let all = self.persistent_references + self.volatile_references;
        self.misses.get(level).map_or(0.0, |misses| *misses as f64 / all.max(1) as f64)
    }
}

/// A page of 4 KiB that the open transaction has written.
#[derive(Clone, Debug)]
struct Open {
    page: u64,
    updated: u64,
    /// The stored words of each line.
    words: [u8; 64],
}

/// A TLB page that has two physical pages.
#[derive(Clone, Debug, Default)]
struct Paired {
    /// The index of its entry in the consistent-state table.
    entry: u32,
    /// The written pages of 4 KiB in it, with `committed`.
    bitmaps: Vec<(u64, u64)>,
}

/// The machine. It receives references as a [`Memory`], and operations and transactions by its own
/// methods.
#[derive(Clone, Debug)]
pub struct Machine {
    config: Config,
    tlb: Tlb,
    /// The page used last.
    last: Option<u64>,
    open: Vec<Open>,
    paired: HashMap<u64, Paired, Mixed>,
    /// The free entries of the consistent-state table below `entries`.
    free: Vec<u32>,
    entries: u32,
    /// The TLB pages that left with lines of the open transaction.
    left: Vec<u64>,
    redo: [Deferred; RedoLog::ALL.len()],
    checkpoint: Deferred,
    counts: Counts,
}

impl Machine {
    /// Creates a machine with no pages in use.
    pub fn new(config: Config) -> Self {
        let counts = Counts { misses: vec![0; config.levels.len()], ..Counts::default() };
        Self {
            tlb: Tlb::new(&config.levels),
            last: None,
            config,
            open: Vec::new(),
            paired: HashMap::default(),
            free: Vec::new(),
            entries: 0,
            left: Vec::new(),
            redo: Default::default(),
            checkpoint: Deferred::default(),
            counts,
        }
    }

    /// Returns the counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Resets the counters; pages in use and logs stay as they are.
    pub fn reset(&mut self) {
        self.counts = Counts { misses: vec![0; self.config.levels.len()], ..Counts::default() };
    }

    /// Performs the volatile references of an operation that begins.
    pub fn operation(&mut self) {
        self.counts.operations += 1;
        if self.config.volatile_references > 0 {
            self.counts.volatile_references += self.config.volatile_references;
            self.touch(VOLATILE_PAGE);
        }
    }

    /// Ends a transaction.
    pub fn commit(&mut self) {
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            self.charge(&open);
        }
        for one in &open {
            let Some(paired) = self.paired.get_mut(&(one.page * BITMAP_BYTES / self.config.page_bytes)) else {
                continue;
            };
            match paired.bitmaps.iter_mut().find(|(page, _)| *page == one.page) {
                Some((_, committed)) => *committed ^= one.updated,
                None => paired.bitmaps.push((one.page, one.updated)),
            }
        }
        for page in std::mem::take(&mut self.left) {
            if !self.tlb.has(page) {
                self.consolidate(page);
            }
        }
        self.open = open;
        self.open.clear();
    }

    /// Charges the flushes of a transaction.
    fn charge(&mut self, open: &[Open]) {
        let written = Written {
            lines: open.iter().map(|one| u64::from(one.updated.count_ones())).sum(),
            pages: open.len() as u64,
            words: open.iter().flat_map(|one| &one.words).map(|words| u64::from(words.count_ones())).sum(),
        };
        let mut super_pages: Vec<u32> = Vec::new();
        for one in open {
            let entry = self.paired.get(&(one.page * BITMAP_BYTES / self.config.page_bytes)).map_or(0, |one| one.entry);
            if !super_pages.contains(&(entry / SUPER_PAGE_ENTRIES)) {
                super_pages.push(entry / SUPER_PAGE_ENTRIES);
            }
        }
        let counts = &mut self.counts;
        counts.transactions += 1;
        counts.lines += written.lines;
        counts.pages += written.pages;
        counts.words += written.words;
        for (sum, (_, log)) in counts.undo.iter_mut().zip(UndoLog::ALL) {
            *sum += log.flushes(written);
        }
        for (sum, (_, commit)) in counts.commit.iter_mut().zip(Commit::ALL) {
            *sum += commit.flushes(written, super_pages.len() as u64);
        }
        if written.pages > 1 {
            counts.bitmaps_in_place += written.pages;
        }
        for ((sum, deferred), (_, log)) in counts.redo.iter_mut().zip(&mut self.redo).zip(RedoLog::ALL) {
            let flushes = log.flushes(written);
            let lines = open.iter().flat_map(|one| lines(one.page, one.updated));
            *sum += flushes + deferred.add(flushes, lines, self.config.log_bytes);
        }
        let pages = open.iter().map(|one| one.page * BITMAP_BYTES / self.config.page_bytes);
        counts.checkpointed += self.checkpoint.add(Commit::Lines.flushes(written, 0), pages, self.config.log_bytes);
    }

    fn touch(&mut self, page: u64) {
        // It was used last, in the nearest level: nothing would change.
        if self.last == Some(page) {
            return;
        }
        self.last = Some(page);
        let found = self.tlb.touch(page);
        for misses in &mut self.counts.misses[..found.level] {
            *misses += 1;
        }
        if page != VOLATILE_PAGE && found.level == self.config.levels.len() {
            self.counts.fills += 1;
        }
        let Some(evicted) = found.evicted.filter(|page| *page != VOLATILE_PAGE) else {
            return;
        };
        self.counts.evictions += 1;
        if self.open.iter().any(|one| one.page * BITMAP_BYTES / self.config.page_bytes == evicted) {
            self.counts.postponed_pages += 1;
            self.left.push(evicted);
        } else {
            self.consolidate(evicted);
        }
    }

    /// Consolidates a page that is out of use, and has no line of an open transaction.
    fn consolidate(&mut self, page: u64) {
        let Some(paired) = self.paired.remove(&page) else {
            return;
        };
        let second: u64 = paired.bitmaps.iter().map(|(_, committed)| u64::from(committed.count_ones())).sum();
        let all = self.config.page_bytes / LINE_BYTES;
        self.counts.consolidated_pages += 1;
        self.counts.consolidated_lines += second.min(all - second);
        if second > all - second {
            self.counts.moved_pages += 1;
        }
        self.free.push(paired.entry);
        self.counts.checkpointed += self.checkpoint.add(1, [page].into_iter(), self.config.log_bytes);
    }

    /// Touches the TLB pages of a run of words, once each.
    fn refer(&mut self, address: u64, words: u64) {
        self.counts.persistent_references += words;
        let last = (address + (words * WORD_BYTES).max(1) - 1) / self.config.page_bytes;
        for page in address / self.config.page_bytes..=last {
            self.touch(page);
        }
    }

    /// Records a store into one line.
    fn update(&mut self, line: u64, words: u8) {
        let (page, line) = (line / 64, (line % 64) as usize);
        let place = self.open.iter().rposition(|one| one.page == page).unwrap_or_else(|| {
            self.open.push(Open { page, updated: 0, words: [0; 64] });
            self.pair(page * BITMAP_BYTES / self.config.page_bytes);
            self.open.len() - 1
        });
        self.open[place].updated |= 1 << line;
        self.open[place].words[line] |= words;
    }

    fn pair(&mut self, page: u64) {
        if self.paired.contains_key(&page) {
            return;
        }
        let entry = self.free.pop().unwrap_or_else(|| {
            self.entries += 1;
            self.entries - 1
        });
        self.paired.insert(page, Paired { entry, bitmaps: Vec::new() });
        self.counts.paired_pages += 1;
    }
}

impl Memory for Machine {
    fn load(&mut self, address: u64, words: u64) {
        self.refer(address, words);
    }

    fn store(&mut self, address: u64, words: u64) {
        self.refer(address, words);
        let (mut word, end) = (address / WORD_BYTES, address / WORD_BYTES + words);
        while word < end {
            let first = word % 8;
            let count = (8 - first).min(end - word);
            self.update(word / 8, (((1u16 << count) - 1) << first) as u8);
            word += count;
        }
    }
}

/// Returns the numbers of a page's lines.
fn lines(page: u64, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let line = bits.trailing_zeros();
            bits &= bits - 1;
            page * 64 + u64::from(line)
        })
    })
}

/// Work that is done when a log is full.
#[derive(Clone, Debug, Default)]
struct Deferred {
    log_bytes: u64,
    pending: HashSet<u64, Mixed>,
}

impl Deferred {
    /// Adds flushes to a log, with the targets to write later. Returns the number of flushes
    /// performed now.
    fn add(&mut self, flushes: u64, targets: impl Iterator<Item = u64>, log_bytes: u64) -> u64 {
        self.pending.extend(targets);
        self.log_bytes += flushes * LINE_BYTES;
        if self.log_bytes < log_bytes {
            return 0;
        }
        let written = self.pending.len() as u64 + 1;
        self.log_bytes = 0;
        self.pending.clear();
        written
    }
}

/// The hasher of page and line numbers.
type Mixed = BuildHasherDefault<Mixer>;

/// One round of SplitMix64's permutation.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = BITMAP_BYTES;

    fn machine(entries: usize, page_bytes: u64) -> Machine {
        Machine::new(Config {
            levels: vec![Shape { entries, ways: entries }],
            page_bytes,
            volatile_references: 0,
            log_bytes: 1 << 20,
        })
    }

    fn flushes(machine: &Machine, commit: Commit, metadata: Metadata) -> [u64; 4] {
        machine.counts().osp(commit, metadata).classes().map(|count| count as u64)
    }

    /// Two pages in use, three pages written: the first leaves as the third comes, and the second
    /// as the first comes again.
    #[test]
    fn a_script_of_four_transactions() {
        let mut machine = machine(2, PAGE);
        // Transaction 1: two lines of page 0, three words. Paired.
        machine.store(0, 2);
        machine.store(64, 1);
        machine.commit();
        // Transaction 2: one line of page 1, another of page 2. The latter evicts page 0: two lines
        // are copied.
        machine.store(PAGE, 1);
        machine.store(2 * PAGE, 1);
        machine.commit();
        // Transaction 3: page 0 again; page 1 leaves, one line is copied.
        machine.store(0, 1);
        machine.commit();
        // Transaction 4: the same line of page 0 again. Its bit is 0 again: there is nothing to
        // copy when it leaves.
        machine.store(0, 1);
        machine.commit();
        // Reads of two other pages evict both: page 2 has one line to copy, page 0 none.
        machine.load(8 * PAGE, 1);
        machine.load(9 * PAGE, 1);

        let counts = machine.counts();
        assert_eq!((counts.transactions, counts.lines, counts.pages, counts.words), (4, 6, 5, 7));
        // Two lines and two flushes, twice; one line and two, twice.
        assert_eq!(counts.undo_total(UndoLog::B), 6 + 4 + 4 + 3 + 3);
        assert_eq!(counts.undo_total(UndoLog::F), 12);
        // One word, two, three: 16, 32, 48 bytes, one flush each, and one to commit.
        assert_eq!(counts.undo_total(UndoLog::D16), 6 + 4 * 2);
        assert_eq!(flushes(&machine, Commit::Packed, Metadata::None), [6, 4, 4, 0]);
        assert_eq!(flushes(&machine, Commit::PerPage, Metadata::One), [6, 5, 4, 4]);
        // Four pairs created and dissolved, two bitmaps after the only journal of two pages, none
        // moved.
        assert_eq!(flushes(&machine, Commit::Packed, Metadata::Eager), [6, 4, 4, 10]);
        // Six pages came into the TLB (0, 1, 2, 0, 8, 9) and four left it.
        assert_eq!(flushes(&machine, Commit::Packed, Metadata::Literal), [6, 4, 4, 12]);
        // Entries of 1 + 2 + 1 + 1 pages, and one super page's bitmap each time.
        assert_eq!(flushes(&machine, Commit::SuperPage, Metadata::None), [6, 9, 4, 0]);
        assert_eq!((counts.misses[0], counts.persistent_references), (6, 8 + 1));
    }

    #[test]
    fn the_smaller_part_is_copied_and_the_page_moves_if_that_is_the_first() {
        for (lines, copied, moved) in [(31, 31, 0), (32, 32, 0), (33, 31, 1), (64, 0, 1)] {
            let mut machine = machine(1, PAGE);
            machine.store(0, lines * 8);
            machine.commit();
            machine.load(PAGE, 1);
            let counts = machine.counts();
            assert_eq!((counts.consolidated_lines, counts.moved_pages), (copied, moved), "{lines}");
            assert_eq!(counts.osp(Commit::Lines, Metadata::Lazy).metadata as u64, 1 + moved);
        }
    }

    #[test]
    fn a_page_that_leaves_within_its_transaction_is_consolidated_when_that_ends() {
        let mut machine = machine(1, PAGE);
        machine.store(0, 1);
        machine.store(PAGE, 1);
        machine.store(0, 1);
        assert_eq!((machine.counts().postponed_pages, machine.counts().consolidated_pages), (2, 0));
        machine.commit();
        // Page 0 is in use again, page 1 is not.
        assert_eq!((machine.counts().consolidated_pages, machine.counts().consolidated_lines), (1, 1));
    }

    #[test]
    fn larger_pages_have_a_bitmap_for_each_four_kilobytes() {
        let mut machine = machine(1, 4 * PAGE);
        machine.store(0, 1);
        machine.store(3 * PAGE, 1);
        machine.commit();
        assert_eq!((machine.counts().pages, machine.counts().paired_pages, machine.counts().misses[0]), (2, 1, 1));
        machine.load(4 * PAGE, 1);
        assert_eq!((machine.counts().consolidated_pages, machine.counts().consolidated_lines), (1, 2));
    }

    #[test]
    fn a_redo_log_writes_each_line_once_a_log() {
        let mut machine = machine(4, PAGE);
        machine.config.log_bytes = 4 * LINE_BYTES;
        for _ in 0..4 {
            machine.store(0, 1);
            machine.commit();
        }
        // Lines: two flushes each; full after the second and the fourth: one line and the
        // truncation each time. Words: 32 bytes, one flush each; full after the fourth.
        assert_eq!(machine.counts().redo, [8 + 2 * 2, 4 + 2]);
        assert_eq!(machine.counts().checkpointed, 2);
    }

    #[test]
    fn volatile_references_take_an_entry_and_no_flush() {
        let mut machine = machine(2, PAGE);
        machine.config.volatile_references = 50;
        for page in [0, 1, 0, 1] {
            machine.operation();
            machine.store(page * PAGE, 1);
            machine.commit();
        }
        let counts = machine.counts();
        assert_eq!((counts.operations, counts.volatile_references, counts.persistent_references), (4, 200, 4));
        // Two entries, three pages in turn: the volatile one is used repeatedly, the others evict
        // each other.
        assert_eq!((counts.misses[0], counts.fills, counts.evictions, counts.lines), (5, 4, 3, 4));
        assert!((counts.miss_ratio(0) - 5.0 / 204.0).abs() < 1e-12);
    }
}
