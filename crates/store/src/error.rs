//! One error type. Its variants tell the caller the cause, the object and the next step.

use std::sync::Arc;

/// The result of an operation on a store.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the store. It is cheap to clone, so that all waiters of one group commit can have
/// it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on the medium.
    #[error("cannot {operation} {object}: {source}")]
    Io {
        /// The operation, with offset and length if it has any ("write 4096 bytes at offset 8192
        /// of").
        operation: String,
        /// The file or device.
        object: String,
        /// The system's error.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The medium does not hold what was written: it is damaged, cut off, or not of this program.
    #[error(
        "{object} is damaged: {reason}; restore it from a backup (`onehop store check` lists everything that is damaged)"
    )]
    Corrupt {
        /// The file or device.
        object: String,
        /// The damaged part, and the damage.
        reason: String,
    },
    /// The object is not a store, or a newer version of this program created it.
    #[error("{object} cannot be opened: {reason}")]
    Unknown {
        /// The file or device.
        object: String,
        /// The reason.
        reason: String,
    },
    /// An earlier commit failed half-way. The durable state is known only after the store is opened
    /// again.
    #[error("{object} refuses to commit since an earlier operation failed ({reason}); close it and open it again")]
    Poisoned {
        /// The file or device.
        object: String,
        /// The first failure.
        reason: String,
    },
    /// The open file does not have its name any more, or does not hold what was written to it. A
    /// later write would not be found again, so the store acknowledges none.
    #[error("{object} was {what} while it was open: a commit would be lost, and is not acknowledged")]
    Displaced {
        /// The file.
        object: String,
        /// The change of the file.
        what: String,
    },
    /// Another process, or another handle of this process, has it open, and one of the two is a
    /// writer.
    #[error("{object} is open elsewhere{holder}; close it there, or open it for reading in both")]
    Locked {
        /// The file or device.
        object: String,
        /// " (process 1234)", or empty if the process is not known.
        holder: String,
    },
    /// The store was opened for reading.
    #[error("{object} is open for reading only")]
    ReadOnly {
        /// The file or device.
        object: String,
    },
    /// There is no space on the medium, or in the part of it that the store may use. Nothing of the
    /// transaction was committed.
    #[error("{object} is full: {reason}")]
    Full {
        /// The file or device.
        object: String,
        /// The limit that was reached.
        reason: String,
    },
    /// The caller requested an invalid operation.
    #[error("{0}")]
    Invalid(String),
    /// The versions that a reader's snapshot needs were discarded, because they outgrew the memory
    /// for versions.
    #[error(
        "the snapshot of commit {commit} is too old: what it needs outgrew the memory for versions; begin another, or allow more"
    )]
    SnapshotTooOld {
        /// The commit that the reader sees.
        commit: u64,
    },
}

impl Error {
    /// Creates the error of a system that refused `operation` on `object`.
    pub(crate) fn io(operation: impl Into<String>, object: &str, source: impl Into<std::io::Error>) -> Self {
        Self::Io { operation: operation.into(), object: object.into(), source: Arc::new(source.into()) }
    }

    /// Creates the error of a damaged `object`.
    pub(crate) fn corrupt(object: &str, reason: impl Into<String>) -> Self {
        Self::Corrupt { object: object.into(), reason: reason.into() }
    }
}
