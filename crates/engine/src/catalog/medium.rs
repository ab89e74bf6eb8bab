//! A store in a file of a [`Volume`], for databases on volumes that are not directories of the
//! operating system. Crash tests use such volumes: every write and every sync is an operation that
//! may fail.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use onehop_io::{Ledger, Volume, WriteAt};
use onehop_store::medium::{Domain, Granularity, Medium};
use onehop_store::{Error, Result};

/// A file of a volume, in units of pages, durable after a sync.
#[derive(Debug)]
struct VolumeMedium {
    file: Arc<dyn WriteAt>,
    len: AtomicU64,
}

/// Creates an empty file of a volume.
pub(super) fn create(volume: &Arc<dyn Volume>, name: &str) -> crate::Result<Arc<dyn Medium>> {
    on(volume.create(name)?)
}

/// Opens a file of a volume.
pub(super) fn open(volume: &Arc<dyn Volume>, name: &str) -> crate::Result<Arc<dyn Medium>> {
    on(volume.open_for_update(name)?)
}

/// Opens a file of a volume for reading, while another process writes to it.
pub(super) fn open_for_reading(volume: &Arc<dyn Volume>, name: &str) -> Result<Arc<dyn Medium>> {
    let opened = open(volume, name);
    opened.map_err(|e| Error::Io {
        operation: "open".into(),
        object: name.into(),
        source: Arc::new(std::io::Error::other(e)),
    })
}

fn on(file: Arc<dyn WriteAt>) -> crate::Result<Arc<dyn Medium>> {
    let len = AtomicU64::new(file.len()?);
    Ok(Arc::new(VolumeMedium { file, len }))
}

impl VolumeMedium {
    fn failed(&self, operation: &str, e: onehop_io::Error) -> Error {
        Error::Io {
            operation: operation.to_string(),
            object: self.file.name().to_string(),
            source: Arc::new(std::io::Error::other(e)),
        }
    }
}

impl Medium for VolumeMedium {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn granularity(&self) -> Granularity {
        Granularity::Page
    }

    fn domain(&self) -> Domain {
        Domain::Device
    }

    fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len <= self.len() {
            return Ok(());
        }
        self.file.write_at(len - 1, &[0], &Ledger::default()).map_err(|e| match e.source.kind() {
            ErrorKind::StorageFull => Error::Full { object: self.name().into(), reason: e.to_string() },
            _ => self.failed("grow", e),
        })?;
        self.file.sync().map_err(|e| self.failed("grow", e))?;
        self.len.store(len, SeqCst);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        let read = self.file.read_at(at, into, &Ledger::default());
        read.map_err(|e| self.failed(&format!("read {} bytes at offset {at} of", into.len()), e))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_at(at, bytes, &Ledger::default());
        written.map_err(|e| self.failed(&format!("write {} bytes at offset {at} of", bytes.len()), e))
    }

    fn flush(&self, _at: u64, _len: usize) -> Result<()> {
        Ok(())
    }

    fn fence(&self) -> Result<()> {
        self.file.sync().map_err(|e| self.failed("sync", e))
    }
}
