//! Errors: the failed call or library, its name for the failure, and the remedy if one is known.

use std::io;

/// Result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of an operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A library that cannot be loaded.
    #[error("{library} cannot be loaded: {reason}")]
    NotThere {
        /// Name of the library.
        library: &'static str,
        /// Message of the dynamic loader.
        reason: String,
        /// Remedy for the user.
        cure: &'static str,
    },
    /// A library that is too old.
    #[error("{library} has no {symbol}: it is older than what onehop needs")]
    TooOld {
        /// Name of the library.
        library: &'static str,
        /// Missing symbol.
        symbol: &'static str,
    },
    /// A failed call of the CUDA driver.
    #[error("{call}: {name} ({code}): {text}")]
    Cuda {
        /// Name of the function.
        call: &'static str,
        /// Returned code.
        code: i32,
        /// CUDA's name of the code.
        name: String,
        /// CUDA's description of the code.
        text: String,
    },
    /// A failed call of cuFile.
    #[error("{call}: {name} ({code}): {text}")]
    Cufile {
        /// Name of the function.
        call: &'static str,
        /// Returned code.
        code: i32,
        /// cuFile's name of the code.
        name: &'static str,
        /// cuFile's description, with the CUDA driver's error if that is the reason.
        text: String,
        /// Remedy for the user, if known.
        cure: Option<String>,
    },
    /// A source that does not compile.
    #[error("{name} does not compile: {log}")]
    Compile {
        /// Name of the source.
        name: String,
        /// Output of the compiler.
        log: String,
    },
    /// An error of the operating system.
    #[error("{what}: {reason}")]
    System {
        /// Attempted operation.
        what: String,
        /// Message of the system.
        reason: String,
    },
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

impl Error {
    /// Returns true if the device, or the host on its behalf, ran out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Cuda { code: OUT_OF_MEMORY, .. })
    }

    /// Returns the remedy for the user, if one is known.
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
