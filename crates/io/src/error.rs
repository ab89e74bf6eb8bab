//! One error type: what was attempted, on which object, where, and what the system said.

use std::fmt;
use std::sync::Arc;

/// The result of an I/O operation.
pub type Result<T> = std::result::Result<T, Error>;

/// What was being done when an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening an existing object.
    Open,
    /// Creating a new object.
    Create,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making bytes or names durable.
    Sync,
    /// Giving an object another name.
    Rename,
    /// Removing an object.
    Remove,
    /// Listing a directory.
    List,
    /// Taking the lock of a directory.
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::List => "list",
            Self::Lock => "lock",
        })
    }
}

/// An operation that failed. Cheap to clone, so that every waiter of a shared read can have it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {operation} {object}{}: {source}", Extent(*.extent))]
pub struct Error {
    /// What was attempted.
    pub operation: Operation,
    /// The file or name it was attempted on.
    pub object: String,
    /// Offset and length in bytes, for reads and writes.
    pub extent: Option<(u64, usize)>,
    /// What the system said.
    #[source]
    pub source: Arc<std::io::Error>,
}

struct Extent(Option<(u64, usize)>);

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((offset, len)) => write!(f, " ({len} bytes at offset {offset})"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// An operation on a whole object.
    pub fn new(operation: Operation, object: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self { operation, object: object.into(), extent: None, source: Arc::new(source.into()) }
    }

    /// An operation on `len` bytes at `offset` of an object.
    pub fn at(
        operation: Operation,
        object: impl Into<String>,
        offset: u64,
        len: usize,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self { operation, object: object.into(), extent: Some((offset, len)), source: Arc::new(source.into()) }
    }

    /// Whether the object was not there.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == std::io::ErrorKind::NotFound
    }
}
