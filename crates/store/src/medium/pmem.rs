//! A mapped file: persistent memory if the file system provides it, otherwise an emulation of it.
//!
//! A file on a DAX file system, or a device of `device-dax`, is mapped with `MAP_SYNC`. Stores go
//! to the device's memory, and lines that were flushed and fenced are durable without a system
//! call. Other files are mapped only if the caller passes [`Emulation::Allowed`]. The same
//! instructions run, but they make bytes durable in the system's memory only, which
//! [`domain`](Medium::domain) reports.
//!
//! Guarantees: bytes are stored as aligned words of 8 bytes, in ascending order, which the crash
//! models assume. A growing file keeps its address, so that readers need no lock.
//!
//! Not guaranteed: failed memory of the device (poison) ends the process with `SIGBUS`. So does
//! truncation of a mapped file.

mod copy;
mod flush;

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Domain, Granularity, Medium, NamedFile};
use crate::{Error, Result};
use flush::Flusher;

/// The bytes of address space reserved for a file to grow into, or less if the system does not
/// provide that much.
const MOST_RESERVED_BYTES: usize = 1 << 40;
/// The minimum reservation.
const LEAST_RESERVED_BYTES: usize = 1 << 30;
/// Devices are mapped in pages of this size.
const ALIGNMENT_BYTES: usize = 2 << 20;
const SYSTEM_PAGE_BYTES: usize = 4096;
const NEW_FILE_MODE: u32 = 0o644;

/// The permission to map a file whose bytes are only as safe as the system's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulation {
    /// Such a file is an error.
    Refused,
    /// Such a file is mapped.
    Allowed,
}

/// The kind of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    /// The bytes are the device's.
    Synchronous,
    /// The bytes are the system's.
    Shared,
}

/// A mapped file.
#[derive(Debug)]
pub struct Pmem {
    name: String,
    descriptor: OwnedFd,
    named: NamedFile,
    base: NonNull<u8>,
    reserved_bytes: usize,
    /// The number of usable bytes. It only grows, after the new bytes were mapped.
    len: AtomicUsize,
    /// Held while the file grows.
    growing: Mutex<()>,
    mapping: Mapping,
    protection: ProtFlags,
    domain: Domain,
    is_device: bool,
    flusher: Flusher,
}

// SAFETY: the mapping is plain memory that lives as long as this value; all access goes through
// atomic words and bytes.
unsafe impl Send for Pmem {}
// SAFETY: as above; `len` is published after the bytes below it were mapped.
unsafe impl Sync for Pmem {}

impl Pmem {
    /// Creates a file that did not exist.
    ///
    /// # Errors
    /// [`Error::Io`] with the system's error; [`Error::Invalid`] if this would be emulation, and
    /// that is refused. The file is removed again in that case.
    pub fn create(path: &Path, emulation: Emulation) -> Result<Self> {
        let created = Self::with_flags(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, emulation);
        if matches!(created, Err(Error::Invalid(_))) {
            // The reason for the refusal is more important than an empty file that stays.
            let _ = fs::remove_file(path);
        }
        let created = created?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| Error::io("make durable the name of", &created.name, source))?;
        Ok(created)
    }

    /// Opens an existing file or device, for reading and writing.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open(path: &Path, emulation: Emulation) -> Result<Self> {
        Self::with_flags(path, OFlags::RDWR, emulation)
    }

    /// Opens an existing file or device, for reading: writes are refused.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open_read_only(path: &Path, emulation: Emulation) -> Result<Self> {
        Self::with_flags(path, OFlags::RDONLY, emulation)
    }

    /// Returns true if files in the directory of `path` are persistent memory. Tries to map a file
    /// without a name.
    #[must_use]
    pub fn is_persistent(path: &Path) -> bool {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let probe = || -> rustix::io::Result<bool> {
            let file = rustix::fs::open(directory, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, Mode::RUSR)?;
            rustix::fs::ftruncate(&file, SYSTEM_PAGE_BYTES as u64)?;
            let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
            // SAFETY: at an address that the system chooses; nothing refers to it but the next
            // line, which unmaps it.
            let mapped =
                unsafe { rustix::mm::mmap(ptr::null_mut(), SYSTEM_PAGE_BYTES, ProtFlags::READ, flags, &file, 0)? };
            // SAFETY: it was mapped just now.
            unsafe { rustix::mm::munmap(mapped, SYSTEM_PAGE_BYTES)? };
            Ok(true)
        };
        probe().unwrap_or(false)
    }

    fn with_flags(path: &Path, flags: OFlags, emulation: Emulation) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |operation: &str, source: Errno| Error::io(operation, &name, source);
        let descriptor = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(NEW_FILE_MODE))
            .map_err(|source| failed("open", source))?;
        let status = rustix::fs::fstat(&descriptor).map_err(|source| failed("look at", source))?;
        let named =
            NamedFile::new(path, &descriptor).map_err(|source| Error::io("look at the name of", &name, source))?;
        let is_device = FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice;
        let len = if is_device { device_len(&name, status.st_rdev)? } else { status.st_size as usize };
        let protection =
            if flags.contains(OFlags::RDWR) { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let (base, reserved_bytes) = reserve(len).map_err(|source| failed("set aside addresses for", source))?;
        let mut pmem = Self {
            name: name.clone(),
            descriptor,
            named,
            base,
            reserved_bytes,
            len: AtomicUsize::new(0),
            growing: Mutex::new(()),
            mapping: Mapping::Synchronous,
            protection,
            domain: Domain::Device,
            is_device,
            flusher: Flusher::of_processor(),
        };
        // The first byte shows what the file system provides, even for an empty file: nothing
        // beyond the end is accessed.
        match pmem.map(0, len.max(1)) {
            Ok(()) if caches_are_safe() => {
                pmem.domain = Domain::Caches;
                pmem.flusher = Flusher::Needless;
            }
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL) if emulation == Emulation::Allowed => {
                (pmem.mapping, pmem.domain) = (Mapping::Shared, Domain::System);
                pmem.map(0, len.max(1)).map_err(|source| failed("map", source))?;
            }
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                return Err(Error::Invalid(format!(
                    "{name} is not on persistent memory: its file system gives no synchronous mapping (MAP_SYNC); \
                     open it as a file, or allow emulation"
                )));
            }
            Err(source) => return Err(failed("map", source)),
        }
        if pmem.protection.contains(ProtFlags::WRITE) && !is_device {
            pmem.fill_holes(len)?;
        }
        pmem.len.store(len, Ordering::Release);
        Ok(pmem)
    }

    /// Allocates blocks that a copy of the file may have left out: a store into a hole without
    /// space would end the process.
    fn fill_holes(&self, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), 0, len as u64) {
            // If the file system does not support allocation, holes are not detected.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(source @ (Errno::NOSPC | Errno::DQUOT)) => Err(Error::Full {
                object: self.name.clone(),
                reason: format!("it has holes, and the file system has no room to fill them ({source})"),
            }),
            Err(source) => Err(Error::io("allocate blocks of", &self.name, source)),
        }
    }

    /// Returns the name of the instruction that flushes lines.
    #[must_use]
    pub fn flushes_with(&self) -> &'static str {
        self.flusher.name()
    }

    /// Maps the system's pages of bytes `from .. to` that `0 .. from` did not need.
    fn map(&self, from: usize, to: usize) -> rustix::io::Result<()> {
        let page = if self.is_device { ALIGNMENT_BYTES } else { SYSTEM_PAGE_BYTES };
        let (from, to) = (from.next_multiple_of(page), to.next_multiple_of(page));
        if from == to {
            return Ok(());
        }
        if to > self.reserved_bytes {
            return Err(Errno::NOMEM);
        }
        let kind = match self.mapping {
            Mapping::Synchronous => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Mapping::Shared => MapFlags::SHARED,
        };
        // SAFETY: `from .. to` is within the addresses reserved for this mapping alone, and beyond
        // the mapped ones.
        unsafe {
            let address = self.base.as_ptr().add(from).cast::<c_void>();
            rustix::mm::mmap(
                address,
                to - from,
                self.protection,
                kind | MapFlags::FIXED,
                &self.descriptor,
                from as u64,
            )?;
        }
        Ok(())
    }

    /// Returns the address of bytes that are within the length.
    fn at(&self, at: u64, len: usize) -> Result<*mut u8> {
        let range = super::range(&self.name, at, len, self.len.load(Ordering::Acquire))?;
        // SAFETY: within the mapped bytes.
        Ok(unsafe { self.base.as_ptr().add(range.start) })
    }
}

impl Drop for Pmem {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more. If it fails, the addresses stay reserved until the
        // process ends.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reserved_bytes) };
    }
}

impl Medium for Pmem {
    fn name(&self) -> &str {
        &self.name
    }

    fn granularity(&self) -> Granularity {
        Granularity::Line
    }

    fn domain(&self) -> Domain {
        self.domain
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire) as u64
    }

    fn named(&self) -> Option<&NamedFile> {
        Some(&self.named)
    }

    fn grow(&self, len: u64) -> Result<()> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.len.load(Ordering::Acquire);
        let full = |reason: String| Error::Full { object: self.name.clone(), reason };
        let new = usize::try_from(len).map_err(|_| full(format!("{len} bytes are more than there are addresses")))?;
        if new <= old {
            return Ok(());
        }
        if self.is_device || new > self.reserved_bytes {
            let most = if self.is_device { old } else { self.reserved_bytes };
            return Err(full(format!("it can have {most} bytes at most, and {len} are asked for")));
        }
        let failed = |source: Errno| Error::io(format!("grow, from {old} to {len} bytes,"), &self.name, source);
        // Allocated at once: a store into a hole without space would end the process.
        match rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), old as u64, (new - old) as u64) {
            Ok(()) => {}
            Err(source @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                // A part may have been allocated. If truncation fails too, the file is longer, and
                // no code relies on its length.
                let _ = rustix::fs::ftruncate(&self.descriptor, old as u64);
                return Err(full(format!(
                    "the file system has no room for it to grow from {old} to {len} bytes ({source})"
                )));
            }
            Err(source) => return Err(failed(source)),
        }
        rustix::fs::fsync(&self.descriptor).map_err(failed)?;
        self.map(old.max(1), new).map_err(failed)?;
        self.len.store(new, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let from = self.at(at, into.len())?;
        // SAFETY: `from` is followed by as many mapped bytes.
        unsafe { copy::load(from, into) };
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let to = self.at(at, bytes.len())?;
        if !self.protection.contains(ProtFlags::WRITE) {
            return Err(Error::ReadOnly { object: self.name.clone() });
        }
        // SAFETY: `to` is followed by as many mapped bytes, which may be written.
        unsafe { copy::store(to, bytes) };
        Ok(())
    }

    fn flush(&self, at: u64, len: usize) -> Result<()> {
        let from = self.at(at, len)?;
        // SAFETY: `from` is followed by as many mapped bytes.
        unsafe { self.flusher.flush(from, len) }.map_err(|source| Error::io("flush lines of", &self.name, source))
    }

    fn fence(&self) -> Result<()> {
        flush::fence();
        Ok(())
    }
}

/// Reserves addresses, which are not readable yet.
fn reserve(len: usize) -> rustix::io::Result<(NonNull<u8>, usize)> {
    let mut bytes = MOST_RESERVED_BYTES;
    loop {
        let wanted = bytes.max(len.next_multiple_of(ALIGNMENT_BYTES));
        // SAFETY: at an address that the system chooses.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                wanted + ALIGNMENT_BYTES,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        match reserved {
            Ok(address) => {
                let skipped = address.align_offset(ALIGNMENT_BYTES);
                // SAFETY: the parts before and after the aligned part were mapped just now, and
                // nothing refers to them.
                unsafe {
                    let aligned = address.cast::<u8>().add(skipped);
                    if skipped > 0 {
                        rustix::mm::munmap(address, skipped)?;
                    }
                    rustix::mm::munmap(aligned.add(wanted).cast(), ALIGNMENT_BYTES - skipped)?;
                    return Ok((NonNull::new(aligned).ok_or(Errno::NOMEM)?, wanted));
                }
            }
            Err(Errno::NOMEM) if bytes > LEAST_RESERVED_BYTES => bytes /= 4,
            Err(source) => return Err(source),
        }
    }
}

/// Returns the length of a device, which its file status does not have.
fn device_len(name: &str, number: u64) -> Result<usize> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let path = format!("/sys/dev/char/{major}:{minor}/size");
    let text = fs::read_to_string(&path)
        .map_err(|source| Error::io(format!("read {path} for the length of"), name, source))?;
    text.trim().parse().map_err(|_| {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("{path} says {:?}", text.trim()));
        Error::io("find out the length of", name, source)
    })
}

/// Returns true if all persistent memory of this machine preserves the contents of the processor's
/// caches (eADR).
fn caches_are_safe() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/nd/devices") else { return false };
    let domains = devices.flatten().filter(|device| device.file_name().to_string_lossy().starts_with("region"));
    let mut domains = domains.map(|region| fs::read_to_string(region.path().join("persistence_domain"))).peekable();
    domains.peek().is_some() && domains.all(|domain| domain.is_ok_and(|domain| domain.trim() == "cpu_cache"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::medium::conformance;

    fn path(directory: &tempfile::TempDir) -> std::path::PathBuf {
        directory.path().join("store")
    }

    /// Returns a directory in the system's memory if there is such a file system, otherwise on an
    /// ordinary one: the code is the same.
    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }

    #[test]
    fn mapped_files_conform_and_say_where_bytes_are_safe() {
        for directory in [directory(), tempfile::tempdir().unwrap()] {
            let pmem = Pmem::create(&path(&directory), Emulation::Allowed).unwrap();
            conformance::check(&pmem);
            if !Pmem::is_persistent(&path(&directory)) {
                assert_eq!(pmem.domain(), Domain::System);
            }
            println!("{}: {}, flushed with {}", pmem.name(), pmem.domain(), pmem.flushes_with());
        }
    }

    #[test]
    fn bytes_are_there_when_the_file_is_opened_again_and_readers_do_not_write() {
        let directory = directory();
        let pmem = Pmem::create(&path(&directory), Emulation::Allowed).unwrap();
        pmem.grow(5000).unwrap();
        pmem.write(4090, b"over a page's end").unwrap();
        pmem.flush(4090, 17).unwrap();
        pmem.fence().unwrap();
        drop(pmem);
        let pmem = Pmem::open_read_only(&path(&directory), Emulation::Allowed).unwrap();
        let mut back = [0; 17];
        pmem.read(4090, &mut back).unwrap();
        assert_eq!(&back, b"over a page's end");
        assert_eq!(pmem.len(), 5000);
        assert!(matches!(pmem.write(0, &[1]), Err(Error::ReadOnly { .. })));
    }

    #[test]
    fn emulation_is_refused_unless_it_is_allowed_and_leaves_no_file() {
        let directory = directory();
        if Pmem::is_persistent(&path(&directory)) {
            return;
        }
        let refused = Pmem::create(&path(&directory), Emulation::Refused);
        assert!(matches!(refused, Err(Error::Invalid(reason)) if reason.contains("not on persistent memory")));
        assert!(!path(&directory).exists());
    }

    #[test]
    fn holes_are_filled_before_anything_is_written_into_them() {
        use std::os::unix::fs::MetadataExt;
        let directory = directory();
        let file = fs::File::create(path(&directory)).unwrap();
        file.set_len(1 << 20).unwrap();
        let blocks = || file.metadata().unwrap().blocks() * 512;
        drop(Pmem::open_read_only(&path(&directory), Emulation::Allowed).unwrap());
        assert_eq!(blocks(), 0);
        drop(Pmem::open(&path(&directory), Emulation::Allowed).unwrap());
        assert!(blocks() >= 1 << 20);
    }

    #[test]
    fn growing_keeps_the_address_while_others_read() {
        let directory = directory();
        let pmem = Pmem::create(&path(&directory), Emulation::Allowed).unwrap();
        pmem.grow(100).unwrap();
        pmem.write(0, &[7; 100]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let mut back = [0; 100];
                    pmem.read(0, &mut back).unwrap();
                    assert_eq!(back, [7; 100]);
                }
            });
            for len in (40_101..2_000_000).step_by(40_001) {
                pmem.grow(len).unwrap();
                pmem.write(len - 1, &[9]).unwrap();
            }
        });
    }
}
