//! The end of the process: the exit codes, and the errors that lead to them.

use std::io;
use std::time::Duration;

use onehop_engine::arrow::error::ArrowError;
use onehop_engine::{Error, ErrorKind};

/// The exit codes. Scripts rely on them: a code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// A statement failed, or a file could not be read or written.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// Stored data is damaged.
    Corrupt = 3,
    /// The work was done, but not in the required manner.
    Unmet = 4,
    /// Interrupted by Ctrl-C, as shells count it: 128 + SIGINT.
    Interrupted = 130,
    /// Ended by SIGTERM: 128 + SIGTERM.
    Terminated = 143,
}

/// The reason work stopped before its end.
#[derive(Debug)]
pub enum Stop {
    /// The engine returned an error.
    Engine(Error),
    /// The reader of our output is gone (`onehop ... | head`), so that a message would not be read.
    PipeClosed,
    /// Results could not be written, or a script not read: the operation and the system's error.
    System(String, io::Error),
    /// The request is invalid.
    Usage(String),
    /// A requirement on the execution was not met.
    Unmet(String),
    /// The engine refused a setting or a path of the command line or the environment.
    Misuse(Error),
    /// Ctrl-C, this long after the statement began.
    Interrupted(Duration),
}

impl Stop {
    /// Returns the exit code.
    pub fn exit(&self) -> Exit {
        match self {
            Stop::Engine(e) if e.kind() == ErrorKind::Corrupt => Exit::Corrupt,
            Stop::Engine(e) if e.kind() == ErrorKind::Cancelled => Exit::Interrupted,
            Stop::Engine(e) if e.kind() == ErrorKind::Unmet => Exit::Unmet,
            Stop::Engine(_) | Stop::System(..) => Exit::Failed,
            Stop::PipeClosed => Exit::Done,
            Stop::Usage(_) | Stop::Misuse(_) => Exit::Usage,
            Stop::Unmet(_) => Exit::Unmet,
            Stop::Interrupted(_) => Exit::Interrupted,
        }
    }
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Engine(e)
    }
}

/// Converts errors of standard output, which is the only output written piece by piece.
impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Stop::PipeClosed,
            _ => Stop::System("cannot write to standard output".into(), e),
        }
    }
}

impl From<ArrowError> for Stop {
    fn from(e: ArrowError) -> Self {
        match e {
            ArrowError::IoError(_, e) => e.into(),
            other => Stop::Engine(other.into()),
        }
    }
}

/// A [`Stop`] and the statement that caused it.
#[derive(Debug)]
pub struct Failure {
    /// The reason.
    pub stop: Stop,
    /// The statement; `None` if there is no script to point into.
    pub place: Option<Box<Place>>,
}

/// The place of a statement in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, `-c` or `<stdin>`.
    pub source: String,
    /// The first line of the statement, from 1.
    pub line: u64,
    /// The number of the statement in the source, from 1.
    pub statement: u64,
    /// The text of the statement.
    pub text: String,
}

impl<T: Into<Stop>> From<T> for Failure {
    fn from(stop: T) -> Self {
        Failure { stop: stop.into(), place: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_stop_has_its_code() {
        let code = |kind| Stop::from(Error::new(kind, "x")).exit();
        assert_eq!(code(ErrorKind::Syntax), Exit::Failed);
        assert_eq!(code(ErrorKind::Timeout), Exit::Failed);
        assert_eq!(code(ErrorKind::Corrupt), Exit::Corrupt);
        assert_eq!(code(ErrorKind::Cancelled), Exit::Interrupted);
        assert_eq!((code(ErrorKind::Unmet), code(ErrorKind::Device)), (Exit::Unmet, Exit::Failed));
        assert_eq!(Stop::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit(), Exit::Done);
        assert_eq!(Stop::from(io::Error::from(io::ErrorKind::StorageFull)).exit(), Exit::Failed);
        assert_eq!(Stop::Usage("x".into()).exit(), Exit::Usage);
        assert_eq!(Stop::Unmet("x".into()).exit() as u8, 4);
        assert_eq!(Stop::Interrupted(Duration::ZERO).exit() as u8, 130);
    }

    #[test]
    fn a_closed_pipe_is_found_inside_an_arrow_error() {
        let inner = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Stop::from(ArrowError::IoError("x".into(), inner)), Stop::PipeClosed));
    }
}
