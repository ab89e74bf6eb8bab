//! One error type: what was attempted, on which object of which pool or which path, why it failed, and what to do.
//!
//! Callers sort by variant and by [`Code`], never by text.

use std::fmt;
use std::io;

use super::fs::Id;

/// The result of an operation on a cluster.
pub type Result<T> = std::result::Result<T, Error>;

/// An error number of the cluster's, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    /// The object is not there.
    pub const NOT_FOUND: Self = Self(libc::ENOENT);
    /// The object is there already.
    pub const EXISTS: Self = Self(libc::EEXIST);
    /// A comparison in a compound operation did not hold: somebody was faster.
    pub const CONFLICT: Self = Self(libc::ECANCELED);
    /// No answer within the time. Whether the operation was carried out, or will be, is not known.
    pub const TIMED_OUT: Self = Self(libc::ETIMEDOUT);
    /// The pool or the cluster is full.
    pub const NO_SPACE: Self = Self(libc::ENOSPC);

    /// What to do about it, where there is something to do.
    fn advice(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::ETIMEDOUT => {
                "no answer within the time that was set; see `ceph -s`: are the monitors and OSDs up, and is the network?"
            }
            libc::ENOSPC | libc::EDQUOT => "the pool is full or over its quota; see `ceph df`, and delete or add OSDs",
            libc::EACCES | libc::EPERM => "the key may not do this; see `ceph auth get client.NAME`",
            libc::ESHUTDOWN => "the cluster has shut this client out (`ceph osd blocklist ls`); connect again",
            libc::EOPNOTSUPP => "erasure-coded pools have no omap: names must lie in a replicated pool",
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The words without "(os error 2)", which is the number of the cluster, not of this system.
        let words = io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(words.split(" (os error").next().unwrap_or(&words))?;
        match self.advice() {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}

/// What failed. Cheap to clone, so that all who wait for one operation can have it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The client library is not to be had.
    #[error("librados cannot be loaded: {reason}; install it (Debian: librados2, others: librados2 or ceph-libs)")]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// No connection, or no pool.
    #[error("cannot {what}: {code}")]
    Cluster {
        /// What was attempted.
        what: String,
        /// Why it failed.
        code: Code,
    },
    /// An operation on one object.
    #[error("cannot {operation} object {object} of {pool}: {code}")]
    Object {
        /// Pool, and namespace if there is one.
        pool: String,
        /// The object's name.
        object: String,
        /// What was attempted.
        operation: &'static str,
        /// Why it failed.
        code: Code,
    },
    /// A path of which something is not as the operation needs it.
    #[error("cannot {operation} {path}: {problem}")]
    Path {
        /// What was attempted.
        operation: &'static str,
        /// On which path.
        path: String,
        /// Why not.
        problem: Problem,
    },
    /// What is stored makes no sense, or is not what was written.
    #[error("object {object} of {pool} is damaged: {what}; run fsck, and see `ceph health detail`")]
    Corrupt {
        /// Pool, and namespace if there is one.
        pool: String,
        /// The object's name.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// A transaction that is not as the operation needs it.
    #[error("cannot {operation} transaction {transaction}: {problem}")]
    Transaction {
        /// What was attempted.
        operation: &'static str,
        /// On which transaction.
        transaction: Id,
        /// Why not.
        problem: TransactionProblem,
    },
    /// A file system of another version.
    #[error("the file system in {pool} has {what}, which this version of Onehop does not know; use a newer one")]
    Unknown {
        /// Pool, and namespace if there is one.
        pool: String,
        /// What it has.
        what: String,
    },
}

/// What is wrong with a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionProblem {
    /// It was never begun here, or it ended, and all of it is dealt with.
    NotThere,
    /// Somebody is committing it.
    Committing,
    /// It is committed.
    Committed,
    /// It was aborted, by somebody who had the say or because nobody had renewed it.
    Aborted,
    /// Another attempt of the task has been committed: this one.
    OtherAttempt(String),
    /// The task attempt was aborted.
    AttemptAborted,
    /// The task attempt is committed: it cannot be aborted any more.
    AttemptCommitted,
    /// A task or an attempt has a name that cannot be had.
    BadName,
    /// The cluster did not answer: it may be committed or not.
    OutcomeUnknown,
}

impl fmt::Display for TransactionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotThere => {
                "there is none of this identity: it was never begun in this file system, or ended long ago"
            }
            Self::Committing => "it is being committed; if who does it has died, it is aborted when its lease is over",
            Self::Committed => "it is committed",
            Self::Aborted => {
                "it was aborted, or was not renewed within its lease: nothing of it is visible; begin another one"
            }
            Self::OtherAttempt(name) => {
                return write!(f, "attempt {name} of this task is committed; what this one has written is discarded");
            }
            Self::AttemptAborted => "the task attempt was aborted; begin another one",
            Self::AttemptCommitted => "the task attempt is committed; abort the transaction to discard it",
            Self::BadName => "tasks and attempts have names of 1 to 256 bytes without '/' and zero bytes",
            Self::OutcomeUnknown => {
                "the cluster did not answer in time: it may be committed or not; ask for its state, or commit it again"
            }
        })
    }
}

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Nothing has this name.
    NotFound,
    /// Something has this name already.
    Exists,
    /// A file where a directory is needed.
    NotADirectory,
    /// A directory where a file is needed.
    IsADirectory,
    /// A directory with something in it.
    NotEmpty,
    /// A name that cannot be had: empty, `.`, `..`, too long, or with a zero byte.
    BadName,
    /// A directory would become part of itself, or the root would move or go.
    Impossible,
    /// Somebody else has changed it, again and again, or holds it for longer than we wait.
    Busy,
    /// A transaction is about to change it, for longer than we wait.
    InTransaction(Id),
    /// The task attempt that the file is of has ended: nothing can be added to it.
    AttemptEnded,
    /// Two files of one transaction have this name.
    WrittenTwice,
    /// The file is not the one that the condition was about.
    Changed,
    /// The writer was taken for dead, and what it had written is garbage: write it again.
    LeaseLost,
    /// The cluster did not answer: it may have happened or not. Look whether it has.
    OutcomeUnknown,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "nothing has this name",
            Self::Exists => "it exists already",
            Self::NotADirectory => "a part of the path is a file, not a directory",
            Self::IsADirectory => "it is a directory",
            Self::NotEmpty => "the directory is not empty",
            Self::BadName => "names have 1 to 1024 bytes, no '/', no zero byte, and are not '.' or '..'",
            Self::Impossible => "the root cannot be moved or removed, nor a directory be put into itself",
            Self::Busy => "others keep changing it; try again",
            Self::InTransaction(id) => {
                return write!(
                    f,
                    "transaction {id} is changing it; wait until it ends, or abort it (onehop rados txn abort)"
                );
            }
            Self::AttemptEnded => "the task attempt or its transaction has ended; what it has written is discarded",
            Self::WrittenTwice => "two committed tasks of the transaction have written it",
            Self::Changed => "it has been changed meanwhile",
            Self::LeaseLost => "the writer was silent for longer than its lease and was taken for dead; write it again",
            Self::OutcomeUnknown => {
                "the cluster did not answer in time: it may have happened or not; look before trying again"
            }
        })
    }
}

impl Error {
    /// The cluster's error number, if the error is of an operation on an object.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Object { code, .. } | Self::Cluster { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether an operation on an object failed for this reason.
    pub fn is(&self, code: Code) -> bool {
        self.code() == Some(code)
    }

    /// What is wrong with a transaction, if the error is about one.
    pub fn transaction_problem(&self) -> Option<&TransactionProblem> {
        match self {
            Self::Transaction { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// What is wrong with a path, if the error is about one.
    pub fn problem(&self) -> Option<Problem> {
        match self {
            Self::Path { problem, .. } => Some(*problem),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind as Kind;
        let kind = match &error {
            Error::NoLibrary { .. } | Error::Unknown { .. } => Kind::Unsupported,
            Error::Corrupt { .. } => Kind::InvalidData,
            Error::Cluster { code, .. } | Error::Object { code, .. } => io::Error::from_raw_os_error(code.0).kind(),
            Error::Path { problem, .. } => match problem {
                Problem::NotFound => Kind::NotFound,
                Problem::Exists => Kind::AlreadyExists,
                Problem::NotADirectory => Kind::NotADirectory,
                Problem::IsADirectory => Kind::IsADirectory,
                Problem::NotEmpty => Kind::DirectoryNotEmpty,
                Problem::BadName | Problem::Impossible => Kind::InvalidInput,
                Problem::Busy | Problem::Changed | Problem::InTransaction(_) => Kind::ResourceBusy,
                Problem::LeaseLost | Problem::AttemptEnded => Kind::BrokenPipe,
                Problem::WrittenTwice => Kind::AlreadyExists,
                Problem::OutcomeUnknown => Kind::TimedOut,
            },
            Error::Transaction { problem, .. } => match problem {
                TransactionProblem::NotThere => Kind::NotFound,
                TransactionProblem::Committing | TransactionProblem::Committed => Kind::ResourceBusy,
                TransactionProblem::Aborted
                | TransactionProblem::OtherAttempt(_)
                | TransactionProblem::AttemptAborted
                | TransactionProblem::AttemptCommitted => Kind::BrokenPipe,
                TransactionProblem::BadName => Kind::InvalidInput,
                TransactionProblem::OutcomeUnknown => Kind::TimedOut,
            },
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_everything() {
        let error =
            Error::Object { pool: "pool data".into(), object: "f.1".into(), operation: "write", code: Code::NO_SPACE };
        let text = error.to_string();
        assert!(
            text.starts_with("cannot write object f.1 of pool data: No space left on device (the pool is full"),
            "{text}"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
    }
}
