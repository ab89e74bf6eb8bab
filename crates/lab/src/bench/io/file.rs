//! The files of the measurement.
//!
//! All sectors contain the same noise, except for their first word, which is a function of the seed
//! and the sector's number. A block to be written is made by stamping its sectors, which is cheap
//! compared with the write. Every block can be checked by itself, for its contents and its origin.
//! The first page is a header instead: the program that made the file, its seed and length. A write
//! of the benchmark writes the existing contents, so a file is valid before, during and after it is
//! written to. A file without that header is foreign, and is never changed, regardless of its
//! contents: an empty file may be a lock, and a disk image may begin with zeroes.
//!
//! The name may refer to another file during the run. The file is therefore held open and locked
//! while it is used, which another run detects. Before a file is opened or removed by its name, it
//! is compared with the held one.

use std::fs;
use std::io;
use std::iter;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onehop_io::{AlignedBuf, Error, Ledger, LocalFile, Operation, PAGE_BYTES, ReadAt, RequestedPath, Result, WriteAt};

use super::super::held::Held;
use crate::generate::{GOLDEN, mix};

/// The first bytes of a file that this benchmark made; the last is the version.
const MAGIC: [u8; 8] = *b"1HOPIO\0\x01";

/// The size of a stamped unit in bytes: the granularity at which storage may tear writes.
const SECTOR_BYTES: usize = 512;

/// The number of bytes per write while a file is created.
const CHUNK_BYTES: usize = 4 << 20;

/// A file of known contents.
#[derive(Clone, Debug)]
pub struct BenchFile {
    path: PathBuf,
    bytes: u64,
    seed: u64,
    device: u64,
    inode: u64,
    is_new: bool,
    /// The open file, locked if this benchmark made it.
    held: Arc<Held>,
}

impl BenchFile {
    /// Returns the file of this length, created if it is missing. `progress` receives the number of
    /// bytes written so far, and may stop the creation. The result is then `None`, and a file that
    /// did not exist before is removed.
    ///
    /// # Errors
    /// Returns errors of the system. Fails for a file that another program made.
    pub fn prepare(
        path: &Path,
        bytes: u64,
        seed: u64,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<Self>> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64).max(2 * PAGE_BYTES as u64);
        let name = path.display().to_string();
        let is_new = find(path, bytes, seed)? == Found::Nothing;
        let failed = |e| Error::new(if is_new { Operation::Create } else { Operation::Open }, &name, e);
        // If it is new and another process creates it first, this fails.
        let held = match fs::File::options().read(true).write(true).create_new(is_new).open(path) {
            // A file without write permission is sufficient for reading.
            Err(e)
                if !is_new
                    && matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                fs::File::open(path)
            }
            held => held,
        };
        let held = held.map_err(failed)?;
        let held = Held::lock(held).map_err(failed)?.ok_or_else(|| {
            let why = "another `onehop bench io` is using it: wait for its end, or name another file";
            failed(io::Error::new(io::ErrorKind::ResourceBusy, why))
        })?;
        let metadata = held.metadata().map_err(failed)?;
        let file = Self {
            path: path.to_path_buf(),
            bytes,
            seed,
            device: metadata.dev(),
            inode: metadata.ino(),
            is_new,
            held: Arc::new(held),
        };
        // A file that existed before the lock may have been another run's, which has changed or
        // removed it since.
        if is_new || find(path, bytes, seed)? != Found::Ready {
            let written = file.lay_out(&mut progress);
            if !matches!(written, Ok(ControlFlow::Continue(()))) {
                if is_new {
                    file.remove();
                }
                return written.map(|_| None);
            }
        }
        Ok(Some(file))
    }

    /// Returns a file that another program made, for reading only, because its expected contents
    /// are unknown. Returns `None` if there is none, or if it is one of this benchmark.
    ///
    /// # Errors
    /// Returns errors of the system.
    pub fn of_others(path: &Path) -> Result<Option<Self>> {
        match find(path, 0, 0) {
            Err(e) if e.source.kind() == io::ErrorKind::AlreadyExists => {}
            found => return found.map(|_| None),
        }
        let failed = |e| Error::new(Operation::Open, path.display().to_string(), e);
        let held = fs::File::open(path).map_err(failed)?;
        let metadata = held.metadata().map_err(failed)?;
        Ok(Some(Self {
            path: path.to_path_buf(),
            bytes: metadata.len() - metadata.len() % PAGE_BYTES as u64,
            seed: 0,
            device: metadata.dev(),
            inode: metadata.ino(),
            is_new: false,
            held: Arc::new(Held::shared(held)),
        }))
    }

    /// Removes the file, if its name still refers to it. A leftover file is harmless: the next run
    /// recognizes it.
    pub fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode)) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Returns true if the file did not exist before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of its device.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Returns the kind of its file system, if that keeps its files in memory.
    pub fn memory_kind(&self) -> Option<&'static str> {
        /// The magic numbers of `statfs(2)`.
        const KINDS: [(i64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];
        let kind = rustix::fs::statfs(&self.path).ok()?.f_type as i64;
        KINDS.iter().find(|(of, _)| *of == kind).map(|(_, name)| *name)
    }

    /// Opens the file for a measurement. Opening for writing does not change it.
    ///
    /// # Errors
    /// Returns errors of the system: many file systems have no `O_DIRECT`.
    pub fn open(&self, requested: RequestedPath, writes: bool) -> Result<Arc<LocalFile>> {
        let operation = if writes { Operation::Write } else { Operation::Read };
        let file = if writes {
            LocalFile::open_for_update(&self.path, requested)
        } else {
            LocalFile::open(&self.path, requested)
        };
        let file = file.map_err(|e| match e.source.kind() {
            // The file existed and could be opened before, so the error is not one of the path.
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Error { operation, ..e },
            _ => e,
        })?;
        let found = rustix::fs::fstat(&file).map_err(|e| Error::new(operation, file.name(), e))?;
        if (found.st_dev, found.st_ino) != (self.device, self.inode) {
            let why = "something else has put another file in its place since this run began";
            return Err(Error::new(operation, file.name(), io::Error::other(why)));
        }
        Ok(Arc::new(file))
    }

    /// Writes the contents: first a header that identifies the benchmark and matches no contents,
    /// then the rest, and the final header last.
    fn lay_out(&self, progress: &mut impl FnMut(u64) -> ControlFlow<()>) -> Result<ControlFlow<()>> {
        let (bytes, seed) = (self.bytes, self.seed);
        let file = self.open(RequestedPath::PreferHostDirect, true)?;
        self.held.set_len(0).map_err(|e| Error::new(Operation::Write, file.name(), e))?;
        let ledger = Ledger::default();
        let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
        chunk[..MAGIC.len()].copy_from_slice(&MAGIC);
        file.write_at(0, &chunk[..PAGE_BYTES], &ledger)?;
        fill_noise(seed, &mut chunk);
        let mut at = CHUNK_BYTES as u64;
        while at < bytes {
            let n = CHUNK_BYTES.min((bytes - at) as usize);
            stamp(seed, bytes, at, &mut chunk[..n]);
            file.write_at(at, &chunk[..n], &ledger)?;
            at += n as u64;
            if progress(at).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        file.sync()?;
        let n = CHUNK_BYTES.min(bytes as usize);
        stamp(seed, bytes, 0, &mut chunk[..n]);
        file.write_at(0, &chunk[..n], &ledger)?;
        file.sync()?;
        Ok(ControlFlow::Continue(()))
    }

    /// Drops the file from the system's page cache.
    ///
    /// # Errors
    /// Returns errors of the system.
    pub fn forget(&self) -> Result<()> {
        let failed = |e: io::Error| Error::new(Operation::Sync, self.path.display().to_string(), e);
        let file = fs::File::open(&self.path).map_err(failed)?;
        // Dirty pages cannot be dropped.
        file.sync_all().map_err(failed)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(|e| failed(e.into()))
    }

    /// Prepares a buffer for [`BenchFile::stamp`].
    pub fn fill_noise(&self, buffer: &mut [u8]) {
        fill_noise(self.seed, buffer);
    }

    /// Makes the block at a page boundary, in a buffer that was prepared or contains another block.
    pub fn stamp(&self, offset: u64, block: &mut [u8]) {
        if block.starts_with(&MAGIC) {
            // The header has no noise.
            fill_noise(self.seed, block);
        }
        stamp(self.seed, self.bytes, offset, block);
    }

    /// Returns the offset of the first wrong byte.
    pub fn first_wrong(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        first_wrong(self.seed, self.bytes, offset, bytes)
    }
}

/// The files of a measurement: one of known contents, or one or several foreign ones, which are
/// only read, as one concatenated file.
#[derive(Clone, Debug)]
pub struct Files {
    first: BenchFile,
    more: Vec<BenchFile>,
}

impl From<BenchFile> for Files {
    fn from(first: BenchFile) -> Self {
        Self { first, more: Vec::new() }
    }
}

impl Files {
    /// Appends a file.
    pub fn push(&mut self, file: BenchFile) {
        self.more.push(file);
    }

    /// Returns the first file, which is the only one if its contents are known.
    pub fn first(&self) -> &BenchFile {
        &self.first
    }

    /// Returns all files, in order.
    pub fn iter(&self) -> impl Iterator<Item = &BenchFile> {
        iter::once(&self.first).chain(&self.more)
    }

    /// Returns the number of files.
    pub fn count(&self) -> usize {
        1 + self.more.len()
    }

    /// Returns the total size in bytes.
    pub fn bytes(&self) -> u64 {
        self.iter().map(BenchFile::bytes).sum()
    }

    /// Returns the name in reports.
    pub fn name(&self) -> String {
        let first = self.first.path().display();
        match self.more.len() {
            0 => first.to_string(),
            more => format!("{first} and {more} more"),
        }
    }
}

/// The file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A file of this benchmark, with other contents or incomplete.
    Ours,
    /// The requested file.
    Ready,
}

fn find(path: &Path, bytes: u64, seed: u64) -> Result<Found> {
    let name = path.display().to_string();
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(e) => return Err(Error::new(Operation::Open, name, e)),
        Ok(found) if !found.is_file() => {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file: name one, or a folder");
            return Err(Error::new(Operation::Open, name, why));
        }
        Ok(_) => {}
    }
    let file = LocalFile::open(path, RequestedPath::Buffered)?;
    let length = file.len()?;
    let mut found = vec![0; PAGE_BYTES.min(usize::try_from(length).unwrap_or(PAGE_BYTES))];
    file.read_at(0, &mut found, &Ledger::default())?;
    if !found.starts_with(&MAGIC) {
        let why = "it was not made by this benchmark, and is not written over: name a folder or another file";
        return Err(Error::new(Operation::Create, name, io::Error::new(io::ErrorKind::AlreadyExists, why)));
    }
    let is_ready = length == bytes && first_wrong(seed, bytes, 0, &found).is_none();
    Ok(if is_ready { Found::Ready } else { Found::Ours })
}

/// Returns SplitMix64 of a counter.
fn word(seed: u64, i: u64) -> u64 {
    mix(seed ^ i.wrapping_mul(GOLDEN))
}

/// Returns the noise of every sector.
fn noise(seed: u64) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    for (i, place) in sector.chunks_mut(8).enumerate() {
        place.copy_from_slice(&word(!seed, i as u64).to_le_bytes());
    }
    sector
}

fn header(seed: u64, bytes: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    page[..8].copy_from_slice(&MAGIC);
    page[8..16].copy_from_slice(&seed.to_le_bytes());
    page[16..24].copy_from_slice(&bytes.to_le_bytes());
    page
}

/// Makes a block in a buffer that contained one before, or in one that was filled with noise.
/// `offset` is a page boundary.
fn stamp(seed: u64, bytes: u64, offset: u64, out: &mut [u8]) {
    let first = offset / SECTOR_BYTES as u64;
    for (number, sector) in (first..).zip(out.chunks_exact_mut(SECTOR_BYTES)) {
        sector[..8].copy_from_slice(&word(seed, number).to_le_bytes());
    }
    if offset == 0 {
        let n = out.len().min(PAGE_BYTES);
        out[..n].copy_from_slice(&header(seed, bytes)[..n]);
    }
}

fn fill_noise(seed: u64, out: &mut [u8]) {
    let noise = noise(seed);
    for sector in out.chunks_mut(SECTOR_BYTES) {
        sector.copy_from_slice(&noise[..sector.len()]);
    }
}

fn first_wrong(seed: u64, bytes: u64, offset: u64, found: &[u8]) -> Option<u64> {
    let differs = |at: u64, found: &[u8], expected: &[u8]| {
        let n = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
        (n < found.len()).then_some(at + n as u64)
    };
    let mut skip = 0;
    if offset == 0 {
        skip = found.len().min(PAGE_BYTES);
        if let Some(at) = differs(0, &found[..skip], &header(seed, bytes)) {
            return Some(at);
        }
    }
    let mut expected = noise(seed);
    let first = (offset + skip as u64) / SECTOR_BYTES as u64;
    (first..).zip(found[skip..].chunks(SECTOR_BYTES)).find_map(|(number, sector)| {
        expected[..8].copy_from_slice(&word(seed, number).to_le_bytes());
        match sector.len() {
            SECTOR_BYTES if sector == expected => None,
            _ => differs(number * SECTOR_BYTES as u64, sector, &expected),
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Prepares a file. Also returns the last reported progress: 0 if there was nothing to do.
    fn prepared(path: &Path, bytes: u64, seed: u64) -> (BenchFile, u64) {
        let mut told = 0;
        let progress = |n| {
            told = n;
            ControlFlow::Continue(())
        };
        let file = BenchFile::prepare(path, bytes, seed, progress).unwrap().unwrap();
        (file, told)
    }

    #[test]
    fn a_file_is_what_it_should_be_and_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let (file, told) = prepared(&path, 9_000_000, 3);
        assert_eq!((file.bytes(), told, file.is_new()), (9_003_008, 9_003_008, true));
        let found = fs::read(&path).unwrap();
        assert_eq!(file.first_wrong(0, &found), None);
        assert_eq!(file.first_wrong(8192, &found[8192..20_000]), None);
        for at in [0, 17, 4095, 4096, 9_003_007] {
            let mut found = found.clone();
            found[at] ^= 1;
            assert_eq!(file.first_wrong(0, &found), Some(at as u64));
        }
        drop(file);
        let (file, told) = prepared(&path, 9_000_000, 3);
        assert_eq!((told, file.is_new()), (0, false), "it is there");
        drop(file);
        // Another seed or length: created again.
        let (file, told) = prepared(&path, 9_000_000, 4);
        assert!(told > 0 && !file.is_new());
    }

    #[test]
    fn what_takes_its_place_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let (file, _) = prepared(&path, 1 << 20, 0);
        fs::remove_file(&path).unwrap();
        assert!(file.open(RequestedPath::Buffered, true).is_err());
        fs::write(&path, b"my thesis").unwrap();
        for writes in [false, true] {
            let error = file.open(RequestedPath::Buffered, writes).unwrap_err().to_string();
            assert!(error.contains("put another file in its place"), "{error}");
        }
        file.remove();
        assert_eq!(fs::read(&path).unwrap(), b"my thesis");
    }

    #[test]
    fn one_run_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let (file, _) = prepared(&path, 1 << 20, 0);
        let second = || BenchFile::prepare(&path, 2 << 20, 1, |_| ControlFlow::Continue(()));
        let error = second().unwrap_err().to_string();
        assert!(error.contains("another `onehop bench io` is using it"), "{error}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        file.remove();
        drop(file);
        assert!(second().unwrap().unwrap().is_new());
    }

    #[test]
    fn a_pipe_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let refused = BenchFile::prepare(&path, 1 << 20, 0, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(refused.to_string().contains("not a regular file"), "{refused}");
    }

    #[test]
    fn what_others_made_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        // A text, an empty file that may be a lock, and a disk image whose first pages are zero.
        for content in [&b"my thesis"[..], b"", &[0; 20_000]] {
            let path = dir.path().join("mine");
            fs::write(&path, content).unwrap();
            let refused = BenchFile::prepare(&path, 1 << 20, 0, |_| ControlFlow::Continue(()));
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("mine") && error.contains("not made by this benchmark"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        let refused = BenchFile::prepare(dir.path(), 1 << 20, 0, |_| ControlFlow::Continue(()));
        assert!(refused.is_err(), "a folder");
    }

    #[test]
    fn one_that_was_stopped_leaves_nothing_or_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let stop = |_| ControlFlow::Break(());
        assert!(BenchFile::prepare(&path, 20 << 20, 0, stop).unwrap().is_none());
        assert!(!path.exists());
        drop(prepared(&path, 20 << 20, 0));
        assert!(BenchFile::prepare(&path, 30 << 20, 0, stop).unwrap().is_none());
        let (file, told) = prepared(&path, 30 << 20, 0);
        assert!(told > 0 && !file.is_new(), "what was stopped half-way is known, and known to be ours");
        assert_eq!(file.first_wrong(0, &fs::read(&path).unwrap()), None);
    }
}
