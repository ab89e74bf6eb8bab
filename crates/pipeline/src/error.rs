//! Errors of a running pipeline.

/// The result of running a pipeline.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of a pipeline.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A segment could not be read, or is corrupt.
    #[error(transparent)]
    Segment(#[from] onehop_segment::Error),

    /// A result does not fit its type. The order of rows does not affect if this error is raised.
    #[error("{type_name} out of range in {expression}")]
    OutOfRange {
        /// The type of the result.
        type_name: String,
        /// The failing expression.
        expression: String,
        /// A remedy, if the expression has a label.
        hint: Option<&'static str>,
    },

    /// A division by zero.
    #[error("division by zero in {expression}")]
    DivisionByZero {
        /// The failing expression.
        expression: String,
    },

    /// The memory budget is too small.
    #[error("{what} needs {needed} bytes, and {available} are left of the memory limit")]
    Memory {
        /// The component that needs the memory.
        what: String,
        /// Bytes it needs.
        needed: usize,
        /// Bytes available.
        available: usize,
    },

    /// A spill to a file failed, or spilled data could not be read again.
    #[error("cannot spill to {directory}: {source}")]
    Spill {
        /// Location of the files.
        directory: String,
        /// The error of the storage.
        source: onehop_io::Error,
    },

    /// The device that was to run the program failed; another device may be able to run it.
    #[error("{device}: {what}")]
    Device {
        /// Name of the device.
        device: String,
        /// The failure that it reported or caused.
        what: String,
    },

    /// The client no longer wants the answer.
    #[error("the query was cancelled")]
    Cancelled,

    /// The program breaks a rule of the representation, which is a bug of its producer.
    #[error("invalid pipeline: {0}")]
    Invalid(String),

    /// The backend has no code for this. It reports the error before it reads any row.
    #[error("not supported: {0}")]
    Unsupported(String),
}
