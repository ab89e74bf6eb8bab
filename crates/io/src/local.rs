//! Files of the operating system, through the page cache or past it.
//!
//! Which path was *asked for* ([`RequestedPath`]) and which is *in effect* ([`Path`]) are two types: some file systems
//! refuse `O_DIRECT` when a file is opened, some only at the first transfer, so a direct file is tried once at open and
//! falls back to buffered under `Auto`, never under `HostDirect`.
//!
//! A directory is held open, and its files are opened from there: it may be moved meanwhile.
//!
//! Direct transfers need offset, length and address in whole pages. What is not aligned goes through a page-aligned
//! bounce buffer, and the ledger sees the second copy.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path as FsPath;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as FileMode, OFlags, mkdirat, openat, renameat, statat, unlinkat};

use crate::{AlignedBuf, Error, Hop, IoHints, Ledger, Operation, PAGE_BYTES, Path, ReadAt, Result, Volume, WriteAt};

/// The path a caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestedPath {
    /// What suits a database that fits the page cache: buffered.
    #[default]
    Auto,
    /// Through the page cache.
    Buffered,
    /// Past the page cache; an error where the file system will not.
    HostDirect,
    /// Past the page cache where the file system will, buffered elsewhere.
    PreferHostDirect,
}

/// A file of the operating system.
#[derive(Debug)]
pub struct LocalFile {
    file: File,
    name: String,
    path: Path,
    /// Serialises the read-modify-write of pages that two unaligned direct writes share.
    edges: Mutex<()>,
    in_flight_bytes: OnceLock<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Update,
    Create,
}

impl LocalFile {
    /// Opens an existing file for reading.
    pub fn open(path: &FsPath, requested: RequestedPath) -> Result<Self> {
        Self::in_directory(CWD, path, path.display().to_string(), requested, Mode::Read)
    }

    /// Opens an existing file for reading and writing, as it is.
    pub fn open_for_update(path: &FsPath, requested: RequestedPath) -> Result<Self> {
        Self::in_directory(CWD, path, path.display().to_string(), requested, Mode::Update)
    }

    /// Creates a file, or empties an existing one, for reading and writing.
    pub fn create(path: &FsPath, requested: RequestedPath) -> Result<Self> {
        Self::in_directory(CWD, path, path.display().to_string(), requested, Mode::Create)
    }

    /// `path` from a directory; `name` is what messages call it.
    fn in_directory(
        directory: BorrowedFd<'_>,
        path: &FsPath,
        name: String,
        requested: RequestedPath,
        mode: Mode,
    ) -> Result<Self> {
        let operation = if mode == Mode::Create { Operation::Create } else { Operation::Open };
        let failed = |e: io::Error| Error::new(operation, name.clone(), e);
        let flags = match mode {
            Mode::Read => OFlags::RDONLY,
            Mode::Update => OFlags::RDWR,
            Mode::Create => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        let wants_direct = matches!(requested, RequestedPath::HostDirect | RequestedPath::PreferHostDirect);
        if wants_direct {
            match open(directory, path, flags | OFlags::DIRECT).and_then(|file| try_direct(&file).map(|()| file)) {
                Ok(file) => return Ok(Self::of(file, name, Path::HostDirect)),
                Err(e) if requested == RequestedPath::HostDirect => return Err(failed(e)),
                // The buffered open below has its own say, and its own error.
                Err(_) => {}
            }
        }
        let file = open(directory, path, flags).map_err(failed)?;
        if !file.metadata().map_err(|e| Error::new(operation, &name, e))?.is_file() {
            return Err(Error::new(operation, name, io::Error::other("not a regular file")));
        }
        Ok(Self::of(file, name, Path::Buffered))
    }

    fn of(file: File, name: String, path: Path) -> Self {
        Self { file, name, path, edges: Mutex::new(()), in_flight_bytes: OnceLock::new() }
    }

    /// The same file, opened once more for reading past the page cache; `None` where the file system will not. It need
    /// not have a name any more.
    pub fn past_page_cache(self: &Arc<Self>) -> Option<Arc<Self>> {
        if self.path == Path::HostDirect {
            return Some(Arc::clone(self));
        }
        let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(again).ok()?;
        try_direct(&file).ok()?;
        Some(Arc::new(Self::of(file, self.name.clone(), Path::HostDirect)))
    }

    /// The same file, opened once more for reading through the page cache. It need not have a name any more.
    pub fn by_page_cache(self: &Arc<Self>) -> Option<Arc<Self>> {
        if self.path == Path::Buffered {
            return Some(Arc::clone(self));
        }
        let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = File::open(again).ok()?;
        Some(Arc::new(Self::of(file, self.name.clone(), Path::Buffered)))
    }

    /// Whether a name still leads to it, so that those who open files by their names can have it. One whose state the system
    /// does not tell has none.
    pub fn has_name(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// How many bytes of a range, in whole pages, the page cache has; `None` where the system does not say.
    pub fn page_cache_has(&self, offset: u64, bytes: usize) -> Option<u64> {
        /// Of `cachestat(2)`, which has the same number on all machines.
        const CACHESTAT: libc::c_long = 451;
        let range = [offset, bytes as u64];
        // Pages in the cache, dirty, under writeback, evicted, evicted lately.
        let mut counts = [0u64; 5];
        // SAFETY: the system reads two numbers and writes five, both as long as the call takes.
        let code = unsafe {
            libc::syscall(CACHESTAT, self.file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0 as libc::c_uint)
        };
        (code == 0).then(|| counts[0] * PAGE_BYTES as u64)
    }

    fn count_read(&self, bytes: usize, ledger: &Ledger) {
        ledger.read_op();
        ledger.moved(Hop::StorageToHost, bytes);
        if self.path == Path::Buffered {
            ledger.moved(Hop::HostToHost, bytes);
        }
    }

    fn count_write(&self, bytes: usize, ledger: &Ledger) {
        ledger.write_op();
        ledger.moved(Hop::HostToStorage, bytes);
        if self.path == Path::Buffered {
            ledger.moved(Hop::HostToHost, bytes);
        }
    }

    /// Reads whole pages around the wanted range into a bounce buffer, then copies.
    fn read_bounced(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        let skip = (offset % PAGE_BYTES as u64) as usize;
        let mut pages = AlignedBuf::zeroed(skip + buf.len());
        let n = self.file.read_at(pages.padded_mut(), offset - skip as u64)?;
        let got = n.saturating_sub(skip).min(buf.len());
        buf[..got].copy_from_slice(&pages[skip..skip + got]);
        self.count_read(n, ledger);
        ledger.moved(Hop::HostToHost, got);
        Ok(got)
    }

    /// Reads the pages a write touches, changes the range, writes them back, and cuts the file at its logical end.
    fn write_bounced(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        let _edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = (offset % PAGE_BYTES as u64) as usize;
        let start = offset - skip as u64;
        let end = offset + buf.len() as u64;
        let length = self.file.metadata()?.len().max(end);
        let mut pages = AlignedBuf::zeroed(skip + buf.len());
        let mut done = 0;
        // A read may end early at the end of the file, in the middle of a page; zeroes stand for what is not there.
        while done < pages.padded_mut().len() {
            match self.file.read_at(&mut pages.padded_mut()[done..], start + done as u64)? {
                0 => break,
                n => done += n - n % PAGE_BYTES,
            }
            if !done.is_multiple_of(PAGE_BYTES) || start + done as u64 + PAGE_BYTES as u64 > length {
                break;
            }
        }
        pages[skip..skip + buf.len()].copy_from_slice(buf);
        ledger.moved(Hop::HostToHost, buf.len());
        self.file.write_all_at(pages.padded_mut(), start)?;
        self.count_write(pages.padded_mut().len(), ledger);
        self.file.set_len(length)?;
        Ok(buf.len())
    }
}

/// Memory of the machine: what the page cache cannot have more than.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// How much in flight keeps the device of a file busy.
///
/// One with a single hardware queue works off one transfer after the other, as the disks of virtual machines do: these are
/// at their best with 2 to 4 MiB, of which there is half as much again in case that the next is late, and lose a third of
/// their rate with ten times that. One with many, as NVMe drives have, or of which nobody knows, as arrays, is to have
/// enough for 50 GB/s at half a millisecond.
fn in_flight_bytes(file: &File) -> usize {
    match hardware_queues(file) {
        Some(1) => 6 << 20,
        _ => 24 << 20,
    }
}

/// Of the block device that a file lies on, where that is known.
fn hardware_queues(file: &File) -> Option<usize> {
    let device = file.metadata().ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    // A partition's are those of its disk.
    let of = |folder: &str| std::fs::read_dir(format!("/sys/dev/block/{major}:{minor}/{folder}")).ok();
    Some(of("mq").or_else(|| of("../mq"))?.count())
}

/// Does not wait for the other end if there is a pipe at the path.
fn open(directory: BorrowedFd<'_>, path: &FsPath, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, path, flags, FileMode::from_raw_mode(0o666))?);
    // Regular files do not look at the flag, and cuFile refuses those that have it.
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Some file systems take the flag and refuse the transfer.
fn try_direct(file: &File) -> io::Result<()> {
    let mut page = AlignedBuf::zeroed(PAGE_BYTES);
    file.read_at(&mut page, 0).map(|_| ())
}

fn is_aligned(offset: u64, buf: &[u8]) -> bool {
    offset.is_multiple_of(PAGE_BYTES as u64)
        && buf.len().is_multiple_of(PAGE_BYTES)
        && (buf.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
}

impl AsFd for LocalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl ReadAt for LocalFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn hints(&self) -> IoHints {
        IoHints {
            path: self.path,
            alignment: if self.path == Path::HostDirect { PAGE_BYTES } else { 1 },
            concurrency: 8,
            in_flight_bytes: *self.in_flight_bytes.get_or_init(|| in_flight_bytes(&self.file)),
            coalesce_gap_bytes: 64 << 10,
            max_request_bytes: 16 << 20,
        }
    }

    fn as_local(self: Arc<Self>) -> Option<Arc<LocalFile>> {
        Some(self)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| Error::new(Operation::Open, &self.name, e))?.len())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        if self.path == Path::HostDirect && !is_aligned(offset, buf) {
            return self.read_bounced(offset, buf, ledger);
        }
        let n = self.file.read_at(buf, offset)?;
        self.count_read(n, ledger);
        Ok(n)
    }

    fn try_read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>], ledger: &Ledger) -> io::Result<usize> {
        if self.path == Path::HostDirect {
            // A bounce for one buffer must not shift the others off their pages: one request each.
            return match bufs.iter_mut().find(|buf| !buf.is_empty()) {
                Some(buf) => self.try_read_at(offset, buf, ledger),
                None => Ok(0),
            };
        }
        let n = rustix::io::preadv(&self.file, bufs, offset)?;
        self.count_read(n, ledger);
        Ok(n)
    }
}

impl WriteAt for LocalFile {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        if self.path == Path::HostDirect && !is_aligned(offset, buf) {
            return self.write_bounced(offset, buf, ledger);
        }
        let n = self.file.write_at(buf, offset)?;
        self.count_write(n, ledger);
        Ok(n)
    }

    fn try_write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>], ledger: &Ledger) -> io::Result<usize> {
        if self.path == Path::HostDirect {
            return match bufs.iter().find(|buf| !buf.is_empty()) {
                Some(buf) => self.try_write_at(offset, buf, ledger),
                None => Ok(0),
            };
        }
        let n = rustix::io::pwritev(&self.file, bufs, offset)?;
        self.count_write(n, ledger);
        Ok(n)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::new(Operation::Sync, &self.name, e))
    }
}

/// A directory of the operating system.
#[derive(Debug)]
pub struct LocalVolume {
    directory: File,
    name: String,
    requested: RequestedPath,
}

impl LocalVolume {
    /// The directory `path`, which must exist. Its files are opened by the requested path.
    pub fn open(path: &FsPath, requested: RequestedPath) -> Result<Self> {
        Self::in_directory(CWD, path, path.display().to_string(), requested)
    }

    fn in_directory(directory: BorrowedFd<'_>, path: &FsPath, name: String, requested: RequestedPath) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(directory, path, flags, FileMode::empty()) {
            Ok(directory) => Ok(Self { directory: File::from(directory), name, requested }),
            Err(e) => Err(Error::new(Operation::Open, name, e)),
        }
    }

    /// A file of it, as messages call it.
    fn name_of(&self, name: &str) -> String {
        FsPath::new(&self.name).join(name).display().to_string()
    }

    fn file(&self, name: &str, mode: Mode) -> Result<Arc<LocalFile>> {
        let (directory, path) = (self.directory.as_fd(), FsPath::new(name));
        LocalFile::in_directory(directory, path, self.name_of(name), self.requested, mode).map(Arc::new)
    }
}

impl Volume for LocalVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        Ok(self.file(name, Mode::Read)?)
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Ok(self.file(name, Mode::Update)?)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        Ok(self.file(name, Mode::Create)?)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        renameat(&self.directory, from, &self.directory, to)
            .map_err(|e| Error::new(Operation::Rename, self.name_of(from), e))
    }

    fn remove(&self, name: &str) -> Result<()> {
        unlinkat(&self.directory, name, AtFlags::empty())
            .map_err(|e| Error::new(Operation::Remove, self.name_of(name), e))
    }

    fn list(&self) -> Result<Vec<String>> {
        let failed = |e: rustix::io::Errno| Error::new(Operation::List, &self.name, e);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let found =
                        statat(&self.directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                    FileType::from_raw_mode(found.st_mode)
                }
                known => known,
            };
            if kind == FileType::RegularFile {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync(&self) -> Result<()> {
        self.directory.sync_all().map_err(|e| Error::new(Operation::Sync, &self.name, e))
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let of_folder = self.name_of(name);
        match mkdirat(&self.directory, name, FileMode::from_raw_mode(0o777)) {
            Err(e) if e != rustix::io::Errno::EXIST => Err(Error::new(Operation::Create, of_folder, e)),
            _ => {
                let folder = Self::in_directory(self.directory.as_fd(), FsPath::new(name), of_folder, self.requested)?;
                Ok(Arc::new(folder))
            }
        }
    }
}
