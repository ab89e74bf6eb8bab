//! Options of opening a store.

/// The access mode of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes. No other process may have the store open.
    #[default]
    ReadWrite,
    /// Reads only. Other readers may have the store open, a writer may not.
    ReadOnly,
}

/// The medium of a new store. An existing store is opened as the kind it was created as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediumKind {
    /// Persistent memory if the path is on it, otherwise a file.
    #[default]
    Auto,
    /// A file: pages of 4,096 bytes, one `fdatasync` a commit.
    File,
    /// Mapped memory: lines of 64 bytes. If the path is not on persistent memory, the store is as
    /// safe as the system's memory, which suits `/dev/shm`.
    Pmem,
}

/// The executor of deferrable work: checkpoints that are due, and consolidation of pages that lie
/// in two slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maintenance {
    /// Commits, when the work cannot wait any longer, and callers of
    /// [`Store::maintain`](crate::Store::maintain).
    #[default]
    ByCommits,
    /// Also a thread of the store, while the store is idle: later commits find the work done, and
    /// so does recovery.
    WhenIdle,
}

/// The number of times that a commit to a file waits for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncs {
    /// Once: checksums tell a whole commit from a torn one.
    #[default]
    One,
    /// Twice: the write that makes the commit valid follows when all else is durable.
    Two,
}

/// The mechanism that makes a commit to memory durable, chosen when the store is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitBy {
    /// A record of the journal: one line for three pages.
    #[default]
    Journal,
    /// A word of the super page: one line for each page, and one for the word. It is the paper's
    /// alternative, for comparison.
    SuperPage,
}

/// Options of opening a store. `Options::default()` is a good start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The access mode.
    pub access: Access,
    /// The medium, if the store is new.
    pub medium: MediumKind,
    /// The memory for committed pages, in bytes.
    pub cache_bytes: usize,
    /// The memory for pages that one transaction has changed, in bytes. Beyond it pages are spilled
    /// to the medium.
    pub transaction_bytes: usize,
    /// The memory for replaced versions that live readers still need, in bytes. Beyond it the
    /// oldest reader gets [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub version_bytes: usize,
    /// The executor of deferrable work.
    pub maintenance: Maintenance,
    /// The waits of a commit for the device, on a file.
    pub syncs: Syncs,
    /// The commit mechanism of a new store on memory.
    pub commit_by: CommitBy,
    /// The number of pages that may lie in two slots, on memory, so that a commit writes only the
    /// lines that have changed. More take space, fewer are consolidated more often. With 0, whole
    /// pages are written.
    pub shadow_pages: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            medium: MediumKind::Auto,
            cache_bytes: 64 << 20,
            transaction_bytes: 64 << 20,
            version_bytes: 64 << 20,
            maintenance: Maintenance::default(),
            syncs: Syncs::default(),
            commit_by: CommitBy::default(),
            shadow_pages: 16_384,
        }
    }
}

impl Options {
    /// Sets the access mode.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the medium of a new store.
    #[must_use]
    pub fn medium(mut self, medium: MediumKind) -> Self {
        self.medium = medium;
        self
    }

    /// Sets the memory for committed pages.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets the memory for the pages of one transaction.
    #[must_use]
    pub fn transaction_bytes(mut self, bytes: usize) -> Self {
        self.transaction_bytes = bytes;
        self
    }

    /// Sets the memory for versions that readers need.
    #[must_use]
    pub fn version_bytes(mut self, bytes: usize) -> Self {
        self.version_bytes = bytes;
        self
    }

    /// Sets the executor of deferrable work.
    #[must_use]
    pub fn maintenance(mut self, maintenance: Maintenance) -> Self {
        self.maintenance = maintenance;
        self
    }

    /// Sets the number of waits of a commit to a file.
    #[must_use]
    pub fn syncs(mut self, syncs: Syncs) -> Self {
        self.syncs = syncs;
        self
    }

    /// Sets the commit mechanism of a new store on memory.
    #[must_use]
    pub fn commit_by(mut self, commit_by: CommitBy) -> Self {
        self.commit_by = commit_by;
        self
    }

    /// Sets the maximum number of pages of memory in two slots.
    #[must_use]
    pub fn shadow_pages(mut self, pages: u32) -> Self {
        self.shadow_pages = pages;
        self
    }
}
