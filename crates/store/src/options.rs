//! How a store is opened.

/// May the store be changed?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes; nobody else may have it open.
    #[default]
    ReadWrite,
    /// Reads only; other readers are welcome, a writer is not.
    ReadOnly,
}

/// What a new store lies on; one that is there is opened as what it was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediumKind {
    /// Persistent memory where the path is on it, otherwise a file.
    #[default]
    Auto,
    /// A file: pages of 4,096 bytes, one `fdatasync` a commit.
    File,
    /// Mapped memory: lines of 64 bytes. Where the path is not on persistent memory it is as safe as the system's, which is what
    /// `/dev/shm` is good for.
    Pmem,
}

/// Who does what can wait: checkpoints that are due, and consolidation of pages that lie in two slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maintenance {
    /// Commits, when there is no waiting any longer; and whoever calls [`Store::maintain`](crate::Store::maintain).
    #[default]
    ByCommits,
    /// A thread of the store's as well, while nobody commits: later commits find it done, and so does recovery.
    WhenIdle,
}

/// How often a commit to a file waits for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncs {
    /// Once: checksums tell a whole commit from a torn one.
    #[default]
    One,
    /// Twice: what makes the commit count is written when all else is durable.
    Two,
}

/// What makes a commit to memory durable; chosen when the store is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitBy {
    /// A record of the journal: one line for three pages.
    #[default]
    Journal,
    /// A word of the super page: one line for each page, and one for the word. It is the paper's alternative, for comparison.
    SuperPage,
}

/// How a store is opened. `Options::default()` is a good start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// May it be changed?
    pub access: Access,
    /// What it lies on, if it is new.
    pub medium: MediumKind,
    /// Memory for pages as they were committed, in bytes.
    pub cache_bytes: usize,
    /// Memory for pages that one transaction has changed, in bytes; past it they are spilled to the medium.
    pub transaction_bytes: usize,
    /// Memory for versions that were replaced and that live readers still need, in bytes. Past it the oldest reader gets
    /// [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub version_bytes: usize,
    /// Who does what can wait.
    pub maintenance: Maintenance,
    /// On a file: waits of a commit for the device.
    pub syncs: Syncs,
    /// On memory, of a store that is made: how commits become durable.
    pub commit_by: CommitBy,
    /// On memory: pages that may lie in two slots, so that a commit writes the lines that have changed and no others. More take
    /// space, fewer are brought together more often; with 0, whole pages are written.
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
    /// With this access.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// On this medium, if it is new.
    #[must_use]
    pub fn medium(mut self, medium: MediumKind) -> Self {
        self.medium = medium;
        self
    }

    /// With so much memory for committed pages.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// With so much memory for the pages of one transaction.
    #[must_use]
    pub fn transaction_bytes(mut self, bytes: usize) -> Self {
        self.transaction_bytes = bytes;
        self
    }

    /// With so much memory for versions that readers need.
    #[must_use]
    pub fn version_bytes(mut self, bytes: usize) -> Self {
        self.version_bytes = bytes;
        self
    }

    /// With what can wait done by these.
    #[must_use]
    pub fn maintenance(mut self, maintenance: Maintenance) -> Self {
        self.maintenance = maintenance;
        self
    }

    /// With so many waits of a commit to a file.
    #[must_use]
    pub fn syncs(mut self, syncs: Syncs) -> Self {
        self.syncs = syncs;
        self
    }

    /// With commits to memory made durable in this way, if it is new.
    #[must_use]
    pub fn commit_by(mut self, commit_by: CommitBy) -> Self {
        self.commit_by = commit_by;
        self
    }

    /// With so many pages of memory in two slots at most.
    #[must_use]
    pub fn shadow_pages(mut self, pages: u32) -> Self {
        self.shadow_pages = pages;
        self
    }
}
