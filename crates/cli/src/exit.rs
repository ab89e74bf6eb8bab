//! How the process ends: the exit codes, and what leads to which.

use std::io;
use std::time::Duration;

use onehop_engine::arrow::error::ArrowError;
use onehop_engine::{Error, ErrorKind};

/// The exit codes. Scripts rely on them: a code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// A statement failed, or a file could not be read or written.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Stored data is damaged.
    Corrupt = 3,
    /// Everything was done, but not the way that was required.
    Unmet = 4,
    /// Interrupted by Ctrl-C, as shells count it: 128 + SIGINT.
    Interrupted = 130,
    /// Ended by SIGTERM: 128 + SIGTERM.
    Terminated = 143,
}

/// Why work stopped before its end.
#[derive(Debug)]
pub enum Stop {
    /// The engine said no.
    Engine(Error),
    /// Whoever read our output has left (`onehop ... | head`). Nobody is there to be told.
    PipeClosed,
    /// Results could not be written, or a script not read: the attempt, and what the system said.
    System(String, io::Error),
    /// What was asked for makes no sense.
    Usage(String),
    /// What was required of how it is done was not met.
    Unmet(String),
    /// The engine says that a setting or a path on the command line (or in the environment) makes no sense.
    Misuse(Error),
    /// Ctrl-C, so long after the statement began.
    Interrupted(Duration),
}

impl Stop {
    /// The exit code it leads to.
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

/// Errors of the one thing that is written piece by piece: standard output.
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

/// A [`Stop`] and the statement that it happened in.
#[derive(Debug)]
pub struct Failure {
    /// What happened.
    pub stop: Stop,
    /// Where; `None` where there is no script to point into.
    pub place: Option<Box<Place>>,
}

/// A statement of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, `-c` or `<stdin>`.
    pub source: String,
    /// The line the statement begins on, from 1.
    pub line: u64,
    /// Which statement of the source it is, from 1.
    pub statement: u64,
    /// The statement.
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
