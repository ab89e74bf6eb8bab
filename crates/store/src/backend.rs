//! Pages that change together or not at all: what everything above stands on, and both kinds of media can give.
//!
//! A page is known by its [`PageNo`], which stays; where its bytes lie is the backend's affair and changes with every commit
//! (a *slot* of 4,096 bytes, whose first line is the backend's own). A backend keeps one version of a page, the last committed,
//! beside what is being written; older ones for readers are kept in memory by `pages`.
//!
//! Invariants of every backend:
//! - After [`commit`](Backend::commit) has returned, and only then, all of its batch is durable. A crash before leaves all of
//!   it or nothing.
//! - No byte of a committed version is written over while a crash could bring that version back.
//! - [`read`](Backend::read) returns what was committed, or an error: every page has a checksum.
//! - After an error that leaves unknown what is durable, it commits nothing more ([`Error::Poisoned`](crate::Error::Poisoned)).

use std::fmt;
use std::sync::Arc;

use crate::Result;
use crate::medium::Domain;

/// Bytes of a line.
pub(crate) const LINE_BYTES: usize = 64;
/// Bytes of a slot: the unit of space.
pub(crate) const SLOT_BYTES: usize = 4096;
/// Lines of a slot.
pub(crate) const SLOT_LINES: usize = SLOT_BYTES / LINE_BYTES;
/// Bytes of a page: a slot without its first line.
pub(crate) const PAGE_BYTES: usize = SLOT_BYTES - LINE_BYTES;

/// The name of a page: dense, from 0. It is used again once the page was freed.
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
    /// All zeros.
    pub(crate) fn zeroed() -> Self {
        Self([0; PAGE_BYTES])
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Image")
    }
}

/// A set of a slot's lines: bit `i` is line `i`, which is bytes `64 * (i - 1) ..` of the page. Bit 0, the backend's own line, is
/// never in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines(pub(crate) u64);

impl Lines {
    /// All lines of a page.
    pub(crate) const ALL: Self = Self(!1);

    /// The lines that bytes `from .. to` of a page lie in.
    pub(crate) fn of(from: usize, to: usize) -> Self {
        if from >= to {
            return Self(0);
        }
        let (first, last) = (from / LINE_BYTES + 1, (to - 1) / LINE_BYTES + 1);
        Self((u64::MAX << first) & (u64::MAX >> (SLOT_LINES - 1 - last)))
    }

    /// Lines in either.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their number.
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// What a commit does to one page.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The page, in use or not.
    pub(crate) page: PageNo,
    /// Its new bytes.
    pub(crate) content: Content,
    /// Lines that may differ from the committed version; all of them if there is none.
    pub(crate) lines: Lines,
}

/// The new bytes of a page.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Here they are.
    Image(Arc<Image>),
    /// [`Backend::spill`] was given them last.
    Spilled,
}

/// Which free slots a batch may take where the medium does not grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    /// All but the reserve.
    #[default]
    Ordinary,
    /// All: it is of transactions that make room, and without any to begin with nobody ever could.
    Reserve,
}

/// What one commit does: one transaction, or several that become durable together. A page is at most once in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// Where there is room for it.
    pub(crate) room: Room,
    /// Pages that are new or changed.
    pub(crate) writes: Vec<Write>,
    /// Pages that are no longer in use; each was.
    pub(crate) frees: Vec<PageNo>,
}

/// What a backend has moved since it was opened, and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendStats {
    /// Batches committed.
    pub commits: u64,
    /// Lines (or, on files, pages) written as the new bytes of pages.
    pub data_units: u64,
    /// Lines or pages that say what a commit consists of, where they are not data themselves.
    pub journal_units: u64,
    /// Lines or pages written to bring pairs of slots together.
    pub consolidation_units: u64,
    /// Lines or pages of tables and superblocks.
    pub table_units: u64,
    /// Bytes written to the medium, all in all.
    pub written_bytes: u64,
    /// Lines flushed.
    pub flushes: u64,
    /// Fences: `sfence` on memory, `fdatasync` on files.
    pub fences: u64,
    /// Checkpoints of tables.
    pub checkpoints: u64,
    /// Pages in use.
    pub pages: u64,
    /// Slots that the medium has room for.
    pub slots: u64,
    /// Slots that hold nothing that is needed.
    pub free_slots: u64,
    /// Pages that hold two slots.
    pub pairs: u64,
}

/// Pages that change together or not at all. All methods may be called from many threads, with the exceptions that are stated.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    /// What the medium is called.
    fn name(&self) -> &str;

    /// Where what is committed is safe.
    fn domain(&self) -> Domain;

    /// Pages in use, ascending, as of the last commit. Called before the first commit, and by checks.
    fn pages(&self) -> Vec<PageNo>;

    /// Reads the committed version of a page in use. Not called for a page that a commit under way writes.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if its checksum is not that of its bytes.
    fn read(&self, page: PageNo, into: &mut Image) -> Result<()>;

    /// Makes all of `batch` durable. One at a time. Returns the bytes that were written to the medium for it, work that was put off
    /// until then included.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) and nothing has happened; anything else, and the backend is poisoned.
    fn commit(&self, batch: &Batch) -> Result<u64>;

    /// Keeps bytes of a page that the open transaction has no room for in memory. May be called again for the same page. Not
    /// called while a commit is under way; what was spilled is part of the next commit, or is discarded before it.
    fn spill(&self, page: PageNo, image: &Image, lines: Lines) -> Result<()>;

    /// Reads what was spilled of a page.
    fn read_spilled(&self, page: PageNo, into: &mut Image) -> Result<()>;

    /// Forgets what was spilled: the transaction was aborted.
    fn discard_spilled(&self);

    /// Brings tables up to date, so that recovery has little to do.
    fn checkpoint(&self) -> Result<()>;

    /// Does a bounded piece of the work that can wait (consolidation, checkpoints that are due); `false` if there is none. Not
    /// called while a commit is under way.
    fn maintain(&self) -> Result<bool>;

    /// The last call: makes a checkpoint and marks the medium as cleanly closed, so that the next open need not guess where the
    /// journal ends and misses nothing if its end is damaged.
    fn close(&self) -> Result<()> {
        self.checkpoint()
    }

    /// Verifies everything that it keeps: checksums of all pages and tables, that no slot has two owners. Each finding is a
    /// sentence that names the page or slot.
    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()>;

    /// What it has moved and has.
    fn stats(&self) -> BackendStats;
}
