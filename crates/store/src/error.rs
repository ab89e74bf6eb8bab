//! One error type, by meaning: whose fault it is, which object, what to do next.

use std::sync::Arc;

/// The result of an operation on a store.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Cheap to clone, so that all who wait for one group commit can have it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on the medium.
    #[error("cannot {operation} {object}: {source}")]
    Io {
        /// What was attempted, with offset and length where there are any ("write 4096 bytes at offset 8192 of").
        operation: String,
        /// The file or device.
        object: String,
        /// What the system said.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// What the medium holds is not what was written: damaged, cut off, or not this program's.
    #[error(
        "{object} is damaged: {reason}; restore it from a backup (`onehop store check` lists everything that is damaged)"
    )]
    Corrupt {
        /// The file or device.
        object: String,
        /// Which part of it, and what is wrong with it.
        reason: String,
    },
    /// Not a store, or one that a newer version of this program made.
    #[error("{object} cannot be opened: {reason}")]
    Unknown {
        /// The file or device.
        object: String,
        /// What was found.
        reason: String,
    },
    /// An earlier commit failed half-way: what is durable is found out by opening the store again.
    #[error("{object} refuses to commit since an earlier operation failed ({reason}); close it and open it again")]
    Poisoned {
        /// The file or device.
        object: String,
        /// The first failure.
        reason: String,
    },
    /// The open file does not have its name any more, or does not hold what was written to it. What is written from now on would
    /// not be found again, so nothing is acknowledged.
    #[error("{object} was {what} while it was open: a commit would be lost, and is not acknowledged")]
    Displaced {
        /// The file.
        object: String,
        /// What has happened to it.
        what: String,
    },
    /// Another process, or another handle of this one, has it open, and one of the two is to write.
    #[error("{object} is open elsewhere{holder}; close it there, or open it for reading in both")]
    Locked {
        /// The file or device.
        object: String,
        /// " (process 1234)", or nothing if that is not known.
        holder: String,
    },
    /// It was opened for reading.
    #[error("{object} is open for reading only")]
    ReadOnly {
        /// The file or device.
        object: String,
    },
    /// There is no room on the medium, or in what the store may use of it. Nothing of the transaction was committed.
    #[error("{object} is full: {reason}")]
    Full {
        /// The file or device.
        object: String,
        /// Which limit.
        reason: String,
    },
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The versions that a reader's snapshot needs were given up, since they outgrew what may be kept for readers.
    #[error(
        "the snapshot of commit {commit} is too old: what it needs outgrew the memory for versions; begin another, or allow more"
    )]
    SnapshotTooOld {
        /// The commit that the reader sees.
        commit: u64,
    },
}

impl Error {
    /// The system refused `operation` on `object`.
    pub(crate) fn io(operation: impl Into<String>, object: &str, source: impl Into<std::io::Error>) -> Self {
        Self::Io { operation: operation.into(), object: object.into(), source: Arc::new(source.into()) }
    }

    /// `object` holds what nobody wrote.
    pub(crate) fn corrupt(object: &str, reason: impl Into<String>) -> Self {
        Self::Corrupt { object: object.into(), reason: reason.into() }
    }
}
