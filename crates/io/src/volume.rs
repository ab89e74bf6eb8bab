//! Files by name, and names that survive a power failure.

use std::fmt;
use std::sync::Arc;

use crate::{ReadAt, Result, WriteAt};

/// A directory of files. All methods may be called from many threads.
///
/// The durability contract is POSIX's, stated once: the *bytes* of a file are durable after [`WriteAt::sync`] on it;
/// its *name* (created, renamed or removed) is durable after [`Volume::sync`] on the directory. Neither implies the
/// other. A rename is atomic: after a crash the target is the old file or the new one, whole.
pub trait Volume: Send + Sync + fmt::Debug {
    /// The name to use in messages, a path where there is one.
    fn name(&self) -> &str;

    /// Opens an existing file for reading.
    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>>;

    /// Opens an existing file for reading and writing.
    fn open_for_update(&self, name: &str) -> Result<Arc<dyn WriteAt>>;

    /// Creates a file, or empties an existing one.
    fn create(&self, name: &str) -> Result<Arc<dyn WriteAt>>;

    /// Gives a file another name, replacing whatever had that name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file. Open handles go on reading it.
    fn remove(&self, name: &str) -> Result<()>;

    /// The names of the files here, sorted; folders are left out.
    fn list(&self) -> Result<Vec<String>>;

    /// Makes the names in this directory durable.
    fn sync(&self) -> Result<()>;

    /// The folder `name` in here, made if it is not there.
    fn folder(&self, name: &str) -> Result<Arc<dyn Volume>>;
}
