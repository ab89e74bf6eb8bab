//! Pages that change atomically: the base of all higher layers, which both kinds of media provide.
//!
//! A page is identified by its [`PageNo`], which stays. The backend chooses the location of its
//! bytes, which changes with every commit (a *slot* of 4,096 bytes, whose first line is the
//! backend's own). A backend keeps the last committed version of a page, beside the version that is
//! being written. `pages` keeps older versions for readers in memory.
//!
//! Invariants of every backend:
//! - After [`commit`](Backend::commit) has returned, and only then, all of its batch is durable. A
//!   crash before that leaves all of it or nothing.
//! - No byte of a committed version is overwritten while a crash could restore that version.
//! - [`read`](Backend::read) returns the committed bytes, or an error: every page has a checksum.
//! - After an error that leaves the durable state unknown, the backend commits nothing more
//!   ([`Error::Poisoned`](crate::Error::Poisoned)).

use std::fmt;
use std::sync::Arc;

use crate::Result;
use crate::medium::Domain;

/// The bytes of a line.
pub(crate) const LINE_BYTES: usize = 64;
/// The bytes of a slot: the unit of space.
pub(crate) const SLOT_BYTES: usize = 4096;
/// The lines of a slot.
pub(crate) const SLOT_LINES: usize = SLOT_BYTES / LINE_BYTES;
/// The bytes of a page: a slot without its first line.
pub(crate) const PAGE_BYTES: usize = SLOT_BYTES - LINE_BYTES;

/// The number of a page: dense, from 0. It is reused after the page is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageNo(pub(crate) u32);

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// The bytes of a page.
#[derive(Clone, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Image(pub(crate) [u8; PAGE_BYTES]);

impl Image {
    /// Returns a page of zeros.
    pub(crate) fn zeroed() -> Self {
        Self([0; PAGE_BYTES])
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Image")
    }
}

/// A set of a slot's lines. Bit `i` is line `i`, which is bytes `64 * (i - 1) ..` of the page. Bit
/// 0, the backend's own line, is never set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines(pub(crate) u64);

impl Lines {
    /// All lines of a page.
    pub(crate) const ALL: Self = Self(!1);

    /// Returns the lines that contain bytes `from .. to` of a page.
    pub(crate) fn of(from: usize, to: usize) -> Self {
        if from >= to {
            return Self(0);
        }
        let (first, last) = (from / LINE_BYTES + 1, (to - 1) / LINE_BYTES + 1);
        Self((u64::MAX << first) & (u64::MAX >> (SLOT_LINES - 1 - last)))
    }

    /// Returns the union of both sets.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the number of lines.
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// The change of one page by a commit.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The page, in use or not.
    pub(crate) page: PageNo,
    /// The page's new bytes.
    pub(crate) content: Content,
    /// The lines that may differ from the committed version, or all of them if there is none.
    pub(crate) lines: Lines,
}

/// The new bytes of a page.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// The bytes themselves.
    Image(Arc<Image>),
    /// The bytes last passed to [`Backend::spill`].
    Spilled,
}

/// The free slots that a batch may take if the medium does not grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    /// All but the reserve.
    #[default]
    Ordinary,
    /// All. The reserve is for transactions that free space: without any free slots to start with,
    /// no transaction could free some.
    Reserve,
}

/// The changes of one commit: one transaction, or several that become durable together. A page
/// occurs at most once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// The free slots that the batch may take.
    pub(crate) room: Room,
    /// The pages that are new or changed.
    pub(crate) writes: Vec<Write>,
    /// The pages that are no longer in use. Each was in use before.
    pub(crate) frees: Vec<PageNo>,
}

/// Counters since the opening of a backend, and its present sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendStats {
    /// The number of batches committed.
    pub commits: u64,
    /// The lines (or, on files, pages) written as the new bytes of pages.
    pub data_units: u64,
    /// The lines or pages that describe a commit, if they are not data themselves.
    pub journal_units: u64,
    /// The lines or pages written to consolidate pairs of slots.
    pub consolidation_units: u64,
    /// The lines or pages of tables and superblocks.
    pub table_units: u64,
    /// The bytes written to the medium, in total.
    pub written_bytes: u64,
    /// The number of lines flushed.
    pub flushes: u64,
    /// The number of fences: `sfence` on memory, `fdatasync` on files.
    pub fences: u64,
    /// The number of checkpoints of tables.
    pub checkpoints: u64,
    /// The number of pages in use.
    pub pages: u64,
    /// The number of slots that fit on the medium.
    pub slots: u64,
    /// The number of slots without needed contents.
    pub free_slots: u64,
    /// The number of pages that hold two slots.
    pub pairs: u64,
}

/// Pages that change atomically. All methods may be called from many threads, except as stated.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    /// Returns the name of the medium.
    fn name(&self) -> &str;

    /// Returns the domain in which commits are safe.
    fn domain(&self) -> Domain;

    /// Returns the pages in use, ascending, as of the last commit. Called before the first commit,
    /// and by checks.
    fn pages(&self) -> Vec<PageNo>;

    /// Reads the committed version of a page in use. Not called for a page that a running commit
    /// writes.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the checksum does not match the bytes.
    fn read(&self, page: PageNo, into: &mut Image) -> Result<()>;

    /// Makes all of `batch` durable. One call at a time. Returns the bytes that were written to the
    /// medium for it, including work deferred until then.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full): nothing was changed. Any other error poisons the
    /// backend.
    fn commit(&self, batch: &Batch) -> Result<u64>;

    /// Keeps bytes of a page that do not fit in the memory of the open transaction. May be called
    /// again for the same page. Not called during a commit. Spilled pages are part of the next
    /// commit, or are discarded before it.
    fn spill(&self, page: PageNo, image: &Image, lines: Lines) -> Result<()>;

    /// Reads the spilled bytes of a page.
    fn read_spilled(&self, page: PageNo, into: &mut Image) -> Result<()>;

    /// Discards the spilled pages of an aborted transaction.
    fn discard_spilled(&self);

    /// Brings tables up to date, so that recovery has little to do.
    fn checkpoint(&self) -> Result<()>;

    /// Does a bounded piece of the deferrable work (consolidation, checkpoints that are due).
    /// Returns false if there is none. Not called during a commit.
    fn maintain(&self) -> Result<bool>;

    /// Makes a checkpoint and marks the medium as cleanly closed. This is the last call. The next
    /// open need not guess the end of the journal, and detects damage of that end.
    fn close(&self) -> Result<()> {
        self.checkpoint()
    }

    /// Verifies everything that the backend keeps: the checksums of all pages and tables, and that
    /// no slot has two owners. Each finding is a sentence that names the page or slot.
    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()>;

    /// Returns the counters and sizes.
    fn stats(&self) -> BackendStats;
}
