//! Import of arrays that another process, or this one, has exported.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use arrow::buffer::Buffer;
use onehop_pipeline::arrays::{DeviceMemory, Shared};
use onehop_pipeline::backend::Devices;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::handle::Handle;
use super::manifest::{Column, Manifest, Place, hex};
use super::{FOLDER, Files, system};
use crate::arrays::{Array, Arrays, Memory};
use crate::error::nearest;
use crate::{Error, ErrorKind, Result};

/// Opens the export of a handle: these columns, or all. Blocks. Looks for devices if the export is
/// on one.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a string that is not a handle. [`ErrorKind::NotFound`] for an export
/// that has ended or a column that it does not have. [`ErrorKind::Denied`] for a wrong secret or
/// another user's export. [`ErrorKind::Corrupt`] for damaged content. [`ErrorKind::Unmet`] for a
/// device that this process cannot use. [`ErrorKind::Device`] for other device errors.
pub fn import(handle: &str, columns: &[String], devices: Option<&Arc<dyn Devices>>) -> Result<Arrays> {
    import_from(Path::new(FOLDER), handle, columns, devices)
}

pub(super) fn import_from(
    folder: &Path,
    handle: &str,
    columns: &[String],
    devices: Option<&Arc<dyn Devices>>,
) -> Result<Arrays> {
    let handle = Handle::parse(handle)?;
    let content = Arc::new(opened(folder, &handle)?);
    let manifest = read(&content)?;
    if manifest.secret != handle.secret {
        return Err(Error::new(ErrorKind::Denied, "the handle's secret is not that of the export")
            .with_hint("ask the program that exported it for the handle"));
    }
    let wanted = wanted(&manifest, columns)?;
    let arrays = match &manifest.place {
        Place::Host => mapped(&content, &manifest, &wanted),
        Place::Device { name, uuid } => shared(&content, &manifest, &wanted, (name, uuid), devices),
    };
    Ok(Arrays { columns: wanted.iter().map(|column| column.name.clone()).collect(), arrays: arrays? })
}

fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "what this handle stands for is gone: it was released, or its process has ended")
        .with_hint("export the table again, and keep the exporting connection open")
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Converts an error of opening a file of an export.
fn not_opened(path: &Path, e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::NotFound => gone(),
        io::ErrorKind::PermissionDenied => {
            Error::new(ErrorKind::Denied, format!("cannot import {}: it is another user's", path.display()))
                .with_hint("arrays are shared among processes of one user")
                .with_source(e)
        }
        _ => system(&format!("cannot import {}", path.display()), e),
    }
}

fn not_read(e: io::Error) -> Error {
    if e.kind() == io::ErrorKind::UnexpectedEof {
        return Error::new(ErrorKind::Corrupt, "the export is damaged: it was cut short")
            .with_hint("export the table again");
    }
    system("cannot read the export", e)
}

/// Opens the content of a live export, and locks it to show that it is in use.
fn opened(folder: &Path, handle: &Handle) -> Result<File> {
    let files = Files::of(folder, &handle.id);
    let lease = open(&files.lease).map_err(|e| not_opened(&files.lease, e))?;
    if is_expired(&lease) {
        // No other process removes the files.
        files.remove();
        return Err(gone());
    }
    let content = open(&files.content).map_err(|e| not_opened(&files.content, e))?;
    flock(&content, FlockOperation::NonBlockingLockShared).map_err(|_| gone())?;
    // The export may have ended before the lock was taken.
    match files.lease.exists() {
        true => Ok(content),
        false => Err(gone()),
    }
}

/// Returns whether the exporter no longer holds the lease.
pub(super) fn is_expired(lease: &File) -> bool {
    !matches!(flock(lease, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
}

fn read(content: &File) -> Result<Manifest> {
    let facts = content.metadata().map_err(not_read)?;
    if !facts.is_file() || facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::new(ErrorKind::Denied, "the export is not this user's"));
    }
    let length = usize::try_from(facts.size()).unwrap_or(usize::MAX).min(Manifest::most_bytes());
    // Most manifests fit into one page.
    let mut bytes = vec![0; length.min(4096)];
    content.read_exact_at(&mut bytes, 0).map_err(not_read)?;
    match Manifest::decode(&bytes) {
        Err(e) if e.kind() == ErrorKind::Corrupt && length > bytes.len() => {
            let mut all = vec![0; length];
            content.read_exact_at(&mut all, 0).map_err(not_read)?;
            Manifest::decode(&all)
        }
        decoded => decoded,
    }
}

fn wanted<'a>(manifest: &'a Manifest, columns: &[String]) -> Result<Vec<&'a Column>> {
    if columns.is_empty() {
        return Ok(manifest.columns.iter().collect());
    }
    let find = |name: &String| {
        manifest.columns.iter().find(|column| column.name == *name).ok_or_else(|| {
            let error = Error::new(
                ErrorKind::NotFound,
                format!("the export of \"{}\" has no column \"{name}\"", manifest.table),
            );
            match nearest(name, manifest.columns.iter().map(|column| column.name.as_str())) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error
                    .with_hint("what was exported is what onehop_export was told, or all that arrays have types for"),
            }
        })
    };
    columns.iter().map(find).collect()
}

fn rows_of(manifest: &Manifest) -> Result<usize> {
    usize::try_from(manifest.rows).map_err(|_| Error::new(ErrorKind::Corrupt, "the export has more rows than can be"))
}

/// Maps columns in host memory.
fn mapped(content: &Arc<File>, manifest: &Manifest, columns: &[&Column]) -> Result<Vec<Array>> {
    let length = content.metadata().map_err(not_read)?.size();
    // All places are checked before any is mapped.
    let places = columns.iter().map(|column| column.place(manifest.rows, length)).collect::<Result<Vec<_>>>()?;
    let mapping = Arc::new(Mapping::new(content, length)?);
    let array = |(column, (at, bytes)): (&&Column, (usize, usize))| {
        let memory = Memory::Host(mapping.slice(at, bytes));
        Ok(Array { element: column.element()?, rows: rows_of(manifest)?, columns: None, memory })
    };
    columns.iter().zip(places).map(array).collect()
}

/// A mapped content.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// The content file. Its lock shows that the mapping is in use.
    _content: Arc<File>,
}

// SAFETY: the memory is only read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(content: &Arc<File>, length: u64) -> Result<Self> {
        let length =
            usize::try_from(length).map_err(|_| Error::new(ErrorKind::Resources, "the export is too large"))?;
        // SAFETY: the kernel chooses the address. The file has this length. `drop` unmaps it once.
        let start = unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &**content, 0) };
        let start = start.map_err(|e| not_read(e.into()))?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, length, _content: Arc::clone(content) }),
            None => Err(Error::new(ErrorKind::Io, "the export was mapped nowhere")),
        }
    }

    fn slice(self: &Arc<Self>, at: usize, bytes: usize) -> Buffer {
        assert!(at <= self.length && bytes <= self.length - at, "{bytes} bytes from {at} of {}", self.length);
        // SAFETY: the range is within the mapping, which its owner keeps. The exporter wrote it
        // before it gave out the handle, and neither writes to it again nor truncates it.
        unsafe { Buffer::from_custom_allocation(self.start.add(at), bytes, Arc::clone(self) as _) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it. It is unmapped only here, when no buffer is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Opens columns on a device.
fn shared(
    content: &Arc<File>,
    manifest: &Manifest,
    columns: &[&Column],
    (name, uuid): (&str, &str),
    devices: Option<&Arc<dyn Devices>>,
) -> Result<Vec<Array>> {
    let unmet = |why: String| {
        let message = format!(
            "the export is on {name} of process {}, and this process cannot use that GPU: {why}",
            manifest.process
        );
        Error::new(ErrorKind::Unmet, message)
            .with_hint("look at CUDA_VISIBLE_DEVICES; `onehop doctor` says what is missing")
    };
    let all = devices.map_or(Ok(&[][..]), |devices| devices.all()).map_err(unmet)?;
    let arrays = all.iter().filter_map(|backend| backend.arrays()).find(|arrays| hex(&arrays.uuid()) == *uuid);
    let Some(arrays) = arrays else { return Err(unmet("there is none of its number".into())) };
    let array = |column: &&Column| {
        let opened = arrays.open(&column.shared()?, column.bytes(manifest.rows)?);
        let memory = opened.map_err(|e| match manifest.process == std::process::id() {
            true => Error::from(e).with_hint("this process has exported it: con.table(...).cupy() has the same arrays"),
            false => e.into(),
        })?;
        let memory = Memory::Device(Arc::new(Leased { memory, _content: Arc::clone(content) }));
        Ok(Array { element: column.element()?, rows: rows_of(manifest)?, columns: None, memory })
    };
    columns.iter().map(array).collect()
}

/// Memory of another process, with the lock that shows that it is in use.
#[derive(Debug)]
struct Leased {
    // Dropped before the lock.
    memory: Arc<dyn DeviceMemory>,
    _content: Arc<File>,
}

impl DeviceMemory for Leased {
    fn ordinal(&self) -> i32 {
        self.memory.ordinal()
    }

    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn share(&self) -> onehop_pipeline::Result<Shared> {
        self.memory.share()
    }
}
