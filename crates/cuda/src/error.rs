//! What went wrong: which call or library, its own name for it, and what helps.

use std::io;

/// The result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A library is not to be had.
    #[error("{library} cannot be loaded: {reason}")]
    NotThere {
        /// Its name.
        library: &'static str,
        /// What the dynamic loader says.
        reason: String,
        /// What to do about it.
        cure: &'static str,
    },
    /// A library is too old.
    #[error("{library} has no {symbol}: it is older than what onehop needs")]
    TooOld {
        /// Its name.
        library: &'static str,
        /// What it lacks.
        symbol: &'static str,
    },
    /// A call of the CUDA driver.
    #[error("{call}: {name} ({code}): {text}")]
    Cuda {
        /// The function.
        call: &'static str,
        /// Its answer.
        code: i32,
        /// CUDA's name of the answer.
        name: String,
        /// CUDA's words for it.
        text: String,
    },
    /// A call of cuFile.
    #[error("{call}: {name} ({code}): {text}")]
    Cufile {
        /// The function.
        call: &'static str,
        /// Its answer.
        code: i32,
        /// cuFile's name of the answer.
        name: &'static str,
        /// Its words for it, and the CUDA driver's answer where that is the reason.
        text: String,
        /// What to do about it, if we know.
        cure: Option<String>,
    },
    /// A text that does not compile.
    #[error("{name} does not compile: {log}")]
    Compile {
        /// What it is.
        name: String,
        /// What the compiler says.
        log: String,
    },
    /// The system, on the way.
    #[error("{what}: {reason}")]
    System {
        /// What was attempted.
        what: String,
        /// What it said.
        reason: String,
    },
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

impl Error {
    /// Whether a device, or the host for it, had no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Cuda { code: OUT_OF_MEMORY, .. })
    }

    /// What to do about it, where that is known.
    pub fn cure(&self) -> Option<&str> {
        match self {
            Self::NotThere { cure, .. } => Some(cure),
            Self::TooOld { .. } => Some("install a newer driver or CUDA toolkit (12.2 or later)"),
            Self::Cufile { cure, .. } => cure.as_deref(),
            Self::Cuda { code: 100, .. } => {
                Some("give the process a GPU: start the container with --gpus all, look at CUDA_VISIBLE_DEVICES")
            }
            Self::Cuda { code: 803, .. } => {
                Some("libcuda and the kernel's driver must be of one version: reboot, or reload the driver")
            }
            Self::Cuda { .. } | Self::Compile { .. } | Self::System { .. } => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match &error {
            Error::NotThere { .. } | Error::TooOld { .. } => io::Error::new(io::ErrorKind::Unsupported, error),
            Error::Cuda { code: OUT_OF_MEMORY, .. } => io::Error::new(io::ErrorKind::OutOfMemory, error),
            _ => io::Error::other(error),
        }
    }
}
