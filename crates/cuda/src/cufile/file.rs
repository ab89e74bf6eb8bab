//! Files that are registered with cuFile.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use onehop_io::LocalFile;

use super::{Cufile, Effective, Verdict, sys};
use crate::{DeviceBuf, Error, Result};

/// Bytes of the read that finds out the transfer path: a page of storage, and of the device (64
/// KiB).
const TRIAL_BYTES: usize = 64 << 10;

/// An open file and cuFile's handle of it.
pub struct CufileFile {
    cufile: Arc<Cufile>,
    /// Open at least as long as the handle.
    file: Arc<LocalFile>,
    handle: sys::RawHandle,
    verdict: Verdict,
}

// SAFETY: cuFile's handles may be used from any thread.
unsafe impl Send for CufileFile {}
// SAFETY: as above, by several threads at once.
unsafe impl Sync for CufileFile {}

impl fmt::Debug for CufileFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CufileFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl CufileFile {
    /// Registers a file. Only a file that is open past the page cache can be direct.
    ///
    /// # Errors
    /// Returns the error of cuFile, with the remedy if the machine has no udev.
    pub fn new(cufile: &Arc<Cufile>, file: Arc<LocalFile>) -> Result<Self> {
        let mut open = Self::registered(cufile, file)?;
        open.verdict = open.try_once();
        Ok(open)
    }

    fn registered(cufile: &Arc<Cufile>, file: Arc<LocalFile>) -> Result<Self> {
        cufile.context().bind()?;
        let mut handle = std::ptr::null_mut();
        let fd = file.as_fd().as_raw_fd();
        // The upper half of the pointer is zero, too.
        let mut place = sys::Handle { pointer: std::ptr::null_mut() };
        place.fd = fd;
        let mut descriptor = sys::Descriptor { kind: sys::TYPE_FD, handle: place, fs_ops: std::ptr::null() };
        // SAFETY: an open descriptor, closed after the handle is deregistered; both structures live
        // through the call.
        let status = unsafe { (cufile.api().register_file)(&raw mut handle, &raw mut descriptor) };
        match cufile.check("cuFileHandleRegister", status) {
            Ok(()) => {
                let verdict = Verdict { effective: Effective::NotVerified, because: "not tried yet".into() };
                Ok(Self { cufile: Arc::clone(cufile), file, handle, verdict })
            }
            Err(e) => Err(explain(e, file.as_fd())),
        }
    }

    /// Registers a file on the same device as another file whose transfer path is known.
    ///
    /// # Errors
    /// As [`CufileFile::new`].
    pub fn beside(cufile: &Arc<Cufile>, file: Arc<LocalFile>, verdict: &Verdict) -> Result<Self> {
        let mut open = Self::registered(cufile, file)?;
        open.verdict = verdict.clone();
        Ok(open)
    }

    /// Returns the system's number of the device that a file is on.
    pub(crate) fn device_number(file: &LocalFile) -> Option<(u32, u32)> {
        device_of(file.as_fd())
    }

    /// Reads the first page to find out its transfer path.
    fn try_once(&self) -> Verdict {
        let unknown = |why: String| Verdict { effective: Effective::NotVerified, because: why };
        let mut buffer = match DeviceBuf::new(self.cufile.context(), TRIAL_BYTES) {
            Ok(buffer) => buffer,
            Err(e) => return unknown(e.to_string()),
        };
        if let Err(e) = self.cufile.register(&mut buffer) {
            return unknown(e.to_string());
        }
        let before = self.cufile.counts();
        match self.read(0, &mut buffer, 0, TRIAL_BYTES) {
            Ok(_) => self.cufile.verdict(&before),
            Err(e) => unknown(format!("a first read failed: {e}")),
        }
    }

    /// Returns the transfer path of the file's first page at registration.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Returns the file.
    pub fn file(&self) -> &Arc<LocalFile> {
        &self.file
    }

    /// Returns the library that the file is registered with.
    pub fn cufile(&self) -> &Arc<Cufile> {
        &self.cufile
    }

    pub(crate) fn handle(&self) -> sys::RawHandle {
        self.handle
    }

    /// Reads up to `bytes` bytes at `offset` of the file to the buffer from `at` on, and waits. 0
    /// means the end of the file.
    ///
    /// # Errors
    /// Returns the error of the system or of cuFile.
    ///
    /// # Panics
    /// Panics if the range is not in the buffer.
    pub fn read(&self, offset: u64, buffer: &mut DeviceBuf, at: usize, bytes: usize) -> io::Result<usize> {
        // SAFETY: the caller has exclusive access to the buffer until the call returns.
        unsafe { self.read_part(offset, buffer, at, bytes) }
    }

    /// Reads as [`CufileFile::read`] does, to a buffer whose other parts may be in use at the same
    /// time.
    ///
    /// # Safety
    /// These bytes of the buffer have no other user until the call returns.
    pub(crate) unsafe fn read_part(
        &self,
        offset: u64,
        buffer: &DeviceBuf,
        at: usize,
        bytes: usize,
    ) -> io::Result<usize> {
        buffer.address_of(&(at..at + bytes));
        self.cufile.context().bind()?;
        let base = buffer.address() as *mut c_void;
        // SAFETY: the range lies in the buffer and has no other user, as the caller guarantees.
        let moved =
            unsafe { (self.cufile.api().read)(self.handle, base, bytes, offset as libc::off_t, at as libc::off_t) };
        self.outcome("cuFileRead", moved)
    }

    /// Writes up to `bytes` bytes of the buffer from `at` on to `offset` of the file, and waits.
    ///
    /// # Errors
    /// Returns the error of the system or of cuFile.
    ///
    /// # Panics
    /// Panics if the range is not in the buffer.
    pub fn write(&self, offset: u64, buffer: &DeviceBuf, at: usize, bytes: usize) -> io::Result<usize> {
        buffer.address_of(&(at..at + bytes));
        self.cufile.context().bind()?;
        let base = buffer.address() as *const c_void;
        // SAFETY: the range lies in the buffer, which is borrowed until the call returns.
        let moved =
            unsafe { (self.cufile.api().write)(self.handle, base, bytes, offset as libc::off_t, at as libc::off_t) };
        self.outcome("cuFileWrite", moved)
    }

    /// Decodes the result of a transfer: bytes, -1 with the system's error number, or a negative
    /// error of cuFile.
    pub(crate) fn outcome(&self, call: &'static str, moved: isize) -> io::Result<usize> {
        match moved {
            0.. => Ok(moved as usize),
            -1 => Err(io::Error::last_os_error()),
            // Batches and streams return the system's errors as the kernel does.
            -4095..-1 => Err(io::Error::from_raw_os_error(-moved as i32)),
            _ => Err(self.cufile.error(call, moved.unsigned_abs() as i32, 0).into()),
        }
    }
}

impl Drop for CufileFile {
    fn drop(&mut self) {
        if self.cufile.context().bind().is_ok() {
            // SAFETY: registered by `new`; queues hold their files until nothing is in flight.
            unsafe { (self.cufile.api().forget_file)(self.handle) };
        }
    }
}

/// Replaces a misleading error: cuFile queries udev about a file's device, and reports another
/// cause if there is no udev.
fn explain(error: Error, fd: BorrowedFd<'_>) -> Error {
    match error {
        Error::Cufile { call, code: sys::HANDLE_NOT_REGISTERED, name, .. } => {
            let (major, minor) = device_of(fd).unwrap_or((0, 0));
            let text = format!("udev has no record of the block device {major}:{minor}, and cuFile wants one");
            Error::Cufile { call, code: sys::HANDLE_NOT_REGISTERED, name, text, cure: Some(udev_cure(major, minor)) }
        }
        other => other,
    }
}

fn device_of(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    // SAFETY: all zeros is a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; writes one structure.
    let code = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    (code == 0).then(|| (libc::major(stat.st_dev), libc::minor(stat.st_dev)))
}

/// Returns the commands, to be run as root, that create the record of udev.
pub fn udev_cure(major: u32, minor: u32) -> String {
    format!(
        "run udev, or as root: mkdir -p /run/udev/data; printf \
         'I:1\\nE:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE=ext4\\nG:systemd\\nQ:systemd\\nV:1\\n' > \
         /run/udev/data/b{major}:{minor}; touch /run/udev/control"
    )
}
