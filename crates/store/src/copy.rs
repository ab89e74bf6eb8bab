//! Copies of a store, entry by entry in the order of keys: the copy has full pages and no free
//! ones. A store that another process writes to is copied page by page.
//!
//! The copy is written beside its final name and renamed (`rename`) when it is durable and whole: a
//! crash leaves no file at the final name, or a whole one. A file that a crash leaves beside it has
//! a name that ends in `.new-` and digits, and may be deleted.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::backend::Backend;
use crate::flips::{FlipBackend, FlipOptions, Open, copy_live};
use crate::medium::{File, Medium};
use crate::read::ReadTransaction;
use crate::store::Store;
use crate::{Error, Options, Result};

/// The handling of an existing file of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Keep,
    Replace,
}

/// Creates a store at `path` by `fill`ing an empty one beside it.
///
/// # Errors
/// [`Error::Io`] with `AlreadyExists` if the path exists and `existing` is `Keep`; those of `fill`
/// and of the medium.
pub(crate) fn make(
    path: &Path,
    options: &Options,
    existing: Existing,
    fill: impl FnOnce(&Store) -> Result<()>,
) -> Result<()> {
    let name = path.display().to_string();
    make_file(path, existing, |beside| {
        let store = Store::create_in_place(beside, options)?;
        if existing == Existing::Replace {
            // Set before the file has any contents to be read.
            take_after(beside, path).map_err(|e| Error::io("give the permissions of the store to", &name, e))?;
        }
        fill(&store)?;
        store.close()
    })
}

/// Creates a file at `path`: `write` makes a durable file beside it.
fn make_file(path: &Path, existing: Existing, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = path.display().to_string();
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(Error::io("make", &name, Errno::EXIST));
    }
    let beside = beside(path);
    let made = write(&beside);
    let placed = made.and_then(|()| place(&beside, path, existing).map_err(|e| Error::io("make", &name, e)));
    if placed.is_err() {
        // The first error is returned.
        let _ = fs::remove_file(&beside);
    }
    placed
}

/// Returns an unused name beside `path`: the system seeds the standard library's hasher.
fn beside(path: &Path) -> PathBuf {
    let mut name: OsString = path.file_name().unwrap_or_default().into();
    name.push(format!(".new-{}", RandomState::new().hash_one(std::process::id())));
    path.with_file_name(name)
}

/// Gives `copy` the owner and the permissions of `original`.
fn take_after(copy: &Path, original: &Path) -> std::io::Result<()> {
    let original = original.metadata()?;
    let (owner, group) = (original.uid(), original.gid());
    let made = copy.metadata()?;
    if (made.uid(), made.gid()) != (owner, group) {
        // A process without the right to change the owner keeps the copy: its mode is the same.
        let _ = chown(copy, Some(owner), Some(group));
    }
    fs::set_permissions(copy, original.permissions())?;
    fs::File::open(copy)?.sync_all()
}

/// Gives `from` its final name, durably.
fn place(from: &Path, to: &Path, existing: Existing) -> std::io::Result<()> {
    match existing {
        Existing::Replace => fs::rename(from, to)?,
        Existing::Keep => match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The file system does not support the flag. A hard link does not replace a file
            // either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::hard_link(from, to)?;
                fs::remove_file(from)?;
            }
            done => done?,
        },
    }
    let directory = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::File::open(directory)?.sync_all()
}

/// Copies the file at `from` to `to`, while another process writes to it: page by page, as of one
/// commit.
///
/// # Errors
/// [`Error::Io`] with `AlreadyExists` if `to` exists; those of [`copy_live`].
pub(crate) fn live(from: &Path, to: &Path) -> Result<()> {
    make_file(to, Existing::Keep, |beside| {
        let copy = FlipBackend::create(Arc::new(File::create(beside)?), FlipOptions::default())?;
        copy_live(&mut || Ok(Arc::new(File::open_read_only(from)?)), &copy)?;
        copy.close()
    })
}

/// Copies the store that `open` opens to `to`, which is empty, while other processes write to it.
///
/// # Errors
/// Those of [`copy_live`].
pub(crate) fn live_on(open: Open<'_>, to: Arc<dyn Medium>) -> Result<()> {
    let copy = FlipBackend::create(to, FlipOptions::default())?;
    copy_live(open, &copy)?;
    copy.close()
}

/// Copies everything that `from` sees into an empty store, in one transaction.
pub(crate) fn copy(from: &ReadTransaction, to: &Store) -> Result<()> {
    let transaction = to.write()?;
    for name in from.trees()? {
        let mut tree = transaction.tree(&name)?;
        let source = from.tree(&name)?;
        let mut entries = source.iter();
        while let Some((key, value)) = entries.next_ref()? {
            tree.insert(key, value)?;
        }
    }
    transaction.commit()
}
