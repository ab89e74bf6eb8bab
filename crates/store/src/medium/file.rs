//! An ordinary file, through the page cache: `pwrite`, and one `fdatasync` as the fence.
//!
//! Guarantees: on return of [`fence`](Medium::fence), all earlier writes are on the device, as far
//! as the file system and the device report truthfully. On return of [`grow`](Medium::grow) the new
//! length is durable and the blocks behind it are allocated. For a file that this handle created,
//! its name in its directory is durable as well.
//!
//! Not guaranteed: the state of bytes that are written and not fenced; see the list in
//! [`medium`](super). After a failed `fdatasync` Linux marks the pages that it could not write as
//! clean, so that reads return bytes that never reached the device. [`settle`](Medium::settle)
//! makes the system drop such pages, and is for recovery: a store that was not closed cleanly is
//! read from the device, not from memory after a failure.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Advice, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Domain, Granularity, Medium, NamedFile};
use crate::{Error, Result};

/// The bytes written at once if blocks can only be allocated by writing.
const ZEROS_BYTES: usize = 1 << 20;
/// The mode of a new file: its owner may read and write, others may read if the process's mask
/// allows.
const NEW_FILE_MODE: u32 = 0o644;
/// Linux's number of the file system in memory (`statfs`), whose files do not outlive the machine.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// An ordinary file.
#[derive(Debug)]
pub struct File {
    name: String,
    path: PathBuf,
    descriptor: OwnedFd,
    named: NamedFile,
    domain: Domain,
    len: AtomicU64,
    /// True if its name may not be durable yet.
    is_new: AtomicBool,
}

impl File {
    /// Creates a file that did not exist.
    ///
    /// # Errors
    /// [`Error::Io`] with the system's error: `AlreadyExists` if the file exists.
    pub fn create(path: &Path) -> Result<Self> {
        Self::with_flags(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, true)
    }

    /// Opens an existing file, for reading and writing.
    ///
    /// # Errors
    /// [`Error::Io`] with the system's error; [`Error::Unknown`] if it is a device or a directory.
    pub fn open(path: &Path) -> Result<Self> {
        Self::with_flags(path, OFlags::RDWR, false)
    }

    /// Opens an existing file for reading: the system refuses writes.
    ///
    /// # Errors
    /// [`Error::Io`] with the system's error; [`Error::Unknown`] if it is a device or a directory.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::with_flags(path, OFlags::RDONLY, false)
    }

    fn with_flags(path: &Path, flags: OFlags, is_new: bool) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |operation: &str, source: Errno| Error::io(operation, &name, source);
        let flags = flags | OFlags::CLOEXEC;
        let descriptor = retried(|| rustix::fs::open(path, flags, Mode::from_raw_mode(NEW_FILE_MODE)))
            .map_err(|source| failed(if is_new { "create" } else { "open" }, source))?;
        let status = rustix::fs::fstat(&descriptor).map_err(|source| failed("look at", source))?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            // The status does not have the length of a device: a device would pass as an empty
            // file.
            return Err(Error::Unknown { object: name, reason: "it is not a regular file".into() });
        }
        let named = NamedFile::with_contents(path, &descriptor)
            .map_err(|source| Error::io("look at the name of", &name, source))?;
        let system = rustix::fs::fstatfs(&descriptor).map_err(|source| failed("look at the file system of", source))?;
        let domain = if system.f_type as i64 == TMPFS_MAGIC { Domain::System } else { Domain::Device };
        Ok(Self {
            path: path.into(),
            descriptor,
            named,
            domain,
            len: AtomicU64::new(status.st_size as u64),
            is_new: AtomicBool::new(is_new),
            name,
        })
    }

    fn failed(&self, operation: String, source: impl Into<io::Error>) -> Error {
        Error::io(operation, &self.name, source)
    }

    /// Returns true if bytes `at .. at + len` are within the file.
    fn holds(&self, at: u64, len: usize) -> bool {
        at.checked_add(len as u64).is_some_and(|end| end <= self.len())
    }

    /// Allocates blocks up to `len`. Writes zeros on file systems without allocation.
    fn allocate(&self, from: u64, len: u64) -> rustix::io::Result<()> {
        match retried(|| rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), from, len - from)) {
            Err(Errno::OPNOTSUPP) => {}
            done => return done,
        }
        let zeros = vec![0; ZEROS_BYTES.min((len - from) as usize)];
        let mut at = from;
        while at < len {
            let piece = zeros.len().min((len - at) as usize);
            at += retried(|| rustix::io::pwrite(&self.descriptor, &zeros[..piece], at))? as u64;
        }
        Ok(())
    }

    /// Makes the file's name durable.
    fn sync_directory(&self) -> Result<()> {
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| self.failed(format!("make durable, in directory {},", directory.display()), source))
    }
}

impl Medium for File {
    fn name(&self) -> &str {
        &self.name
    }

    fn granularity(&self) -> Granularity {
        Granularity::Page
    }

    fn domain(&self) -> Domain {
        self.domain
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn grow(&self, len: u64) -> Result<()> {
        let old = self.len();
        if len <= old {
            return Ok(());
        }
        if let Err(source) = self.allocate(old, len) {
            // A part may have been allocated. If truncation fails too, the file is longer, and no
            // code relies on its length.
            let _ = rustix::fs::ftruncate(&self.descriptor, old);
            return Err(match source {
                Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Error::Full {
                    object: self.name.clone(),
                    reason: format!("the file system has no room for it to grow from {old} to {len} bytes ({source})"),
                },
                source => self.failed(format!("grow, from {old} to {len} bytes,"), source),
            });
        }
        retried(|| rustix::fs::fsync(&self.descriptor))
            .map_err(|source| self.failed("sync the length of".into(), source))?;
        if self.is_new.load(Ordering::Relaxed) {
            self.sync_directory()?;
            self.is_new.store(false, Ordering::Relaxed);
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if !self.holds(at, into.len()) {
            let reason = format!("it ends at offset {}, before {} bytes at {at}", self.len(), into.len());
            return Err(Error::corrupt(&self.name, reason));
        }
        let mut done = 0;
        while done < into.len() {
            let now = at + done as u64;
            match retried(|| rustix::io::pread(&self.descriptor, &mut into[done..], now)) {
                Ok(0) => {
                    let reason = format!("it ends at offset {now}, where {} more bytes should be", into.len() - done);
                    return Err(Error::corrupt(&self.name, reason));
                }
                Ok(bytes) => done += bytes,
                Err(source) => {
                    return Err(self.failed(format!("read {} bytes at offset {at} of", into.len()), source));
                }
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let failed = |source: io::Error| self.failed(format!("write {} bytes at offset {at} of", bytes.len()), source);
        if !self.holds(at, bytes.len()) {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "that is beyond its end")));
        }
        let mut done = 0;
        while done < bytes.len() {
            match retried(|| rustix::io::pwrite(&self.descriptor, &bytes[done..], at + done as u64)) {
                Ok(0) => return Err(failed(io::ErrorKind::WriteZero.into())),
                Ok(written) => done += written,
                Err(source) => return Err(failed(source.into())),
            }
        }
        Ok(())
    }

    fn flush(&self, _at: u64, _len: usize) -> Result<()> {
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        // Not retried, not even when interrupted: an error is reported once, and the next call
        // would find nothing to do.
        rustix::fs::fdatasync(&self.descriptor).map_err(|source| self.failed("sync".into(), source))
    }

    fn named(&self) -> Option<&NamedFile> {
        Some(&self.named)
    }

    fn settle(&self) -> Result<()> {
        retried(|| rustix::fs::fsync(&self.descriptor)).map_err(|source| self.failed("sync".into(), source))?;
        match rustix::fs::fadvise(&self.descriptor, 0, None, Advice::DontNeed) {
            // File systems without a page cache have no stale pages.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(source) => Err(self.failed("drop from memory".into(), source)),
        }
    }
}

/// Returns the result of `call`, which is retried while a signal interrupts it.
fn retried<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::conformance;

    #[test]
    fn a_file_conforms() {
        let directory = tempfile::tempdir().unwrap();
        conformance::check(&File::create(&directory.path().join("file")).unwrap());
    }

    #[test]
    fn a_file_that_became_shorter_is_damage_and_not_zeros() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::create(&path).unwrap();
        file.grow(8192).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(4000).unwrap();
        let read = file.read(0, &mut [0; 4096]);
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    }

    #[test]
    fn errors_name_the_file_and_what_was_attempted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let missing = File::open(&path).unwrap_err().to_string();
        assert!(missing.starts_with("cannot open") && missing.contains("file"), "{missing}");
        File::create(&path).unwrap().grow(4096).unwrap();
        assert!(File::create(&path).unwrap_err().to_string().starts_with("cannot create"));
        let refused = File::open_read_only(&path).unwrap().write(0, &[1]).unwrap_err().to_string();
        assert!(refused.starts_with("cannot write 1 bytes at offset 0 of"), "{refused}");
    }
}
