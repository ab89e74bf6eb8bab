//! A file read and written by position.
//!
//! A backend implements the two `try_` calls, which may move fewer bytes than asked; the provided methods turn them
//! into all-or-error, retry interruptions, and put object and offset into the error. Callers use the provided ones.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::{Error, Ledger, LocalFile, Operation, Result};

/// How the bytes of a file really travel, as found out when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through the page cache.
    Buffered,
    /// Past the page cache, by `O_DIRECT`, into host memory.
    HostDirect,
    /// The bytes are in this process's memory already.
    Memory,
    /// Over the network, from servers that store them, through buffers of a client library.
    Remote,
    /// From storage into the memory of a device, and nowhere else.
    DeviceDirect,
    /// Into the memory of a device by a library that keeps buffers in host memory on the way.
    DeviceCompat,
    /// Into the memory of a device through pinned buffers of our own in host memory.
    DeviceStaged,
    /// Into the memory of a device; whether through host memory cannot be found out, and is counted as if it were.
    DeviceUnverified,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Buffered => "buffered",
            Path::HostDirect => "host direct",
            Path::Memory => "memory",
            Path::Remote => "remote",
            Path::DeviceDirect => "device direct",
            Path::DeviceCompat => "device compat",
            Path::DeviceStaged => "device staged",
            Path::DeviceUnverified => "device, not verified",
        })
    }
}

/// What a backend wants from those who read it. Advice, except for `alignment`, which [`Path::HostDirect`] handles
/// itself at the price of a bounce when it is not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoHints {
    /// The path in effect.
    pub path: Path,
    /// Offsets, lengths and addresses that are multiples of this need no bounce buffer. In bytes.
    pub alignment: usize,
    /// Requests in flight that it takes to saturate the backend.
    pub concurrency: usize,
    /// Bytes in flight that it takes: more only wait, and take memory, and make some devices slower.
    pub in_flight_bytes: usize,
    /// Two wanted ranges with a gap of at most this are cheaper read as one. In bytes.
    pub coalesce_gap_bytes: usize,
    /// Requests beyond this gain nothing. In bytes.
    pub max_request_bytes: usize,
}

/// Positional reads. All methods may be called from many threads at once.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// The name to use in messages.
    fn name(&self) -> &str;

    /// Concurrency, alignment and coalescing that suit this backend, and the path in effect.
    fn hints(&self) -> IoHints;

    /// The file as one of the operating system, where it is nothing but that: for rings, which pass these methods by.
    fn as_local(self: Arc<Self>) -> Option<Arc<LocalFile>> {
        None
    }

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Whether there are no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `buf.len()` bytes; 0 means end of file (or an empty buffer). Counts what it moved.
    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize>;

    /// Reads into the buffers in turn, as one request where the backend can. May fill fewer bytes than they hold.
    fn try_read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>], ledger: &Ledger) -> io::Result<usize> {
        match bufs.iter_mut().find(|buf| !buf.is_empty()) {
            Some(buf) => self.try_read_at(offset, buf, ledger),
            None => Ok(0),
        }
    }

    /// Fills `buf` from `offset`. An end of file before that is an error.
    fn read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            done += transferred(self.try_read_at(at, &mut buf[done..], ledger))
                .map_err(|e| Error::at(Operation::Read, self.name(), offset, buf.len(), e))?;
        }
        Ok(())
    }

    /// Fills all buffers, one after the other, from `offset` on. An end of file before that is an error.
    fn read_vectored_at(&self, offset: u64, mut bufs: &mut [IoSliceMut<'_>], ledger: &Ledger) -> Result<()> {
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut done = 0;
        while done < wanted {
            let n = transferred(self.try_read_vectored_at(offset + done as u64, bufs, ledger))
                .map_err(|e| Error::at(Operation::Read, self.name(), offset, wanted, e))?;
            done += n;
            IoSliceMut::advance_slices(&mut bufs, n);
        }
        Ok(())
    }
}

/// Positional writes. Concurrent writes to ranges that do not overlap are allowed.
pub trait WriteAt: ReadAt {
    /// Writes up to `buf.len()` bytes, growing the file as needed. Counts what it moved.
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize>;

    /// Writes the buffers in turn, as one request where the backend can.
    fn try_write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>], ledger: &Ledger) -> io::Result<usize> {
        match bufs.iter().find(|buf| !buf.is_empty()) {
            Some(buf) => self.try_write_at(offset, buf, ledger),
            None => Ok(0),
        }
    }

    /// Makes everything written so far, and the length, survive a power failure.
    ///
    /// After an error nothing is known about what reached the medium: do not retry, do not go on with this file.
    fn sync(&self) -> Result<()>;

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            done += transferred(self.try_write_at(at, &buf[done..], ledger))
                .map_err(|e| Error::at(Operation::Write, self.name(), offset, buf.len(), e))?;
        }
        Ok(())
    }

    /// Writes all buffers, one after the other, from `offset` on.
    fn write_vectored_at(&self, offset: u64, mut bufs: &mut [IoSlice<'_>], ledger: &Ledger) -> Result<()> {
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut done = 0;
        while done < wanted {
            let n = transferred(self.try_write_vectored_at(offset + done as u64, bufs, ledger))
                .map_err(|e| Error::at(Operation::Write, self.name(), offset, wanted, e))?;
            done += n;
            IoSlice::advance_slices(&mut bufs, n);
        }
        Ok(())
    }
}

/// An interruption moved nothing; moving nothing without one means that the end has come.
fn transferred(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before that")),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}
