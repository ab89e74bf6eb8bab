//! Errors of reading a file, and the account that its reader draws memory from.

use std::fmt;
use std::io;

use arrow::error::ArrowError;
use parquet::errors::ParquetError;

/// The reason why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The storage below refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file contradicts itself or its format.
    #[error("{0}")]
    Damaged(String),
    /// The format allows it, but this reader does not implement it.
    #[error("{0}")]
    Unsupported(String),
    /// Reading it needs more memory than the account grants.
    #[error("{what} needs {bytes} bytes of memory: {refused}")]
    Memory {
        /// The part of the file.
        what: String,
        /// The bytes that it needs.
        bytes: u64,
        /// The account's reason.
        refused: OverMemory,
    },
    /// Arrow's decoder refused.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// Parquet's decoder refused.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
}

impl Fault {
    pub(crate) fn damaged(what: impl fmt::Display) -> Self {
        Self::Damaged(what.to_string())
    }
}

/// The reason why an account grants no more memory.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct OverMemory(pub String);

/// The memory that one reader holds.
pub trait Memory: Send {
    /// Replaces the reader's reservation by this many bytes.
    ///
    /// # Errors
    /// If the account does not grant it. The previous reservation stays.
    fn resize(&mut self, bytes: u64) -> Result<(), OverMemory>;
}

/// An account without a limit, for tests and schema readers.
#[derive(Debug)]
pub struct Unbounded;

impl Memory for Unbounded {
    fn resize(&mut self, _bytes: u64) -> Result<(), OverMemory> {
        Ok(())
    }
}

/// Returns a buffer of zeros. Fails, without an abort, if the system has no memory.
pub(crate) fn zeroed<T: Clone + Default>(len: usize, what: &str) -> Result<Vec<T>, Fault> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|e| Fault::Memory {
        what: what.into(),
        bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
        refused: OverMemory(e.to_string()),
    })?;
    buffer.resize(len, T::default());
    Ok(buffer)
}
