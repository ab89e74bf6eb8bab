//! What went wrong, as a word that Java sorts by and a sentence for people.

use onehop_io::rados::{BadUrl, Code, Error, Problem, TransactionProblem};

use crate::handles::BadHandle;

/// The result of what is done for Java.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The cluster or the file system says no.
    #[error(transparent)]
    Rados(#[from] Error),
    /// A handle that cannot be used.
    #[error(transparent)]
    Handle(#[from] BadHandle),
    /// An authority that names no pool.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// An output stream that was given up.
    #[error("the file {path} was given up: nothing of it was or will be visible")]
    Aborted { path: String },
    /// Arguments that make no sense: the Java half has a bug.
    #[error("{0}")]
    Misuse(String),
    /// The virtual machine says no; it may have thrown already.
    #[error(transparent)]
    Java(#[from] jni::errors::Error),
}

impl Failure {
    /// The name of a constant of the Java enumeration `io.onehop.rados.Problem`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Rados(error) => word(error),
            Self::Handle(BadHandle::Closed { .. }) | Self::Aborted { .. } => "CLOSED",
            Self::Handle(_) | Self::Misuse(_) | Self::Java(_) => "MISUSE",
            Self::Url(_) => "BAD_NAME",
        }
    }
}

fn word(error: &Error) -> &'static str {
    match error {
        Error::NoLibrary { .. } => "NO_LIBRARY",
        Error::Corrupt { .. } => "CORRUPT",
        Error::Unknown { .. } => "UNKNOWN_VERSION",
        // It has ended, or another attempt counts.
        Error::Transaction { problem, .. } => match problem {
            TransactionProblem::OutcomeUnknown => "OUTCOME_UNKNOWN",
            TransactionProblem::BadName => "BAD_NAME",
            TransactionProblem::OtherAttempt(_) => "OTHER_ATTEMPT",
            TransactionProblem::Committing => "BUSY",
            TransactionProblem::NotThere
            | TransactionProblem::Committed
            | TransactionProblem::Aborted
            | TransactionProblem::AttemptAborted
            | TransactionProblem::AttemptCommitted => "ENDED",
        },
        Error::Cluster { code, .. } | Error::Object { code, .. } => match *code {
            Code::TIMED_OUT => "TIMED_OUT",
            Code::NO_SPACE => "NO_SPACE",
            Code(code) if code == errno::EDQUOT => "NO_SPACE",
            Code(code) if code == errno::EACCES || code == errno::EPERM => "DENIED",
            Code(code) if code == errno::ESHUTDOWN => "SHUT_OUT",
            // Of an object, not of a path: "super" of a pool without a file system, or the pool.
            Code::NOT_FOUND => "NO_FILE_SYSTEM",
            _ => "CLUSTER",
        },
        Error::Path { problem, .. } => match problem {
            Problem::NotFound => "NOT_FOUND",
            Problem::Exists => "EXISTS",
            Problem::NotADirectory => "NOT_A_DIRECTORY",
            Problem::IsADirectory => "IS_A_DIRECTORY",
            Problem::NotEmpty => "NOT_EMPTY",
            Problem::BadName => "BAD_NAME",
            Problem::Impossible => "IMPOSSIBLE",
            Problem::Busy | Problem::InTransaction(_) => "BUSY",
            Problem::Changed => "CHANGED",
            Problem::LeaseLost | Problem::AttemptEnded => "LEASE_LOST",
            Problem::WrittenTwice => "EXISTS",
            Problem::OutcomeUnknown => "OUTCOME_UNKNOWN",
        },
    }
}

/// Numbers of Linux, whose cluster's numbers they are: the same wherever the client runs.
mod errno {
    pub const EPERM: i32 = 1;
    pub const EACCES: i32 = 13;
    pub const ESHUTDOWN: i32 = 108;
    pub const EDQUOT: i32 = 122;
}
