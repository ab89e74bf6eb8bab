//! What can go wrong while a pipeline runs.

/// The result of running a pipeline.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A segment could not be read, or is corrupt.
    #[error(transparent)]
    Segment(#[from] onehop_segment::Error),

    /// A result does not fit its type. Whether it is raised does not depend on the order of rows.
    #[error("{type_name} out of range in {expression}")]
    OutOfRange {
        /// The type that was to hold it.
        type_name: String,
        /// What was computed.
        expression: String,
        /// What to do about it, if the expression has a label.
        hint: Option<&'static str>,
    },

    /// A division by zero.
    #[error("division by zero in {expression}")]
    DivisionByZero {
        /// What was computed.
        expression: String,
    },

    /// The memory budget is too small.
    #[error("{what} needs {needed} bytes, and {available} are left of the memory limit")]
    Memory {
        /// What needs it.
        what: String,
        /// Bytes it needs.
        needed: usize,
        /// Bytes there are.
        available: usize,
    },

    /// What did not fit in memory could not be put into files, or not be read again.
    #[error("cannot spill to {directory}: {source}")]
    Spill {
        /// Where the files are.
        directory: String,
        /// What went wrong.
        source: onehop_io::Error,
    },

    /// Something went wrong with a device that the program was to run on; another may well run it.
    #[error("{device}: {what}")]
    Device {
        /// Which device.
        device: String,
        /// What it said, or did not do.
        what: String,
    },

    /// Nobody wants the answer any more.
    #[error("the query was cancelled")]
    Cancelled,

    /// The program breaks a rule of the representation; whoever made it has a bug.
    #[error("invalid pipeline: {0}")]
    Invalid(String),

    /// The backend has no code for this; it says so before it reads any row.
    #[error("not supported: {0}")]
    Unsupported(String),
}
