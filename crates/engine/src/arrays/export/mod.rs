//! Arrays for other processes of the same machine and user. A process finds an array by its handle
//! and maps it without a copy.
//!
//! ```text
//! handle   onehop-1:ID:SECRET:CHECKSUM   a string, for processes that may have the arrays
//! lease    /dev/shm/onehop-ID.lease      (exclusive flock) locked by the exporter while it lives
//! content  /dev/shm/onehop-ID            (shared flock, by each importer) manifest: schema,
//!                                        layout, device, secret; then arrays in host memory, or
//!                                        handles of the driver for device arrays
//! ```
//! - An export lasts until it is released, its database is closed, or its process ends. The
//!   operating system drops the lock at any kind of process end. An importer that finds the lease
//!   unlocked reports the export as gone and removes its files. The next export removes them as
//!   well.
//! - The handle contains only an id and a secret. The content describes the arrays. Only the same
//!   user can read it, so that no forged handle leads anywhere else.
//! - Host memory stays as long as an importer has it mapped, even if the exporter ends. Device
//!   memory must stay as long as another process has it open. The importers' locks show this: the
//!   exporter frees the memory when there are none.
//! - Importers map the content read-only, and check every number before they use it. They are not
//!   protected from a process of the same user that truncates the file later.

mod exports;
mod handle;
mod import;
mod manifest;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::io::{self, ErrorKind as IoErrorKind};
use std::path::{Path, PathBuf};

pub(crate) use self::exports::Exports;
pub(crate) use self::handle::Handle;
pub use self::import::import;
use crate::{Error, ErrorKind};

/// The folder of exports, a file system in memory.
const FOLDER: &str = "/dev/shm";

/// The maximum number of exports of a database. Each has two open files, and memory that stays.
const MOST: usize = 256;

/// Converts an error of the operating system.
fn system(attempt: &str, e: io::Error) -> Error {
    let kind = match e.kind() {
        IoErrorKind::StorageFull | IoErrorKind::OutOfMemory | IoErrorKind::QuotaExceeded => ErrorKind::Resources,
        IoErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{attempt}: {e}")).with_source(e)
}

/// The files of an export.
#[derive(Clone, Debug)]
struct Files {
    content: PathBuf,
    lease: PathBuf,
}

impl Files {
    fn of(folder: &Path, id: &str) -> Self {
        Self { content: folder.join(format!("onehop-{id}")), lease: folder.join(format!("onehop-{id}.lease")) }
    }

    /// Removes both files, the lease first: a process that has already found the lease then finds
    /// no content.
    fn remove(&self) {
        // A file that is already gone needs no removal.
        let _ = std::fs::remove_file(&self.lease);
        let _ = std::fs::remove_file(&self.content);
    }
}
