//! Files in this process's memory: `:memory:` databases, and tests that need no disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::{Error, Hop, IoHints, Ledger, Operation, Path, ReadAt, Result, Volume, WriteAt};

/// A growable file in memory.
#[derive(Debug)]
pub struct MemoryFile {
    name: String,
    bytes: RwLock<Vec<u8>>,
}

impl MemoryFile {
    /// A file with these contents.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes: RwLock::new(bytes) }
    }

    /// A copy of the contents.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ReadAt for MemoryFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn hints(&self) -> IoHints {
        IoHints {
            path: Path::Memory,
            alignment: 1,
            concurrency: 1,
            in_flight_bytes: 64 << 20,
            coalesce_gap_bytes: 0,
            max_request_bytes: 64 << 20,
        }
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let n = buf.len().min(bytes.len() - from);
        buf[..n].copy_from_slice(&bytes[from..from + n]);
        ledger.read_op();
        ledger.moved(Hop::HostToHost, n);
        Ok(n)
    }
}

impl WriteAt for MemoryFile {
    fn try_write_at(&self, offset: u64, buf: &[u8], ledger: &Ledger) -> io::Result<usize> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let end = from.checked_add(buf.len()).ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[from..end].copy_from_slice(buf);
        ledger.write_op();
        ledger.moved(Hop::HostToHost, buf.len());
        Ok(buf.len())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A directory in memory. Nothing in it is durable, and nothing pretends to be.
#[derive(Debug)]
pub struct MemoryVolume {
    name: String,
    files: Mutex<BTreeMap<String, Arc<MemoryFile>>>,
    folders: Mutex<BTreeMap<String, Arc<MemoryVolume>>>,
}

impl MemoryVolume {
    /// An empty directory.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), files: Mutex::default(), folders: Mutex::default() }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Arc<MemoryFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self, operation: Operation, name: &str) -> Error {
        Error::new(operation, format!("{}/{name}", self.name), io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Volume for MemoryVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        match self.files().get(name) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn ReadAt>),
            None => Err(self.missing(Operation::Open, name)),
        }
    }

    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        match self.files().get(name) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn WriteAt>),
            None => Err(self.missing(Operation::Open, name)),
        }
    }

    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>> {
        let file = Arc::new(MemoryFile::new(format!("{}/{name}", self.name), Vec::new()));
        self.files().insert(name.to_string(), Arc::clone(&file));
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or_else(|| self.missing(Operation::Rename, from))?;
        files.insert(to.to_string(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.files().remove(name).map(|_| ()).ok_or_else(|| self.missing(Operation::Remove, name))
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>> {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = folders
            .entry(name.to_string())
            .or_insert_with(|| Arc::new(MemoryVolume::new(format!("{}/{name}", self.name))));
        Ok(Arc::clone(folder) as Arc<dyn Volume>)
    }
}
