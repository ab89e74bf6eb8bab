//! A file that is read by position.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;

use crate::Fault;
use crate::fault::zeroed;

/// The bytes of a file, in any order.
pub trait Input: Send + Sync {
    /// Returns the length of the file.
    ///
    /// # Errors
    /// If the storage below refuses.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// If the storage below refuses, or the file ends before.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Input for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Input for Bytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Reads a range that the caller has checked against the file's size.
pub(crate) fn read(input: &dyn Input, offset: u64, len: usize, what: &str) -> Result<Vec<u8>, Fault> {
    let mut bytes = zeroed(len, what)?;
    input.read_exact_at(offset, &mut bytes)?;
    Ok(bytes)
}
