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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            medium: MediumKind::Auto,
            cache_bytes: 64 << 20,
            transaction_bytes: 64 << 20,
            version_bytes: 64 << 20,
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
}
