//! Arrays for other processes of the same machine and user: a handle, by which they are found where they are.
//!
//! ```text
//! handle    onehop-1:ID:SECRET:CHECKSUM                                                     text, for whoever may have them
//! lease     /dev/shm/onehop-ID.lease    locked by the exporter while it lives               (flock, exclusive)
//! content   /dev/shm/onehop-ID          manifest: schema, layout, device, secret            (flock, shared, by each importer)
//!                                       arrays in host memory behind it; those of a device as handles of its driver's
//! ```
//! - An export lasts until it is released, or its database is closed, or its process ends, however it does: the system takes the
//!   lock away. Whoever finds it unlocked says that it is gone, and removes what was left behind; so does the next export.
//! - The handle says nothing but where and by what right. What the arrays are is in the content, which only the same user can
//!   read, so that no handle can be made up that leads anywhere else.
//! - Memory of the host stays as long as an importer has it mapped, whatever becomes of the exporter. Memory of a device must be
//!   there as long as it is open elsewhere, which the importers' locks tell: it is let go when there are none.
//! - Importers map it read-only, and look at every number before they use it. A file that somebody of the same user cuts short
//!   after that is not guarded against.

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

/// Where exports are: memory that has names.
const FOLDER: &str = "/dev/shm";

/// Exports of a database, at most: each is two open files, and memory that stays.
const MOST: usize = 256;

/// What the system refused.
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

    /// Takes both away, the lease first: who has found it by then finds nothing behind it.
    fn remove(&self) {
        // What is gone is gone.
        let _ = std::fs::remove_file(&self.lease);
        let _ = std::fs::remove_file(&self.content);
    }
}
