//! Exports of a database, until they are released.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use super::handle::Handle;
use super::import::{is_expired, open};
use super::manifest::{Column, Manifest, Place, hex};
use super::{FOLDER, Files, MOST, system};
use crate::arrays::{Array, Arrays, Memory};
use crate::{Error, ErrorKind, Result};

/// The age at which other processes may remove an unlocked lease.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// All exports of a database. They end with it.
#[derive(Debug)]
pub(crate) struct Exports {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    exports: Vec<Export>,
    /// Exports that are released, and still open in another process.
    leaving: Vec<Export>,
}

/// An export that other processes may import.
#[derive(Debug)]
struct Export {
    handle: Handle,
    files: Files,
    content: File,
    /// The lease file, which is locked.
    _lease: File,
    /// Arrays of a device, whose memory must stay.
    arrays: Vec<Array>,
    /// The process that created the export. A child of a fork must not release it.
    process: u32,
}

impl Default for Exports {
    fn default() -> Self {
        Self::within(Path::new(FOLDER))
    }
}

impl Exports {
    pub(super) fn within(folder: &Path) -> Self {
        Self { folder: folder.into(), state: Mutex::default() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.leaving.retain(Export::is_open_elsewhere);
        f(&mut state)
    }

    /// Exports the arrays of a table, one for each column, and returns the handle. `device` is the
    /// name and UUID of the device that has them.
    ///
    /// # Errors
    /// Errors of the operating system, such as no space or no folder; errors of the device.
    /// [`ErrorKind::Resources`] if there are too many exports.
    pub fn export(&self, table: &str, arrays: Arrays, device: Option<(String, [u8; 16])>) -> Result<String> {
        if self.with(|state| state.exports.len() + state.leaving.len()) >= MOST {
            return Err(Error::new(
                ErrorKind::Resources,
                format!("there are {MOST} exports, and more are not allowed"),
            )
            .with_hint("SELECT onehop_release('...') ends one"));
        }
        sweep(&self.folder);
        let handle = Handle::new()?;
        let rows = arrays.arrays.first().map_or(0, |array| array.rows as u64);
        let columns = arrays.columns.iter().zip(&arrays.arrays).map(|(name, array)| described(name, array));
        let place = match device {
            Some((name, uuid)) => Place::Device { name, uuid: hex(&uuid) },
            None => Place::Host,
        };
        let mut manifest = Manifest::new(table, rows, &handle.secret, place, columns.collect::<Result<_>>()?);
        let export = Export::make(&self.folder, handle, &mut manifest, arrays.arrays)?;
        let text = export.handle.to_string();
        self.with(|state| state.exports.push(export));
        Ok(text)
    }

    /// Ends an export. Returns whether there was one. Importers keep the arrays that they have.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a string that is not a handle.
    pub fn release(&self, handle: &str) -> Result<bool> {
        let handle = Handle::parse(handle)?;
        self.with(|state| {
            let Some(at) = state.exports.iter().position(|export| export.handle == handle) else { return Ok(false) };
            let export = state.exports.swap_remove(at);
            export.files.remove();
            if export.is_open_elsewhere() {
                state.leaving.push(export);
            }
            Ok(true)
        })
    }
}

/// Removes the files of killed processes. They occupy memory, and no process may ever import them.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("onehop-")?.strip_suffix(".lease"));
        let (Some(id), Ok(lease)) = (id, open(&entry.path())) else { continue };
        // A new lease may not be locked yet.
        let age =
            lease.metadata().and_then(|facts| facts.modified()).map(|modified| modified.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age >= LEFT_ALONE) && is_expired(&lease) {
            Files::of(folder, id).remove();
        }
    }
}

/// Describes a column for the manifest.
fn described(name: &str, array: &Array) -> Result<Column> {
    let shared = match &array.memory {
        Memory::Host(_) => None,
        Memory::Device(memory) => Some(hex(&memory.share()?)),
    };
    Ok(Column { name: name.into(), element: array.element.name().into(), at: None, shared })
}

impl Export {
    fn make(folder: &Path, handle: Handle, manifest: &mut Manifest, arrays: Vec<Array>) -> Result<Self> {
        let files = Files::of(folder, &handle.id);
        let cannot = |e: std::io::Error| system(&format!("cannot export to {}", files.content.display()), e);
        // The lease is created before its content: no process finds the content without a lease.
        let lease = create(&files.lease).map_err(cannot)?;
        let removed = RemovedUnless { files: &files, is_done: false };
        flock(&lease, FlockOperation::NonBlockingLockExclusive).map_err(|e| cannot(e.into()))?;
        let mut content = create(&files.content).map_err(cannot)?;
        write(&mut content, manifest, &arrays).map_err(|e| match e {
            Failure::System(e) => cannot(e).with_hint(format!("{} has to have room for all columns", folder.display())),
            Failure::Engine(e) => e,
        })?;
        // Arrays in host memory have been copied into the content.
        let arrays = arrays.into_iter().filter(|array| matches!(array.memory, Memory::Device(_))).collect();
        removed.done();
        Ok(Self { handle, files, content, _lease: lease, arrays, process: std::process::id() })
    }

    /// Returns whether an importer may still read device memory of this export.
    fn is_open_elsewhere(&self) -> bool {
        // Locking tests this. The lock is released when the file is closed.
        !self.arrays.is_empty() && flock(&self.content, FlockOperation::NonBlockingLockExclusive).is_err()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(std::mem::take(&mut self.arrays));
            return;
        }
        self.files.remove();
        if self.is_open_elsewhere() {
            // Memory that another process reads is not freed while this process lives: there is no
            // way to tell the reader.
            std::mem::forget(std::mem::take(&mut self.arrays));
        }
    }
}

/// Removes the files of an incomplete export.
struct RemovedUnless<'a> {
    files: &'a Files,
    is_done: bool,
}

impl RemovedUnless<'_> {
    fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for RemovedUnless<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.files.remove();
        }
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    // The file is private to this user, and not a link.
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

enum Failure {
    System(std::io::Error),
    Engine(Error),
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::System(e)
    }
}

fn write(content: &mut File, manifest: &mut Manifest, arrays: &[Array]) -> std::result::Result<(), Failure> {
    let buffers: Vec<&[u8]> = arrays
        .iter()
        .filter_map(|array| match &array.memory {
            Memory::Host(buffer) => buffer.get(..array.bytes()),
            Memory::Device(_) => None,
        })
        .collect();
    let lengths: Vec<u64> = buffers.iter().map(|buffer| buffer.len() as u64).collect();
    let head = manifest.encode(&lengths).map_err(Failure::Engine)?;
    let ends = manifest.columns.iter().zip(&lengths).filter_map(|(column, bytes)| Some(column.at? + bytes));
    let end = ends.max().unwrap_or(0).max(head.len() as u64);
    // Reserves all space at once. A write without space is an error, but a page that is missing
    // later would kill the process.
    fallocate(&*content, FallocateFlags::empty(), 0, end).map_err(std::io::Error::from)?;
    content.write_all(&head)?;
    for (column, buffer) in manifest.columns.iter().zip(buffers) {
        if let Some(at) = column.at {
            content.write_all_at(buffer, at)?;
        }
    }
    Ok(())
}
